"""Neighborhood attention in plain torch, by gathering each query's keys: differentiable, and shares nothing with
the library. Tensors are heads last, [B, X.., H, D]."""

from __future__ import annotations

import itertools
import math
from typing import Optional

import torch
from dense import axis_window
from torch import Tensor


def per_axis(value, rank: int) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank


def neighborhoods(shape, window, stride, dilation, causal) -> tuple[Tensor, Tensor]:
    """Per token and window slot, row-major over the axes: the key token, -1 where causal windows leave the slot
    unused; and the flat index into one head's relative bias."""
    tokens = list(itertools.product(*map(range, shape)))
    number = {token: i for i, token in enumerate(tokens)}
    keys = torch.full((len(tokens), math.prod(window)), -1)
    bias = torch.zeros_like(keys)
    axes = list(zip(shape, window, stride, dilation, causal))
    for i, token in enumerate(tokens):
        windows = [axis_window(*axis, t) for axis, t in zip(axes, token)]
        for places in itertools.product(*map(enumerate, windows)):
            slot = index = 0
            for (place, key), query, w, d in zip(places, token, window, dilation):
                slot = slot * w + place
                index = index * (2 * w - 1) + key // d - query // d + w - 1
            keys[i, slot] = number[tuple(key for _, key in places)]
            bias[i, slot] = index
    return keys, bias


def logits(
    query: Tensor,
    key: Tensor,
    window,
    stride=1,
    dilation=1,
    causal=False,
    scale=1.0,
    rpb: Optional[Tensor] = None,
) -> Tensor:
    """[B, X.., H, W]; -infinity in unused slots."""
    shape = query.shape[1:-2]
    window, stride, dilation, causal = (per_axis(p, len(shape)) for p in (window, stride, dilation, causal))
    keys, bias = neighborhoods(shape, window, stride, dilation, causal)
    key = key.repeat_interleave(query.shape[-2] // key.shape[-2], dim=-2)
    near = key.flatten(1, -3)[:, keys.clamp(min=0)]
    attn = scale * torch.einsum("bnhd,bnwhd->bnhw", query.flatten(1, -3), near)
    if rpb is not None:
        attn = attn + rpb.flatten(1)[:, bias].movedim(0, 1)
    attn = attn.masked_fill((keys < 0).unsqueeze(1), -torch.inf)
    return attn.unflatten(1, shape)


def weighted_sum(attn: Tensor, value: Tensor, window, stride=1, dilation=1, causal=False) -> Tensor:
    """[B, X.., H, Dv], of attn [B, X.., H, W]."""
    shape = value.shape[1:-2]
    window, stride, dilation, causal = (per_axis(p, len(shape)) for p in (window, stride, dilation, causal))
    keys, _ = neighborhoods(shape, window, stride, dilation, causal)
    value = value.repeat_interleave(attn.shape[-2] // value.shape[-2], dim=-2)
    used = attn.flatten(1, -3).masked_fill((keys < 0).unsqueeze(1), 0.0)
    near = value.flatten(1, -3)[:, keys.clamp(min=0)]
    return torch.einsum("bnhw,bnwhd->bnhd", used, near).unflatten(1, shape)


def neighborhood_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window,
    stride=1,
    dilation=1,
    causal=False,
    scale: Optional[float] = None,
    rpb: Optional[Tensor] = None,
    extra_keys: Optional[Tensor] = None,
    extra_values: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """out [B, X.., H, Dv] and log-sum-exp [B, X.., H]; extra tokens [B, M, Hkv, D] in the same softmax."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    attn = logits(query, key, window, stride, dilation, causal, scale, rpb)
    slots = attn.shape[-1]
    if extra_keys is not None:
        group = query.shape[-2] // key.shape[-2]
        extra_keys, extra_values = (t.repeat_interleave(group, dim=-2) for t in (extra_keys, extra_values))
        more = torch.einsum("bnhd,bmhd->bnhm", query.flatten(1, -3), extra_keys)
        attn = torch.cat([attn, scale * more.unflatten(1, query.shape[1:-2])], dim=-1)
    weights = attn.softmax(dim=-1)
    out = weighted_sum(weights[..., :slots], value, window, stride, dilation, causal)
    if extra_values is not None:
        more = torch.einsum("bnhm,bmhd->bnhd", weights[..., slots:].flatten(1, -3), extra_values)
        out = out + more.unflatten(1, query.shape[1:-2])
    return out, attn.logsumexp(dim=-1)


def attention(query: Tensor, key: Tensor, value: Tensor, causal=False, scale=None) -> tuple[Tensor, Tensor]:
    """Every query and every key, or those up to the query's own place; [B, N, H, D] and [B, M, Hkv, D]."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    group = query.shape[-2] // key.shape[-2]
    key, value = (t.repeat_interleave(group, dim=-2) for t in (key, value))
    attn = scale * torch.einsum("bnhd,bmhd->bnhm", query, key)
    if causal:
        later = torch.arange(key.shape[1]) > torch.arange(query.shape[1]).unsqueeze(1)
        attn = attn.masked_fill(later.unsqueeze(1), -torch.inf)
    return torch.einsum("bnhm,bmhd->bnhd", attn.softmax(dim=-1), value), attn.logsumexp(dim=-1)
