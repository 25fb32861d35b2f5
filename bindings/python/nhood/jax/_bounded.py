"""Samples of different sizes whose lengths are an array, within a bound: two more primitives. No shape depends on the lengths, so a
program is compiled once for all that keep to the bound.

The operands and parameters of the primitives are those of _ops.py, with a BoundedRequest, and the lengths, [samples, axes], as one
more operand behind the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from .. import _bounded
from .. import _library as c
from .._operations import BACKWARD, FORWARD, Operation
from . import _members, _target
from ._groups import flags_on, handler_of, refuse_sharding, results_like, shapes_of
from ._members import BoundedRequest
from ._ops import Given, inputs_of, layouts_of, ordinal_of, primitive_of, primitives, slots_of


def lengths_of(layouts: Any) -> Any:
    """The lengths as JAX's array."""
    narrow = not jax.config.jax_enable_x64
    if narrow and isinstance(layouts, np.ndarray) and layouts.dtype == np.int64:
        info = np.iinfo(np.int32)  # what does not fit is beyond any bound, and must stay so
        layouts = np.clip(layouts, info.min, info.max)
    return jnp.asarray(layouts)


def _check(request: BoundedRequest, given: Given, arrays: Sequence[Any], lengths: Any) -> None:
    rank = len(request.within.longest)
    if lengths.ndim != 2 or lengths.dtype not in (jnp.int32, jnp.int64) or lengths.shape[1] != rank:
        raise ValueError(
            f"layouts is {lengths.dtype} of shape {lengths.shape}, expected int32 or int64 of [samples, {rank}], as bound = "
            f"{request.within.longest} has {rank}"
        )
    if lengths.shape[0] > c.MOST_MEMBERS:
        raise ValueError(f"layouts.shape = {lengths.shape}: the number of samples is {lengths.shape[0]}, at most {c.MOST_MEMBERS}")
    _bounded.check(request.asked(), request.within, layouts_of(request, given, arrays))


def _abstract(*avals: Any, request: BoundedRequest, given: Given) -> list[Any]:
    *arrays, lengths = avals
    names = [tensor.name for tensor in inputs_of(request.operation, given)]
    what = "samples within a bound want arrays that are not sharded; under jax.shard_map each device has samples of its own"
    refuse_sharding((*names, "layouts"), avals, what)
    _check(request, given, arrays, lengths)
    return results_like(arrays[0], shapes_of(request, given, arrays))


def _call(platform: str, request: BoundedRequest, given: Given, *operands: Any) -> list[Any]:
    """The call of the library's handler."""
    *arrays, lengths = operands
    request = request._replace(flags=flags_on(platform, request, given, arrays))
    layouts = layouts_of(request, given, arrays)
    text = _members.text_of(request, layouts, lengths.shape[0])
    plan = _target.group_plan_of(text.encode(), ordinal_of(platform))
    first = layouts[0]
    assert first is not None  # no operation's first input is optional
    handler, elements = handler_of(plan.workspace_bytes, arrays, shapes_of(request, given, arrays))
    bound = _members.place_of(plan.tokens, first[2], lengths.shape, lengths.dtype.itemsize, elements)
    return handler(*operands, problem=text, tensors=slots_of(request, given), bound=bound)[:-1]


def _lowering(platform: str) -> Any:
    def rule(context: Any, *values: Any, request: BoundedRequest, given: Given) -> Any:
        return mlir.lower_fun(partial(_call, platform, request, given), multiple_results=True)(context, *values)

    return rule


# vmap: if all have the same samples, the mapped axis becomes part of the heads. Else there is one call after the other: samples follow
# each other without gaps, so those of one call cannot have rooms of their own.

_HEADS = 2
"""the axis of heads in all arrays of packed tokens"""


def _batch_rule(operation: Operation, operands: Sequence[Any], dims: Sequence[Any], *, request: BoundedRequest, given: Given) -> Any:
    *arrays, lengths = operands
    bind = partial(primitives[BoundedRequest, operation].bind, request=request, given=given)
    if dims[-1] is not None:
        return _one_by_one(bind, operands, dims)
    size = next(x.shape[dim] for x, dim in zip(arrays, dims) if dim is not None)

    def join(array: Any, dim: Optional[int]) -> Any:
        if dim is None:
            array, dim = jnp.broadcast_to(array, (size, *array.shape)), 0
        array = jnp.moveaxis(array, dim, _HEADS)
        return array.reshape(*array.shape[:_HEADS], size * array.shape[_HEADS + 1], *array.shape[_HEADS + 2 :])

    results = bind(*map(join, arrays, dims), lengths)
    split = [x.reshape(*x.shape[:_HEADS], size, x.shape[_HEADS] // size, *x.shape[_HEADS + 1 :]) for x in results]
    return split, [_HEADS] * len(split)


def _one_by_one(bind: Any, operands: Sequence[Any], dims: Sequence[Any]) -> Any:
    mapped = [jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims) if dim is not None]

    def of_one(own: Sequence[Any]) -> list[Any]:
        there = iter(own)
        return bind(*[x if dim is None else next(there) for x, dim in zip(operands, dims)])

    results = jax.lax.map(of_one, mapped)
    return results, [0] * len(results)


for _operation, _name in ((FORWARD, "na_bounded"), (BACKWARD, "na_bounded_backward")):
    _rule = partial(_batch_rule, _operation)
    primitives[BoundedRequest, _operation] = primitive_of(f"nhood_{_name}", _abstract, _lowering, _rule)
