#!/usr/bin/env python3
"""Window tables (docs/windows.md) beside what says or does the same.

    bench/gpu/windows.py [--device cpu] [--small] [--json FILE]

- formula: windows by formula, and a table of the same ranges (with a key more on each axis, as it would be computed by the formula
  otherwise), in 1-D, 2-D and 3-D; forward, and forward with gradients. A table is to cost at most 1.10 times the formula.
- upsampling: AnyUp's real shape, queries of 1024 x 1024 over keys of 64 x 64, windows of 15 x 15 keys, 4 heads of 32, values of 384 that
  all heads read; beside it keys and values copied up to the queries' grid with dilated windows, and FlexAttention. Forward.
- blocks: 8 x 8 in 64 x 64, shifted by 4, batch 64, 4 heads of 32; beside it torch's attention over windows that are rolled, cut out,
  masked and pasted back. Forward, and with gradients. A table is to cost at most 1.15 times as much.
- plan: the first call with a new table of a million queries, whose kernels are known, and the memory that the process gains by it.

Ways of a row are timed in turn; times are milliseconds, medians. The largest difference of a way's result from the table's is beside
them. A way that fails says why. No new part begins after --seconds. --small:
small shapes, for trying it. On an H200 it is meant to end within 120 s. Needs the package and torch: installed, or
PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nhood
import nhood.torch as nt
from nhood import Windows
from timing import medians_in_turn

Call = Callable[..., Any]
ATTEND = {1: nt.na1d, 2: nt.na2d, 3: nt.na3d}


def same_as_formula(length: int, window: int) -> Windows:
    """A formula's ranges, with a key behind that no query attends: without it they would be computed by the formula."""
    first = np.clip(np.arange(length) - window // 2, 0, length - window)
    return Windows(np.stack([first, np.full(length, window)], axis=1), length + 1)


def drawn(*shapes: tuple[int, ...], device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]


def with_gradients(call: Call, tensors: list[torch.Tensor]) -> Call:
    def both() -> None:
        out = call(*tensors)
        torch.autograd.grad(out, tensors, torch.ones_like(out))

    return both


def forward(call: Call, tensors: list[torch.Tensor]) -> Call:
    plain = [x.detach() for x in tensors]
    return lambda: call(*plain)


def timed(name: str, ways: dict[str, tuple[Call, list[torch.Tensor]]], turns: int, gradients: bool = True) -> dict[str, Any]:
    row: dict[str, Any] = {"row": name, "failed": {}, "differs by": {}}
    expected = None
    for what, make in (("forward", forward), *((("with gradients", with_gradients),) if gradients else ())):
        calls = {}
        for way, (call, tensors) in ways.items():
            made = make(call, tensors)
            try:
                out = made()
            except Exception as error:  # noqa: BLE001  a way that this machine cannot go is no reason to end
                row["failed"][f"{way}, {what}"] = str(error).splitlines()[0][:200]
                continue
            calls[way] = made
            if what == "forward":
                expected = out if expected is None else expected
                row["differs by"][way] = float((out.float() - expected.float()).abs().max())
        row[what] = medians_in_turn(calls, turns) if calls else {}
    return row


def formula_rows(small: bool, device: str, dtype: Any, turns: int) -> list[dict[str, Any]]:
    shapes = [((65536,), (512,)), ((256, 256), (33, 33)), ((256, 256), (7, 7)), ((30, 48, 80), (18, 24, 24)), ((24, 48, 80), (3, 7, 7))]
    if small:
        shapes = [((300,), (33,)), ((20, 24), (7, 7)), ((6, 10, 12), (3, 5, 5))]
    rows = []
    for layout, window in shapes:
        tensors = drawn(*[(1, *layout, 2 if small else 8, 64)] * 3, device=device, dtype=dtype)
        attend = ATTEND[len(layout)]
        table = tuple(same_as_formula(length, size) for length, size in zip(layout, window))
        longer = [torch.nn.functional.pad(x.detach(), (0, 0, 0, 0) + (0, 1) * len(layout)).requires_grad_() for x in tensors[1:]]
        ways = {
            "table": (lambda q, k, v, w=table, f=attend: f(q, k, v, kernel_size=w), [tensors[0], *longer]),
            "formula": (lambda q, k, v, w=window, f=attend: f(q, k, v, kernel_size=w), tensors),
        }
        rows.append(timed(f"formula {'x'.join(map(str, layout))}, windows {'x'.join(map(str, window))}", ways, turns))
    return rows


def flex(fine: int, coarse: int, size: int) -> Call:
    """FlexAttention with the windows of Windows.resampled(fine, coarse, size) on both axes."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention)
    masks: dict[str, Any] = {}

    def mask(batch: Any, head: Any, query: Any, key: Any) -> Any:
        def near(i: Any, j: Any) -> Any:
            first = ((2 * i + 1) * coarse // (2 * fine) - size // 2).clamp(0, coarse - size)
            return (j >= first) & (j < first + size)

        return near(query // fine, key // coarse) & near(query % fine, key % coarse)

    def attend(query: Any, key: Any, value: Any) -> Any:
        place = str(query.device)
        if place not in masks:
            masks[place] = torch.compile(create_block_mask)(mask, None, None, fine * fine, coarse * coarse, device=place)
        rows = [x.flatten(1, 2).transpose(1, 2) for x in (query, key, value)]
        return compiled(*rows, block_mask=masks[place]).transpose(1, 2).unflatten(1, (fine, fine))

    return attend


def upsampling_row(small: bool, device: str, dtype: Any, turns: int) -> dict[str, Any]:
    fine, coarse, size, features = (64, 16, 5, 48) if small else (1024, 64, 15, 384)
    query, key, value = drawn((1, fine, fine, 4, 32), (1, coarse, coarse, 4, 32), (1, coarse, coarse, 1, features), device=device, dtype=dtype)
    windows, times = Windows.resampled(fine, coarse, size), fine // coarse

    def table(q: Any, k: Any, v: Any) -> Any:
        return nt.na2d(q, k, v.expand(-1, -1, -1, 4, -1), kernel_size=(windows, windows))

    def copied(q: Any, k: Any, v: Any) -> Any:
        k, v = (x.repeat_interleave(times, 1).repeat_interleave(times, 2) for x in (k, v))
        return nt.na2d(q, k, v.expand(-1, -1, -1, 4, -1), kernel_size=size, dilation=times)

    other = flex(fine, coarse, size)
    tensors = [query, key, value]
    ways = {
        "table": (table, tensors),
        "copied up": (copied, tensors),
        "FlexAttention": (lambda q, k, v: other(q, k, v.expand(-1, -1, -1, 4, -1)), tensors),
    }
    return timed(f"upsampling {fine}x{fine} over {coarse}x{coarse}, windows {size}x{size}, values of {features}", ways, turns, gradients=False)


def blocks_row(small: bool, device: str, dtype: Any, turns: int) -> dict[str, Any]:
    length, size, shift, batch = (16, 4, 2, 2) if small else (64, 8, 4, 64)
    tensors = drawn(*[(batch, length, length, 4, 32)] * 3, device=device, dtype=dtype)
    count = length // size
    place = torch.arange(length, device=device)
    region = (place >= length - size).long() + (place >= length - shift)  # of a rolled axis
    region = (3 * region[:, None] + region).unflatten(1, (-1, size)).unflatten(0, (-1, size)).transpose(1, 2).flatten(2).flatten(0, 1)
    together = (region[:, None, :, None] == region[:, None, None, :]).repeat(batch, 1, 1, 1)
    blocks = Windows.blocks(length, size, shift=size - shift)

    def part(x: Any) -> Any:  # [blocks, heads, tokens of a block, channels]
        x = x.roll((-shift, -shift), (1, 2)).unflatten(2, (-1, size)).unflatten(1, (-1, size))
        return x.permute(0, 1, 3, 5, 2, 4, 6).flatten(4, 5).flatten(0, 2)

    def cut_out(query: Any, key: Any, value: Any) -> Any:
        out = torch.nn.functional.scaled_dot_product_attention(part(query), part(key), part(value), attn_mask=together)
        out = out.unflatten(0, (-1, count, count)).unflatten(4, (size, size)).permute(0, 1, 4, 2, 5, 3, 6)
        return out.flatten(3, 4).flatten(1, 2).roll((shift, shift), (1, 2))

    def table(query: Any, key: Any, value: Any) -> Any:
        return nt.na2d(query, key, value, kernel_size=(blocks, blocks))

    ways = {"table": (table, tensors), "torch, cut out": (cut_out, tensors)}
    return timed(f"blocks {size}x{size} in {length}x{length}, shift {shift}, batch {batch}", ways, turns)


def plan_row(small: bool, device: str, dtype: Any) -> dict[str, Any]:
    queries = 10_000 if small else 1_000_000
    keys = same_as_formula(queries, 9).keys
    shapes = [(1, length, 1, 32) for length in (queries, keys, keys)]
    tensors = [x.detach() for x in drawn(*shapes, device=device, dtype=dtype)]

    def first_call(window: int) -> tuple[float, float]:
        table = same_as_formula(queries, window)
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        nt.na1d(*tensors, kernel_size=(table,))
        took = time.perf_counter() - start
        if device != "cpu":
            torch.cuda.synchronize()
        start = time.perf_counter()
        nt.na1d(*tensors, kernel_size=(table,))
        if device == "cpu":
            took -= time.perf_counter() - start
        return 1e3 * took, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

    first_call(9)  # makes the kernels
    milliseconds, mebibytes = first_call(9 - 2)
    return {"row": f"plan of {queries} queries", "first call": milliseconds, "MiB": mebibytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default=None, help="bfloat16 on GPUs, float32 on CPUs")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    dtype = getattr(torch, given.dtype or ("float32" if given.device == "cpu" else "bfloat16"))
    where = (given.small, given.device, dtype)
    end, rows = time.monotonic() + given.seconds, []
    parts: list[Callable[[], list[dict[str, Any]]]] = [
        lambda: [blocks_row(*where, given.turns)],
        lambda: formula_rows(*where, given.turns),
        lambda: [plan_row(*where)],
        lambda: [upsampling_row(*where, given.turns)],
    ]
    for part in parts:
        if time.monotonic() < end:
            rows += part()
    for row in rows:
        print(f"\n{row['row']}")
        for what in ("forward", "with gradients"):
            times = row.get(what, {})
            if not times:
                continue
            ratios = [f"table / {way} {times['table'] / ms:.3f}" for way, ms in times.items() if way != "table" and "table" in times]
            print(f"  {what}: " + ", ".join([f"{way} {ms:.4g}" for way, ms in times.items()] + ratios))
        if row.get("differs by"):
            print("  differs by: " + ", ".join(f"{way} {error:.2g}" for way, error in row["differs by"].items()))
        for way, why in row.get("failed", {}).items():
            print(f"  {way}: {why}")
        if "first call" in row:
            print(f"  first call {row['first call']:.3g}, {row['MiB']:.3g} MiB")
    if given.json:
        given.json.write_text(json.dumps({"version": nhood.__version__, "device": given.device, "dtype": str(dtype), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
