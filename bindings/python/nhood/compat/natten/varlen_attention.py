"""Attention inside each of several sequences that lie one after the other along one batch entry.

Tokens outside of all sequences, and queries of sequences without keys, get 0 and a log-sum-exp of -infinity.
"""

from typing import NamedTuple, Tuple

import torch
from torch import Tensor

import nhood.torch
from nhood.torch._functions import autocast
from nhood.torch._groups import na_varlen, sequence_table

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
    """out and log-sum-exp, by one call for all sequences. Where they start is read from the device, which waits for it, but not
    in graphs compiled for CUDA, so that these can be captured."""
    query, key, value = autocast(query, key, value)
    if sequences.longest_q == 0 or sequences.longest_kv == 0:
        return _nothing(query, key, value)
    if _is_for_cuda_graphs(query):
        return _padded(query, key, value, sequences, is_causal, scale)
    table = sequence_table(sequences.starts_q, sequences.starts_kv, is_causal)
    out, lse = na_varlen(query, key, value, table, scale, False, True)
    return out, lse


def _is_for_cuda_graphs(query: Tensor) -> bool:
    return query.is_cuda and is_torch_compiling()


def _nothing(query: Tensor, key: Tensor, value: Tensor) -> Tuple[Tensor, Tensor]:
    """With gradients of 0 where there are to be some."""
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = query.new_zeros((*query.shape[:-1], value.shape[-1])) + sum(x[:, :0].sum() for x in (query, key, value))
    return out, query.new_full(query.shape[:-1], -torch.inf, dtype=lse_dtype)


def _rows(packed: Tensor, starts: Tensor, kept: Tensor) -> Tensor:
    """[1, N, H, D] as [sequences, longest, H, D], with zeros, and no gradient, where not `kept` [sequences, longest]."""
    index = (starts[:-1, None] + torch.arange(kept.shape[1], device=packed.device)).clamp(max=packed.shape[1] - 1)
    return torch.where(kept[..., None, None], packed[0, index], 0)


def _marked(rows: Tensor, marks: Tensor) -> Tensor:
    """`rows` with one more channel, the marks, and zeros up to 8 for alignment."""
    marks = marks[..., None, None].expand(*rows.shape[:-1], 1)
    return torch.cat([rows, torch.nn.functional.pad(marks, (0, 7))], -1)


def _exclusive(dtype: torch.dtype) -> Tuple[float, float]:
    """Marks of queries and of keys whose product is -infinity in the arithmetic of `dtype`.

    Numbers, where the type has some whose product overflows: a mark of infinity times the gradient of its weight, 0, makes a
    NaN in the gradient of the query's mark. Nobody reads that, but on CUDA the query's row would be computed twice."""
    if dtype == torch.float16:
        return 1.0, -torch.inf
    return (2.0**512, -(2.0**1023)) if dtype == torch.float64 else (2.0**64, -(2.0**127))


def _padded(
    query: Tensor, key: Tensor, value: Tensor, sequences: Sequences, is_causal: bool, scale: float
) -> Tuple[Tensor, Tensor]:
    """One call for all, padded to the longest, and nothing is read from the device.

    Padding is zeros, and what other sequences hold, or the tensors outside of all, is never multiplied with it. Keys that are
    padding have logits of -infinity by one more channel. Keys that no query of their sequence attends are taken for padding,
    and so are queries without keys: whatever they hold would reach the gradients of others as 0 times it.
    """
    starts_q, starts_kv, longest_q, longest_kv = sequences
    count_q, count_kv = starts_q.diff()[:, None], starts_kv.diff()[:, None]
    place_q, place_kv = (torch.arange(n, device=query.device) for n in (longest_q, longest_kv))
    kept_q = (place_q < count_q) & (count_kv > 0)
    kept_kv = (place_kv < count_kv) & (count_q > 0)
    if is_causal:
        kept_kv = kept_kv & (place_kv < count_q)
    # Where no key is kept all count, as zeros: rows without keys would be NaN.
    counts = kept_kv | ~kept_kv[:, :1]
    mark_q, mark_k = _exclusive(query.dtype)
    marks_q = torch.full_like(kept_q, mark_q if scale > 0 else -mark_q, dtype=query.dtype)
    marks_k = torch.zeros_like(counts, dtype=key.dtype).masked_fill(~counts, mark_k)
    out, lse = nhood.torch.attention(
        _marked(_rows(query, starts_q, kept_q), marks_q),
        _marked(_rows(key, starts_kv, kept_kv), marks_k),
        _rows(value, starts_kv, kept_kv),
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
