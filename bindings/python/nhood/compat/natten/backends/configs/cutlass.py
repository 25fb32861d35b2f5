"""Tiles of NATTEN's CUTLASS 2 backend."""

from ..._tiles import OF_FAMILY

get_all_forward_configs, get_all_backward_configs = OF_FAMILY["cutlass", "fna"]
get_all_fmha_forward_configs, get_all_fmha_backward_configs = OF_FAMILY["cutlass", "fmha"]

get_all_tile_shapes_forward = get_all_forward_configs
get_all_tile_shapes_backward = get_all_backward_configs
get_all_tile_sizes_forward = get_all_fmha_forward_configs
get_all_tile_sizes_backward = get_all_fmha_backward_configs
