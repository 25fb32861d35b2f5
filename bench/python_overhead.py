#!/usr/bin/env python3
"""What a call from Python costs on the smallest problem, where there is next to nothing to compute, and on what
the time goes: 1x7x7 tokens, 1 head, dim 32, window 3x3, f32, one thread.

Every line is timed alone, in turns with the others; medians over turns, each the mean of many calls. The
parts do not add up to the whole exactly: the loop around a line, some 30 ns, is in each. If torch is
installed, its attention with a mask is timed too, as what people call otherwise. Needs the package:
installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable

import nhood
import numpy as np
from nhood import _arrays, _functions, _library, _plans

SHAPE = (1, 7, 7, 1, 32)
CALLS = 2000


def parts(query: np.ndarray, key: np.ndarray, value: np.ndarray, out: np.ndarray) -> dict[str, Callable]:
    """What is timed, by name. The caller keeps the arrays alive: some parts know only their addresses."""
    operation = _functions.FORWARD

    def request() -> _plans.Request:
        return _functions._request(operation, 2, 3, 1, 1, False, None, 0, (True, False))

    asked, context, execute = request(), _plans.current_context(), _library.lib.nhood_plan_execute
    read = [_arrays._read_numpy(array, "") for array in (query, key, value)]
    layouts = (*(layout for _, layout, _ in read), None, None, None)
    plan = _plans.find_plan(context, _plans.CPU, asked, layouts)
    addresses = [*(address for address, _, _ in read), None, None, None, out.ctypes.data, None]
    scratch = _plans._Scratch()
    scratch.reserve(plan.workspace_bytes)
    for slot, address in zip(plan.slots, addresses):
        scratch.data[slot] = address
    workspace_bytes = _library.lib.nhood_plan_workspace_bytes
    lines = {
        "nhood.na2d(query, key, value, 3)": lambda: nhood.na2d(query, key, value, 3),
        "· arguments to a request": request,
        "· three arrays to addresses and layouts": lambda: [
            _arrays._read_numpy(array, "") for array in (query, key, value)
        ],
        "· request and layouts to a plan": lambda: _plans.find_plan(context, _plans.CPU, asked, layouts),
        "· a result array": lambda: _arrays._empty_numpy(SHAPE, _library.DTYPE_F32),
        "· io struct and execute": lambda: _plans.execute(plan, addresses),
        "· · of these nhood_plan_execute, through ctypes": lambda: execute(plan.handle, scratch.reference),
        "· · an empty call through ctypes": lambda: workspace_bytes(plan.handle),
        "plan made anew each time": lambda: _plans.find_plan.__wrapped__(context, _plans.CPU, asked, layouts),
    }
    lines.update(torch_lines(query, key, value))
    return lines


def torch_lines(*arrays: np.ndarray) -> dict[str, Callable[[], Any]]:
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(1)
    tensors = [torch.from_numpy(array) for array in arrays]
    sequences = [tensor.reshape(1, 1, 49, 32) for tensor in tensors]
    mask = torch.from_numpy(np.isfinite(logit_mask()))
    attention = torch.nn.functional.scaled_dot_product_attention
    return {
        "nhood.na2d on torch tensors": lambda: nhood.na2d(*tensors, 3),
        "torch attention with a mask": lambda: attention(*sequences, attn_mask=mask),
    }


def logit_mask() -> np.ndarray:
    """0 where a query attends a key, else -infinity, by asking the library."""
    ones = np.ones(SHAPE[:-1] + (1,), np.float32)
    attn = nhood.na2d_qk(ones, ones, 3)[0, ..., 0, :]
    identity = np.eye(49, dtype=np.float32).reshape(1, 7, 7, 1, 49)
    attended = nhood.na2d_av(np.ascontiguousarray(attn[None, ..., None, :]), identity, 3)
    return np.where(attended.reshape(49, 49) > 0, 0, -np.inf)


def print_times(lines: dict[str, Callable[[], Any]], turns: int) -> float:
    """Times the lines in turns and prints a table. The median of the first, in µs."""
    times: dict[str, list[float]] = {name: [] for name in lines}
    for _ in range(turns):
        for name, line in lines.items():
            line()
            start = time.perf_counter()
            for _ in range(CALLS):
                line()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    print("| | median µs | fastest µs |\n|---|---|---|")
    for name, samples in times.items():
        print(f"| {name} | {statistics.median(samples):.2f} | {min(samples):.2f} |")
    return statistics.median(next(iter(times.values())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15, help="per line of the table (default 15)")
    parser.add_argument("--limit", type=float, metavar="US", help="fail if a call takes longer, in µs")
    options = parser.parse_args()
    nhood.configure(threads=1)
    arrays = np.random.default_rng(1).standard_normal((4, *SHAPE), dtype=np.float32)
    lines = parts(*arrays)
    print(f"nhood {nhood.version()}, {nhood.devices()[0].description}, numpy {np.__version__}\n")
    whole = print_times(lines, options.turns)
    if options.limit and whole > options.limit:
        raise SystemExit(f"a call takes {whole:.2f} µs, more than {options.limit}")


if __name__ == "__main__":
    main()
