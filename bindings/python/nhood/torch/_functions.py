"""The public functions: each is written once for every rank, and published as na1d_.., na2d_.., na3d_.."""

from __future__ import annotations

import inspect
from typing import Any, Optional

import torch
from torch import Tensor

from .._functions import CausalPerAxis, PerAxis, causal_per_axis, check_additional, per_axis, publish
from ._fused import fused_attention
from ._unfused import Axes, av, qk

_COMMON_PARAGRAPHS = """Tensors are on the CPU or on one CUDA device, float64, float32, float16 or bfloat16, all of one dtype
    (log-sum-exps are float64 for float64, else float32). Under autocast, float32 tensors are cast to its dtype.
    Strides are free: no input is copied whose last axis is contiguous.
    Differentiable in all tensors, in reverse and forward mode and more than once.

    Raises ValueError for values, shapes and dtypes that are not legal, with a text that names the argument, its
    value and the limit; NotImplementedError if no solver takes the problem.

    Source of the formulas: Hassani, Hwu, Shi, "Faster Neighborhood Attention" (2024); the stride is that of
    "Generalized Neighborhood Attention" (2025)."""


def _axes(
    rank: int, kernel_size: PerAxis, stride: PerAxis, dilation: PerAxis, is_causal: CausalPerAxis
) -> Axes:
    return Axes(
        per_axis(kernel_size, rank, "kernel_size"),
        per_axis(stride, rank, "stride"),
        per_axis(dilation, rank, "dilation"),
        causal_per_axis(is_causal, rank),
    )


def autocast(*tensors: Optional[Tensor]) -> tuple[Any, ...]:
    """float32 tensors in autocast's dtype where that is on; as they are otherwise."""
    device = "cuda" if tensors[0].is_cuda else "cpu"  # type: ignore[union-attr]
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple([t.to(dtype) if t is not None and t.dtype == torch.float32 else t for t in tensors])


def attention_of_rank(
    rank: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: CausalPerAxis = False,
    scale: Optional[float] = None,
    additional_keys: Optional[Tensor] = None,
    additional_values: Optional[Tensor] = None,
    *,
    bias: Optional[Tensor] = None,
    return_lse: bool = False,
    clamp_window: bool = False,
) -> Any:
    """Neighborhood attention: each query attends the window of its nearest tokens.

    out = softmax(scale * query . key (+ bias)) value, over the keys of each query's window.

    query: [B, X.., H, D].  key: [B, X.., Hkv, D].  value: [B, X.., Hkv, Dv]; Hkv divides H.
    AXES_PARAGRAPH
    scale: any finite number; None: D ** -0.5.
    additional_keys, additional_values: [B, M, Hkv, D] and [B, M, Hkv, Dv]; M tokens that every query attends
        too, in the same softmax.
    bias: [BIAS_SHAPE], added to the logits; the index on an axis is key position - query position,
        inside the dilation group, + k - 1. Not with causal axes.

    Returns out [B, X.., H, Dv]; with return_lse, out and the log-sum-exp of the logits [B, X.., H].

    COMMON_PARAGRAPHS
    """
    check_additional(additional_keys, additional_values)
    inputs = autocast(query, key, value, bias, additional_keys, additional_values)
    axes = _axes(rank, kernel_size, stride, dilation, is_causal)
    scale = None if scale is None else float(scale)
    results = fused_attention(inputs, axes, scale, clamp_window, return_lse)
    return tuple(results) if return_lse else results[0]


def _qk(
    rank: int,
    query: Tensor,
    key: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: CausalPerAxis = False,
    scale: Optional[float] = None,
    *,
    bias: Optional[Tensor] = None,
    zero_fill: bool = False,
    clamp_window: bool = False,
) -> Tensor:
    """The logits of neighborhood attention: attn[i, n] = scale * query[i] . key[N(i, n)] (+ bias).

    N(i, n) enumerates the window of query i row-major over the axes. A causal window may leave slots unused:
    they get -infinity, or 0 with zero_fill.

    query: [B, X.., H, D].  key: [B, X.., Hkv, D]; Hkv divides H.  bias: [BIAS_SHAPE].
    AXES_PARAGRAPH
    scale: any finite number; None: 1.

    Returns attn [B, X.., H, W], W the product of the windows.

    COMMON_PARAGRAPHS
    """
    query, key, bias = autocast(query, key, bias)
    axes = _axes(rank, kernel_size, stride, dilation, is_causal)
    return qk(query, key, bias, axes, 1.0 if scale is None else float(scale), zero_fill, clamp_window)


def _av(
    rank: int,
    attn: Tensor,
    value: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: CausalPerAxis = False,
    *,
    clamp_window: bool = False,
) -> Tensor:
    """Sums values over windows: out[i] = sum over n of attn[i, n] value[N(i, n)].

    attn: [B, X.., H, W], as the qk function gives it; slots that causal windows leave unused are not read.
    value: [B, X.., Hkv, Dv]; Hkv divides H.
    AXES_PARAGRAPH

    Returns out [B, X.., H, Dv].

    COMMON_PARAGRAPHS
    """
    attn, value = autocast(attn, value)
    return av(attn, value, _axes(rank, kernel_size, stride, dilation, is_causal), clamp_window)


def neighborhood_attention(
    query: Tensor, key: Tensor, value: Tensor, kernel_size: PerAxis, *arguments: Any, **named: Any
) -> Any:
    """na1d, na2d or na3d, by the number of axes of `query`, with the arguments of those."""
    rank = query.dim() - 3
    if rank not in (1, 2, 3):
        raise ValueError(
            f"query.shape = {tuple(query.shape)} has {query.dim()} axes: [B, X.., H, D] has 4, 5 or 6"
        )
    return attention_of_rank(rank, query, key, value, kernel_size, *arguments, **named)


def _publish(function: Any, name: str, rank: int) -> Any:
    return publish(function, name, rank, _COMMON_PARAGRAPHS)


na1d = _publish(attention_of_rank, "na1d", 1)
na2d = _publish(attention_of_rank, "na2d", 2)
na3d = _publish(attention_of_rank, "na3d", 3)
na1d_qk = _publish(_qk, "na1d_qk", 1)
na2d_qk = _publish(_qk, "na2d_qk", 2)
na3d_qk = _publish(_qk, "na3d_qk", 3)
na1d_av = _publish(_av, "na1d_av", 1)
na2d_av = _publish(_av, "na2d_av", 2)
na3d_av = _publish(_av, "na3d_av", 3)

setattr(neighborhood_attention, "__signature__", inspect.signature(na2d))
