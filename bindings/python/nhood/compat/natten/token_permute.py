"""Tokens reordered so that every tile of a dilation group is contiguous."""

from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

from .types import DimensionType
from .utils.tuples import ceil_div_tuple, mul_tuple


def _checked_dilation(
    na_dim: int, tile_shape: DimensionType, dilation: Optional[DimensionType]
) -> DimensionType:
    spacing: Any = dilation or (1,) * na_dim
    for name, value in (("tile_shape", tile_shape), ("dilation", spacing)):
        if len(value) != na_dim:
            raise ValueError(f"{name} = {value} has {len(value)} entries, expected {na_dim}")
    return spacing


def _permutation(na_dim: int, flip: bool) -> List[int]:
    """From [B, (tiles, tile, dilation) per axis, H, D] to [B, dilations, tiles, tile, H, D]."""
    axes = range(na_dim - 1, -1, -1) if flip else range(na_dim)
    order = [1 + 3 * axis + part for part in (2, 0, 1) for axis in axes]
    return [0, *order, 3 * na_dim + 1, 3 * na_dim + 2]


def token_permute_operation(
    tensor: Tensor,
    tile_shape: DimensionType,
    dilation: Optional[DimensionType] = None,
    flip_tiled_dims: bool = True,
    use_torch: bool = False,
) -> Tuple[Tensor, DimensionType, DimensionType]:
    """[B, X.., H, D] to [B * dilation groups, tokens, H, D], with zeros where tiles reach past the end.

    flip_tiled_dims: the first axis runs fastest.  use_torch: it is torch in any case.
    Returns the tokens, the layout X.., and the layout of one dilation group with its padding.
    """
    if tensor.dim() not in (4, 5, 6):
        raise ValueError(f"tensor has rank {tensor.dim()}, expected 4, 5 or 6")
    na_dim = tensor.dim() - 3
    spacing = _checked_dilation(na_dim, tile_shape, dilation)
    layout = tuple(tensor.shape[1:-2])
    tiles = ceil_div_tuple(layout, mul_tuple(tile_shape, spacing))
    group_layout = mul_tuple(tiles, tile_shape)
    padding = [0, 0, 0, 0]
    for length, padded in zip(reversed(layout), reversed(mul_tuple(group_layout, spacing))):
        padding += [0, padded - length]
    split = [extent for axis in zip(tiles, tile_shape, spacing) for extent in axis]
    padded = torch.nn.functional.pad(tensor, padding).reshape(tensor.shape[0], *split, *tensor.shape[-2:])
    permuted = padded.permute(_permutation(na_dim, flip_tiled_dims)).flatten(0, na_dim)
    return permuted.flatten(1, -3).contiguous(), layout, group_layout  # type: ignore[return-value]


def token_unpermute_operation(
    tensor: Tensor,
    token_layout_shape: DimensionType,
    tile_shape: DimensionType,
    dilation: Optional[DimensionType] = None,
    flip_tiled_dims: bool = True,
    use_torch: bool = False,
) -> Tensor:
    """The inverse of token_permute_operation, from its tokens and their layout X..: [B, X.., H, D]."""
    if tensor.dim() != 4:
        raise ValueError(f"tensor has rank {tensor.dim()}, expected 4")
    na_dim = len(token_layout_shape)
    spacing = _checked_dilation(na_dim, tile_shape, dilation)
    tiles = ceil_div_tuple(token_layout_shape, mul_tuple(tile_shape, spacing))
    flip = slice(None, None, -1) if flip_tiled_dims else slice(None)
    split: Any = (-1, *spacing[flip], *tiles[flip], *tile_shape[flip], *tensor.shape[-2:])
    inverse = sorted(range(3 * na_dim + 3), key=_permutation(na_dim, flip_tiled_dims).__getitem__)
    padded = tensor.reshape(split).permute(inverse)
    whole = padded.reshape(-1, *mul_tuple(mul_tuple(tiles, tile_shape), spacing), *tensor.shape[-2:])
    return whole[(slice(None), *(slice(length) for length in token_layout_shape))].contiguous()
