"""Tiles of NATTEN's Blackwell backend."""

from ..._tiles import OF_FAMILY

get_all_forward_configs, get_all_backward_configs = OF_FAMILY["blackwell", "fna"]
get_all_fmha_forward_configs, get_all_fmha_backward_configs = OF_FAMILY["blackwell", "fmha"]
