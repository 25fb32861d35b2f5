"""Tokens reordered in tiles as NATTEN 0.20 does: padding by itself, and the dilation groups among the heads."""

import math
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

from .types import DimensionType
from .utils.tuples import ceil_div_tuple, mul_tuple


def checked_dilation(
    na_dim: int, tile_shape: DimensionType, dilation: Optional[DimensionType]
) -> DimensionType:
    spacing: Any = dilation or (1,) * na_dim
    for name, value in (("tile_shape", tile_shape), ("dilation", spacing)):
        if len(value) != na_dim:
            raise ValueError(f"{name} = {value} has {len(value)} entries, expected {na_dim}")
    return spacing


def rank_of(tensor: Tensor) -> int:
    if tensor.dim() not in (4, 5, 6):
        raise ValueError(f"tensor has rank {tensor.dim()}, expected 4, 5 or 6")
    return tensor.dim() - 3


def permutation(na_dim: int, flip: bool, parts: Tuple[int, int, int]) -> List[int]:
    """From [B, (tiles, tile, dilation) per axis, H, D] to [B, the `parts` of all axes one after the other, H, D]."""
    axes = range(na_dim - 1, -1, -1) if flip else range(na_dim)
    order = [1 + 3 * axis + part for part in parts for axis in axes]
    return [0, *order, 3 * na_dim + 1, 3 * na_dim + 2]


def maybe_pad(
    tensor: Tensor, tile_shape: DimensionType, dilation: Optional[DimensionType] = None
) -> Tuple[Tensor, DimensionType]:
    """[B, X.., H, D] with zeros behind every axis, up to whole tiles of whole dilation groups; and how many."""
    na_dim = rank_of(tensor)
    unit = mul_tuple(tile_shape, checked_dilation(na_dim, tile_shape, dilation))
    layout = tuple(tensor.shape[1:-2])
    padded = mul_tuple(ceil_div_tuple(layout, unit), unit)
    padding = tuple(to - length for to, length in zip(padded, layout))
    behind = [entry for extent in reversed(padding) for entry in (0, extent)]
    return torch.nn.functional.pad(tensor, [0, 0, 0, 0, *behind]), padding  # type: ignore[return-value]


def maybe_unpad(tensor: Tensor, padding: DimensionType) -> Tensor:
    na_dim = rank_of(tensor)
    if len(padding) != na_dim:
        raise ValueError(f"padding = {padding} has {len(padding)} entries, expected {na_dim}")
    kept = (slice(length - extent) for length, extent in zip(tensor.shape[1:], padding))
    return tensor[(slice(None), *kept)].contiguous()


def token_permute(
    tensor: Tensor,
    tile_shape: DimensionType,
    dilation: Optional[DimensionType] = None,
    flip_tiled_dims: bool = True,
) -> Tuple[Tensor, DimensionType, DimensionType]:
    """[B, X.., H, D] to [B, tokens of a dilation group, groups * H, D]; the layout of a group, and its tiles."""
    na_dim = rank_of(tensor)
    spacing = checked_dilation(na_dim, tile_shape, dilation)
    layout = tuple(tensor.shape[1:-2])
    if any(length % unit for length, unit in zip(layout, mul_tuple(tile_shape, spacing))):
        raise ValueError(f"tokens {layout} are no multiple of tile_shape {tile_shape} times dilation {spacing}")
    group_layout = ceil_div_tuple(layout, spacing)
    tiles = ceil_div_tuple(group_layout, tile_shape)
    split = [extent for axis in zip(tiles, tile_shape, spacing) for extent in axis]
    batch, heads, dim = tensor.shape[0], *tensor.shape[-2:]
    permuted = tensor.reshape(batch, *split, heads, dim).permute(permutation(na_dim, flip_tiled_dims, (0, 1, 2)))
    tokens = permuted.reshape(batch, math.prod(group_layout), math.prod(spacing) * heads, dim)
    return tokens.contiguous(), group_layout, tiles


def token_unpermute(
    tensor: Tensor,
    tile_shape: DimensionType,
    orig_shape: DimensionType,
    rest_shape: DimensionType,
    dilation: Optional[DimensionType] = None,
    flip_tiled_dims: bool = True,
) -> Tensor:
    """The inverse of token_permute, from its tokens, their layout and tiles."""
    if tensor.dim() != 4:
        raise ValueError(f"tensor has rank {tensor.dim()}, expected 4")
    na_dim = len(orig_shape)
    spacing = checked_dilation(na_dim, tile_shape, dilation)
    groups = math.prod(spacing)
    if tensor.shape[2] % groups:
        raise ValueError(f"{tensor.shape[2]} heads are no multiple of the {groups} groups of dilation {spacing}")
    flip = slice(None, None, -1) if flip_tiled_dims else slice(None)
    batch, dim = tensor.shape[0], tensor.shape[-1]
    split: Any = (batch, *rest_shape[flip], *tile_shape[flip], *spacing[flip], tensor.shape[2] // groups, dim)
    order = permutation(na_dim, flip_tiled_dims, (0, 1, 2))
    inverse = sorted(range(3 * na_dim + 3), key=order.__getitem__)
    permuted = tensor.reshape(split).permute(inverse)
    return permuted.reshape(batch, *mul_tuple(orig_shape, spacing), -1, dim).contiguous()
