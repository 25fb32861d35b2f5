"""Groups as primitives of JAX: samples of different sizes in packed arrays, and windows by sets of heads. One call computes all
members; what is not a plain gradient is computed member by member (_rules.py).

The operands and parameters of the primitives are those of _ops.py, with a GroupRequest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir
from jax.sharding import PartitionSpec

from .. import _groups as groups
from .. import _library as c
from .._groups import HeadSets, parted
from .._operations import BACKWARD, FORWARD, Operation
from .._plans import CUDA_ALIGNMENT, Request
from .._windows import text_of
from . import _members, _target
from ._members import BoundedRequest, GroupRequest, Packed
from ._ops import Given, inputs_of, layouts_of, ordinal_of, outputs_of, primitive_of, primitives, slots_of


def shapes_of(request: Union[GroupRequest, BoundedRequest], given: Given, arrays: Sequence[Any]) -> list[tuple[tuple[int, ...], Any]]:
    """Shape and dtype of the wanted results."""
    first = arrays[0]
    if request.operation is FORWARD:
        lse = jnp.float64 if first.dtype == jnp.float64 else jnp.float32
        shapes = [((*first.shape[:-1], arrays[2].shape[-1]), first.dtype), (first.shape[:-1], jnp.dtype(lse))]
    else:
        there = iter(arrays)
        inputs = [next(there) if is_there else None for is_there in given[: len(BACKWARD.outputs)]]
        shapes = [(array.shape, array.dtype) if array is not None else None for array in inputs]
    return [shape for shape, want in zip(shapes, request.wanted) if want]


def refuse_sharding(names: Sequence[str], avals: Sequence[Any], what: str) -> None:
    """Raises if one is sharded over an explicit mesh, where `what` say what they want."""
    for name, aval in zip(names, avals):
        if any(entry is not None for entry in aval.sharding.spec):
            raise ValueError(f"{name} has the sharding {aval.sharding.spec}: on an explicit mesh, {what}")


def results_like(first: Any, shapes: Sequence[tuple[tuple[int, ...], Any]]) -> list[Any]:
    """Abstract results, which are not sharded, on the mesh of the first input."""
    return [
        first.update(
            shape=shape,
            dtype=dtype,
            weak_type=False,
            sharding=first.sharding.update(spec=PartitionSpec(*[None] * len(shape))),
        )
        for shape, dtype in shapes
    ]


def _abstract(*avals: Any, request: GroupRequest, given: Given) -> list[Any]:
    names = [tensor.name for tensor in inputs_of(request.operation, given)]
    what = "samples of different sizes and windows by sets of heads want arrays that are not sharded"
    refuse_sharding(names, avals, what)
    _members.check(request, layouts_of(request, given, avals))
    return results_like(avals[0], shapes_of(request, given, avals))


def flags_on(platform: str, request: Union[GroupRequest, BoundedRequest], given: Given, arrays: Sequence[Any]) -> int:
    """The request's flags there: members begin at any token or head."""
    inputs = inputs_of(request.operation, given)
    rows = [x.shape[-1] * x.dtype.itemsize for x, of in zip(arrays, inputs) if of.shape[-1] in "DV"]
    unaligned = platform == "cuda" and any(row % CUDA_ALIGNMENT for row in rows)
    return request.flags | (c.FLAG_UNALIGNED if unaligned else 0)


def handler_of(workspace_bytes: int, arrays: Sequence[Any], shapes: Sequence[tuple[tuple[int, ...], Any]]) -> tuple[Any, list[int]]:
    """The library's handler, whose last result is the workspace, and the elements of the arrays and other results."""
    results = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    elements = [math.prod(x.shape) for x in (*arrays, *results)]
    size = workspace_bytes + _target.WORKSPACE_ALIGNMENT if workspace_bytes else 0
    results.append(jax.ShapeDtypeStruct((size,), jnp.uint8))
    return jax.ffi.ffi_call(_target.NAME, results), elements


def _call(platform: str, request: GroupRequest, given: Given, *arrays: Any) -> list[Any]:
    """The call of the library's handler."""
    request = request._replace(flags=flags_on(platform, request, given, arrays))
    layouts = layouts_of(request, given, arrays)
    text = _members.text_of(request, layouts)
    plan = _target.group_plan_of(text.encode(), ordinal_of(platform))
    first = layouts[0]
    assert first is not None  # no operation's first input is optional
    handler, elements = handler_of(plan.workspace_bytes, arrays, shapes_of(request, given, arrays))
    places = _members.places_of(plan, first[2], elements)
    return handler(*arrays, problem=text, tensors=slots_of(request, given), members=places)[:-1]


# vmap: the samples of the mapped axis follow each other; of sets of heads it becomes part of the batch. A bias has none: where it
# differs along the axis, or its gradient is asked for, there is a call for each.


def _batch_rule(operation: Operation, arrays: Sequence[Any], dims: Sequence[Any], *, request: GroupRequest, given: Given) -> Any:
    inputs, outputs = inputs_of(operation, given), outputs_of(request)
    size = next(array.shape[dim] for array, dim in zip(arrays, dims) if dim is not None)
    bind = partial(primitives[type(request), operation].bind, given=given)
    moved = [array if dim is None else jnp.moveaxis(array, dim, 0) for array, dim in zip(arrays, dims)]
    bias = [dim for of, dim in zip(inputs, dims) if of.slot == c.BIAS]
    if bias and (bias[0] is not None or any(of.slot == c.D_BIAS for of in outputs)):
        of_each = [
            bind(*[x if dim is None else x[i] for x, dim in zip(moved, dims)], request=request) for i in range(size)
        ]
        return [jnp.stack(results) for results in zip(*of_each)], [0] * len(outputs)
    at = 1 if isinstance(request.members, Packed) else 0
    folded = []
    for array, dim, of in zip(moved, dims, inputs):
        if of.slot == c.BIAS:
            folded.append(array)
            continue
        if dim is None:
            array = jnp.broadcast_to(array, (size, *array.shape))
        array = jnp.moveaxis(array, 0, at)
        folded.append(array.reshape(*array.shape[:at], size * array.shape[at + 1], *array.shape[at + 2 :]))
    if isinstance(request.members, Packed):
        request = request._replace(members=_repeated(request.members, size))
    results = bind(*folded, request=request)
    split = [x.reshape(*x.shape[:at], size, x.shape[at] // size, *x.shape[at + 1 :]) for x in results]
    return split, [at] * len(split)


def _repeated(members: Packed, size: int) -> Packed:
    rows, data = groups.split_rows(members.rows())
    table = np.tile(rows, (size, 1))
    for side in (0, 1):
        tokens = groups.extents_of(groups.axes_of(rows), side).prod(axis=1).sum()
        table[:, side] += np.repeat(np.arange(size) * tokens, len(rows))
    return Packed(members.words, np.concatenate([table, data]).tobytes())


# Members by themselves.


class Member(NamedTuple):
    request: Request
    cut: Callable[[Any, str], Any]
    """The member's part of an array, of None None, by its letter: q for those of queries, k of keys, b for the bias."""


LETTERS = "qkkb"
"""of the first inputs"""


class Apart(NamedTuple):
    members: list[Member]
    join: Callable[[str, list[Any], Any], Any]
    """(letter, a member's array each, one with the axes of the whole behind its tokens) -> the whole"""


def apart(request: GroupRequest, query: Any, key: Any) -> Apart:
    members = request.members
    if isinstance(members, Packed):
        return _packed_apart(request, members)
    return _sets_apart(request, members, query, key)


def _of_member(
    request: GroupRequest, axes: Sequence[Sequence[int]], periodic: Optional[tuple[bool, ...]], windows: str
) -> Request:
    window, stride, dilation, causal = [tuple(int(value) for value in values) for values in axes]
    flags = request.flags & ~c.FLAG_UNALIGNED
    causal_axes = tuple(map(bool, causal))
    request_of = Request(FORWARD, window, stride, dilation, causal_axes, request.scale, flags, (True, True), None, periodic)
    return request_of._replace(windows=windows)


def _packed_apart(request: GroupRequest, members: Packed) -> Apart:
    found = []
    rows, tables = groups.table_windows(members.rows())
    axes = groups.axes_of(rows)
    extents = [groups.extents_of(axes, side).tolist() for side in (0, 1)]
    for i, of_axis in enumerate(axes):
        lengths = [tuple(of[i]) for of in extents]
        if 0 in lengths[0]:
            continue

        def cut(x: Any, letter: str, first: Any = rows[i, :2].tolist(), lengths: Any = lengths) -> Any:
            side = letter == "k"
            count = math.prod(lengths[side])
            return None if x is None else x[:, first[side] : first[side] + count].reshape(1, *lengths[side], *x.shape[2:])

        windows = text_of([tables.get(at) for at in of_axis[:, 7].tolist()])
        found.append(Member(_of_member(request, of_axis[:, 1:5].T.tolist(), None, windows), cut))

    def join(letter: str, pieces: list[Any], like: Any) -> Any:
        if not pieces:
            return like
        return jnp.concatenate([x.reshape(1, -1, *like.shape[2:]) for x in pieces], axis=1)

    return Apart(found, join)


def _sets_apart(request: GroupRequest, sets: HeadSets, query: Any, key: Any) -> Apart:
    rank = len(sets.window) // sets.count
    kv_heads = parted(key.shape[-2], sets.count)
    share = query.shape[-2] // key.shape[-2]
    clamp = bool(request.flags & c.FLAG_CLAMP_WINDOW)
    shapes = groups.bias_shapes(sets, query.shape[1:-2], [own * share for own in kv_heads], clamp)
    ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
    found = []
    for i, own in enumerate(kv_heads):
        axes = [values[i * rank : (i + 1) * rank] for values in sets[1:5]]
        periodic = tuple(sets.periodic[i * rank : (i + 1) * rank])
        windows = text_of(sets.tables[i * rank : (i + 1) * rank])

        def cut(x: Any, letter: str, i: int = i, first: int = sum(kv_heads[:i]), own: int = own) -> Any:
            if x is None:
                return None
            if letter == "b":
                return x[ends[i] - math.prod(shapes[i]) : ends[i]].reshape(shapes[i])
            step = 1 if letter == "k" else share
            return jax.lax.slice_in_dim(x, first * step, (first + own) * step, axis=rank + 1)

        found.append(Member(_of_member(request, axes, periodic if any(periodic) else None, windows), cut))
    return Apart(found, lambda letter, pieces, like: jnp.concatenate(pieces, axis=rank + 1))


def _lowering(platform: str) -> Any:
    def rule(context: Any, *values: Any, request: GroupRequest, given: Given) -> Any:
        return mlir.lower_fun(partial(_call, platform, request, given), multiple_results=True)(context, *values)

    return rule


for _operation, _name in ((FORWARD, "na_group"), (BACKWARD, "na_group_backward")):
    _rule = partial(_batch_rule, _operation)
    primitives[GroupRequest, _operation] = primitive_of(f"nhood_{_name}", _abstract, _lowering, _rule)
