#!/usr/bin/env python3
"""Images per second of the papers' models, and the time of training steps, by every way to get the attention.

    nhood     nhood.torch, the library choosing its kernels
    naive     nhood held to its simplest kernels (CUDA)
    unfused   nhood's operators: logits, torch's softmax, weighted sum
    gather    plain torch: every window gathered in memory
    flex      torch's FlexAttention, compiled, with a block mask (CUDA)
    none      values passed on: what the rest of the model takes, and so the share of time spent in attention

These are the rows of Tables 5 to 8 in Hassani, Hwu, Shi, "Faster Neighborhood Attention" (2024), for the machine
at hand. Each way is first compared, per distinct attention of the models, with `gather` in f32; one that differs
or cannot do it is left out, with the reason. Then all take turns; times are medians over turns. Training steps
are forward, loss, backward and AdamW, under autocast for f16 and bf16. f32 is full f32 for all, unless --tf32.
Compiling, most of all FlexAttention, takes longer than running: with --jobs, so many processes do it ahead.
Launching small kernels may take longer than they do, most of all on a busy CPU: --graphs leaves it out.

    bench/gpu/models.py --models paper --dtypes f16 f32 --bias with without --output build/bench/models

adds each case to models.jsonl when it is done and writes of all that are there models.md and, with matplotlib,
models.png. --resume leaves out what models.jsonl has already. Needs torch and the package nhood: installed, or
PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

import nhood
import torch
from attention_ways import WAYS
from model_cases import DTYPES, Case, measure
from model_compiling import compile_ahead, set_precision
from nhood import models

sys.path[:0] = map(str, Path(__file__).parents[1].iterdir())  # modules of all folders of bench
import model_report  # noqa: E402

PAPER = """
    nat_mini dinat_mini dinat_s_tiny nat_tiny dinat_tiny dinat_s_small nat_small dinat_small dinat_s_base
    nat_base dinat_base dinat_s_large dinat_large dinat_s_large_384 dinat_large_384_11x11
    stylenat_ffhq_256 stylenat_ffhq_1024
""".split()
STYLENAT_BATCH = 8  # at most: its images are larger


def machine(device: str) -> str:
    name = platform.processor() or platform.machine()
    if device != "cpu":
        name = torch.cuda.get_device_name()
    return f"{name}, torch {torch.__version__}, nhood {nhood.__version__}"


def make_cases(arguments: argparse.Namespace) -> list[Case]:
    cases = []
    for training in (False, True) if arguments.train == "both" else (arguments.train == "only",):
        for dtype in arguments.dtypes:
            for bias in arguments.bias:
                for model in arguments.models:
                    generator = model.startswith("stylenat")
                    if generator and training:
                        continue  # its loss is that of a discriminator
                    batch = min(arguments.batch, STYLENAT_BATCH) if generator else arguments.batch
                    cases.append(Case(model, dtype, bias == "with", training, batch))
    return cases


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models",
        nargs="+",
        default=["nat_mini", "dinat_mini"],
        help="names, or paper: all its rows (default nat_mini dinat_mini)",
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="(default: all)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["f32"], help="(default f32)")
    parser.add_argument(
        "--bias", nargs="+", choices=("with", "without"), default=["with"], help="relative bias (default with)"
    )
    parser.add_argument(
        "--train", choices=("no", "both", "only"), default="no", help="training steps, too or only (default no)"
    )
    parser.add_argument("--batch", type=int, default=128, help="images (default 128)")
    parser.add_argument("--turns", type=int, default=5, help="per way (default 5)")
    parser.add_argument("--seconds", type=float, default=0.3, help="per way and turn (default 0.3)")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile ahead (default 1)")
    parser.add_argument("--tf32", action="store_true", help="f32 products may run as TF32, in all ways")
    parser.add_argument("--graphs", action="store_true", help="time CUDA graphs: what the device takes, without launching")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="(default: cuda where there is one)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench/models"), help="a folder (default build/bench/models)"
    )
    parser.add_argument("--resume", action="store_true", help="keep what the folder has")
    arguments = parser.parse_args()
    if arguments.graphs and arguments.device == "cpu":
        parser.error("--graphs: CUDA graphs need a CUDA device, not --device cpu")
    if arguments.models == ["paper"]:
        arguments.models = PAPER
    for name in arguments.models:
        if name not in models.names():
            parser.error(f"--models: {name} is not one of {', '.join(models.names())}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    path = arguments.output / "models.jsonl"
    arguments.output.mkdir(parents=True, exist_ok=True)
    if not arguments.resume:
        path.unlink(missing_ok=True)
    settings = {case.setting for case in model_report.load(path)[0]}
    cases = [case for case in make_cases(arguments) if case.setting not in settings]
    if arguments.jobs > 1:
        start = time.perf_counter()
        compile_ahead(cases, arguments.ways, arguments.jobs, arguments.tf32, arguments.device)
        print(f"compiled ahead in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    set_precision(arguments.tf32)
    ways = [WAYS[name] for name in arguments.ways]
    for i, case in enumerate(cases, 1):
        measure(case, ways, arguments.turns, arguments.seconds, arguments.device, arguments.graphs)
        print(f"{i}/{len(cases)} {model_report.row(case, model_report.ways_of([case]))}", file=sys.stderr, flush=True)
        model_report.append(case, machine(arguments.device) + ", CUDA graphs" * arguments.graphs, path)
    model_report.write(path)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
