"""Attention inside each of several sequences that lie one after the other along one batch entry.

Tokens outside of all sequences, and queries of sequences without keys, get 0 and a log-sum-exp of -infinity.
"""

from typing import NamedTuple, Tuple

import torch
from torch import Tensor

import nhood.torch

from .utils.environment import is_torch_compiling


class Sequences(NamedTuple):
    """Where they start, with the end of the last; and how long the longest is."""

    starts_q: Tensor
    starts_kv: Tensor
    longest_q: int
    longest_kv: int


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, sequences: Sequences, is_causal: bool, scale: float
) -> Tuple[Tensor, Tensor]:
    """out and log-sum-exp."""
    if sequences.longest_q == 0 or sequences.longest_kv == 0:
        return _nothing(query, value, query.shape[1])
    attend = _padded if is_torch_compiling() else _one_by_one
    return attend(query, key, value, sequences, is_causal, scale)


def _nothing(query: Tensor, value: Tensor, tokens: int) -> Tuple[Tensor, Tensor]:
    shape = (1, tokens, query.shape[2])
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.new_zeros((*shape, value.shape[-1])), query.new_full(shape, -torch.inf, dtype=lse_dtype)


def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, sequences: Sequences, is_causal: bool, scale: float
) -> Tuple[Tensor, Tensor]:
    """One call for each sequence, copying nothing. Reads their places from the device, which waits for it."""
    places = list(zip(sequences.starts_q.tolist(), sequences.starts_kv.tolist()))
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


def _rows(packed: Tensor, starts: Tensor, longest: int) -> Tuple[Tensor, Tensor]:
    """[1, N, H, D] as [sequences, longest, H, D], and which tokens of that are in a sequence."""
    place = torch.arange(longest, device=packed.device)
    index = (starts[:-1, None] + place).clamp(max=packed.shape[1] - 1)
    return packed[0, index], place < starts.diff()[:, None]


def _padded(
    query: Tensor, key: Tensor, value: Tensor, sequences: Sequences, is_causal: bool, scale: float
) -> Tuple[Tensor, Tensor]:
    """One call for all, padded to the longest, and nothing is read from the device: for compiled graphs.

    Padding is kept out of the softmax by one more channel (8, for alignment): 1 in all queries, and in keys
    that are padding a value that makes their weight 0.
    """
    starts_q, starts_kv, longest_q, longest_kv = sequences
    rows_q, _ = _rows(query, starts_q, longest_q)
    rows_k, in_sequence = _rows(key, starts_kv, longest_kv)
    rows_v, _ = _rows(value, starts_kv, longest_kv)
    far = min(3e4 / abs(scale), torch.finfo(key.dtype).max / 4)
    mark_q = torch.nn.functional.pad(torch.ones_like(rows_q[..., :1]), (0, 7))
    low = torch.where(in_sequence, 0.0, -far if scale > 0 else far).to(key.dtype)
    mark_k = torch.nn.functional.pad(low[:, :, None, None].expand(-1, -1, key.shape[2], 1), (0, 7))
    out, lse = nhood.torch.attention(
        torch.cat([rows_q, mark_q], -1),
        torch.cat([rows_k, mark_k], -1),
        rows_v,
        is_causal=is_causal,
        scale=scale,
        return_lse=True,
    )
    token = torch.arange(query.shape[1], device=query.device)
    # Not by searchsorted: of a slice of a table, what inductor makes for CUDA searches the table from its start.
    sequence = (token[:, None] >= starts_q[1:]).sum(dim=1)
    outside = (token < starts_q[0]) | (sequence >= starts_q.shape[0] - 1)
    sequence = sequence.masked_fill(outside, 0)
    place = (token - starts_q[sequence]).masked_fill(outside, 0)
    nothing = (outside | (starts_kv.diff()[sequence] == 0))[None, :, None]
    out, lse = out[sequence, place][None], lse[sequence, place][None]
    return out.masked_fill(nothing[..., None], 0.0), lse.masked_fill(nothing, -torch.inf)
