"""RMS norm and rotary positions: what is asked for, and its plan in the C library (see nhood_norm_rope.h)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

from . import _library as c
from . import _words
from ._functions import integer, number
from ._layouts import Layout, counted
from ._plans import Context, cached

NORMS = {None: 0, "head": 1, "token": 2}
PAIRS = {"interleaved": 0, "halves": 1}


class Request(NamedTuple):
    """With the layouts of x and, backward, of its result's gradient it is the key of a plan."""

    norm: Optional[str]
    pairs: str
    eps: float
    scale: float
    rotated: tuple[int, ...]
    """channels of a head, by axis"""
    offset: tuple[int, ...]
    weight_dtype: Optional[int]
    """None: there is no weight"""
    unaligned: bool
    """on CUDA, a tensor that begins anywhere"""


class Plan:
    """Released when the last of cache and running calls lets go of it."""

    handle: Optional[ctypes.c_void_p] = None  # of one whose making was interrupted
    workspace_bytes = 0

    def __init__(self, context: Context, device: int, problem: c.NormRopeProblem, shape: Sequence[int]) -> None:
        self.handle = ctypes.c_void_p()
        created = c.lib.nhood_norm_rope_plan_create(context.handle, device, problem, ctypes.byref(self.handle))
        if created:
            raise c.error(created, _words.of_norm_rope(c.last_error(), shape))
        self.workspace_bytes = c.lib.nhood_norm_rope_workspace_bytes(self.handle)

    def __del__(self, _destroy: Callable = c.lib.nhood_norm_rope_plan_destroy) -> None:
        _destroy(self.handle)

    def run(self, workspace: Optional[int], stream: Optional[int], **addresses: Any) -> None:
        """Addresses by the names in nhood_norm_rope_io, that of the tables a sequence."""
        tables = addresses.pop("table")
        io = c.NormRopeIo(struct_size=ctypes.sizeof(c.NormRopeIo), **addresses)
        for axis, table in enumerate(tables):
            io.table[axis] = table
        io.workspace, io.workspace_bytes, io.stream = workspace, self.workspace_bytes, stream
        _words.check_call(c.lib.nhood_norm_rope_execute(self.handle, io))


def _set_strides(strides: c.Strides, layout: Layout, item_bytes: int) -> None:
    batch, *axes, head, _ = (stride // item_bytes for stride in layout[1])
    strides.batch, strides.head = batch, head
    for axis, stride in enumerate(axes):
        strides.axis[axis] = stride


@cached
def find_plan(
    context: Context, device: int, request: Request, x: Layout, d_out: Optional[Layout] = None
) -> Plan:
    """The plan for tensors of these layouts, made if it is not in the cache; backward, if there is a d_out. Results are packed."""
    shape, _, dtype = x
    problem = c.NormRopeProblem()
    operation = c.OP_FWD if d_out is None else c.OP_BWD
    c.lib.nhood_norm_rope_problem_init_sized(problem, ctypes.sizeof(problem), operation, dtype, len(shape) - 3)
    problem.norm, problem.pairs = NORMS[request.norm], PAIRS[request.pairs]
    problem.has_weight, problem.weight_dtype = request.weight_dtype is not None, request.weight_dtype or 0
    problem.flags = c.FLAG_UNALIGNED if request.unaligned else 0
    problem.batch, *lengths, problem.heads, problem.dim = shape
    for axis, length in enumerate(lengths):
        problem.length[axis] = length
        problem.rotated[axis] = request.rotated[axis]
        problem.offset[axis] = request.offset[axis]
    problem.eps, problem.scale = request.eps, request.scale
    _set_strides(problem.x, x, c.DTYPE_BYTES[dtype])
    if d_out is not None:
        _set_strides(problem.d_y, d_out, c.DTYPE_BYTES[dtype])
    return Plan(context, device, problem, shape)


def check_tables(shape: Sequence[int], tables: Sequence[Optional[Sequence[int]]], offset: Sequence[int]) -> tuple[int, ...]:
    """Channels that each axis rotates, from the shape of x and those of the tables. ValueError."""
    rank = len(shape) - 3
    if not 1 <= rank <= 3:
        raise ValueError(f"x.shape = {tuple(shape)} has {counted(len(shape), 'axis', 'axes')}: [B, X.., H, D] has 4, 5 or 6")
    for name, given in (("tables", tables), ("offset", offset)):
        if len(given) != rank:
            raise ValueError(f"{name} has {counted(len(given), 'entry', 'entries')}, one for each of the {rank} axes of x is needed")
    rotated = []
    for axis, table in enumerate(tables):
        if table is None:
            rotated.append(0)
            continue
        length = shape[1 + axis]
        if len(table) != 3 or table[2] != 2:
            raise ValueError(
                f"tables[{axis}].shape = {tuple(table)} is not [positions, pairs, 2], nor complex [positions, pairs]"
            )
        if offset[axis] < 0:
            raise ValueError(f"offset[{axis}] = {offset[axis]} is less than 0")
        if table[0] < offset[axis] + length:
            raise ValueError(
                f"tables[{axis}] has {table[0]} positions, offset {offset[axis]} and {length} tokens on axis {axis} of x "
                f"need {offset[axis] + length}"
            )
        rotated.append(2 * table[1])
    if sum(rotated) > shape[-1]:
        raise ValueError(f"tables rotate {' + '.join(map(str, rotated))} channels, a head of x has {shape[-1]}")
    return tuple(rotated)


def tables_of(tables: Optional[Sequence[Any]], rank: int) -> Sequence[Any]:
    """The table of each axis, or None for an axis that rotates nothing. TypeError."""
    if tables is None:
        return [None] * rank
    if isinstance(tables, str) or not isinstance(tables, Sequence):
        raise TypeError(f"tables is a {type(tables).__name__}, not a sequence of one table or None per axis")
    return tables


def check_options(shape: Sequence[int], norm: Optional[str], pairs: str, weight: Optional[Sequence[int]]) -> None:
    """ValueError unless norm and pairs are known, and a weight of such a shape belongs to the norm."""
    if norm not in tuple(NORMS):
        raise ValueError(f"norm = {norm!r} is not 'head', 'token' or None")
    if pairs not in tuple(PAIRS):
        raise ValueError(f"pairs = {pairs!r} is not 'interleaved' or 'halves'")
    if weight is None:
        return
    if norm is None:
        raise ValueError("weight is given, but norm = None")
    channels = shape[-1] if norm == "head" else shape[-2] * shape[-1]
    count = 1
    for length in weight:
        count *= length
    if count != channels:
        raise ValueError(f"weight.shape = {tuple(weight)} does not have the {channels} channels of norm = {norm!r}")


def check_rotary(lengths: Sequence[int], dims: Sequence[int], base: float) -> None:
    """ValueError or TypeError unless there are tables of so many positions, channels and such frequencies."""
    if len(lengths) != len(dims):
        raise ValueError(f"lengths has {counted(len(lengths), 'entry', 'entries')}, dims {len(dims)}")
    for axis, (length, dim) in enumerate(zip(lengths, dims)):
        # torch.compile lets an unknown length pass for an int, and cannot look into `integer` with one.
        if (length if type(length) is int else integer(length, f"lengths[{axis}]")) < 1:
            raise ValueError(f"lengths[{axis}] = {length} is less than 1")
        if integer(dim, f"dims[{axis}]") < 0 or dim % 2:
            raise ValueError(f"dims[{axis}] = {dim} is not an even number of at least 0")
    if not 0 < number(base, "base") < math.inf:
        raise ValueError(f"base = {base} is not in (0, infinity)")
