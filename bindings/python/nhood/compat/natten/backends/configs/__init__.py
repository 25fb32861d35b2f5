"""Configurations per backend for given tensors: lists, empty where the backend would refuse the tensors."""

from typing import List

from torch import Tensor

from ... import types
from . import cutlass, cutlass_blackwell, cutlass_hopper, flex
from .checks import (
    can_run_cutlass_blackwell_fmha,
    can_run_cutlass_blackwell_fna,
    can_run_cutlass_fmha,
    can_run_cutlass_fna,
    can_run_cutlass_hopper_fmha,
    can_run_cutlass_hopper_fna,
    can_run_flex_attention,
)


def _widest(key: Tensor, value: Tensor) -> Tensor:
    """Which of them decides the tiles of the backward."""
    return key if key.shape[-1] >= value.shape[-1] else value


def get_configs_for_cutlass_fna(
    query: Tensor, key: Tensor, value: Tensor
) -> List[types.CutlassFnaForwardConfigType]:
    return cutlass.get_all_forward_configs(query) if can_run_cutlass_fna(query, key, value) else []


def get_bwd_configs_for_cutlass_fna(
    query: Tensor, key: Tensor, value: Tensor
) -> List[types.CutlassFnaBackwardConfigType]:
    if not can_run_cutlass_fna(query, key, value):
        return []
    return cutlass.get_all_backward_configs(_widest(key, value))


def get_configs_for_cutlass_fmha(
    query: Tensor, key: Tensor, value: Tensor
) -> List[types.CutlassFmhaForwardConfigType]:
    return cutlass.get_all_fmha_forward_configs(query) if can_run_cutlass_fmha(query, key, value) else []


def get_bwd_configs_for_cutlass_fmha(
    query: Tensor, key: Tensor, value: Tensor
) -> List[types.CutlassFmhaBackwardConfigType]:
    if not can_run_cutlass_fmha(query, key, value):
        return []
    return cutlass.get_all_fmha_backward_configs(_widest(key, value))


def get_configs_for_cutlass_hopper_fna(
    query: Tensor, key: Tensor, value: Tensor
) -> List[types.CutlassHopperFnaForwardConfigType]:
    if not can_run_cutlass_hopper_fna(query, key, value):
        return []
    return cutlass_hopper.get_all_forward_configs(query)


def get_bwd_configs_for_cutlass_hopper_fna(
    query: Tensor, key: Tensor, value: Tensor
) -> List[types.CutlassHopperFnaBackwardConfigType]:
    if not can_run_cutlass_hopper_fna(query, key, value):
        return []
    return cutlass_hopper.get_all_backward_configs(query)


def get_configs_for_cutlass_hopper_fmha(
    query: Tensor, key: Tensor, value: Tensor
) -> List[types.CutlassHopperFmhaForwardConfigType]:
    if not can_run_cutlass_hopper_fmha(query, key, value):
        return []
    return cutlass_hopper.get_all_fmha_forward_configs(query)


def get_bwd_configs_for_cutlass_hopper_fmha(
    query: Tensor, key: Tensor, value: Tensor
) -> List[types.CutlassHopperFmhaBackwardConfigType]:
    if not can_run_cutlass_hopper_fmha(query, key, value):
        return []
    return cutlass_hopper.get_all_fmha_backward_configs(query)


def get_configs_for_cutlass_blackwell_fna(
    query: Tensor, key: Tensor, value: Tensor
) -> List[types.CutlassBlackwellFnaForwardConfigType]:
    if not can_run_cutlass_blackwell_fna(query, key, value):
        return []
    return cutlass_blackwell.get_all_forward_configs(query)


def get_bwd_configs_for_cutlass_blackwell_fna(
    query: Tensor, key: Tensor, value: Tensor
) -> List[types.CutlassBlackwellFnaBackwardConfigType]:
    if not can_run_cutlass_blackwell_fna(query, key, value):
        return []
    return cutlass_blackwell.get_all_backward_configs(query)


def get_configs_for_cutlass_blackwell_fmha(
    query: Tensor, key: Tensor, value: Tensor
) -> List[types.CutlassBlackwellFmhaForwardConfigType]:
    if not can_run_cutlass_blackwell_fmha(query, key, value):
        return []
    return cutlass_blackwell.get_all_fmha_forward_configs(query)


def get_bwd_configs_for_cutlass_blackwell_fmha(
    query: Tensor, key: Tensor, value: Tensor
) -> List[types.CutlassBlackwellFmhaBackwardConfigType]:
    if not can_run_cutlass_blackwell_fmha(query, key, value):
        return []
    return cutlass_blackwell.get_all_fmha_backward_configs(query)


def get_configs_for_flex_fna(
    query: Tensor, key: Tensor, value: Tensor, torch_compile: bool = False
) -> List[types.FlexFnaForwardConfigType]:
    if not can_run_flex_attention(query, key, value, torch_compile=torch_compile):
        return []
    return flex.get_all_tile_shapes_forward(query)


def get_configs_for_flex_fmha(
    query: Tensor, key: Tensor, value: Tensor, torch_compile: bool = False
) -> List[types.FlexFmhaForwardConfigType]:
    if not can_run_flex_attention(query, key, value, torch_compile=torch_compile):
        return []
    return flex.get_all_tile_sizes_forward(query)


__all__ = [name for name in dir() if name.startswith(("get_", "can_run_"))]
