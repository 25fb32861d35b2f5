#!/usr/bin/env python3
"""What a call from Python costs where there is next to nothing to compute: 1x7x7 tokens, 1 head, dim 32, window 3x3,
f32, one thread. In one run: nhood from numpy and from torch, each as calls come again (nhood_quick) and the long way,
what parts of a call take alone, a plain C loop through ctypes (plain_loop.c), and torch's attention over the same 49
tokens.

Lines take turns of some calls each, short enough that some turns are not interrupted: the fastest is near what a quiet
machine gives even where others keep it busy, and the median says how busy it was. The loop around a line is in each.
On CUDA a line is what the CPU does until the call returns. Needs the package: installed, or PYTHONPATH=bindings/python
in a source tree that is built. Without torch its lines are left out, without a C compiler the loop.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Callable

import nhood
import numpy as np
from cpu_peers import PlainProblem, compile_plain_loop
from nhood import _arrays, _library, _plans, _quick
from nhood._operations import FORWARD

SHAPE = (1, 7, 7, 1, 32)
WINDOW = 3
CALLS = 20  # of a turn
Lines = dict[str, Callable[[], Any]]


@contextlib.contextmanager
def long_way() -> Iterator[None]:
    """Nothing is remembered."""
    quick = _quick.call
    _quick.call = _quick.no_call
    try:
        yield
    finally:
        _quick.call = quick


def the_long_way(call: Callable[[], Any]) -> Callable[[], Any]:
    """The loop of a turn changes to the long way and back; see `time_of`."""

    def long() -> Any:
        return call()

    setattr(long, "surrounding", long_way)
    return long


def numpy_lines(query: np.ndarray, key: np.ndarray, value: np.ndarray, out: np.ndarray) -> Lines:
    def call() -> np.ndarray:
        return nhood.na2d(query, key, value, WINDOW)

    return {
        "nhood.na2d, numpy": call,
        "· the long way": the_long_way(call),
        "· a result array": lambda: np.empty(SHAPE, np.float32),
        "· nhood_plan_execute through ctypes": execution(query, key, value, out),
        "· an empty call through ctypes": lambda version=_library.lib.nhood_version: version(),
    }


def execution(*arrays: np.ndarray) -> Callable[[], int]:
    """The C call alone, of query, key, value and out."""
    axes = [(number,) * 2 for number in (WINDOW, 1, 1, False)]
    request = _plans.Request(FORWARD, *axes, None, 0, (True, False))
    layouts = [(array.shape, array.strides, _library.DTYPE_F32) for array in arrays[:3]]
    plan = _plans.find_plan(_plans.current_context(), _plans.CPU, request, (*layouts, None, None, None))
    scratch = _plans._Scratch()
    scratch.reserve(plan.workspace_bytes)
    for slot, array in zip(plan.slots, arrays):
        scratch.data[slot] = _arrays.address_of_numpy(array)
    execute, handle, reference = _library.lib.nhood_plan_execute, plan.handle, scratch.reference
    _library.check(execute(handle, reference))
    memory = (plan, scratch, arrays)  # kept alive with the function
    return lambda memory=memory: execute(handle, reference)


def plain_lines(folder: str, query: np.ndarray, key: np.ndarray, value: np.ndarray, out: np.ndarray) -> Lines:
    """The loop with its arguments ready for C, but for a new result, as nhood makes one."""
    library = compile_plain_loop(folder)
    if library is None:
        return {}
    problem = PlainProblem(1, 1, SHAPE[-1], scale=SHAPE[-1] ** -0.5)
    problem.length[:], problem.window[:], problem.dilation[:] = SHAPE[1:3], (WINDOW, WINDOW), (1, 1)
    lse, weights = np.empty(SHAPE[:-1], np.float32), np.empty(WINDOW**2, np.float32)
    inputs = [ctypes.c_void_p(array.ctypes.data) for array in (query, key, value)]
    rest = [ctypes.c_void_p(array.ctypes.data) for array in (lse, weights)]
    reference, first, end, address = ctypes.byref(problem), ctypes.c_int64(0), ctypes.c_int64(1), ctypes.c_void_p

    def call(forward: Any = library.plain_forward, memory: Any = (problem, query, key, value, lse, weights)) -> Any:
        result = np.empty(SHAPE, np.float32)
        forward(reference, *inputs, address(_arrays.address_of_numpy(result)), *rest, first, end)
        return result

    np.testing.assert_allclose(call(), nhood.na2d(query, key, value, WINDOW), rtol=1e-4, atol=1e-5)
    return {"a plain C loop through ctypes": call}


def torch_lines(device: str) -> Lines:
    import nhood.torch as nhood_torch
    import torch
    from nhood.torch import _dispatch

    torch.set_num_threads(1)
    query, key, value = torch.randn(3, *SHAPE, device=device).unbind()
    trained = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    sequences = [tensor.reshape(1, 1, -1, SHAPE[-1]) for tensor in (query, key, value)]
    tokens = sequences[0].shape[2]
    mask = torch.ones(tokens, tokens, dtype=torch.bool, device=device)
    attention = torch.nn.functional.scaled_dot_product_attention

    def call() -> torch.Tensor:
        return nhood_torch.na2d(query, key, value, WINDOW)

    def call_with_gradients() -> torch.Tensor:
        return nhood_torch.na2d(*trained, WINDOW)

    return {
        f"nhood.torch.na2d, {device}": call,
        f"· the long way, {device}": the_long_way(call),
        f"· nothing but inference or not, {device}": _dispatch.only_inference_here,
        f"· a result tensor, {device}": lambda: query.new_empty(SHAPE),
        f"nhood.torch.na2d, gradients to come, {device}": call_with_gradients,
        f"· the long way, gradients to come, {device}": the_long_way(call_with_gradients),
        f"torch attention with a mask, {device}": lambda: attention(*sequences, attn_mask=mask),
        f"torch attention over all tokens, {device}": lambda: attention(*sequences),
    }


def devices_of_torch() -> list[str]:
    try:
        import torch
    except ImportError:
        return []
    return ["cpu"] + ["cuda"] * torch.cuda.is_available()


def time_of(line: Callable[[], Any]) -> float:
    """µs of a call, in one turn."""
    with getattr(line, "surrounding", contextlib.nullcontext)():
        line()
        start = time.perf_counter()
        for _ in range(CALLS):
            line()
        return (time.perf_counter() - start) / CALLS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1000, help="per line of the table (default 1000)")
    parser.add_argument("--limit", type=float, metavar="US", help="fail if the fastest call from numpy takes longer, in µs")
    options = parser.parse_args()
    nhood.configure(threads=1)
    arrays = np.random.default_rng(1).standard_normal((4, *SHAPE), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        lines = {**numpy_lines(*arrays), **plain_lines(folder, *arrays)}
        for device in devices_of_torch():
            lines.update(torch_lines(device))
        times: dict[str, list[float]] = {name: [] for name in lines}
        for _ in range(options.turns):
            for name, line in lines.items():
                times[name].append(time_of(line))
    module = "with" if _quick.call is not _quick.no_call else "without"
    print(f"nhood {nhood.version()}, {nhood.devices()[0].description}, {module} nhood_quick, numpy {np.__version__}\n")
    print("| µs | fastest turn | median |\n|---|---|---|")
    for name, samples in times.items():
        print(f"| {name} | {min(samples):.2f} | {statistics.median(samples):.2f} |")
    fastest = min(times["nhood.na2d, numpy"])
    if options.limit and fastest > options.limit:
        raise SystemExit(f"a call takes {fastest:.2f} µs, more than {options.limit}")


if __name__ == "__main__":
    main()
