"""Attention inside each of several sequences that lie one after the other along one batch entry.

Tokens outside of all sequences, and queries of sequences without keys, get 0 and a log-sum-exp of -infinity.
"""

from typing import NamedTuple, Tuple

import torch
from torch import Tensor

from nhood.torch._functions import autocast
from nhood.torch._groups import na_varlen, sequence_table


class Sequences(NamedTuple):
    """Where they start, with the end of the last; and how long the longest is."""

    starts_q: Tensor
    starts_kv: Tensor
    longest_q: int
    longest_kv: int


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, sequences: Sequences, is_causal: bool, scale: float
) -> Tuple[Tensor, Tensor]:
    """out and log-sum-exp, by one call for all sequences. Where they start is read from the device, which waits for it; compiled
    graphs do not depend on it."""
    query, key, value = autocast(query, key, value)
    if sequences.longest_q == 0 or sequences.longest_kv == 0:
        return _nothing(query, value)
    table = sequence_table(sequences.starts_q, sequences.starts_kv, is_causal)
    out, lse = na_varlen(query, key, value, table, scale, False, True)
    return out, lse


def _nothing(query: Tensor, value: Tensor) -> Tuple[Tensor, Tensor]:
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = query.new_zeros((*query.shape[:-1], value.shape[-1]))
    return out, query.new_full(query.shape[:-1], -torch.inf, dtype=lse_dtype)
