"""RMS norm, scale and rotary positions of query and key: by nhood.torch.norm_rope, or written so that torch.compile makes one kernel of
them.

There are two ways as the second has been timed on a GPU under torch.compile (docs/models.md) and the operator has not yet:
bench/video_decoder.py times both, and the slower one is to go.

diffusers' own formulation rotates each axis' part of a head by itself and joins the parts. The compiler then works out the
sines and cosines of every axis for every element again. In the second way they come from tables that an operator makes, which
the compiler does not look into; each is [tokens along its axis, head dim], with the identity in the parts of the other axes, so
that the rotation of a whole head is one expression:

    y = x * rsqrt(mean(x^2) + eps) * weight * scale
    rotated[i] = y[i] * cosine[i] + y[i ^ 1] * sine[i]          (sine is negative for even i)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn

import nhood.torch

from ._versions import ltx2

Lengths = tuple[int, int, int]


@torch.library.custom_op("nhood::rotation_tables", mutates_args=())
def rotation_tables(
    like: Tensor, grid: Sequence[int], corner: Sequence[int], dims: Sequence[int], base: float
) -> Tensor:
    """[2, sum of the grid's lengths, sum of dims]: cosines and sines, in f32, on the device of `like`.

    grid: tokens on each axis, whose rows follow each other. corner: position of the first one. dims: how much of a head each axis
    rotates, even. base: of the frequencies base^(-2i / dim)."""
    rows, before = [], 0
    for first, length, dim in zip(corner, grid, dims):
        # As in diffusers: frequencies in f64, rounded to f32; angles in f32.
        exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=like.device) / dim
        frequencies = (1.0 / base**exponents).to(torch.float32)
        positions = torch.arange(first, first + length, dtype=torch.float32, device=like.device)
        angles = positions[:, None] * frequencies
        sine = angles.sin()
        around = (before, sum(dims) - before - dim)
        cosines = nn.functional.pad(angles.cos().repeat_interleave(2, dim=1), around, value=1.0)
        sines = nn.functional.pad(torch.stack([-sine, sine], dim=-1).flatten(1), around)
        rows.append(torch.stack([cosines, sines]))
        before += dim
    return torch.cat(rows, dim=1)


@rotation_tables.register_fake
def _(like: Tensor, grid: Sequence[int], corner: Sequence[int], dims: Sequence[int], base: float) -> Tensor:
    return like.new_empty((2, sum(grid), sum(dims)), dtype=torch.float32)


def _norm_and_rotate(x: Tensor, tables: Tensor, weight: Tensor, eps: float, scale: float) -> Tensor:
    """x: [B, T, H, W, heads, D]; in f32, rounded once."""
    frames, rows, columns = x.shape[1:4]
    t, h, w = tables.split([frames, rows, columns], dim=1)
    t, h, w = t[:, :, None, None, None], h[:, None, :, None, None], w[:, None, None, :, None]
    cosine, sine = t[0] * h[0] * w[0], t[1] + h[1] + w[1]
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * (weight.float() * scale)
    other = normed.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return (normed * cosine + other * sine).to(x.dtype)


def is_known(attn: nn.Module) -> bool:
    """Whether the layer's projections, norms and positions are those of diffusers, for which project_qkv below stands in."""
    return (
        type(attn) is ltx2.LTX2VideoVaeNeighborhoodAttention
        and all(type(norm) is nn.RMSNorm and norm.weight is not None for norm in (attn.norm_q, attn.norm_k))
        and type(attn.rope) is ltx2.LTX2VideoVaeRotaryPosEmbed3D
    )


def by_operator(attn: nn.Module, query: Tensor, key: Tensor, corner: Lengths = (0, 0, 0)) -> tuple[Tensor, Tensor]:
    """What attn.project_qkv makes of its projections of query and key, [B, T, H, W, heads, D], whose first token is at `corner` of the
    grid."""
    rope = attn.rope
    lengths = [first + length for first, length in zip(corner, query.shape[1:4])]
    tables = nhood.torch.rotary_tables(lengths, rope.rope_dim_split, rope.base, device=query.device)
    return (
        _of_norm(nhood.torch.norm_rope, query, attn.norm_q, tables, scale=attn.scale, offset=corner),
        _of_norm(nhood.torch.norm_rope, key, attn.norm_k, tables, offset=corner),
    )


def by_compiler(attn: nn.Module, query: Tensor, key: Tensor, corner: Lengths = (0, 0, 0)) -> tuple[Tensor, Tensor]:
    """The same, to be compiled."""
    rope = attn.rope
    tables = rotation_tables(query.detach(), query.shape[1:4], corner, rope.rope_dim_split, rope.base)
    return (
        _of_norm(_norm_and_rotate, query, attn.norm_q, tables, scale=attn.scale),
        _of_norm(_norm_and_rotate, key, attn.norm_k, tables, scale=1.0),
    )


def _of_norm(way: Callable[..., Tensor], x: Tensor, norm: nn.RMSNorm, tables: Any, **named: Any) -> Tensor:
    eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    return way(x, tables, norm.weight, eps=eps, **named)


def project_qkv(
    attn: nn.Module, hidden_states: Tensor, corner: Optional[Lengths] = None
) -> tuple[Tensor, Tensor, Tensor]:
    """attn.project_qkv, of a tile whose first token is at `corner`."""
    shape = (*hidden_states.shape[:4], attn.heads, attn.head_dim)
    query, key, value = (to(hidden_states).view(shape) for to in (attn.to_q, attn.to_k, attn.to_v))
    way = by_compiler if torch.compiler.is_compiling() else by_operator
    return (*way(attn, query, key, corner or (0, 0, 0)), value)
