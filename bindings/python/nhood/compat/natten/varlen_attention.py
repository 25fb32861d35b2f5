"""Attention inside each of several sequences that lie one after the other along one batch entry."""

from typing import Tuple

import torch
from torch import Tensor

import nhood.torch


def _nothing(query: Tensor, value: Tensor, tokens: int) -> Tuple[Tensor, Tensor]:
    shape = (1, tokens, query.shape[2])
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.new_zeros((*shape, value.shape[-1])), query.new_full(shape, -torch.inf, dtype=lse_dtype)


@torch.compiler.disable
def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts_q: Tensor,
    starts_kv: Tensor,
    is_causal: bool,
    scale: float,
) -> Tuple[Tensor, Tensor]:
    """out and log-sum-exp: one call for each sequence, copying nothing. Tokens outside of all sequences, and
    queries of sequences without keys, get 0 and -infinity.

    Reads the places of the sequences from the device, which waits for it; so compiled graphs break here.
    """
    places = list(zip(starts_q.tolist(), starts_kv.tolist()))
    parts: list = [_nothing(query, value, places[0][0])]
    for (q, kv), (next_q, next_kv) in zip(places, places[1:]):
        if next_q > q and next_kv > kv:
            own = query[:, q:next_q], key[:, kv:next_kv], value[:, kv:next_kv]
            parts.append(nhood.torch.attention(*own, is_causal=is_causal, scale=scale, return_lse=True))
        else:
            parts.append(_nothing(query, value, next_q - q))
    parts.append(_nothing(query, value, query.shape[1] - places[-1][0]))
    out, lse = (torch.cat(tensors, dim=1) for tensors in zip(*parts))
    return out, lse
