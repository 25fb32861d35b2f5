"""The unfused operators with their gradients, and attention written with them.

The three operators are closed under differentiation: the gradients of each are the others. So they can be
differentiated any number of times, in both modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from . import _ops
from ._transforms import Formula, register_formula

OptionalTensor = Optional[Tensor]


class Axes(NamedTuple):
    """The axis parameters, one entry per axis, as the operators take them."""

    kernel_size: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]
    is_causal: Sequence[int]
    place: tuple[Sequence[int], ...] = ()
    """is_periodic, grid, query_offset and key_offset; () if all tensors cover a grid without periodic axes"""
    windows: str = ""
    """of axes that have a Windows (nhood/_windows.py), where kernel_size is 1"""

    @property
    def last(self) -> tuple[Any, ...]:
        """The operators' last arguments."""
        return (*(self.place or ((),) * 4), self.windows) if self.windows else self.place


def axes_of(parameters: Sequence[Any], place: int, windows: Optional[int] = None) -> Axes:
    """From an operator's parameters, the last of which begin at `place` and may have been left out; where the windows are, if not
    behind the first four of those."""
    given = parameters[place : place + 4]
    text = "".join(parameters[place + 4 if windows is None else windows :][:1])
    return Axes(*parameters[:4], place=(*given, *[()] * (4 - len(given))) if any(map(len, given)) else (), windows=text)


def qk(
    query: Tensor,
    key: Tensor,
    bias: OptionalTensor,
    axes: Axes,
    scale: float,
    zero_fill: bool,
    clamp_window: bool,
) -> Tensor:
    """attn[i, n] = scale * query[i] . key[N(i, n)] + bias"""
    return _ops.na_qk(query, key, bias, *axes[:4], scale, zero_fill, clamp_window, *axes.last)


def av(attn: Tensor, value: Tensor, axes: Axes, clamp_window: bool) -> Tensor:
    """out[i] = sum over n of attn[i, n] value[N(i, n)]"""
    return _ops.na_av(attn, value, *axes[:4], clamp_window, *axes.last)


def inverse(
    attn: Tensor, d_out: Tensor, axes: Axes, kv_heads: int, clamp_window: bool, key_lengths: Sequence[int]
) -> Tensor:
    """d_value[j] = sum over {i, n : j = N(i, n)} of attn[i, n] d_out[i]"""
    place = (*axes.place, key_lengths) if axes.place else ()
    last = (*(place or ((),) * 5), axes.windows) if axes.windows else place
    return _ops.na_in(attn, d_out, *axes[:4], kv_heads, clamp_window, *last)


def _sum(a: OptionalTensor, b: OptionalTensor) -> Any:
    """The sum of what is there; None stands for zeros."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    return tensor if scale == 1 else scale * tensor


@register_formula(_ops.library, "na_qk", 3)
class QK(Formula):
    @staticmethod
    def backward(ctx: Any, d_attn: OptionalTensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        query, key, bias = ctx.saved_tensors
        axes, scale, clamp_window = _of_qk(ctx)
        d_query = d_key = d_bias = None
        if d_attn is None:
            return (None,) * 6
        if ctx.needs_input_grad[0]:
            d_query = _scaled(av(d_attn, key, axes, clamp_window), scale)
        if ctx.needs_input_grad[1]:
            d_key = _scaled(inverse(d_attn, query, axes, key.shape[-2], clamp_window, key.shape[1:-2]), scale)
        if bias is not None and ctx.needs_input_grad[2]:
            d_bias = bias_gradient(d_attn, bias, axes, clamp_window, key.shape[1:-2])
        return d_query, d_key, d_bias, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # type: ignore[override]
        query, key, _ = ctx.saved_tensors
        t_query, t_key, t_bias = tangents[:3]
        axes, scale, clamp_window = _of_qk(ctx)
        total = None
        if t_query is not None or t_bias is not None:
            left = torch.zeros_like(query) if t_query is None else t_query
            total = qk(left, key, t_bias, axes, scale, True, clamp_window)
        if t_key is not None:
            total = _sum(total, qk(query, t_key, None, axes, scale, True, clamp_window))
        assert total is not None  # some input has a tangent
        return total


def _of_qk(ctx: Any) -> tuple[Axes, float, bool]:
    scale, _, clamp_window = ctx.parameters[4:7]
    return axes_of(ctx.parameters, 7), 1.0 if scale is None else scale, clamp_window


def bias_gradient(
    d_attn: Tensor, bias: Tensor, axes: Axes, clamp_window: bool, key_lengths: Sequence[int]
) -> Tensor:
    """Sums d_attn over the batch and over all slots that read the same entry of the bias."""
    heads = bias.shape[0]
    entries = torch.arange(bias[0].numel(), dtype=torch.float64, device=bias.device)
    zero = entries.new_zeros(())
    zeros = [zero.expand(1, *lengths, 1, 1) for lengths in (d_attn.shape[1:-2], key_lengths)]
    table = entries.view(1, *bias.shape[1:])
    index = _ops.na_qk(*zeros, table, *axes[:4], 1.0, False, clamp_window, *axes.last)
    if axes.place:  # a key that is not there has no entry
        absent = index < 0
        index, d_attn = index.masked_fill(absent, 0), d_attn.masked_fill(absent, 0)
    slots = d_attn.sum(0, dtype=_accumulator(bias)).movedim(-2, 0).reshape(heads, -1)
    d_bias = slots.new_zeros(heads, entries.numel()).index_add(1, index.flatten().long(), slots)
    return d_bias.to(bias.dtype).view(bias.shape)


def _accumulator(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


# AV and IN are products of two tensors; their other arguments are parameters.


@register_formula(_ops.library, "na_av", 2)
class AV(Formula):
    @staticmethod
    def backward(ctx: Any, d_out: OptionalTensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        attn, value = ctx.saved_tensors
        axes, clamp_window = _of_av(ctx)
        d_attn = d_value = None
        if d_out is not None and ctx.needs_input_grad[0]:
            d_attn = qk(d_out, value, None, axes, 1.0, True, clamp_window)
        if d_out is not None and ctx.needs_input_grad[1]:
            d_value = inverse(attn, d_out, axes, value.shape[-2], clamp_window, value.shape[1:-2])
        return d_attn, d_value, None, None, None

    @staticmethod
    def jvp(ctx: Any, t_attn: OptionalTensor, t_value: OptionalTensor, *_: Any) -> Tensor:  # type: ignore[override]
        attn, value = ctx.saved_tensors
        axes, clamp_window = _of_av(ctx)
        total = None if t_attn is None else av(t_attn, value, axes, clamp_window)
        return _sum(total, None if t_value is None else av(attn, t_value, axes, clamp_window))


def _of_av(ctx: Any) -> tuple[Axes, bool]:
    return axes_of(ctx.parameters, 5), ctx.parameters[4]


@register_formula(_ops.library, "na_in", 2)
class IN(Formula):
    @staticmethod
    def backward(ctx: Any, grad: OptionalTensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        attn, d_out = ctx.saved_tensors
        axes, _, clamp_window, _ = _of_in(ctx)
        d_attn = d_d_out = None
        if grad is not None and ctx.needs_input_grad[0]:
            d_attn = qk(d_out, grad, None, axes, 1.0, True, clamp_window)
        if grad is not None and ctx.needs_input_grad[1]:
            d_d_out = av(attn, grad, axes, clamp_window)
        return d_attn, d_d_out, None, None, None

    @staticmethod
    def jvp(ctx: Any, t_attn: OptionalTensor, t_d_out: OptionalTensor, *_: Any) -> Tensor:  # type: ignore[override]
        attn, d_out = ctx.saved_tensors
        parameters = _of_in(ctx)
        total = None if t_attn is None else inverse(t_attn, d_out, *parameters)
        return _sum(total, None if t_d_out is None else inverse(attn, t_d_out, *parameters))


def _of_in(ctx: Any) -> tuple[Axes, int, bool, Sequence[int]]:
    kv_heads, clamp_window, *place = ctx.parameters[4:]
    return axes_of(ctx.parameters, 6, 11), kv_heads, clamp_window, place[4] if len(place) > 4 else ()


# Products with additional tokens are bmm, permute and reshape, which every kind of vmap knows, and einsum is not.


def _rows(x: Tensor, kv_heads: int) -> Tensor:
    """[B, X.., H, C] as [B Hkv, N H / Hkv, C]"""
    batch, *lengths, heads, channels = x.shape
    by_group = x.reshape(batch, math.prod(lengths), kv_heads, heads // kv_heads, channels)
    return by_group.permute(0, 2, 1, 3, 4).reshape(
        batch * kv_heads, math.prod(lengths) * (heads // kv_heads), channels
    )


def _from_rows(rows: Tensor, like: Tensor, kv_heads: int) -> Tensor:
    """Back to [B, X.., H, C], but for the channels in the shape of `like`."""
    batch, *lengths, heads, _ = like.shape
    by_group = rows.reshape(batch, kv_heads, math.prod(lengths), heads // kv_heads, rows.shape[-1])
    return by_group.permute(0, 2, 1, 3, 4).reshape(*like.shape[:-1], rows.shape[-1])


def _tokens(x: Tensor) -> Tensor:
    """[B, M, Hkv, C] as [B Hkv, M, C]"""
    batch, count, heads, channels = x.shape
    return x.permute(0, 2, 1, 3).reshape(batch * heads, count, channels)


def _additional_logits(query: Tensor, keys: Tensor, scale: float) -> Tensor:
    """[B, X.., H, M]"""
    kv_heads = keys.shape[-2]
    return _from_rows(torch.bmm(_rows(query, kv_heads), _tokens(keys).transpose(1, 2)), query, kv_heads) * scale


def _additional_sum(attn: Tensor, values: Tensor) -> Tensor:
    """attn [B, X.., H, M] times values [B, M, Hkv, Dv]"""
    kv_heads = values.shape[-2]
    return _from_rows(torch.bmm(_rows(attn, kv_heads), _tokens(values)), attn, kv_heads)


def _additional_inverse(attn: Tensor, d_out: Tensor, kv_heads: int) -> Tensor:
    """[B, M, Hkv, Dv], the sum over queries and heads of attn [B, X.., H, M] times d_out [B, X.., H, Dv]"""
    total = torch.bmm(_rows(attn, kv_heads).transpose(1, 2), _rows(d_out, kv_heads))
    by_head = total.reshape(attn.shape[0], kv_heads, *total.shape[1:])
    return by_head.permute(0, 2, 1, 3)


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
    """Logits that are finite somewhere in each row, and the rows that had no key: only parts of a grid and windows by table have such."""
    if not any(axes.place[1:]) and not axes.windows:
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


def _wide(tensors: Sequence[OptionalTensor], dtype: torch.dtype) -> list[Any]:
    return [x if x is None else x.to(dtype) for x in tensors]


class Along(NamedTuple):
    """Attention weights and their derivative along tangents of the inputs."""

    weights: Tensor
    t_weights: Tensor
    t_lse: Tensor


class Problem(NamedTuple):
    """What derivatives beyond the first of the fused operators are functions of: its six inputs, in the dtype of sums, and its
    parameters."""

    inputs: list[Any]
    axes: Axes
    scale: float
    clamp_window: bool
    dtype: torch.dtype
    """of the inputs as given"""

    @classmethod
    def of(cls, inputs: Sequence[OptionalTensor], parameters: Sequence[Any], place: int) -> Problem:
        """From an operator's tensors and parameters; where the last of these begin."""
        query = inputs[0]
        assert query is not None  # it is not optional
        scale, clamp_window = parameters[4:6]
        return cls(
            _wide(inputs[:6], _accumulator(query)),
            axes_of(parameters, place),
            query.shape[-1] ** -0.5 if scale is None else scale,
            clamp_window,
            query.dtype,
        )

    def wide(self, tensors: Sequence[OptionalTensor]) -> list[Any]:
        return _wide(tensors, self.inputs[0].dtype)

    def products(self, left: OptionalTensor, key: OptionalTensor, additional: OptionalTensor, scale: float) -> Any:
        """Those of `left` with the keys of each window, and with additional ones, 0 in unused slots; None for no tensor
        stands for zeros. [B, X.., H, W + M]"""
        if left is None or key is None and additional is None:
            return None
        ((query, of_key, _), of_additional) = self.inputs[:3], self.inputs[4]
        if key is None:
            key = of_key.new_zeros((*of_key.shape[:-1], left.shape[-1]))
        logits = qk(left, key, None, self.axes, scale, True, self.clamp_window)
        if of_additional is None:
            return logits
        if additional is None:
            more = logits.new_zeros((*logits.shape[:-1], of_additional.shape[1]))
        else:
            more = _additional_logits(left, additional, scale)
        return torch.cat([logits, more], dim=-1)

    def bias_logits(self, bias: OptionalTensor) -> Any:
        """The bias of every slot, 0 in unused ones."""
        if bias is None:
            return None
        query, key, _, _, additional, _ = self.inputs
        logits = qk(torch.zeros_like(query), key, bias, self.axes, 1.0, True, self.clamp_window)
        if additional is None:
            return logits
        return torch.nn.functional.pad(logits, (0, additional.shape[1]))

    def split(self, weights: OptionalTensor) -> tuple[OptionalTensor, OptionalTensor]:
        """Returns the weights of the window's slots, and those of additional tokens."""
        if weights is None or self.inputs[4] is None:
            return weights, None
        count = self.inputs[4].shape[1]
        slots = weights.shape[-1] - count
        return weights.narrow(-1, 0, slots), weights.narrow(-1, slots, count)

    def sum_of(self, weights: OptionalTensor, value: OptionalTensor, additional: OptionalTensor) -> Any:
        """Returns the sum of each window's values and of the additional ones by their weights."""
        if weights is None:
            return None
        in_window, beside = self.split(weights)
        total = None if value is None else av(in_window, value, self.axes, self.clamp_window)
        if additional is None or beside is None:
            return total
        return _sum(total, _additional_sum(beside, additional))

    def to_keys(self, weights: OptionalTensor, rows: OptionalTensor) -> Any:
        """What rows of queries give to their keys, by weights of the window."""
        if weights is None or rows is None:
            return None
        key = self.inputs[1]
        return inverse(weights, rows, self.axes, key.shape[-2], self.clamp_window, key.shape[1:-2])

    def to_additional(self, weights: OptionalTensor, rows: OptionalTensor) -> Any:
        if weights is None or rows is None:
            return None
        return _additional_inverse(weights, rows, self.inputs[1].shape[-2])

    def along(self, tangents: Sequence[Any]) -> Along:
        """tangents: of the inputs, in their dtype, None for zeros."""
        query, key, _, bias, keys, _ = self.inputs
        t_query, t_key, _, t_bias, t_keys, _ = tangents
        logits = _logits(query, key, bias, keys, self.axes, self.scale, self.clamp_window)
        logits, empty = _without_empty_rows(logits, self.axes)
        weights = torch.softmax(logits, dim=-1)
        if empty is not None:
            weights = weights.masked_fill(empty.unsqueeze(-1), 0)
        t_logits = _sum(self.products(t_query, key, keys, self.scale), self.products(query, t_key, t_keys, self.scale))
        t_logits = _sum(t_logits, self.bias_logits(t_bias))
        if t_logits is None:
            t_logits = torch.zeros_like(weights)
        t_lse = (weights * t_logits).sum(-1)
        return Along(weights, weights * (t_logits - t_lse.unsqueeze(-1)), t_lse)

    def results_along(self, along: Along, tangents: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Tangents of out and lse: with logit tangents t and weights p, t_lse = sum(p t) and
        t_out = sum(p (t - t_lse) value + p t_value)."""
        value, values = self.inputs[2], self.inputs[5]
        t_out = self.sum_of(along.t_weights, value, values)
        t_out = _sum(t_out, self.sum_of(along.weights, tangents[2], tangents[5]))
        return t_out.to(self.dtype), along.t_lse

    def gradients_along(
        self,
        along: Along,
        tangents: Sequence[Any],
        gradients: Sequence[Any],
        t_gradients: Sequence[Any],
        wanted: Sequence[bool],
    ) -> list[Any]:
        """Tangents of the gradients of the inputs that are wanted, None for the others. With weights p and their
        tangents t: dP = d_out . value, dS = p (dP - sum(p dP) + d_lse), and the product rule for each.

        gradients: of out and lse, in the inputs' dtype; t_gradients: their tangents; None for zeros."""
        (query, key, value, bias, keys, values), (d_out, d_lse) = self.inputs, gradients
        t_query, t_key, t_value, _, t_keys, t_values = tangents
        t_d_out, t_d_lse = t_gradients
        weights, t_weights, _ = along
        d_weights = self.products(d_out, value, values, 1.0)
        t_d_weights = _sum(self.products(t_d_out, value, values, 1.0), self.products(d_out, t_value, t_values, 1.0))
        less = (weights * d_weights).sum(-1)
        t_less = (t_weights * d_weights).sum(-1)
        if d_lse is not None:
            less = less - d_lse
        if t_d_weights is not None:
            t_less = t_less + (weights * t_d_weights).sum(-1)
        if t_d_lse is not None:
            t_less = t_less - t_d_lse
        above = d_weights - less.unsqueeze(-1)
        t_above = -t_less.unsqueeze(-1) if t_d_weights is None else t_d_weights - t_less.unsqueeze(-1)
        d_logits, t_d_logits = weights * above, t_weights * above + weights * t_above
        (d_window, d_beside), (t_window, t_beside) = self.split(d_logits), self.split(t_d_logits)
        (p_window, p_beside), (tp_window, tp_beside) = self.split(weights), self.split(t_weights)

        def d_bias() -> Tensor:
            assert t_window is not None
            return bias_gradient(t_window, bias, self.axes, self.clamp_window, key.shape[1:-2])

        def scaled(total: Any) -> Any:
            return _scaled(total, self.scale)

        of_inputs = (
            lambda: scaled(_sum(self.sum_of(t_d_logits, key, keys), self.sum_of(d_logits, t_key, t_keys))),
            lambda: scaled(_sum(self.to_keys(t_window, query), self.to_keys(d_window, t_query))),
            lambda: _sum(self.to_keys(tp_window, d_out), self.to_keys(p_window, t_d_out)),
            d_bias,
            lambda: scaled(_sum(self.to_additional(t_beside, query), self.to_additional(d_beside, t_query))),
            lambda: _sum(self.to_additional(tp_beside, d_out), self.to_additional(p_beside, t_d_out)),
        )
        return [of().to(self.dtype) if want else None for of, want in zip(of_inputs, wanted)]
