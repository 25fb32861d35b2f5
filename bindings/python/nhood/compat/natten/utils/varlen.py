"""Sequences of different lengths, packed one after the other along one batch entry."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from nhood.torch._groups import of_any_number

from .environment import is_torch_compiling


def generate_varlen_parameters(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seqlens_Q: Optional[Tensor] = None,
    seqlens_KV: Optional[Tensor] = None,
) -> Tuple[Optional[Tensor], Optional[Tensor], int, int]:
    """(cumulative_seqlen_Q, cumulative_seqlen_KV, max_seqlen_Q, max_seqlen_KV), from the lengths of the
    sequences. Waits for the device: call it once, before a model's forward, and outside compiled code, which other numbers of
    sequences then do not compile anew."""
    if is_torch_compiling():
        raise RuntimeError(
            "generate_varlen_parameters reads lengths from the device, which breaks compiled graphs: call it "
            "before, and pass cumulative_seqlen_{Q,KV} and max_seqlen_{Q,KV} to attention"
        )
    if (seqlens_Q is None) != (seqlens_KV is None):
        raise ValueError("seqlens_Q and seqlens_KV: give both or neither")
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise ValueError(f"batch sizes differ: {[t.shape[0] for t in (query, key, value)]}")
    if seqlens_Q is None or seqlens_KV is None:
        return None, None, 0, 0
    check_sequence_table("seqlens", seqlens_Q, seqlens_KV, query.device, 1)
    if query.shape[0] != 1:
        raise ValueError(
            f"sequences of different lengths are packed along one batch entry, got {query.shape[0]}"
        )
    return (
        _starts_and_end(seqlens_Q),
        _starts_and_end(seqlens_KV),
        int(seqlens_Q.max()),
        int(seqlens_KV.max()),
    )


def _starts_and_end(lengths: Tensor) -> Tensor:
    return of_any_number(torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)))


def check_sequence_table(name: str, table_q: Any, table_kv: Any, device: torch.device, least: int) -> None:
    """ValueError unless both are int32 vectors of one length, at least `least`, on `device`."""
    for side, table in (("Q", table_q), ("KV", table_kv)):
        if not isinstance(table, Tensor):
            raise ValueError(f"{name}_{side} is of {type(table)}, expected a tensor")
        if table.device != device:
            raise ValueError(f"{name}_{side} is on {table.device}, query on {device}")
        if table.dtype != torch.int32:
            raise ValueError(f"{name}_{side} is {table.dtype}, expected torch.int32")
        if table.dim() != 1:
            raise ValueError(f"{name}_{side} has rank {table.dim()}, expected 1")
        if table.shape[0] < least:
            raise ValueError(f"{name}_{side} has {table.shape[0]} entries, expected at least {least}")
    if table_q.shape != table_kv.shape:
        raise ValueError(f"{name}_Q and {name}_KV have {table_q.shape[0]} and {table_kv.shape[0]} entries")
