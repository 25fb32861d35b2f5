#!/usr/bin/env python3
"""What a frame of a video costs that arrives alone, against its share of the whole video at once.

    bench/gpu/streaming.py --device cuda                                                         # 30x48x80, window 9x24x24, bf16
    bench/gpu/streaming.py --device cpu --grid 12x16x20 --window 5x7x7 --heads 4 --dim 64 --dtype float32

The share of a frame is that of its keys: frames at the beginning have fewer. Windows of the frames that are timed are full.
On CUDA a period of frames is captured in graphs, which are replayed; on a CPU one thread is timed. Ways and the whole video
are timed in turn.

The ways to keep keys that are compared:
    ring          StreamingNeighborhoodAttention: a ring of the window's frames, read whole, in any order
    twice         the same with every frame written twice, as blocks of several frames need: the window always in order
    merge         a ring of the window's frames as two boxes of keys, in order, and merge_attentions
    periodic      a ring of the window's frames as a periodic axis, whose window that ends at the new frame wraps
    copy          no ring: the frames move up by one for every new one

Needs the package and torch: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any, Callable

import nhood
import nhood.torch as nt
import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor, Tensor], Tensor]


def extents(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")))


class Kept:
    """The last frames in buffers of their own, and how many have come."""

    def __init__(self, window: tuple[int, ...], like: Tensor) -> None:
        self.window, self.tokens = window, 0
        self.key, self.value = (like.new_zeros(1, window[0], *like.shape[2:]) for _ in range(2))
        self.others = like.shape[2:-2]
        self.period = window[0]

    def write(self, key: Tensor, value: Tensor) -> int:
        at = self.tokens % self.window[0]
        self.key[:, at : at + 1].copy_(key)
        self.value[:, at : at + 1].copy_(value)
        self.tokens += 1
        return at


class Merge(Kept):
    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        frames = self.window[0]
        at = self.write(key, value)
        causal = dict(is_causal=(True, False, False), grid=(frames, *self.others), query_offset=(frames - 1, 0, 0))
        results = []
        for low, high, offset in ((at + 1, frames, 0), (0, at + 1, frames - 1 - at)):
            if low < high:
                box = (self.key[:, low:high], self.value[:, low:high])
                results.append(
                    nt.na3d(query, *box, self.window, **causal, key_offset=(offset, 0, 0), return_lse=True)
                )
        return nt.merge_attentions(*zip(*results))[0] if len(results) > 1 else results[0][0]


class Periodic(Kept):
    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        frames = self.window[0]
        at = self.write(key, value)
        return nt.na3d(
            query,
            self.key,
            self.value,
            self.window,
            is_periodic=(True, False, False),
            grid=(frames, *self.others),
            query_offset=((at - (frames - 1 - frames // 2)) % frames, 0, 0),
        )


class Copy(Kept):
    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        for kept, new in ((self.key, key), (self.value, value)):
            for frame in range(self.window[0] - 1):  # from front to back: no frame is overwritten before it has moved
                kept[:, frame].copy_(kept[:, frame + 1])
            kept[:, -1:].copy_(new)
        self.tokens += 1
        frames = self.window[0]
        return nt.na3d(
            query, self.key, self.value, self.window, grid=(frames, *self.others), query_offset=(frames - 1, 0, 0)
        )


def ring(window: tuple[int, ...], like: Tensor, twice: bool = False) -> Any:
    stream = nt.StreamingNeighborhoodAttention(window)
    if twice:
        stream._twice = True  # what a block of 2 would choose
    return stream


WAYS: dict[str, Callable[..., Any]] = {
    "ring": ring,
    "twice": lambda window, like: ring(window, like, twice=True),
    "merge": Merge,
    "periodic": Periodic,
    "copy": Copy,
}


def seconds_of(call: Callable[[], Any], device: str) -> float:
    """What one call takes: the time of the device, or that of the CPU's one thread, which other processes do not lengthen."""
    if device != "cuda":
        start = time.process_time()
        call()
        return time.process_time() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def period_of(step: Any, frame: tuple[Tensor, Tensor, Tensor], device: str) -> Callable[[], None]:
    """A call that takes the frames of a period, from CUDA graphs where there are some."""
    if device != "cuda":
        return lambda: [step(*frame) for _ in range(step.period)] and None
    graphs, pool = [], torch.cuda.graph_pool_handle()
    for _ in range(step.period):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            step(*frame)
        graphs.append(graph)
    return lambda: [graph.replay() for graph in graphs] and None


def steady(name: str, window: tuple[int, ...], video: list[Tensor], expected: Tensor, device: str) -> Any:
    """A way to keep keys with full windows whose plans are made, checked; and the call of a period of it."""
    step = WAYS[name](window, video[0])
    for at in range(video[0].shape[1]):
        out = step(*(x[:, at : at + 1] for x in video))
    # Another solver may serve the whole video: it rounds other sums.
    eps = torch.finfo(out.dtype).eps
    torch.testing.assert_close(out, expected, rtol=2 * eps, atol=2 * eps * float(expected.abs().max()))
    frame = tuple(x[:, -1:].contiguous() for x in video)
    for _ in range(step.period):
        step(*frame)
    return step, period_of(step, frame, device)


@torch.no_grad()
def measure(arguments: argparse.Namespace) -> None:
    grid, window, device = arguments.grid, arguments.window, arguments.device
    shape = (1, *grid, arguments.heads, arguments.dim)
    video = [torch.randn(shape, dtype=getattr(torch, arguments.dtype), device=device) for _ in range(3)]

    def whole() -> Tensor:
        return nt.na3d(*video, window, is_causal=(True, False, False))

    expected = whole()[:, -1:]
    ways = {name: steady(name, window, video, expected, device) for name in arguments.ways}
    calls = {"whole": whole, **{name: call for name, (_, call) in ways.items()}}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(arguments.turns + 1):  # the first one is not counted
        for name, call in calls.items():
            once = seconds_of(call, device)
            if turn:
                times[name].append(once)
    keys = [min(frame + 1, window[0]) for frame in range(grid[0])]
    shares = [seconds * window[0] / sum(keys) for seconds in times.pop("whole")]
    if not arguments.json:
        print(f"{grid} window {window} {arguments.dtype}, {arguments.heads} heads of {arguments.dim} on {device}")
        print(f"share of a frame in the whole video {1e3 * statistics.median(shares):.3f} ms")
    for name, seconds in times.items():
        frame = [once / ways[name][0].period for once in seconds]
        ratio = statistics.median(once / share for once, share in zip(frame, shares))
        if arguments.json:
            found = {"grid": grid, "window": window, "way": name, "ms": 1e3 * statistics.median(frame), "ratio": ratio}
            print(json.dumps(found))
        else:
            print(f"{name:>10}: {1e3 * statistics.median(frame):.3f} ms a frame, {ratio:.3f} times its share")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--grid", type=extents, default=(30, 48, 80), help="frames, rows, columns (default 30x48x80)")
    parser.add_argument("--window", type=extents, default=(9, 24, 24), help="(default 9x24x24)")
    parser.add_argument("--heads", type=int, default=24, help="(default 24)")
    parser.add_argument("--dim", type=int, default=128, help="(default 128)")
    parser.add_argument("--dtype", default="bfloat16", help="(default bfloat16)")
    parser.add_argument(
        "--turns", type=int, default=9, help="of all ways in turn, of which medians are taken (default 9)"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="(default: all)")
    parser.add_argument("--json", action="store_true", help="print an object for each way")
    arguments = parser.parse_args()
    if len(arguments.grid) != 3 or len(arguments.window) != 3 or arguments.window[0] > arguments.grid[0]:
        parser.error("--grid and --window have frames, rows and columns, and --grid as many frames as a window")
    torch.set_num_threads(1)
    nhood.configure(threads=1)
    measure(arguments)


if __name__ == "__main__":
    main()
