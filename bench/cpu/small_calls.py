#!/usr/bin/env python3
"""What a call from Python costs where there is next to nothing to compute: 1x7x7 tokens, 1 head, dim 32, window 3x3,
f32, one thread. In one run: nhood from numpy and from torch, each as calls come again (nhood_quick) and the long way,
what parts of a call take alone, a plain C loop through ctypes (plain_loop.c), and torch's attention over the same 49
tokens.

Lines take turns of some calls each, short enough that some turns are not interrupted: the fastest is near what a quiet
machine gives even where others keep it busy, and the median says how busy it was. The loop around a line is in each.
On CUDA a line is what the CPU does until the call returns.

--training times instead what a step of training costs where it waits for the host: on CUDA, if there is a device,
2x14x14 tokens, 4 heads of 32, window 7x7, bf16 (so that torch's attention is its flash kernel), and on the CPU the
problem above. Forward without gradients, forward with, forward and backward, and a layer's step with its parameters'
gradients, each beside torch's dense attention over the same tokens, laid out as that likes it best. A turn on CUDA
ends when the device is done.

--groups times calls of groups (docs/groups.md) in the same way: 32 images of 7 to 14 pixels a side on CUDA and
3 to 10 on the CPU, window 3x3, and two sets of heads, each beside one problem of as many tokens; and calls with sizes that have not been before, of which the
last column is nhood_plan_create_group, with making the members' problems in C.

Needs the package: installed, or PYTHONPATH=bindings/python
in a source tree that is built. Without torch its lines are left out, without a C compiler the loop.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

import nhood
import numpy as np
from cpu_peers import PlainProblem, compile_plain_loop
from nhood import _arrays, _library, _plans, _quick
from nhood._operations import FORWARD

sys.path[:0] = map(str, Path(__file__).parents[1].iterdir())  # modules of all folders of bench

SHAPE = (1, 7, 7, 1, 32)
WINDOW = 3
CALLS = 20  # of a turn
Lines = dict[str, Callable[[], Any]]


@contextlib.contextmanager
def long_way() -> Iterator[None]:
    """Nothing is remembered."""
    call, execute = _quick.call, _quick.execute
    _quick.call = _quick.execute = _quick.no_call
    try:
        yield
    finally:
        _quick.call, _quick.execute = call, execute


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


def training_lines(device: str) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """By rows of the table: the call of nhood, and that of dense attention."""
    import nhood.torch as nhood_torch
    import torch
    from torch import nn

    torch.set_num_threads(1)
    attention = nn.functional.scaled_dot_product_attention
    on_cuda = device == "cuda"
    options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16 if on_cuda else torch.float32}
    shape, window = ((2, 14, 14, 4, 32), 7) if on_cuda else (SHAPE, WINDOW)
    batch, *extents, heads, head_dim = shape
    tokens, dim = extents[0] * extents[1], heads * head_dim

    class DenseAttention(nn.Module):
        """The layer with the same parameters, as layers of dense attention are written."""

        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.proj = nn.Linear(dim, 3 * dim, **options), nn.Linear(dim, dim, **options)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            qkv = self.qkv(x).reshape(batch, tokens, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
            return self.proj(attention(*qkv.unbind(0)).transpose(1, 2).reshape(x.shape))

    def inputs(*shape: int) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], torch.Tensor]:
        plain = torch.randn(3, *shape, **options).unbind()
        return plain, tuple([x.clone().requires_grad_() for x in plain]), torch.randn(shape, **options)

    def train(forward: Callable[[], torch.Tensor], leaves: Any, gradient: torch.Tensor) -> Callable[[], None]:
        leaves = list(leaves)

        def step() -> None:
            for leaf in leaves:
                leaf.grad = None
            forward().backward(gradient)

        return step

    def calls(forward: Callable[..., torch.Tensor], layer: nn.Module, *shape: int) -> list[Callable[[], Any]]:
        plain, trained, gradient = inputs(*shape)
        x, to_layer = torch.randn(2, batch, *extents, dim, **options).unbind()
        return [
            lambda: forward(*plain),
            lambda: forward(*trained),
            train(lambda: forward(*trained), trained, gradient),
            train(lambda: layer(x), layer.parameters(), to_layer),
        ]

    def neighborhood(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return nhood_torch.na2d(query, key, value, window)

    layer = nhood_torch.NeighborhoodAttention2D(dim, heads, window, **options)
    ours = calls(neighborhood, layer, *shape)
    dense = calls(attention, DenseAttention(), batch, heads, tokens, head_dim)
    rows = ("forward without gradients", "forward with gradients", "forward and backward", "step of the layer")
    return dict(zip(rows, zip(ours, dense)))


def times_in_turn(
    rows: Mapping[str, Sequence[Callable[[], Any]]], turns: int, finish: Optional[Callable[[], None]]
) -> dict[str, list[list[float]]]:
    """µs of each call of each row: all calls are timed one after the other, in each turn."""
    times: dict[str, list[list[float]]] = {row: [[] for _ in calls] for row, calls in rows.items()}
    for _ in range(turns):
        for row, calls in rows.items():
            for call, taken in zip(calls, times[row]):
                taken.append(time_of(call, finish))
    return times


def print_heading(device: str) -> None:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else nhood.devices()[0].description
    print(f"nhood {nhood.version()}, {name}, {with_or_without()} nhood_quick, torch {torch.__version__}\n")


def cell(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.1f} ({min(times):.1f})"


def print_training(turns: int) -> None:
    """Times all calls of training in turn; nhood and dense attention next to each other."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = training_lines(device)
    finish = torch.cuda.synchronize if device == "cuda" else None
    times = times_in_turn(rows, turns, finish)
    print_heading(device)
    print("| µs, median (fastest turn) | nhood | dense attention | ratio of medians |\n|---|---|---|---|")
    for row, (ours, dense) in times.items():
        print(f"| {row} | {cell(ours)} | {cell(dense)} | {statistics.median(ours) / statistics.median(dense):.2f} |")


def images(device: str, more: int = 0) -> list[tuple[int, int]]:
    """32 images, of which no two that follow each other are equal."""
    least = 7 if device == "cuda" else 3
    return [(least + (i + more) % 8, least + (5 * i + more // 8) % 8) for i in range(32)]


def group_lines(device: str) -> dict[str, list[Callable[[], Any]]]:
    """By rows of the table: a call without gradients, one with, and forward and backward."""
    import nhood.torch as nhood_torch
    import torch

    torch.set_num_threads(1)
    on_cuda = device == "cuda"
    options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16 if on_cuda else torch.float32}
    heads, dim = (4, 32) if on_cuda else (1, 8)
    layouts = images(device)
    tokens = sum(rows * columns for rows, columns in layouts)

    def calls(forward: Callable[..., torch.Tensor], *shape: int) -> list[Callable[[], Any]]:
        plain = torch.randn(3, *shape, dim, **options).unbind()
        trained = [x.clone().requires_grad_() for x in plain]
        gradient = torch.randn(*shape, dim, **options)
        return [
            lambda: forward(*plain),
            lambda: forward(*trained),
            lambda: torch.autograd.grad(forward(*trained), trained, gradient),
        ]

    def packed(*tensors: torch.Tensor) -> torch.Tensor:
        return nhood_torch.neighborhood_attention_varlen(*tensors, 3, layouts=layouts)

    def one(*tensors: torch.Tensor) -> torch.Tensor:
        return nhood_torch.na2d(*tensors, 3)

    def sets(*tensors: torch.Tensor) -> torch.Tensor:
        return nhood_torch.na2d(*tensors, 3, dilation=[[1, 1], [2, 2]])

    return {
        "32 images": calls(packed, 1, tokens, heads),
        "one problem": calls(one, 1, tokens // 8, 8, heads),
        "two sets of heads": calls(sets, 1, 8, 8, 2),
        "one set": calls(one, 1, 8, 8, 2),
    }


def new_sizes(device: str, turns: int) -> dict[str, list[tuple[float, float]]]:
    """µs of calls whose sizes are new, and of their plans in C, which are made of fewer kernels than there are turns."""
    import nhood.torch as nhood_torch
    import torch
    from timing import plans_of_groups_timed

    times: dict[str, list[tuple[float, float]]] = {"forward with gradients": [], "backward": []}
    options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16 if device == "cuda" else torch.float32}
    heads, dim = (4, 32) if device == "cuda" else (1, 8)
    with plans_of_groups_timed() as on_host:
        for more in range(1, min(turns, 63) + 1):
            layouts = images(device, more)
            tokens = sum(rows * columns for rows, columns in layouts)
            given = [torch.randn(1, tokens, heads, dim, requires_grad=True, **options) for _ in range(3)]
            out, *forward = on_host(lambda: nhood_torch.neighborhood_attention_varlen(*given, 3, layouts=layouts))
            gradient = torch.ones_like(out)
            _, *backward = on_host(lambda: torch.autograd.grad(out, given, gradient))
            for of, (call, plan) in zip(times.values(), (forward, backward)):
                of.append((call * 1e6, plan * 1e6))
    return {row: of[len(of) // 3 :] for row, of in times.items()}  # the first ones may compile kernels


def print_groups(turns: int) -> None:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    finish = torch.cuda.synchronize if device == "cuda" else None
    rows = group_lines(device)
    times = times_in_turn(rows, turns, finish)
    print_heading(device)
    print("| µs, median (fastest turn) | forward | with gradients | forward and backward |\n|---|---|---|---|")
    for row, of_row in times.items():
        print(f"| {row} | {' | '.join(map(cell, of_row))} |")
    print("\n| 32 images of new sizes, µs, median (fastest) | call | without its plan | its plan in C |\n|---|---|---|---|")
    for row, of in new_sizes(device, turns).items():
        columns = [[call for call, _ in of], [call - plan for call, plan in of], [plan for _, plan in of]]
        print(f"| {row} | {' | '.join(map(cell, columns))} |")


def devices_of_torch() -> list[str]:
    try:
        import torch
    except ImportError:
        return []
    return ["cpu"] + ["cuda"] * torch.cuda.is_available()


def time_of(line: Callable[[], Any], finish: Optional[Callable[[], None]] = None) -> float:
    """µs of a call, in one turn. finish: waits for what was queued, before and after."""
    with getattr(line, "surrounding", contextlib.nullcontext)():
        line()
        if finish:
            finish()
        start = time.perf_counter()
        for _ in range(CALLS):
            line()
        if finish:
            finish()
        return (time.perf_counter() - start) / CALLS * 1e6


def with_or_without() -> str:
    return "with" if _quick.call is not _quick.no_call else "without"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1000, help="per line of the table (default 1000)")
    parser.add_argument("--limit", type=float, metavar="US", help="fail if the fastest call from numpy takes longer, in µs")
    parser.add_argument("--training", action="store_true", help="time steps of training beside dense attention instead")
    parser.add_argument("--groups", action="store_true", help="time calls of groups instead")
    options = parser.parse_args()
    nhood.configure(threads=1)
    if options.groups:
        return print_groups(options.turns)
    if options.training:
        return print_training(options.turns)
    arrays = np.random.default_rng(1).standard_normal((4, *SHAPE), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        lines = {**numpy_lines(*arrays), **plain_lines(folder, *arrays)}
        for device in devices_of_torch():
            lines.update(torch_lines(device))
        times: dict[str, list[float]] = {name: [] for name in lines}
        for _ in range(options.turns):
            for name, line in lines.items():
                times[name].append(time_of(line))
    description = nhood.devices()[0].description
    print(f"nhood {nhood.version()}, {description}, {with_or_without()} nhood_quick, numpy {np.__version__}\n")
    print("| µs | fastest turn | median |\n|---|---|---|")
    for name, samples in times.items():
        print(f"| {name} | {min(samples):.2f} | {statistics.median(samples):.2f} |")
    fastest = min(times["nhood.na2d, numpy"])
    if options.limit and fastest > options.limit:
        raise SystemExit(f"a call takes {fastest:.2f} µs, more than {options.limit}")


if __name__ == "__main__":
    main()
