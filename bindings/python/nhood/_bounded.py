"""Groups whose members' lengths are data within a bound: plans that serve any lengths, which lie beside the arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple, Optional

from . import _library as c
from . import _words
from ._groups import Asked, _outputs, _present, _sizes, _steps, blank_problem
from ._layouts import Layout
from ._operations import dtype_of
from ._plans import Context, Outputs, PlanOwner, cached, give_back, int_in, take_scratch


class Bounded(NamedTuple):
    """What all samples share."""

    longest: tuple[int, ...]
    """per axis"""
    window: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    causal: tuple[bool, ...]


class BoundedPlan(NamedTuple):
    owner: PlanOwner
    workspace_bytes: int
    tokens: int
    outputs: Outputs
    slots: tuple[int, ...]
    """where the pointers of the inputs, then of the outputs, go: of those that are there"""


class Lengths(NamedTuple):
    """An array [samples, axes] of lengths."""

    address: int
    count: int
    item_bytes: int


def _problem(asked: Asked, of: Bounded, dtype: int, sizes: dict[str, int]) -> c.Problem:
    problem = blank_problem(asked, dtype, len(of.longest))
    problem.heads, problem.kv_heads, problem.dim, problem.dim_v = (sizes[letter] for letter in "HKDV")
    for i, values in enumerate(zip(*of)):
        axis = problem.axis[i]
        names = ("bound", "kernel_size", "stride", "dilation")
        length, window, stride, dilation = (int_in(value, f"{name}[{i}]", 63) for name, value in zip(names, values))
        if length < 1:
            raise ValueError(f"bound[{i}] = {length} is less than 1")
        axis.length, axis.window, axis.stride, axis.dilation, axis.causal = length, window, stride, dilation, values[4]
    return problem


def _create(asked: Asked, of: Bounded, layouts: Sequence[Optional[Layout]]) -> tuple[c.Problem, dict[str, int], Outputs]:
    dtype, sizes = dtype_of(asked.operation, layouts), _sizes(asked.operation, layouts)
    if sizes["X0"] != sizes["Y0"]:
        raise ValueError(f"query has {sizes['X0']} tokens, key has {sizes['Y0']}: with a bound they are the same ones")
    problem = _problem(asked, of, dtype, sizes)
    outputs = _outputs(asked, dtype, sizes, 1)
    for tensor, layout in _present(asked, layouts, outputs):
        steps = _steps(tensor, layout, tensor.shape[-1] in "DV")
        strides, step = problem.strides[tensor.slot], steps[1]
        for axis in reversed(range(len(of.longest))):
            strides.axis[axis] = step
            step *= of.longest[axis]
        strides.head, strides.batch = steps[2], step
    if c.lib.nhood_problem_cost(problem, None, None):
        raise ValueError(_words.of_member(c.last_error()))
    return problem, sizes, outputs


def check(asked: Asked, of: Bounded, layouts: Sequence[Optional[Layout]]) -> None:
    """Raises what bounded_plan would, but for want of a solver."""
    _create(asked, of, layouts)


@cached
def bounded_plan(
    context: Context, device: int, asked: Asked, of: Bounded, members: int, layouts: tuple[Optional[Layout], ...]
) -> BoundedPlan:
    """The plan of any so many samples on packed arrays of these layouts."""
    problem, sizes, outputs = _create(asked, of, layouts)
    tokens, owner = sizes["X0"], PlanOwner()
    bound = c.Bound(struct_size=ctypes.sizeof(c.Bound), members=members, tokens=tokens)
    options = context.estimating  # what is measured is each size's
    status = c.lib.nhood_plan_create_bounded(context.handle, device, problem, bound, options, ctypes.byref(owner.handle))
    if status:
        raise c.error(status, _words.of_options(_words.of_member(c.last_error())))
    slots = tuple(of.slot for of, _ in _present(asked, layouts, outputs))
    return BoundedPlan(owner, c.lib.nhood_plan_workspace_bytes(owner.handle), tokens, outputs, slots)


def _io(plan: BoundedPlan, addresses: Sequence[int], lengths: Lengths) -> c.GroupIo:
    io = c.GroupIo(struct_size=ctypes.sizeof(c.GroupIo), count=lengths.count)
    io.query_tokens = io.key_tokens = plan.tokens
    io.lengths, io.length_bytes = lengths.address, lengths.item_bytes
    for slot, address in zip(plan.slots, addresses):
        io.data[slot] = address
    return io


def _run(plan: BoundedPlan, io: c.GroupIo) -> None:
    status = c.lib.nhood_plan_execute_group(plan.owner.handle, ctypes.byref(io))
    if status:
        raise c.error(status, _words.of_lengths(c.last_error()))


def execute(plan: BoundedPlan, addresses: Sequence[int], lengths: Lengths) -> None:
    """Runs a plan on the CPU. The addresses are those of the arrays that are there."""
    io, scratch = _io(plan, addresses, lengths), take_scratch()
    try:
        if scratch.io.workspace_bytes < plan.workspace_bytes:
            scratch.reserve(plan.workspace_bytes)
        io.workspace, io.workspace_bytes = scratch.io.workspace, scratch.io.workspace_bytes
        _run(plan, io)
    finally:
        give_back(scratch)


def enqueue(
    plan: BoundedPlan, addresses: Sequence[int], lengths: Lengths, workspace: Optional[int], stream: int
) -> None:
    """Enqueues a plan of a CUDA device."""
    io = _io(plan, addresses, lengths)
    io.workspace, io.workspace_bytes, io.stream = workspace, plan.workspace_bytes, stream
    _run(plan, io)
