"""Helpers that programs import from NATTEN: argument checks, logging, device and dtype questions."""

from .checks import (
    check_all_args,
    check_causal_arg,
    check_dilation_arg,
    check_input_size_arg,
    check_kernel_size_arg,
    get_num_na_weights,
)
from .device import get_device_cc

__all__ = [
    "check_all_args",
    "check_causal_arg",
    "check_dilation_arg",
    "check_input_size_arg",
    "check_kernel_size_arg",
    "get_device_cc",
    "get_num_na_weights",
]
