#!/usr/bin/env python3
"""Groups: samples of different sizes, and windows by sets of heads, in one call (docs/groups.md).

    bench/gpu/groups.py [--device cpu] [--small | --full] [--json FILE]

Each row times, in turn within one run, a group, the loop of calls that it replaces, and one problem of as many tokens with the same
window (or, for sets of heads, the windows alone); on CUDA also samples whose lengths are data within a bound; forward, and forward
with gradients. With CUDA all of them also as replayed CUDA graphs. The plans of the group are made before; what making one costs is
timed for a fresh set of sizes, forward and backward. --small: a few samples, for trying it; --full: 8 clips and 64 recordings, whose
kernels take minutes to compile, instead of 3 and 12. Kernels of all samples are compiled at a time, on all cores, before anything is
timed. Times are milliseconds.

Needs the package and torch: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import nhood
import nhood.torch as nt
from timing import medians_in_turn, plans_of_groups_timed

Call = Callable[..., Any]


def images(count: int) -> list[tuple[int, int]]:
    """From 14 x 14 to 64 x 64, of which no two are equal; 32 of them have some 40,000 tokens."""
    sides = [14 + round(50 * i / max(count - 1, 1)) for i in range(count)]
    return [(side, sides[(7 * i + 3) % count]) if i % 2 else (sides[(7 * i + 3) % count], side) for i, side in enumerate(sides)]


def clips(count: int) -> list[tuple[int, int, int]]:
    """From 8 x 30 x 40 to 16 x 48 x 80."""
    parts = [i / max(count - 1, 1) for i in range(count)]
    return [(round(8 + 8 * p), round(30 + 18 * p), round(40 + 40 * p)) for p in parts]


def recordings(count: int) -> list[tuple[int]]:
    return [(round(500 + 7500 * i / max(count - 1, 1)),) for i in range(count)]


def one_grid(layouts: list[tuple[int, ...]], window: tuple[int, ...]) -> tuple[int, ...]:
    """One grid of about as many tokens, as square as the samples."""
    tokens, rank = sum(torch.tensor(layout).prod().item() for layout in layouts), len(window)
    if rank == 1:
        return (int(tokens),)
    last = [max(layout[axis] for layout in layouts) for axis in range(1, rank)]
    rest = int(torch.tensor(last).prod())
    return (max(window[0], round(tokens / rest)), *last)


def drawn(shape: tuple[int, ...], heads: int, dim: int, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape, heads, dim, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]


def with_gradients(call: Call, tensors: list[torch.Tensor]) -> Call:
    def both() -> None:
        out = call(*tensors)
        torch.autograd.grad(out, tensors, torch.ones_like(out))

    return both


def replayed(call: Call) -> Call:
    """The call as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def timed(name: str, ways: dict[str, tuple[Call, list[torch.Tensor]]], device: str, turns: int) -> dict[str, Any]:
    def forward(call: Call, tensors: list[torch.Tensor]) -> Call:
        plain = [x.detach() for x in tensors]
        return lambda: call(*plain)

    calls = {way: forward(*pair) for way, pair in ways.items()}
    if device != "cpu":
        calls.update({f"{way}, graph": replayed(calls[way]) for way in ways})
    row: dict[str, Any] = {"row": name, "forward": medians_in_turn(calls, turns)}
    both = {way: with_gradients(*pair) for way, pair in ways.items()}
    if device != "cpu":
        both.update({f"{way}, graph": replayed(both[way]) for way in ways})
    row["with gradients"] = medians_in_turn(both, turns)
    return row


def compile_all(calls: list[tuple[Call, list[torch.Tensor]]]) -> None:
    """Calls all once with gradients, in threads: each compiles what its plans need."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda call: with_gradients(*call)(), calls):
            pass


def of_samples(name: str, layouts: list[Any], heads: int, dim: int, window: Any, device: str, dtype: Any, turns: int) -> dict[str, Any]:
    counts = [int(torch.tensor(layout).prod()) for layout in layouts]
    tokens, rank = sum(counts), len(layouts[0])
    attend = {1: nt.na1d, 2: nt.na2d, 3: nt.na3d}[rank]

    def group(query: Any, key: Any, value: Any) -> Any:
        return nt.neighborhood_attention_varlen(query, key, value, window, layouts=layouts)

    def loop(query: Any, key: Any, value: Any) -> Any:
        parts = zip(*[x.split(counts, 1) for x in (query, key, value)])
        out = [attend(*[x.unflatten(1, layout) for x in part], window).flatten(1, rank) for part, layout in zip(parts, layouts)]
        return torch.cat(out, 1)

    def one(query: Any, key: Any, value: Any) -> Any:
        return attend(query, key, value, window)

    lengths, bound = torch.tensor(layouts, device=device), tuple(max(axis) for axis in zip(*layouts))

    def bounded(query: Any, key: Any, value: Any) -> Any:
        return nt.neighborhood_attention_varlen(query, key, value, window, layouts=lengths, bound=bound)

    packed = drawn((1, tokens), heads, dim, device, dtype)
    whole = drawn((1, *one_grid(layouts, window)), heads, dim, device, dtype)
    if device != "cpu":
        alone = [(one, drawn((1, *layout), heads, dim, device, dtype)) for layout in set(layouts)]
        compile_all([(group, packed), (one, whole), (bounded, packed), *alone])
    ways = {"group": (group, packed), "loop": (loop, packed), "one problem": (one, whole)}
    if device != "cpu":
        ways["within a bound"] = (bounded, packed)
    row = timed(name, ways, device, turns)
    row["tokens"], row["samples"] = tokens, len(layouts)
    row["first calls with new sizes"] = first_calls(layouts, heads, dim, window, device, dtype)
    return row


def first_calls(layouts: list[Any], heads: int, dim: int, window: Any, device: str, dtype: Any) -> dict[str, float]:
    """What calls take on the host for sizes that are all new, in the median of some, and what of it is the library's plan: forward and
    backward. The first ones, which may compile kernels, are left out."""
    taken = []
    with plans_of_groups_timed() as on_host:
        for more in range(1, 10):
            others = [tuple(length + more for length in layout) for layout in layouts]
            fresh = drawn((1, sum(int(torch.tensor(layout).prod()) for layout in others)), heads, dim, device, dtype)
            out, *forward = on_host(lambda f=fresh, o=others: nt.neighborhood_attention_varlen(*f, window, layouts=o))  # type: ignore[misc]
            _, *backward = on_host(lambda f=fresh, o=out: torch.autograd.grad(o, f, torch.ones_like(o)))  # type: ignore[misc]
            taken.append([*forward, *backward])
    names = ("forward", "its plan in C", "backward", "plan in C")
    return dict(zip(names, [1e3 * statistics.median(of[3:]) for of in zip(*taken)]))


def of_sets(name: str, batch: int, side: int, heads: int, dim: int, device: str, dtype: Any, turns: int) -> dict[str, Any]:
    half = heads // 2
    tensors = drawn((batch, side, side), heads, dim, device, dtype)

    def group(query: Any, key: Any, value: Any) -> Any:
        return nt.na2d(query, key, value, 7, dilation=[[1, 1], [8, 8]])

    def loop(query: Any, key: Any, value: Any) -> Any:
        out = [
            nt.na2d(*[x[..., first : first + half, :] for x in (query, key, value)], 7, dilation=dilation)
            for first, dilation in ((0, 1), (half, 8))
        ]
        return torch.cat(out, -2)

    ways = {"group": (group, tensors), "loop": (loop, tensors)}
    for dilation in (1, 8):
        ways[f"all heads dilated by {dilation}"] = (lambda q, k, v, d=dilation: nt.na2d(q, k, v, 7, dilation=d), tensors)
    return timed(name, ways, device, turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="bfloat16 on GPUs, float32 on CPUs")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    dtype = getattr(torch, given.dtype or ("float32" if given.device == "cpu" else "bfloat16"))
    device, turns, small = given.device, given.turns, given.small
    where, full = (device, dtype, turns), given.full
    rows = [
        of_samples("images", images(32)[:3] if small else images(32), 2 if small else 12, 64, (7, 7), *where),
        of_samples("clips", [(5, 15, 16), (6, 17, 15)] if small else clips(8 if full else 3), 1 if small else 24, 128, (5, 15, 15), *where),
        of_samples("recordings", [(500,), (300,)] if small else recordings(64 if full else 12), 2 if small else 8, 64, (129,), *where),
        of_sets("sets of heads", 1 if small else 128, 56, 4, 32, *where),
    ]
    for row in rows:
        print(f"\n{row['row']}" + (f": {row['samples']} samples, {row['tokens']} tokens" if "tokens" in row else ""))
        for what in ("forward", "with gradients"):
            times = row[what]
            print(f"  {what}: " + ", ".join(f"{way} {ms:.4g}" for way, ms in times.items()), end="")
            print(f"; group / loop {times['group'] / times['loop']:.3f}")
        if "first calls with new sizes" in row:
            print("  first calls with new sizes, on the host: ", end="")
            print(", ".join(f"{what} {ms:.3g}" for what, ms in row["first calls with new sizes"].items()))
    if given.json:
        given.json.write_text(json.dumps({"version": nhood.__version__, "device": device, "dtype": str(dtype), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
