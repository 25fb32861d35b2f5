"""The library's operations as primitives of JAX: shapes, lowering, vmap. Their derivatives are in _rules.py.

A primitive has the arrays that are there as operands, and two parameters: `request`, what is asked for, and `given`, which of
the operation's inputs are among the operands. Its results are the wanted outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Optional, Union

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, xla
from jax.sharding import PartitionSpec

from .. import _library as c
from .. import _plans
from .._layouts import Layout, packed_strides, wrong_dtype
from .._operations import AV, BACKWARD, FORWARD, IN, QK, Operation, Tensor
from .._plans import Request
from . import _target
from ._members import BoundedRequest, GroupRequest
from ._partition import is_spread, needs_devices, partitioned

_TO_DTYPE = {jnp.dtype(getattr(jnp, name)): number for number, name in c.DTYPE_NAMES.items()}
_FROM_DTYPE = {number: dtype for dtype, number in _TO_DTYPE.items()}
Given = tuple[bool, ...]


Asked = Union[Request, GroupRequest, BoundedRequest]


def inputs_of(operation: Operation, given: Given) -> list[Tensor]:
    return [tensor for tensor, there in zip(operation.inputs, given) if there]


def outputs_of(request: Asked) -> list[Tensor]:
    return [tensor for tensor, want in zip(request.operation.outputs, request.wanted) if want]


def layouts_of(request: Asked, given: Given, arrays: Sequence[Any]) -> tuple[Optional[Layout], ...]:
    there = iter(arrays)
    layouts: list[Optional[Layout]] = []
    for tensor, is_there in zip(request.operation.inputs, given):
        if not is_there:
            layouts.append(None)
            continue
        array = next(there)
        number = _TO_DTYPE.get(jnp.dtype(array.dtype))
        if number is None:
            raise wrong_dtype(tensor.name, array.dtype)
        layouts.append((array.shape, packed_strides(array.shape, c.DTYPE_BYTES[number]), number))
    return tuple(layouts)


def describe(request: Request, given: Given, arrays: Sequence[Any]) -> tuple[bytes, list[tuple[tuple[int, ...], Any]]]:
    """The text of the problem, and shape and dtype of the wanted results. arrays: anything with shape and dtype."""
    text, outputs = _plans.describe(request, layouts_of(request, given, arrays))
    return text, [(output[0], _FROM_DTYPE[output[1]]) for output in outputs if output]


# Abstract values: the axes of a mesh along which an array varies or is sharded go from operands to results.


def _varying(array: Any) -> frozenset:
    """The manual axes, of jax.shard_map, along which an array differs from device to device."""
    aval = jax.typeof(array)
    kind = getattr(aval, "manual_axis_type", None)
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


def vary_alike(arrays: Sequence[Any]) -> list[Any]:
    """All along the axes along which any of them does, as a primitive's operands must."""
    kinds = [_varying(array) for array in arrays]
    union = frozenset().union(*kinds)
    return [
        jax.lax.pcast(array, tuple(sorted(union - kind, key=str)), to="varying") if union - kind else array
        for array, kind in zip(arrays, kinds)
    ]


def _spec_of_letters(operation: Operation, given: Given, avals: Sequence[Any]) -> dict[str, Any]:
    """The axes of an explicit mesh along which batch and heads are sharded."""
    found: dict[str, Any] = {}
    for tensor, aval in zip(inputs_of(operation, given), avals):
        letters = tensor.letters(aval.ndim - len(tensor.shape) + 1 if set(tensor.shape) & set("XYR") else 1)
        for letter, entry in zip(letters, aval.sharding.spec):
            if entry is None:
                continue
            kind = "H" if letter == "K" else letter
            if kind not in ("B", "H"):
                raise ValueError(
                    f"{tensor.name} has the sharding {aval.sharding.spec}: on an explicit mesh only batch and heads can "
                    "be sharded; nhood.jax.sharded takes grids"
                )
            if found.setdefault(kind, entry) != entry:
                raise ValueError(f"{tensor.name} has the sharding {aval.sharding.spec}, expected {found[kind]!r} on {kind}")
    return found


def _abstract(*avals: Any, request: Request, given: Given) -> list[Any]:
    _, outputs = describe(request, given, avals)
    entries = _spec_of_letters(request.operation, given, avals)
    entries["K"] = entries.get("H")
    rank = len(request.window)
    first = avals[0]
    results = []
    for tensor, (shape, dtype) in zip(outputs_of(request), outputs):
        spec = PartitionSpec(*(entries.get(letter) for letter in tensor.letters(rank)))
        results.append(
            first.update(shape=shape, dtype=dtype, weak_type=False, sharding=first.sharding.update(spec=spec))
        )
    return results


# Lowering


def ordinal_of(platform: str) -> int:
    """Returns the ordinal of the device to plan for while nobody knows where a program will run: JAX wants all its devices alike."""
    return -1 if platform == "cpu" else jax.local_devices(backend=platform)[0].local_hardware_id


def call(platform: str, request: Request, given: Given, *arrays: Any) -> list[Any]:
    """The call of the library's handler, with arrays as they are on one device."""
    text, outputs = describe(request, given, arrays)
    _, workspace_bytes = _target.plan_of(text, ordinal_of(platform))
    results = [jax.ShapeDtypeStruct(*output) for output in outputs]
    size = workspace_bytes + _target.WORKSPACE_ALIGNMENT if workspace_bytes else 0
    results.append(jax.ShapeDtypeStruct((size,), jnp.uint8))
    handler = jax.ffi.ffi_call(_target.NAME, results)
    return handler(*arrays, problem=text.decode(), tensors=slots_of(request, given))[:-1]


def slots_of(request: Asked, given: Given) -> str:
    """Which tensor of the library's each array is, arguments > results."""
    sides = (inputs_of(request.operation, given), outputs_of(request))
    return ">".join([",".join([str(tensor.slot) for tensor in tensors]) for tensors in sides])


def _lowering(platform: str) -> Any:
    def rule(context: Any, *values: Any, request: Request, given: Given) -> Any:
        compute = partial(call, platform, request, given)
        if is_spread(context):
            compute = partitioned(compute, request, inputs_of(request.operation, given), outputs_of(request))
        return mlir.lower_fun(compute, multiple_results=True)(context, *values)

    return rule


def refuse(context: Any, *values: Any, request: Request, given: Given) -> Any:
    platforms = ", ".join(context.module_context.platforms)
    raise NotImplementedError(f"nhood has no kernels for platform {platforms}, but for cpu and cuda")


# vmap: the mapped axis becomes part of the batch. A bias has none: where it differs along the axis, or its gradient will, the
# axis becomes part of the heads.


def _batch_rule(operation: Operation, arrays: Sequence[Any], dims: Sequence[Any], *, request: Request, given: Given) -> Any:
    inputs, rank = inputs_of(operation, given), len(request.window)
    size = next(array.shape[dim] for array, dim in zip(arrays, dims) if dim is not None)
    bias_dim = [dim for tensor, dim in zip(inputs, dims) if tensor.name == "bias"]
    by_heads = bool(bias_dim) and (bias_dim[0] is not None or operation is BACKWARD)
    joined = "HK" if by_heads else "B"

    def place(tensor: Tensor) -> Optional[int]:
        """The number of the axis that the mapped one joins."""
        letters = tensor.letters(rank)
        return next((i for i, letter in enumerate(letters) if letter in joined), None)

    def join(array: Any, dim: Optional[int], tensor: Tensor) -> Any:
        at = place(tensor)
        if at is None:  # a bias, the same for all
            return array
        if dim is None:
            array = jnp.expand_dims(array, at)
            array = jnp.broadcast_to(array, (*array.shape[:at], size, *array.shape[at + 1 :]))
        else:
            array = jnp.moveaxis(array, dim, at)
        return array.reshape(*array.shape[:at], size * array.shape[at + 1], *array.shape[at + 2 :])

    if by_heads and request.kv_heads is not None:
        request = request._replace(kv_heads=request.kv_heads * size)
    folded = [join(*each) for each in zip(arrays, dims, inputs)]
    results = primitives[Request, operation].bind(*folded, request=request, given=given)
    places = [place(tensor) for tensor in outputs_of(request)]
    split = [
        array.reshape(*array.shape[:at], size, array.shape[at] // size, *array.shape[at + 1 :])
        for array, at in zip(results, places)
    ]
    return split, places


def primitive_of(name: str, abstract: Any, lowering: Any, batch_rule: Any) -> Primitive:
    """A primitive of several results. lowering: makes the rule of a platform."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(abstract)
    mlir.register_lowering(primitive, refuse)
    for platform in ("cpu", "cuda"):
        mlir.register_lowering(primitive, lowering(platform), platform=platform)
    batching.primitive_batchers[primitive] = batch_rule
    return primitive


def _primitive(operation: Operation, name: str) -> Primitive:
    primitive = primitive_of(name, _abstract, _lowering, partial(_batch_rule, operation))
    needs_devices(primitive)
    return primitive


primitives: dict[tuple[type, Operation], Primitive] = {
    (Request, operation): _primitive(operation, f"nhood_{name}")
    for operation, name in ((FORWARD, "na"), (BACKWARD, "na_backward"), (QK, "qk"), (AV, "av"), (IN, "in"))
}
"""By the type of request. _groups.py and _bounded.py add those of groups, and of samples within a bound."""


def bind(request: Asked, *inputs: Optional[Any]) -> list[Any]:
    """The wanted results of a request on arrays or tracers in the order of the operation's inputs, None for one that is not
    there; those of a BoundedRequest are followed by the lengths."""
    given = tuple(array is not None for array in inputs)
    present = vary_alike([array for array in inputs if array is not None])
    return primitives[type(request), request.operation].bind(*present, request=request, given=given)
