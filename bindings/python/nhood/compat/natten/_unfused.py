"""The unfused functions of NATTEN 0.14 to 0.17: logits and weighted sums, one number per window slot in between.

Tensors are heads first, [B, H, X.., D]; attention weights [B, H, X.., W (+ M)], W the product of the windows, M
additional tokens. The caller scales the query. Windows are odd, as NATTEN's unfused kernels have it. Results are
views of heads-last memory: permuting them back costs nothing.
"""

import math
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

import nhood.torch

from ._ranks import of_rank
from .types import CausalArgType, CausalArgTypeOrDed, DimensionType, DimensionTypeOrDed
from .utils import checks

_QK = {1: nhood.torch.na1d_qk, 2: nhood.torch.na2d_qk, 3: nhood.torch.na3d_qk}
_AV = {1: nhood.torch.na1d_av, 2: nhood.torch.na2d_av, 3: nhood.torch.na3d_av}


def _heads_last(tensor: Tensor) -> Tensor:
    return tensor.movedim(1, -2)


def _heads_first(tensor: Tensor) -> Tensor:
    return tensor.movedim(-2, 1)


def _checked_axes(
    na_dim: int, tensor: Tensor, kernel_size: Any, dilation: Any, is_causal: Any
) -> Tuple[DimensionType, DimensionType, CausalArgType]:
    """What NATTEN's library checks is a RuntimeError, what its Python checks a ValueError."""
    axes = checks.check_all_args(na_dim, kernel_size, 1, dilation, is_causal)
    if tensor.dim() != na_dim + 3:
        raise RuntimeError(f"expected tensors of rank {na_dim + 3}, got {tensor.dim()}")
    kernel_size, _, dilation, is_causal = axes
    if any(k % 2 == 0 for k in kernel_size):
        raise RuntimeError(
            f"kernel_size = {kernel_size} is even on an axis: unfused kernels take odd ones only"
        )
    checks.check_args_against_input(_heads_last(tensor), *axes, error=RuntimeError)
    return kernel_size, dilation, is_causal


def _check_additional(tensor: Tensor, like: Tensor, name: str) -> None:
    """[B, H, M, D], of the batch, heads and head dim of `like`."""
    expected = (*like.shape[:2], like.shape[-1])
    if tensor.dim() != 4 or (*tensor.shape[:2], tensor.shape[-1]) != expected:
        raise ValueError(f"{name} is {tuple(tensor.shape)}, expected [B, H, M, D] with B, H, D = {expected}")


def qk(
    na_dim: int,
    query: Tensor,
    key: Tensor,
    kernel_size: DimensionTypeOrDed,
    dilation: DimensionTypeOrDed = 1,
    additional_keys: Optional[Tensor] = None,
    is_causal: Optional[CausalArgTypeOrDed] = False,
    rpb: Optional[Tensor] = None,
) -> Tensor:
    """Logits query . key (+ rpb) over each query's window, then over the additional keys.

    query, key: [B, H, X.., D].  additional_keys: [B, H, M, D].  rpb: [H, 2*kx-1, ..], not with causal axes.
    Slots that causal windows leave unused are -infinity.
    """
    if query.is_nested or key.is_nested:
        if rpb is not None and rpb.is_nested:
            raise ValueError("rpb must not be nested")
        return _each(
            lambda q, k, extra: qk(na_dim, q, k, kernel_size, dilation, extra, is_causal, rpb),
            query,
            key,
            additional_keys,
        )
    kernel_size, dilation, is_causal = _checked_axes(na_dim, query, kernel_size, dilation, is_causal)
    if query.shape != key.shape:
        raise RuntimeError(f"query {tuple(query.shape)} and key {tuple(key.shape)} differ in shape")
    if rpb is not None:
        if any(is_causal):
            raise NotImplementedError("rpb is not defined with causal axes")
        expected = (query.shape[1], *(2 * k - 1 for k in kernel_size))
        if tuple(rpb.shape) != expected:
            raise RuntimeError(f"rpb is {tuple(rpb.shape)}, expected {expected}")
        rpb = rpb.to(key.dtype)
    attn = _QK[na_dim](_heads_last(query), _heads_last(key), kernel_size, 1, dilation, is_causal, bias=rpb)
    attn = _heads_first(attn)
    if additional_keys is None:
        return attn
    _check_additional(additional_keys, query, "additional_keys")
    extra = torch.matmul(query.flatten(2, -2), additional_keys.transpose(-2, -1))
    return torch.cat([attn, extra.unflatten(2, query.shape[2:-1])], dim=-1)


def av(
    na_dim: int,
    attn: Tensor,
    value: Tensor,
    kernel_size: DimensionTypeOrDed,
    dilation: DimensionTypeOrDed = 1,
    additional_values: Optional[Tensor] = None,
    is_causal: Optional[CausalArgTypeOrDed] = False,
) -> Tensor:
    """Sums of values over each query's window, and over the additional values.

    attn: [B, H, X.., W (+ M)].  value: [B, H, X.., D].  additional_values: [B, H, M, D].
    """
    if attn.is_nested or value.is_nested:
        return _each(
            lambda a, v, extra: av(na_dim, a, v, kernel_size, dilation, extra, is_causal),
            attn,
            value,
            additional_values,
        )
    kernel_size, dilation, is_causal = _checked_axes(na_dim, value, kernel_size, dilation, is_causal)
    weights = checks.get_num_na_weights(kernel_size)
    extra = 0 if additional_values is None else additional_values.shape[-2]
    if attn.shape[-1] != weights + extra:
        raise ValueError(f"attn has {attn.shape[-1]} weights per query, expected {weights} + {extra}")
    if attn.shape[:-1] != value.shape[:-1]:
        raise RuntimeError(
            f"attn {tuple(attn.shape)} and value {tuple(value.shape)} differ before their last axis"
        )
    attn = attn.to(value.dtype)  # under autocast, softmax gives float32
    out = _AV[na_dim](_heads_last(attn[..., :weights]), _heads_last(value), kernel_size, 1, dilation, is_causal)
    out = _heads_first(out)
    if additional_values is None:
        return out
    _check_additional(additional_values, value, "additional_values")
    return out + torch.matmul(attn[..., weights:].flatten(2, -2), additional_values).unflatten(
        2, value.shape[2:-1]
    )


def _each(function: Any, first: Tensor, second: Tensor, extra: Optional[Tensor]) -> Tensor:
    """`function` of each entry of nested tensors. Forward only."""
    given = [first, second] if extra is None else [first, second, extra]
    if not all(t.is_nested for t in given):
        raise ValueError("some tensors are nested: expected all to be")
    if any(t.requires_grad for t in given):
        raise ValueError("nested tensors have no gradients here")
    if len({t.size(0) for t in given}) != 1:
        raise ValueError(f"nested tensors differ in length: {[t.size(0) for t in given]}")
    extras = [None] * first.size(0) if extra is None else extra.unbind()
    parts = [function(*entries) for entries in zip(first.unbind(), second.unbind(), extras)]
    return torch.nested.nested_tensor([part.contiguous() for part in parts])


na1d_qk, na2d_qk, na3d_qk = (of_rank(qk, rank, f"na{rank}d_qk") for rank in (1, 2, 3))
na1d_av, na2d_av, na3d_av = (of_rank(av, rank, f"na{rank}d_av") for rank in (1, 2, 3))


# 0.15, where the bias had functions of its own.


def _qk_with_bias(
    na_dim: int,
    query: Tensor,
    key: Tensor,
    bias: Optional[Tensor],
    kernel_size: DimensionTypeOrDed,
    dilation: DimensionTypeOrDed,
    additional_keys: Optional[Tensor] = None,
) -> Tensor:
    return qk(na_dim, query, key, kernel_size, dilation, additional_keys, rpb=bias)


na1d_qk_with_bias, na2d_qk_with_bias = (
    of_rank(_qk_with_bias, rank, f"na{rank}d_qk_with_bias") for rank in (1, 2)
)


def na3d_qk_with_bias(
    query: Tensor,
    key: Tensor,
    bias: Optional[Tensor],
    kernel_size_d: int,
    kernel_size: int,
    dilation_d: int,
    dilation: int,
    additional_keys: Optional[Tensor] = None,
) -> Tensor:
    axes = (kernel_size_d, kernel_size, kernel_size), (dilation_d, dilation, dilation)
    return qk(3, query, key, *axes, additional_keys, rpb=bias)


# 0.14. Its first releases took no kernel_size, which follows from a tensor; transformers called them so.


def _nattenqkrpb(
    na_dim: int,
    query: Tensor,
    key: Tensor,
    rpb: Optional[Tensor],
    kernel_size: int,
    dilation: Optional[int] = None,
) -> Tensor:
    """With four arguments, the last is the dilation."""
    if dilation is None:
        if rpb is None:
            raise TypeError("kernel_size and dilation are needed where rpb is None")
        kernel_size, dilation = (rpb.shape[-1] + 1) // 2, kernel_size
    return qk(na_dim, query, key, kernel_size, dilation, rpb=rpb)


def _nattenqk(na_dim: int, query: Tensor, key: Tensor, kernel_size: int, dilation: int) -> Tensor:
    return qk(na_dim, query, key, kernel_size, dilation)


def _nattenav(
    na_dim: int, attn: Tensor, value: Tensor, kernel_size: int, dilation: Optional[int] = None
) -> Tensor:
    """With three arguments, the last is the dilation."""
    if dilation is None:
        weights = attn.shape[-1]
        window = weights if na_dim == 1 else math.isqrt(weights)
        if window**na_dim != weights:
            raise ValueError(f"attn has {weights} weights per query, which is no square")
        kernel_size, dilation = window, kernel_size
    return av(na_dim, attn, value, kernel_size, dilation)


natten1dqkrpb, natten2dqkrpb = (of_rank(_nattenqkrpb, rank, f"natten{rank}dqkrpb") for rank in (1, 2))
natten1dqk, natten2dqk = (of_rank(_nattenqk, rank, f"natten{rank}dqk") for rank in (1, 2))
natten1dav, natten2dav = (of_rank(_nattenav, rank, f"natten{rank}dav") for rank in (1, 2))


def natten3dqkrpb(
    query: Tensor,
    key: Tensor,
    rpb: Optional[Tensor],
    kernel_size_d: int,
    kernel_size: int,
    dilation_d: int,
    dilation: int,
) -> Tensor:
    return na3d_qk_with_bias(query, key, rpb, kernel_size_d, kernel_size, dilation_d, dilation)


def natten3dqk(
    query: Tensor, key: Tensor, kernel_size_d: int, kernel_size: int, dilation_d: int, dilation: int
) -> Tensor:
    return na3d_qk_with_bias(query, key, None, kernel_size_d, kernel_size, dilation_d, dilation)


def natten3dav(
    attn: Tensor, value: Tensor, kernel_size_d: int, kernel_size: int, dilation_d: int, dilation: int
) -> Tensor:
    return av(3, attn, value, (kernel_size_d, kernel_size, kernel_size), (dilation_d, dilation, dilation))


__all__ = [name for name in dir() if name.startswith(("natten", "na1d", "na2d", "na3d"))]
