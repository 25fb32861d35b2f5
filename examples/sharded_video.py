"""Attention over a video that many processes share, and what sharing it gains.

    torchrun --nproc-per-node 4 examples/sharded_video.py
    torchrun --nproc-per-node 4 examples/sharded_video.py --problem 30x48x80 --window 18x24x24 --heads 24 --dim 128 --axis W
    torchrun --nproc-per-node 4 examples/sharded_video.py --mesh 2x2 --axis HW --backward

On GPUs one each, by NCCL, else on the CPU by gloo, for which the size without options is: a second or two. Every process makes its own part of a random video; with --check, which
needs the whole of it in one place, process 0 computes all alone, too, and all compare. Prints the strategies that were weighed,
and time of one process / (processes * time of all).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from typing import Any, Callable

START = "torchrun --nproc-per-node 2 examples/sharded_video.py"
if "WORLD_SIZE" not in os.environ and not {"-h", "--help"} & set(sys.argv):
    sys.exit(f"sharded_video.py: its processes are started together, by torchrun: {START}")
try:
    import nhood.torch
    import torch
    import torch.distributed as dist
    from nhood.torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
except ImportError as error:
    sys.exit(f"sharded_video.py: {error}. It needs torch, and nhood: installed, or PYTHONPATH=bindings/python in a built source tree")


def extents(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("x"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problem", type=extents, default=(6, 24, 32), help="frames x height x width")
    parser.add_argument("--window", type=extents, default=(3, 7, 7))
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dim", type=int, default=32, help="of a head")
    parser.add_argument("--axis", default="W", help="one or several of T, H and W, one for each number of --mesh")
    parser.add_argument("--mesh", type=extents, help="processes along each of them (all along one)")
    parser.add_argument("--strategy", default="auto", help="auto, halo, heads or gather")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--check", action="store_true", help="compare with one process")
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def refuse(reason: str) -> None:
    """Ends all processes, the first of which says why."""
    if os.environ["RANK"] == "0":
        print(f"sharded_video.py: {reason}", file=sys.stderr, flush=True)
    sys.exit(2)


def check(args: argparse.Namespace, processes: int) -> None:
    """What cannot run ends before anything has been computed."""
    mesh = args.mesh or (processes,)
    if len(args.problem) != 3 or len(args.window) != 3:
        refuse("--problem and --window are frames x height x width, such as 6x24x32 and 3x7x7")
    if len(set(args.axis)) != len(args.axis) or not set(args.axis) <= set("THW"):
        refuse(f"--axis = '{args.axis}' is not one or several of T, H and W")
    if len(mesh) != len(args.axis) or math.prod(mesh) != processes:
        sizes = "x".join(map(str, mesh))
        refuse(f"--mesh {sizes} has not a number for each of --axis {args.axis}, with {processes} (processes) as their product")
    for name, count in zip(args.axis, mesh):
        axis = "THW".index(name)
        if args.problem[axis] < count:
            refuse(f"{args.problem[axis]} tokens along {name} are too few for {count} processes")
    for name, window, length in zip("THW", args.window, args.problem):
        if not 1 <= window <= length:
            refuse(f"the window along {name}, {window}, is not in [1, {length}], the tokens along it")


def seconds(run: Callable[[], Any], repeats: int, cuda: bool) -> float:
    """The median of the slowest process."""
    found = []
    for _ in range(repeats + 1):
        dist.barrier()
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if cuda:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    mine = torch.tensor([sorted(found[1:])[repeats // 2]], device="cuda" if cuda else "cpu")
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return float(mine)


def main() -> None:
    args = arguments()
    check(args, int(os.environ["WORLD_SIZE"]))
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dtype = torch.bfloat16 if cuda else torch.float32
    if cuda:
        torch.cuda.set_device(device)
    processes = int(os.environ["WORLD_SIZE"])
    products = 4e-12 * math.prod((*args.problem, *args.window, args.heads, args.dim))
    if not cuda and products > 0.1 and os.environ["RANK"] == "0":
        print(f"on CPUs, {products:.3g} TFLOP a call; without --problem, --window, --heads and --dim it takes a moment", file=sys.stderr)
    names = tuple(args.axis)
    mesh = init_device_mesh(device.type, args.mesh or (processes,), mesh_dim_names=names)
    axes = tuple(name if name in names else None for name in "THW")
    torch.manual_seed(0)
    video = [torch.randn(1, *args.problem, args.heads, args.dim, dtype=dtype, device=device) for _ in range(3)]

    def mine(tensor: torch.Tensor) -> torch.Tensor:
        for axis, name in enumerate(axes):
            if name is not None:
                tensor = tensor.chunk(mesh.size(names.index(name)), 1 + axis)[mesh.get_local_rank(name)]
        return tensor.clone(memory_format=torch.contiguous_format)

    local = [mine(tensor).requires_grad_(args.backward) for tensor in video]
    sharding = distributed.Sharding(mesh, axes, grid=args.problem, strategy=args.strategy)

    def sharded() -> torch.Tensor:
        out = distributed.neighborhood_attention(*local, args.window, **sharding._asdict())
        if args.backward:
            torch.autograd.backward(out, torch.ones_like(out))
        return out

    def alone() -> torch.Tensor:
        whole = [tensor.requires_grad_(args.backward) for tensor in video]
        out = nhood.torch.na3d(*whole, args.window)
        if args.backward:
            torch.autograd.backward(out, torch.ones_like(out))
        return out

    choices = distributed.explain(*local, args.window, sharding)
    together = seconds(sharded, args.repeats, cuda)
    one = seconds(alone, args.repeats, cuda)  # all at the same time, each on its own GPU (on the CPU they share it)
    error = (sharded().detach().float() - mine(alone().detach()).float()).abs().max() if args.check else None
    if dist.get_rank() == 0:
        for choice in choices:
            print(f"{choice.strategy:8}{choice.seconds * 1e3:10.3f} ms expected: {choice.reason}")
        where = "GPUs" if cuda else "CPUs"
        print(f"{processes} processes on {where} {together * 1e3:.3f} ms, one {one * 1e3:.3f} ms: {one / together / processes:.3f}")
        if error is not None:
            print(f"largest difference from one process: {float(error):.3g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
