"""Tokens reordered so that every tile of a dilation group is contiguous."""

from typing import Any, Optional, Tuple

from torch import Tensor

from ._permute_v020 import (
    checked_dilation,
    maybe_pad,
    maybe_unpad,
    permutation,
    rank_of,
    token_permute,
    token_unpermute,
)
from .types import DimensionType
from .utils.tuples import ceil_div_tuple, mul_tuple

__all__ = [
    "maybe_pad",
    "maybe_unpad",
    "token_permute",
    "token_permute_operation",
    "token_unpermute",
    "token_unpermute_operation",
]
_PARTS = (2, 0, 1)  # the dilation groups first


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
    na_dim = rank_of(tensor)
    spacing = checked_dilation(na_dim, tile_shape, dilation)
    layout = tuple(tensor.shape[1:-2])
    tiles = ceil_div_tuple(layout, mul_tuple(tile_shape, spacing))
    group_layout = mul_tuple(tiles, tile_shape)
    split = [extent for axis in zip(tiles, tile_shape, spacing) for extent in axis]
    padded = maybe_pad(tensor, tile_shape, dilation)[0].reshape(tensor.shape[0], *split, *tensor.shape[-2:])
    permuted = padded.permute(permutation(na_dim, flip_tiled_dims, _PARTS)).flatten(0, na_dim)
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
    spacing = checked_dilation(na_dim, tile_shape, dilation)
    tiles = ceil_div_tuple(token_layout_shape, mul_tuple(tile_shape, spacing))
    flip = slice(None, None, -1) if flip_tiled_dims else slice(None)
    split: Any = (-1, *spacing[flip], *tiles[flip], *tile_shape[flip], *tensor.shape[-2:])
    inverse = sorted(range(3 * na_dim + 3), key=permutation(na_dim, flip_tiled_dims, _PARTS).__getitem__)
    padded = tensor.reshape(split).permute(inverse)
    whole = padded.reshape(-1, *mul_tuple(mul_tuple(tiles, tile_shape), spacing), *tensor.shape[-2:])
    return whole[(slice(None), *(slice(length) for length in token_layout_shape))].contiguous()
