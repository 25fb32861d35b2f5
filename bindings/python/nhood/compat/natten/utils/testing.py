"""Decorators for unittest methods: skip what this machine cannot run."""

import functools
import importlib.util
from typing import Any, Callable

import torch

from .._environment import _IS_CUDA_AVAILABLE, _RUN_EXTENDED_TESTS, HAS_LIBNATTEN
from ..backends.flex import _FLEX_COMPILE_SUPPORTED, _FLEX_SUPPORTED
from ..context import has_fna, has_fp64_gemm, has_gemm
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


# Those of 0.17 and before. What they ask for beside a device, any torch that nhood runs with has.


def skip_if_gemm_is_not_supported() -> Callable:
    return _skip_unless(lambda: _IS_CUDA_AVAILABLE and has_gemm(), "this needs compute capability 7.0")


def skip_if_gemm_does_not_support_double_precision() -> Callable:
    return _skip_unless(lambda: _IS_CUDA_AVAILABLE and has_fp64_gemm(), "this needs compute capability 8.0")


def skip_if_fna_is_not_supported() -> Callable:
    return _skip_unless(lambda: _IS_CUDA_AVAILABLE and has_fna(), "this needs compute capability 5.0")


def skip_if_triton_is_not_supported() -> Callable:
    return _skip_unless(lambda: device.get_device_cc() >= 70, "Triton needs compute capability 7.0")


def skip_if_fvcore_is_not_available() -> Callable:
    return _skip_unless(lambda: importlib.util.find_spec("fvcore") is not None, "there is no fvcore")


def skip_if_torch_compile_is_not_supported() -> Callable:
    return skip_if_triton_is_not_supported()


def _never_skip() -> Callable:
    return _skip_unless(lambda: True, "")


skip_if_nested_is_not_supported = _never_skip
skip_if_experimental_ops_are_not_supported = _never_skip
skip_if_torch_flop_count_is_not_supported = _never_skip


def fna_supports_additional_kv(head_dim: int, device_index: Any = None) -> bool:
    """NATTEN 0.17 needed xFormers for them."""
    return True


def supports_float16(torch_device: torch.device) -> bool:
    return not device.is_cuda(torch_device) or device.get_device_cc(torch_device) >= 50


def supports_bfloat16(torch_device: torch.device) -> bool:
    return device.is_cuda(torch_device) and device.get_device_cc(torch_device) >= 80
