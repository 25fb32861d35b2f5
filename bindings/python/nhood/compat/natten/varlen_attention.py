"""Attention inside each of several sequences that lie one after the other along one batch entry."""

from typing import Tuple

import torch
from torch import Tensor

import nhood.torch


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts_q: Tensor,
    starts_kv: Tensor,
    is_causal: bool,
    scale: float,
) -> Tuple[Tensor, Tensor]:
    """out and log-sum-exp. One call per sequence; their places are read from the device, which waits for it.
    Tokens outside of all sequences, and queries without keys, get 0 and -infinity."""
    places = list(zip(starts_q.tolist(), starts_kv.tolist()))
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32

    def nothing(first: int, last: int) -> Tuple[Tensor, Tensor]:
        tokens = (1, last - first, query.shape[2])
        out = query.new_zeros((*tokens, value.shape[-1]))
        return out, query.new_full(tokens, -torch.inf, dtype=lse_dtype)

    parts: list = [nothing(0, places[0][0])]
    for (q, kv), (next_q, next_kv) in zip(places, places[1:]):
        if next_q > q and next_kv > kv:
            own = query[:, q:next_q], key[:, kv:next_kv], value[:, kv:next_kv]
            parts.append(nhood.torch.attention(*own, is_causal=is_causal, scale=scale, return_lse=True))
        else:
            parts.append(nothing(q, next_q))
    parts.append(nothing(places[-1][0], query.shape[1]))
    out, lse = (torch.cat(tensors, dim=1) for tensors in zip(*parts))
    return out, lse
