"""Decorators for unittest methods: skip what this machine cannot run."""

import functools
from typing import Callable

import torch

from .._environment import _IS_CUDA_AVAILABLE, _RUN_EXTENDED_TESTS, HAS_LIBNATTEN
from ..backends.flex import _FLEX_COMPILE_SUPPORTED, _FLEX_SUPPORTED
from . import device


def _skip_unless(condition: Callable[[], bool], reason: str) -> Callable:
    def decorator(test: Callable) -> Callable:
        @functools.wraps(test)
        def wrapper(self, *args, **kwargs):
            if not condition():
                self.skipTest(reason)
            return test(self, *args, **kwargs)

        return wrapper

    return decorator


def skip_if_libnatten_is_not_supported() -> Callable:
    return _skip_unless(lambda: _IS_CUDA_AVAILABLE and HAS_LIBNATTEN, "there is no CUDA device")


def skip_if_cuda_is_not_supported() -> Callable:
    return _skip_unless(lambda: _IS_CUDA_AVAILABLE, "there is no CUDA device")


def skip_if_flex_is_not_supported() -> Callable:
    return _skip_unless(
        lambda: _FLEX_SUPPORTED and device.get_device_cc() >= 70,
        "Flex needs torch 2.7 and compute capability 7.0",
    )


def skip_if_flex_compile_is_not_supported() -> Callable:
    return _skip_unless(
        lambda: _FLEX_COMPILE_SUPPORTED, "compiled Flex needs torch 2.7 and compute capability 7.0"
    )


def skip_if_not_running_extended_tests() -> Callable:
    return _skip_unless(lambda: _RUN_EXTENDED_TESTS, "NATTEN_RUN_EXTENDED_TESTS is not 1")


def skip_if_hopper_kernels_not_supported() -> Callable:
    return _skip_unless(lambda: device.get_device_cc() == 90, "this needs compute capability 9.0")


def skip_if_blackwell_kernels_not_supported() -> Callable:
    return _skip_unless(
        lambda: device.get_device_cc() in (100, 103), "this needs compute capability 10.0 or 10.3"
    )


def supports_float16(torch_device: torch.device) -> bool:
    return not device.is_cuda(torch_device) or device.get_device_cc(torch_device) >= 50


def supports_bfloat16(torch_device: torch.device) -> bool:
    return device.is_cuda(torch_device) and device.get_device_cc(torch_device) >= 80
