"""Attention without neighborhoods, and attentions over parts of the keys put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Optional, Union, overload

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .._layouts import counted
from ._functions import check_tensor, na1d


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool = False,
    scale: Optional[float] = None,
    *,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool = False,
    scale: Optional[float] = None,
    *,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool = False,
    scale: Optional[float] = None,
    *,
    return_lse: bool,
) -> Union[Tensor, tuple[Tensor, Tensor]]: ...


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool = False,
    scale: Optional[float] = None,
    *,
    return_lse: bool = False,
) -> Any:
    """Attention of every query over all keys, or over those up to its own position.

    query: [B, N, H, D].  key: [B, M, Hkv, D].  value: [B, M, Hkv, Dv]; Hkv divides H. N and M may differ; query
    i attends the keys 0 .. i then, if causal.
    scale: any finite number; None: D ** -0.5.

    Returns out [B, N, H, Dv]; with return_lse, out and the log-sum-exp of the logits [B, N, H].
    """
    if not isinstance(query, Tensor) and has_torch_function((query, key, value)):  # of torch.fx, for one
        named = dict(is_causal=is_causal, scale=scale, return_lse=return_lse)
        return handle_torch_function(attention, (query, key, value), query, key, value, **named)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, tensor)
        if tensor.dim() != 4:
            raise ValueError(f"{name}.shape = {tuple(tensor.shape)} has {counted(tensor.dim(), 'axis', 'axes')}, not 4")
    queries, keys = query.shape[1], key.shape[1]
    if is_causal and keys > queries:  # nobody attends the last ones
        key, value = key[:, :queries], value[:, :queries]
        keys = queries
    if queries == keys:
        out, lse = na1d(query, key, value, keys, is_causal=is_causal, scale=scale, return_lse=True)
    elif is_causal:
        early = na1d(query[:, :keys], key, value, keys, is_causal=True, scale=scale, return_lse=True)
        late = _over_additional(query[:, keys:], key, value, scale)
        out, lse = (torch.cat(parts, dim=1) for parts in zip(early, late))
    else:
        out, lse = _over_additional(query, key, value, scale)
    return (out, lse) if return_lse else out


def _over_additional(
    query: Tensor, key: Tensor, value: Tensor, scale: Optional[float]
) -> tuple[Tensor, Tensor]:
    """Takes all keys for additional tokens. Of a grid, there is one key as well: beyond the queries, of which none attends it."""
    queries = query.shape[1]
    nothing = [tensor.new_zeros(tensor.shape[0], 1, *tensor.shape[2:]) for tensor in (key, value)]
    beyond = dict(grid=queries + 1, query_offset=0, key_offset=queries)
    return na1d(query, *nothing, 1, scale=scale, additional_keys=key, additional_values=value, return_lse=True, **beyond)


def merge_attentions(outputs: Sequence[Tensor], lse_tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Attention over the union of disjoint sets of keys, from the results over each of them.

    outputs: each [B, X.., H, Dv].  lse_tensors: each [B, X.., H], the log-sum-exps of the same calls.

    Returns out and lse, as one call over all the keys would; gradients go through both outputs and log-sum-exps.
    A log-sum-exp of -infinity says that a set had no key for the row: what stands in its output does not count, and their
    gradients are 0. Where no set had any, out is 0 and lse is -infinity.
    """
    if len(outputs) != len(lse_tensors) or not outputs:
        raise ValueError(
            f"{counted(len(outputs), 'output')} and {counted(len(lse_tensors), 'entry', 'entries')} of lse_tensors: "
            "give one or more pairs"
        )
    given = (*outputs, *lse_tensors)
    if not isinstance(given[0], Tensor) and has_torch_function(given):
        return handle_torch_function(merge_attentions, given, outputs, lse_tensors)
    lses = torch.stack(list(lse_tensors))
    missing = lses == -torch.inf
    empty = missing.all(0)
    lses = lses.masked_fill(missing, -torch.inf)  # the same, without a gradient
    lses = lses.masked_fill(empty, 0)  # no difference of infinities: it has no gradient
    lse = torch.logsumexp(lses, dim=0)
    weights = torch.exp(lses - lse).masked_fill(missing, 0)
    total = sum(
        weight.unsqueeze(-1) * output.to(lse.dtype).masked_fill(absent.unsqueeze(-1), 0)
        for weight, output, absent in zip(weights, outputs, missing)
    )
    return total.to(outputs[0].dtype), lse.masked_fill(empty, -torch.inf)  # type: ignore[union-attr]
