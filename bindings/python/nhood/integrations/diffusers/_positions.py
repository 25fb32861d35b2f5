"""RMS norm, scale and rotary positions of query and key by nhood.torch.norm_rope, eager and under torch.compile."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

import nhood.torch

from ._versions import ltx2

Lengths = tuple[int, int, int]


def is_known(attn: nn.Module) -> bool:
    """Whether the layer's projections, norms and positions are those of diffusers, for which project_qkv below stands in."""
    return (
        type(attn) is ltx2.LTX2VideoVaeNeighborhoodAttention
        and all(type(norm) is nn.RMSNorm and norm.weight is not None for norm in (attn.norm_q, attn.norm_k))
        and type(attn.rope) is ltx2.LTX2VideoVaeRotaryPosEmbed3D
    )


def norm_and_rotate(attn: nn.Module, query: Tensor, key: Tensor, corner: Lengths = (0, 0, 0)) -> tuple[Tensor, Tensor]:
    """What attn.project_qkv makes of its projections of query and key, [B, T, H, W, heads, D], whose first token is at `corner` of the
    grid."""
    rope = attn.rope
    lengths = [first + length for first, length in zip(corner, query.shape[1:4])]
    tables = nhood.torch.rotary_tables(lengths, rope.rope_dim_split, rope.base, device=query.device)

    def by_norm(x: Tensor, norm: nn.RMSNorm, **named: Any) -> Tensor:
        eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
        return nhood.torch.norm_rope(x, tables, norm.weight, eps=eps, offset=corner, **named)

    return by_norm(query, attn.norm_q, scale=attn.scale), by_norm(key, attn.norm_k)


def project_qkv(
    attn: nn.Module, hidden_states: Tensor, corner: Optional[Lengths] = None
) -> tuple[Tensor, Tensor, Tensor]:
    """attn.project_qkv, of a tile whose first token is at `corner`."""
    shape = (*hidden_states.shape[:4], attn.heads, attn.head_dim)
    query, key, value = (to(hidden_states).view(shape) for to in (attn.to_q, attn.to_k, attn.to_v))
    return (*norm_and_rotate(attn, query, key, corner or (0, 0, 0)), value)
