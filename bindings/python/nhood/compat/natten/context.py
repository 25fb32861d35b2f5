"""Settings of the process, under NATTEN's names.

They are kept, checked and reported as NATTEN does, and hardly anything depends on them: nhood plans each
problem by itself and needs no guard around compiled attention. What does depend: use_deterministic_algorithms
(as torch's own switch, only solvers whose results are equal run to run), use_fused_na (attention dropout is left
out where it is on) and the guards of backend="flex-fna" with torch_compile=True.
"""

from enum import Enum
from typing import Any, Optional, Tuple

import torch
from nhood.torch import _tensors

from .utils import device, log

logger = log.get_logger(__name__)


class MemoryUsagePreference(Enum):
    Default = 0
    Strict = 1
    Unrestricted = 2


class NattenContext:
    is_deterministic_mode_enabled: bool = False
    is_fused_na_enabled: bool = False
    is_kv_parallelism_enabled: bool = True  # False up to 0.17: see follow()
    use_flex_attention: bool = False
    force_flex_attention: bool = False
    training_memory_preference: MemoryUsagePreference = MemoryUsagePreference.Default
    flex_compile_allowed: bool = False
    flex_compile_backprop_allowed: bool = False

    @staticmethod
    def reset() -> None:
        _restore(NattenContext, _NATTEN_DEFAULTS)


class AutotunerContext:
    enabled_for_forward: bool = False
    enabled_for_backward: bool = False
    thorough_mode_forward: bool = False
    thorough_mode_backward: bool = False
    warmup_steps_forward: int = 5
    warmup_steps_backward: int = 5
    steps_forward: int = 5
    steps_backward: int = 5

    @staticmethod
    def reset() -> None:
        _restore(AutotunerContext, _AUTOTUNER_DEFAULTS)


class _GemmContext:
    gemm: bool = True
    tiled: bool = True
    tf32: bool = True


def _settings(holder: type) -> dict:
    return {name: getattr(holder, name) for name in holder.__annotations__}


def _restore(holder: type, settings: dict) -> None:
    for name, value in settings.items():
        setattr(holder, name, value)


_NATTEN_DEFAULTS = _settings(NattenContext)
_AUTOTUNER_DEFAULTS = _settings(AutotunerContext)


def follow(version: Tuple[int, int]) -> None:
    """Takes over the defaults of a version of NATTEN: up to 0.17, parallelism over keys was off. A setting that was
    changed from its default stays."""
    name = "is_kv_parallelism_enabled"
    wanted = version >= (0, 20)
    if getattr(NattenContext, name) == _NATTEN_DEFAULTS[name]:
        setattr(NattenContext, name, wanted)
    _NATTEN_DEFAULTS[name] = wanted


# Memory

_MEMORY = {
    "default": MemoryUsagePreference.Default,
    "strict": MemoryUsagePreference.Strict,
    "unrestricted": MemoryUsagePreference.Unrestricted,
}


def set_memory_usage_preference(pref: str = "default") -> None:
    if pref not in _MEMORY:
        raise ValueError(f"memory usage preference = {pref!r}, expected one of {list(_MEMORY)}")
    NattenContext.training_memory_preference = _MEMORY[pref]


def get_memory_usage_preference() -> MemoryUsagePreference:
    return NattenContext.training_memory_preference


def is_memory_usage_default() -> bool:
    return get_memory_usage_preference() == MemoryUsagePreference.Default


def is_memory_usage_strict() -> bool:
    return get_memory_usage_preference() == MemoryUsagePreference.Strict


def is_memory_usage_unrestricted() -> bool:
    return get_memory_usage_preference() == MemoryUsagePreference.Unrestricted


# Determinism and parallelism over keys


def use_deterministic_algorithms(mode: bool = True) -> None:
    NattenContext.is_deterministic_mode_enabled = mode


def are_deterministic_algorithms_enabled() -> bool:
    return NattenContext.is_deterministic_mode_enabled


_tensors.deterministic_switches.append(are_deterministic_algorithms_enabled)


def use_kv_parallelism_in_fused_na(mode: bool = True) -> None:
    if mode and torch.are_deterministic_algorithms_enabled():
        logger.warning("parallelism over keys is not enabled: torch's deterministic algorithms are on")
        return
    if mode and are_deterministic_algorithms_enabled():
        raise RuntimeError(
            "parallelism over keys cannot be enabled: natten.use_deterministic_algorithms() is on"
        )
    NattenContext.is_kv_parallelism_enabled = mode


def is_kv_parallelism_in_fused_na_enabled() -> bool:
    return NattenContext.is_kv_parallelism_enabled


# Guards of compiled Flex Attention


def allow_flex_compile(mode: bool = True, backprop: bool = False) -> None:
    NattenContext.flex_compile_allowed = mode
    NattenContext.flex_compile_backprop_allowed = mode and backprop


def allow_flex_compile_backprop(mode: bool = True) -> None:
    allow_flex_compile(is_flex_compile_allowed() or mode, mode)


def disable_flex_compile() -> None:
    allow_flex_compile(False)


def disable_flex_compile_backprop() -> None:
    allow_flex_compile(is_flex_compile_allowed(), False)


def is_flex_compile_allowed() -> bool:
    return NattenContext.flex_compile_allowed


def is_flex_compile_backprop_allowed() -> bool:
    return NattenContext.flex_compile_backprop_allowed


# Up to 0.17: the choice between fused and unfused kernels


def use_fused_na(
    mode: bool = True,
    kv_parallel: bool = True,
    use_flex_attention: bool = False,
    force_flex_attention: bool = False,
) -> None:
    """kv_parallel: as from 0.17.3 on, whichever version is followed; not looked at where fused kernels are switched off."""
    use_kv_parallelism_in_fused_na(mode and kv_parallel)
    NattenContext.is_fused_na_enabled = mode
    NattenContext.use_flex_attention = mode and use_flex_attention
    NattenContext.force_flex_attention = mode and force_flex_attention


def is_fused_na_enabled() -> bool:
    return NattenContext.is_fused_na_enabled


def use_flex_attention() -> None:
    use_fused_na(use_flex_attention=True)


def force_flex_attention() -> None:
    use_fused_na(use_flex_attention=True, force_flex_attention=True)


def should_use_flex_attention() -> bool:
    return NattenContext.use_flex_attention


def should_force_flex_attention() -> bool:
    return NattenContext.force_flex_attention


use_fna = use_fused_na
is_fna_enabled = is_fused_na_enabled


# Up to 0.17: the auto-tuner


def use_autotuner(
    forward_pass: Optional[bool] = None,
    backward_pass: Optional[bool] = None,
    thorough_mode_forward: Optional[bool] = None,
    thorough_mode_backward: Optional[bool] = None,
    warmup_steps_forward: Optional[int] = None,
    warmup_steps_backward: Optional[int] = None,
    steps_forward: Optional[int] = None,
    steps_backward: Optional[int] = None,
) -> None:
    """None leaves a setting as it is."""
    given = dict(
        enabled_for_forward=forward_pass,
        enabled_for_backward=backward_pass,
        thorough_mode_forward=thorough_mode_forward,
        thorough_mode_backward=thorough_mode_backward,
        warmup_steps_forward=warmup_steps_forward,
        warmup_steps_backward=warmup_steps_backward,
        steps_forward=steps_forward,
        steps_backward=steps_backward,
    )
    if (forward_pass or backward_pass) and torch.are_deterministic_algorithms_enabled():
        logger.warning("the auto-tuner is not enabled: torch's deterministic algorithms are on")
        return
    for name, value in given.items():
        kind = type(_AUTOTUNER_DEFAULTS[name])
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name} = {value!r} is of {type(value)}, expected {kind}")
    if (forward_pass or backward_pass) and are_deterministic_algorithms_enabled():
        raise RuntimeError("the auto-tuner cannot be enabled: natten.use_deterministic_algorithms() is on")
    _restore(AutotunerContext, {name: value for name, value in given.items() if value is not None})


def disable_autotuner() -> None:
    use_autotuner(False, False, False, False)


def is_autotuner_enabled() -> bool:
    return AutotunerContext.enabled_for_forward or AutotunerContext.enabled_for_backward


def is_autotuner_enabled_for_forward() -> bool:
    return AutotunerContext.enabled_for_forward


def is_autotuner_enabled_for_backward() -> bool:
    return AutotunerContext.enabled_for_backward


def is_autotuner_thorough_for_forward() -> bool:
    return AutotunerContext.thorough_mode_forward


def is_autotuner_thorough_for_backward() -> bool:
    return AutotunerContext.thorough_mode_backward


# Up to 0.17: what the build and the device can do, and which unfused kernels are used


def _cuda_at_least(capability: int, device_index: Any) -> bool:
    return has_cuda() and device.get_device_cc(device_index) >= capability


def has_cuda() -> bool:
    return torch.cuda.is_available()


def has_half(device_index: Any = None) -> bool:
    return _cuda_at_least(50, device_index)


def has_bfloat(device_index: Any = None) -> bool:
    return _cuda_at_least(80, device_index)


def has_gemm(device_index: Any = None) -> bool:
    return _cuda_at_least(70, device_index)


def has_fna(device_index: Any = None) -> bool:
    return _cuda_at_least(50, device_index)


def has_tf32_gemm(device_index: Any = None) -> bool:
    return _cuda_at_least(80, device_index)


def has_fp64_gemm(device_index: Any = None) -> bool:
    return _cuda_at_least(80, device_index)


has_fused_na = has_fna
has_fp32_gemm = has_tf32_gemm


def use_gemm_na(mode: bool = True) -> None:
    _GemmContext.gemm = bool(mode)


def use_tiled_na(mode: bool = True) -> None:
    _GemmContext.tiled = bool(mode)


def use_tf32_in_gemm_na(mode: bool = True) -> None:
    _GemmContext.tf32 = bool(mode)


def is_gemm_na_enabled() -> bool:
    return _GemmContext.gemm


def is_tiled_na_enabled() -> bool:
    return _GemmContext.tiled


def is_tf32_in_gemm_na_enabled() -> bool:
    return _GemmContext.tf32


def enable_gemm_na() -> bool:
    use_gemm_na(True)
    return is_gemm_na_enabled()


def disable_gemm_na() -> bool:
    use_gemm_na(False)
    return is_gemm_na_enabled()


def enable_tiled_na() -> bool:
    use_tiled_na(True)
    return is_tiled_na_enabled()


def disable_tiled_na() -> bool:
    use_tiled_na(False)
    return is_tiled_na_enabled()


def enable_tf32() -> bool:
    use_tf32_in_gemm_na(True)
    return is_tf32_in_gemm_na_enabled()


def disable_tf32() -> bool:
    use_tf32_in_gemm_na(False)
    return is_tf32_in_gemm_na_enabled()


__all__ = [
    name
    for name in dir()
    if name.startswith(
        ("set_", "get_", "is_", "has_", "use_", "allow_", "are_", "enable_", "disable_", "force_")
    )
]
