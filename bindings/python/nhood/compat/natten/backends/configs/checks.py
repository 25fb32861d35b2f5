"""Which backends would take given tensors."""

from ..._requirements import (
    _FLEX_COMPILE_SUPPORTED,
    _FLEX_SUPPORTED,
    can_run_cutlass_blackwell_fmha,
    can_run_cutlass_blackwell_fna,
    can_run_cutlass_fmha,
    can_run_cutlass_fna,
    can_run_cutlass_hopper_fmha,
    can_run_cutlass_hopper_fna,
    can_run_flex_attention,
)

__all__ = [
    "_FLEX_COMPILE_SUPPORTED",
    "_FLEX_SUPPORTED",
    "can_run_cutlass_blackwell_fmha",
    "can_run_cutlass_blackwell_fna",
    "can_run_cutlass_fmha",
    "can_run_cutlass_fna",
    "can_run_cutlass_hopper_fmha",
    "can_run_cutlass_hopper_fna",
    "can_run_flex_attention",
]
