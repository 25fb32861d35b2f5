"""Tiles of NATTEN's Flex Attention backend."""

from ..._tiles import FLEX_FORWARD_TILE_SHAPES, OF_FAMILY

get_all_tile_shapes_forward = OF_FAMILY["flex", "fna"][0]
get_all_tile_sizes_forward = OF_FAMILY["flex", "fmha"][0]

__all__ = ["FLEX_FORWARD_TILE_SHAPES", "get_all_tile_shapes_forward", "get_all_tile_sizes_forward"]
