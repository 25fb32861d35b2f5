"""The unfused operators with their gradients, and attention written with them.

The three operators are closed under differentiation: the gradients of each are the others. So they can be
differentiated any number of times, in both modes.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor
from torch.autograd import Function

from .. import _operations
from . import _ops
from ._transforms import once_each, transformable, transformed

OptionalTensor = Optional[Tensor]


class Axes(NamedTuple):
    """The axis parameters, one entry per axis, as the operators take them."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    is_causal: tuple[bool, ...]
    place: tuple[tuple[int, ...], ...] = ()
    """is_periodic, grid, query_offset and key_offset; () if all tensors cover a grid without periodic axes"""


def qk(*arguments: Any) -> Tensor:
    """query, key, bias, axes, scale, zero_fill, clamp_window"""
    return (QKTransformable if transformed() else QK).apply(*once_each(arguments[:3]), *arguments[3:])


def av(*arguments: Any) -> Tensor:
    """attn, value, axes, clamp_window"""
    return (AVTransformable if transformed() else AV).apply(*arguments)


def inverse(*arguments: Any) -> Tensor:
    """attn, d_out, axes, kv_heads, clamp_window, key_lengths"""
    return (INTransformable if transformed() else IN).apply(*arguments)


def _sum(a: OptionalTensor, b: OptionalTensor) -> Any:
    """The sum of what is there; at least one of the two is."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    return tensor if scale == 1 else scale * tensor


class QK(Function):
    """attn[i, n] = scale * query[i] . key[N(i, n)] + bias"""

    @staticmethod
    def compute(
        query: Tensor,
        key: Tensor,
        bias: OptionalTensor,
        axes: Axes,
        scale: float,
        zero_fill: bool,
        clamp_window: bool,
    ) -> Tensor:
        return _ops.na_qk(query, key, bias, *axes[:4], scale, zero_fill, clamp_window, *axes.place)

    @staticmethod
    def keep(ctx: Any, arguments: tuple[Any, ...], attn: Tensor) -> None:
        query, key, bias, axes, scale, _, clamp_window = arguments
        ctx.save_for_backward(query, key, bias)
        ctx.parameters = axes, scale, clamp_window

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # type: ignore[override]
        attn = QK.compute(*arguments)
        QK.keep(ctx, arguments, attn)
        return attn

    @staticmethod
    def backward(ctx: Any, d_attn: Tensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        query, key, bias = ctx.saved_tensors
        axes, scale, clamp_window = ctx.parameters
        d_query = d_key = d_bias = None
        if ctx.needs_input_grad[0]:
            d_query = _scaled(av(d_attn, key, axes, clamp_window), scale)
        if ctx.needs_input_grad[1]:
            d_key = _scaled(inverse(d_attn, query, axes, key.shape[-2], clamp_window, key.shape[1:-2]), scale)
        if ctx.needs_input_grad[2]:
            d_bias = _bias_gradient(d_attn, bias, axes, clamp_window, key.shape[1:-2])
        return d_query, d_key, d_bias, None, None, None, None

    @staticmethod
    def push_forward(ctx: Any, *tangents: Any) -> Tensor:
        query, key, bias = ctx.saved_tensors
        t_query, t_key, t_bias = tangents[:3]
        axes, scale, clamp_window = ctx.parameters
        total = None
        if t_query is not None or t_bias is not None:
            left = torch.zeros_like(query) if t_query is None else t_query
            total = qk(left, key, t_bias, axes, scale, True, clamp_window)
        if t_key is not None:
            total = _sum(total, qk(query, t_key, None, axes, scale, True, clamp_window))
        assert total is not None  # some input has a tangent
        return total


def _bias_gradient(
    d_attn: Tensor, bias: Tensor, axes: Axes, clamp_window: bool, key_lengths: tuple[int, ...]
) -> Tensor:
    """Sums d_attn over the batch and over all slots that read the same entry of the bias."""
    heads = bias.shape[0]
    entries = torch.arange(bias[0].numel(), dtype=torch.float64, device=bias.device)
    zero = entries.new_zeros(())
    zeros = [zero.expand(1, *lengths, 1, 1) for lengths in (d_attn.shape[1:-2], key_lengths)]
    table = entries.view(1, *bias.shape[1:])
    index = _ops.na_qk(*zeros, table, *axes[:4], 1.0, False, clamp_window, *axes.place)
    if axes.place:  # a key that is not there has no entry
        absent = index < 0
        index, d_attn = index.masked_fill(absent, 0), d_attn.masked_fill(absent, 0)
    slots = d_attn.sum(0, dtype=_accumulator(bias)).movedim(-2, 0).reshape(heads, -1)
    d_bias = slots.new_zeros(heads, entries.numel()).index_add(1, index.flatten().long(), slots)
    return d_bias.to(bias.dtype).view(bias.shape)


def _accumulator(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


# AV and IN are products of two tensors; their other arguments are parameters.


def _keep_both(ctx: Any, arguments: tuple[Any, ...], _: Tensor) -> None:
    ctx.save_for_backward(*arguments[:2])
    ctx.parameters = arguments[2:]


def _product_rule(product: Callable[..., Tensor], ctx: Any, tangents: tuple[Any, ...]) -> Tensor:
    left, right = ctx.saved_tensors
    t_left, t_right = tangents[:2]
    total = None if t_left is None else product(t_left, right, *ctx.parameters)
    return _sum(total, None if t_right is None else product(left, t_right, *ctx.parameters))


class AV(Function):
    """out[i] = sum over n of attn[i, n] value[N(i, n)]"""

    @staticmethod
    def compute(attn: Tensor, value: Tensor, axes: Axes, clamp_window: bool) -> Tensor:
        return _ops.na_av(attn, value, *axes[:4], clamp_window, *axes.place)

    keep = staticmethod(_keep_both)

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # type: ignore[override]
        out = AV.compute(*arguments)
        AV.keep(ctx, arguments, out)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        attn, value = ctx.saved_tensors
        axes, clamp_window = ctx.parameters
        d_attn = d_value = None
        if ctx.needs_input_grad[0]:
            d_attn = qk(d_out, value, None, axes, 1.0, True, clamp_window)
        if ctx.needs_input_grad[1]:
            d_value = inverse(attn, d_out, axes, value.shape[-2], clamp_window, value.shape[1:-2])
        return d_attn, d_value, None, None

    @staticmethod
    def push_forward(ctx: Any, *tangents: Any) -> Tensor:
        return _product_rule(av, ctx, tangents)


class IN(Function):
    """d_value[j] = sum over {i, n : j = N(i, n)} of attn[i, n] d_out[i]"""

    @staticmethod
    def compute(
        attn: Tensor, d_out: Tensor, axes: Axes, kv_heads: int, clamp_window: bool, key_lengths: tuple[int, ...]
    ) -> Tensor:
        place = (*axes.place, key_lengths) if axes.place else ()
        return _ops.na_in(attn, d_out, *axes[:4], kv_heads, clamp_window, *place)

    keep = staticmethod(_keep_both)

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # type: ignore[override]
        d_value = IN.compute(*arguments)
        IN.keep(ctx, arguments, d_value)
        return d_value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        attn, d_out = ctx.saved_tensors
        axes, _, clamp_window, _ = ctx.parameters
        d_attn = d_d_out = None
        if ctx.needs_input_grad[0]:
            d_attn = qk(d_out, grad, None, axes, 1.0, True, clamp_window)
        if ctx.needs_input_grad[1]:
            d_d_out = av(attn, grad, axes, clamp_window)
        return d_attn, d_d_out, None, None, None, None

    @staticmethod
    def push_forward(ctx: Any, *tangents: Any) -> Tensor:
        return _product_rule(inverse, ctx, tangents)


QKTransformable = transformable(QK, _operations.QK)
AVTransformable = transformable(AV, _operations.AV)
INTransformable = transformable(IN, _operations.IN)


def _additional_logits(query: Tensor, keys: Tensor, scale: float) -> Tensor:
    """[B, X.., H, M]"""
    grouped = query.flatten(1, -3).unflatten(-2, (keys.shape[-2], -1))
    logits = torch.einsum("bnkgd,bmkd->bnkgm", grouped, keys) * scale
    return logits.reshape(*query.shape[:-1], keys.shape[1])


def _additional_sum(attn: Tensor, values: Tensor) -> Tensor:
    """attn [B, X.., H, M] times values [B, M, Hkv, Dv]"""
    grouped = attn.flatten(1, -3).unflatten(-2, (values.shape[-2], -1))
    return torch.einsum("bnkgm,bmkd->bnkgd", grouped, values).reshape(*attn.shape[:-1], values.shape[-1])


def _logits(
    query: Tensor,
    key: Tensor,
    bias: OptionalTensor,
    additional_keys: OptionalTensor,
    axes: Axes,
    scale: float,
    clamp_window: bool,
    zero_fill: bool = False,
) -> Tensor:
    """[B, X.., H, W + M]: of the window, then of the additional tokens."""
    logits = qk(query, key, bias, axes, scale, zero_fill, clamp_window)
    if additional_keys is None:
        return logits
    return torch.cat([logits, _additional_logits(query, additional_keys, scale)], dim=-1)


def _without_empty_rows(logits: Tensor, axes: Axes) -> tuple[Tensor, OptionalTensor]:
    """Logits that are finite somewhere in each row, and the rows that had no key: only parts of a grid have such."""
    if not any(axes.place[1:]):
        return logits, None
    empty = (logits == -torch.inf).all(-1)
    return logits.masked_fill(empty.unsqueeze(-1), 0), empty


def _weighted_sum(
    weights: Tensor, value: Tensor, additional_values: OptionalTensor, axes: Axes, clamp_window: bool
) -> Tensor:
    if additional_values is None:
        return av(weights, value, axes, clamp_window)
    slots = weights.shape[-1] - additional_values.shape[1]
    window, additional = weights.split([slots, additional_values.shape[1]], dim=-1)
    return av(window, value, axes, clamp_window) + _additional_sum(additional, additional_values)


def unfused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: OptionalTensor,
    additional_keys: OptionalTensor,
    additional_values: OptionalTensor,
    axes: Axes,
    scale: Optional[float],
    clamp_window: bool,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """out and lse with the attention weights in memory, where `dropout` of them are set to 0."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logits = _logits(query, key, bias, additional_keys, axes, scale, clamp_window).to(_accumulator(query))
    logits, empty = _without_empty_rows(logits, axes)
    lse = torch.logsumexp(logits, dim=-1)
    weights = torch.exp(logits - lse.unsqueeze(-1)).to(query.dtype)
    if empty is not None:
        lse, weights = lse.masked_fill(empty, -torch.inf), weights.masked_fill(empty.unsqueeze(-1), 0)
    if dropout > 0:
        weights = torch.nn.functional.dropout(weights, dropout)
    return _weighted_sum(weights, value, additional_values, axes, clamp_window), lse


def _tangent(primal: OptionalTensor, tangent: OptionalTensor, dtype: torch.dtype) -> Any:
    """Zero where an input that is there has none."""
    if tangent is None:
        return None if primal is None else torch.zeros_like(primal, dtype=dtype)
    return tangent.to(dtype)


def attention_jvp(
    inputs: tuple[Any, ...],
    tangents: tuple[Any, ...],
    axes: Axes,
    scale: Optional[float],
    clamp_window: bool,
) -> tuple[Tensor, Tensor]:
    """Tangents of out and lse: with logit tangents t and weights p, t_lse = sum(p t) and
    t_out = sum(p (t - t_lse) value + p t_value)."""
    dtype = _accumulator(inputs[0])
    exact: list[Any] = [x if x is None else x.to(dtype) for x in inputs]
    query, key, value, bias, keys, values = exact
    t_query, t_key, t_value, t_bias, t_keys, t_values = [
        _tangent(x, t, dtype) for x, t in zip(inputs, tangents)
    ]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    logits, empty = _without_empty_rows(_logits(query, key, bias, keys, axes, scale, clamp_window), axes)
    weights = torch.softmax(logits, dim=-1)
    if empty is not None:
        weights = weights.masked_fill(empty.unsqueeze(-1), 0)
    t_logits = _logits(t_query, key, t_bias, keys, axes, scale, clamp_window, zero_fill=True)
    t_logits = t_logits + _logits(query, t_key, None, t_keys, axes, scale, clamp_window, zero_fill=True)
    t_lse = (weights * t_logits).sum(-1)
    t_weights = weights * (t_logits - t_lse.unsqueeze(-1))
    t_out = _weighted_sum(t_weights, value, values, axes, clamp_window)
    t_out = t_out + _weighted_sum(weights, t_value, t_values, axes, clamp_window)
    return t_out.to(inputs[0].dtype), t_lse
