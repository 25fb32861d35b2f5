"""Derivatives. The unfused operations are closed under differentiation: the gradients of each are the others. Those of the fused
attention are computed by its fused backward pass; what is pushed forward, and derivatives of the backward pass, are those of
attention written with the unfused ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Optional, Union

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from .._library import FLAG_ZERO_FILL
from .._operations import AV, BACKWARD, FORWARD, IN, QK
from .._plans import Request
from . import _bounded  # noqa: F401, adds its primitives
from ._groups import LETTERS, Apart, apart
from ._members import BoundedRequest, GroupRequest
from ._ops import Given, bind, inputs_of, primitives, vary_alike
from ._slots import Slots

Flags = tuple[bool, ...]
Attention = Union[Request, GroupRequest, BoundedRequest]


def _spread(given: Given, arrays: Sequence[Any]) -> list[Any]:
    """The arrays in the order of all inputs, None where one is not there. Lengths that are an array follow the inputs."""
    there = iter(arrays)
    return [next(there) if is_there else None for is_there in given]


def _is_zero(tangent: Any) -> bool:
    return tangent is None or isinstance(tangent, ad.Zero)


def _jvp_of(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The tangents of the results, by the tangents that are not zero. None: is zero, too."""
    moving = [i for i, tangent in enumerate(tangents) if not _is_zero(tangent)]

    def of_moving(*arrays: Any) -> Any:
        whole = list(primals)
        for i, array in zip(moving, arrays):
            whole[i] = array
        return function(*whole)

    return jax.jvp(of_moving, tuple(primals[i] for i in moving), tuple(tangents[i] for i in moving))[1]


def _sum(a: Optional[Any], b: Optional[Any]) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return a + b


# The unfused operations, as requests that follow from others on the same axes


def _qk(
    request: Union[Request, Slots], query: Any, key: Any, bias: Optional[Any], scale: Optional[float], zero_fill: bool
) -> Any:
    if isinstance(request, Slots):
        return request.qk(query, key, scale, zero_fill)
    flags = request.flags & ~FLAG_ZERO_FILL | (FLAG_ZERO_FILL if zero_fill else 0)
    asked = request._replace(operation=QK, scale=scale, flags=flags, wanted=(True,), kv_heads=None, region=_region(request))
    return bind(asked, query, key, bias)[0]


def _av(request: Union[Request, Slots], attn: Any, value: Any) -> Any:
    if isinstance(request, Slots):
        return request.av(attn, value)
    flags = request.flags & ~FLAG_ZERO_FILL
    asked = request._replace(operation=AV, scale=None, flags=flags, wanted=(True,), kv_heads=None, region=_region(request))
    return bind(asked, attn, value)[0]


def _in(request: Request, attn: Any, d_out: Any, like: Any) -> Any:
    """like: a key or value, whose extents the result has."""
    flags = request.flags & ~FLAG_ZERO_FILL
    *_, kv_heads, _ = like.shape
    region = request.region and request.region._replace(key_lengths=tuple(like.shape[1:-2]))
    asked = request._replace(operation=IN, scale=None, flags=flags, wanted=(True,), kv_heads=kv_heads, region=region)
    return bind(asked, attn, d_out)[0]


def _region(request: Request) -> Any:
    return request.region and request.region._replace(key_lengths=None)


def _scaled(array: Any, scale: Optional[float]) -> Any:
    return array if scale is None or scale == 1 else scale * array


def _qk_jvp(primals: Any, tangents: Any, *, request: Request, given: Given) -> Any:
    query, key, bias = _spread(given, primals)
    t_query, t_key, t_bias = [None if _is_zero(t) else t for t in _spread(given, tangents)]
    total = None
    if t_query is not None or t_bias is not None:
        left = jnp.zeros_like(query) if t_query is None else t_query
        total = _qk(request, left, key, t_bias, request.scale, True)
    if t_key is not None:
        total = _sum(total, _qk(request, query, t_key, None, request.scale, True))
    return bind(request, query, key, bias), [total]


def _qk_transpose(cotangents: Any, *operands: Any, request: Request, given: Given) -> Any:
    (d_attn,) = cotangents
    query, key, bias = _spread(given, operands)
    found: list[Any] = []
    for operand in operands:
        if not ad.is_undefined_primal(operand) or _is_zero(d_attn):
            found.append(None)
        elif operand is query:
            found.append(_scaled(_av(request, d_attn, key), request.scale))
        elif operand is key:
            found.append(_scaled(_in(request, d_attn, query, key.aval), request.scale))
        else:
            found.append(_bias_gradient(request, d_attn, bias.aval, _aval(key).shape[1:-2]))
    return found


def _aval(operand: Any) -> Any:
    return operand.aval if ad.is_undefined_primal(operand) else operand


def _bias_gradient(request: Request, d_attn: Any, bias: Any, key_lengths: Sequence[int]) -> Any:
    """Sums d_attn over the batch and over all slots that read the same entry of the bias."""
    heads, entries = bias.shape[0], math.prod(bias.shape[1:])
    table = jnp.arange(entries, dtype=jnp.float32).reshape(1, *bias.shape[1:])
    zeros = [jnp.zeros((1, *lengths, 1, 1), jnp.float32) for lengths in (d_attn.shape[1:-2], key_lengths)]
    index = _qk(request, *zeros, table, 1.0, False)
    absent = index < 0  # -infinity: a key that is not there has no entry
    index = jnp.where(absent, 0, index).astype(jnp.int32).ravel()
    slots = jnp.where(absent, 0, d_attn).astype(_accumulator(bias.dtype)).sum(0)
    slots = jnp.moveaxis(slots, -2, 0).reshape(heads, index.size)
    d_bias = jnp.zeros((heads, entries), slots.dtype).at[:, index].add(slots)
    return d_bias.astype(bias.dtype).reshape(bias.shape)


def _accumulator(dtype: Any) -> Any:
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


# AV and IN are products of two arrays.


def _product_jvp(primals: Any, tangents: Any, *, request: Request, given: Given) -> Any:
    left, right = primals
    t_left, t_right = [None if _is_zero(t) else t for t in tangents]
    total = None if t_left is None else bind(request, t_left, right)[0]
    total = _sum(total, None if t_right is None else bind(request, left, t_right)[0])
    return bind(request, left, right), [total]


def _av_transpose(cotangents: Any, attn: Any, value: Any, *, request: Request, given: Given) -> Any:
    (d_out,) = cotangents
    if _is_zero(d_out):
        return [None, None]
    if ad.is_undefined_primal(attn):
        return [_qk(request, d_out, value, None, 1.0, True), None]
    return [None, _in(request, attn, d_out, value.aval)]


def _in_transpose(cotangents: Any, attn: Any, d_out: Any, *, request: Request, given: Given) -> Any:
    (d_value,) = cotangents
    if _is_zero(d_value):
        return [None, None]
    if ad.is_undefined_primal(attn):
        return [_qk(request, d_out, d_value, None, 1.0, True), None]
    return [None, _av(request, attn, d_value)]


# Attention, written with them. Six inputs: query, key, value, bias, additional keys and values.


def _additional_logits(query: Any, keys: Any, scale: float) -> Any:
    """[B, X.., H, M]"""
    batch, *_, heads, dim = query.shape
    _, extra, kv_heads, _ = keys.shape
    grouped = query.reshape(batch, math.prod(query.shape[1:-2]), kv_heads, heads // kv_heads, dim)
    logits = jnp.einsum("bnkgd,bmkd->bnkgm", grouped, keys, precision="highest") * scale
    return logits.reshape(*query.shape[:-1], extra)


def _additional_sum(attn: Any, values: Any) -> Any:
    """attn [B, X.., H, M] times values [B, M, Hkv, Dv]"""
    batch, *_, heads, extra = attn.shape
    _, _, kv_heads, dim = values.shape
    grouped = attn.reshape(batch, math.prod(attn.shape[1:-2]), kv_heads, heads // kv_heads, extra)
    summed = jnp.einsum("bnkgm,bmkd->bnkgd", grouped, values, precision="highest")
    return summed.reshape(*attn.shape[:-1], dim)


def _logits(
    request: Union[Request, Slots], query: Any, key: Any, bias: Any, additional_keys: Any, scale: float, zero_fill: bool = False
) -> Any:
    """[B, X.., H, W + M]: of the window, then of the additional tokens."""
    logits = _qk(request, query, key, bias, scale, zero_fill)
    if additional_keys is None:
        return logits
    return jnp.concatenate([logits, _additional_logits(query, additional_keys, scale)], axis=-1)


def _without_empty_rows(logits: Any) -> tuple[Any, Any]:
    """Logits that are finite somewhere in each row, and the rows that had no key: only parts of a grid have such."""
    empty = (logits == -jnp.inf).all(-1, keepdims=True)
    return jnp.where(empty, 0, logits), empty


def _weighted_sum(request: Union[Request, Slots], weights: Any, value: Any, additional_values: Any) -> Any:
    if additional_values is None:
        return _av(request, weights, value)
    slots = weights.shape[-1] - additional_values.shape[1]
    window, additional = weights[..., :slots], weights[..., slots:]
    return _av(request, window, value) + _additional_sum(additional, additional_values)


def _scale_of(request: Union[Request, Slots], query: Any) -> float:
    return query.shape[-1] ** -0.5 if request.scale is None else request.scale


def _member_by_member(
    request: GroupRequest, function: Callable[..., tuple[Any, Any]], *of_inputs: Sequence[Any]
) -> tuple[Any, Any]:
    """What function(request, *of_inputs) gives of each member by itself, joined. of_inputs: arrays in the order of the inputs."""
    query, key, value = of_inputs[0][:3]
    group: Apart = apart(request, query, key)
    pad = [None] * (len(of_inputs[0]) - len(LETTERS))
    found = [
        function(member.request, *[[*map(member.cut, arrays, LETTERS), *pad] for arrays in of_inputs])
        for member in group.members
    ]
    empty = jnp.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
    like = empty, jnp.zeros(query.shape[:-1], _accumulator(query.dtype))
    out, lse = [group.join("q", [pair[i] for pair in found], like[i]) for i in (0, 1)]
    return out, lse


INPUTS = len(FORWARD.inputs)


def _windows_of(
    request: Union[Request, BoundedRequest], inputs: Sequence[Any]
) -> tuple[Union[Request, Slots], Sequence[Any]]:
    """What _qk and _av take, and the inputs without lengths."""
    if isinstance(request, BoundedRequest):
        return Slots(request, inputs[INPUTS], inputs[0].shape[1]), inputs[:INPUTS]
    return request, inputs


def _unfused_attention(request: Attention, inputs: Sequence[Any]) -> tuple[Any, Any]:
    """out and lse, with the attention weights in memory."""
    if isinstance(request, GroupRequest):
        return _member_by_member(request, _unfused_attention, inputs)
    windows, (query, key, value, bias, keys, values) = _windows_of(request, inputs)
    logits = _logits(windows, query, key, bias, keys, _scale_of(windows, query))
    logits, empty = _without_empty_rows(logits.astype(_accumulator(query.dtype)))
    lse = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    weights = jnp.where(empty, 0, jnp.exp(logits - lse)).astype(query.dtype)
    return _weighted_sum(windows, weights, value, values), jnp.where(empty, -jnp.inf, lse)[..., 0]


def _push_forward(request: Attention, inputs: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Tangents of out and lse: with logit tangents t and weights p, t_lse = sum(p t) and
    t_out = sum(p (t - t_lse) value + p t_value)."""
    if isinstance(request, GroupRequest):
        return _member_by_member(request, _push_forward, inputs, tangents)
    windows, inputs = _windows_of(request, inputs)
    dtype = _accumulator(inputs[0].dtype)
    exact = [None if x is None else x.astype(dtype) for x in inputs]
    query, key, value, bias, keys, values = exact
    t_query, t_key, t_value, t_bias, t_keys, t_values = [  # lengths have no tangent
        t.astype(dtype) if t is not None else None if x is None else jnp.zeros_like(x) for x, t in zip(exact, tangents)
    ]
    scale = _scale_of(windows, query)
    logits, empty = _without_empty_rows(_logits(windows, query, key, bias, keys, scale))
    weights = jnp.where(empty, 0, jax.nn.softmax(logits, axis=-1))
    t_logits = _logits(windows, t_query, key, t_bias, keys, scale, zero_fill=True)
    t_logits += _logits(windows, query, t_key, None, t_keys, scale, zero_fill=True)
    t_lse = (weights * t_logits).sum(-1)
    t_weights = weights * (t_logits - t_lse[..., None])
    t_out = _weighted_sum(windows, t_weights, value, values) + _weighted_sum(windows, weights, t_value, t_values)
    return t_out.astype(inputs[0].dtype), t_lse


# The push forward is a primitive as well: what pulls it back is not its own transpose, but the fused backward pass. Its operands
# are the inputs, out and lse, and the tangents of those inputs that `moving` tells.

_tangent = Primitive("nhood_na_tangent")
_tangent.multiple_results = True


def _compute_tangent(*operands: Any, request: Request, given: Given, moving: Flags) -> tuple[Any, Any]:
    count = sum(given)
    return _push_forward(request, _spread(given, operands[:count]), _spread(moving, operands[count + 2 :]))


def _tangent_abstract(*avals: Any, request: Request, given: Given, moving: Flags) -> Any:
    count = sum(given)
    return avals[count], avals[count + 1]


def _tangent_jvp(primals: Any, tangents: Any, **parameters: Any) -> Any:
    """out and lse are functions of the inputs: what depends on them is in the derivatives by those."""
    count = sum(parameters["given"])
    of_inputs = [*tangents[:count], None, None, *tangents[count + 2 :]]
    found = _jvp_of(partial(_compute_tangent, **parameters), primals, of_inputs)
    return _tangent.bind(*primals, **parameters), found


def _tangent_transpose(cotangents: Any, *operands: Any, request: Request, given: Given, moving: Flags) -> Any:
    d_out, d_lse = cotangents
    count = sum(given)
    out, lse = operands[count : count + 2]
    nothing = [None] * len(operands)
    if _is_zero(d_out) and _is_zero(d_lse):
        return nothing
    d_out = jnp.zeros_like(out) if _is_zero(d_out) else d_out
    inputs = _spread(given, operands[:count])
    asked = request._replace(operation=BACKWARD, wanted=moving[:INPUTS])
    gradients = bind(asked, *inputs[:INPUTS], out, lse, d_out, None if _is_zero(d_lse) else d_lse, *inputs[INPUTS:])
    return [*nothing[: count + 2], *gradients]


def _tangent_batch(arrays: Any, dims: Any, **parameters: Any) -> Any:
    compute = partial(_compute_tangent, **parameters)
    return jax.vmap(compute, in_axes=tuple(dims))(*arrays), (0, 0)


_tangent.def_impl(partial(xla.apply_primitive, _tangent))
_tangent.def_abstract_eval(_tangent_abstract)
mlir.register_lowering(_tangent, mlir.lower_fun(_compute_tangent, multiple_results=True))
batching.primitive_batchers[_tangent] = _tangent_batch
ad.primitive_jvps[_tangent] = _tangent_jvp
ad.primitive_transposes[_tangent] = _tangent_transpose


def _attention_jvp(primals: Any, tangents: Any, *, request: Request, given: Given) -> Any:
    out, lse = bind(request._replace(wanted=(True, True)), *_spread(given, primals))
    moving = tuple(not _is_zero(t) for t in _spread(given, tangents))
    along = [t for t in tangents if not _is_zero(t)]
    operands = vary_alike([*primals, out, lse, *along])
    results = (out, lse), _tangent.bind(*operands, request=request, given=given, moving=moving)
    return tuple(list(both)[: 1 + request.wanted[1]] for both in results)


def _gradients(*operands: Any, request: Request, given: Given) -> list[Any]:
    """Those of the backward pass, by the unfused operations."""
    whole = _spread(given, operands)
    inputs, (_, _, d_out, d_lse), lengths = whole[:INPUTS], whole[INPUTS : INPUTS + 4], whole[INPUTS + 4 :]

    def attend(*chosen: Any) -> Any:
        there = iter(chosen)
        own = [next(there) if want else x for x, want in zip(inputs, request.wanted)]
        out, lse = _unfused_attention(request, [*own, *lengths])
        return out if d_lse is None else (out, lse)

    asked = [x for x, want in zip(inputs, request.wanted) if want]
    _, pull_back = jax.vjp(attend, *asked)
    return list(pull_back(d_out if d_lse is None else (d_out, d_lse)))


def _backward_jvp(primals: Any, tangents: Any, *, request: Request, given: Given) -> Any:
    """out and lse are functions of the inputs, as above."""
    names = [tensor.name for tensor in inputs_of(BACKWARD, given)]
    of_inputs = [None if name in ("out", "lse") else t for name, t in zip(names, tangents)]
    gradients = bind(request, *_spread(given, primals))
    return gradients, _jvp_of(partial(_gradients, request=request, given=given), primals, of_inputs)


for _kind in (Request, GroupRequest, BoundedRequest):
    ad.primitive_jvps[primitives[_kind, FORWARD]] = _attention_jvp
    ad.primitive_jvps[primitives[_kind, BACKWARD]] = _backward_jvp
ad.primitive_jvps[primitives[Request, QK]] = _qk_jvp
ad.primitive_jvps[primitives[Request, AV]] = _product_jvp
ad.primitive_jvps[primitives[Request, IN]] = _product_jvp
ad.primitive_transposes[primitives[Request, QK]] = _qk_transpose
ad.primitive_transposes[primitives[Request, AV]] = _av_transpose
ad.primitive_transposes[primitives[Request, IN]] = _in_transpose
