#!/usr/bin/env python3
"""Times attention over grids that are sharded over several GPUs beside that of one GPU, all in one run.

    torchrun --nproc-per-node 2 bench/sharded/sharded.py --json sharded.json                   # the problems of docs/distributed.md
    torchrun --nproc-per-node 4 bench/sharded/sharded.py b1h24d128:30x48x80:w18x24x24@1x2x2    # H and W cut in two
    torchrun --nproc-per-node 2 bench/sharded/sharded.py --modes link breakdown graph memory

Problems are texts of the nhood tool without operation and dtype; @ and the number of shards per axis may follow (all processes
along the last axis). Modes:
    table      A training step, forward and backward, of one GPU with the whole grid and of all by every strategy. They take
               turns; a turn is a call that does not count, then some that do, all enqueued one after the other and timed
               together, 30 ms at least: forwards, and then steps. Backward is what a step takes longer. Times are between
               events on the stream, medians; of the sharded ones that of the slowest process, of one GPU the mean over the
               GPUs, which compute the same at the same time. Efficiency is the time of one / (processes * time of all).
               What is computed is compared with the one GPU before anything is timed. The strategy "alone" takes each
               shard for a grid of its own: what computing costs without neighbours.
    link       What neighbours send each other both ways, by the collective that the package takes, and by single messages.
    breakdown  What the stream does in a step by halo, and how long each part takes by itself, without an exchange meanwhile.
    timeline   When each kernel of --calls forwards and a step by halo begins and how long it takes, in every process.
    graph      The forward pass, and the step, captured in CUDA graphs and replayed, by halo.
    memory     The longest sequence (or video: the first axis grows) that a step fits, on one GPU and on all.

By NCCL on GPUs, else on the CPU by gloo, which shows that the program runs and no more. Predictions are those of
nhood.torch.distributed.explain (forward) and of `nhood simulate --gpus`, if the tool is beside the library or on the PATH.
Needs torch and the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # tensors of many sizes fill the memory

import nhood
import torch
import torch.distributed as dist
from sharded_modes import MODES, Run
from sharded_problem import Problem

PROBLEMS = (
    "b1h4d64:121x272x480:w11x11x11",
    "b1h24d128:30x48x80:w18x24x24",
    "b1h16d128:65536:w4096:c1",
    "b1h16d128:1048576:w2048",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=PROBLEMS, metavar="PROBLEM[@SHARDS]")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["table"])
    parser.add_argument("--strategies", nargs="+", default=["halo", "heads", "gather"])
    parser.add_argument("--dtype", choices=("bf16", "f16", "f32"), default="bf16" if torch.cuda.is_available() else "f32")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--calls", type=int, default=2, help="timed forwards, and steps, of a turn, at least")
    parser.add_argument("--seconds", type=float, default=120.0, help="after which no turn is begun but the first two")
    parser.add_argument("--blocks", type=int, default=0, help="multiprocessors of a collective at most; 0: NCCL's choice")
    parser.add_argument("--balanced", action="store_true", help="shards of balanced_sizes, not of equal lengths")
    parser.add_argument("--without-one", action="store_true", help="only the sharded grid: one GPU does not hold the whole")
    parser.add_argument("--json", type=Path, help="where the results go, written after every problem")
    return parser.parse_args()


def environment(device: torch.device) -> dict[str, object]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "CPU",
        "processes": dist.get_world_size(),
        "backend": dist.get_backend(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
        "nccl_environment": {name: value for name, value in os.environ.items() if name.startswith("NCCL_")},
        "torch": torch.__version__,
        "nhood": nhood.__version__,
        "utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def main() -> None:
    begin = time.monotonic()
    args = arguments()
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    timeout = datetime.timedelta(seconds=120)
    if cuda:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=timeout)
    else:
        dist.init_process_group("gloo", timeout=timeout)
    run = Run(args, device, begin + args.seconds)
    results: dict[str, object] = {"environment": environment(device)}
    for mode in args.modes:
        # What a link does is not a matter of problems.
        for text in args.problems if MODES[mode].of_problems else [None]:
            problem = text and Problem.parse(text, args.dtype, dist.get_world_size())
            found = MODES[mode].function(run, problem)
            results.setdefault(mode, []).append(found)  # type: ignore[attr-defined]
            if args.json and dist.get_rank() == 0:
                args.json.write_text(json.dumps(results, indent=1) + "\n")
            run.forget()
    if dist.get_rank() == 0:
        print(f"in {time.monotonic() - begin:.0f} s")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
