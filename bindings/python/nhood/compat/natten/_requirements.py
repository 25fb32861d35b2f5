"""Which of NATTEN's backends would take given tensors.

Every backend's name stands for nhood here. A program that names one still gets NATTEN's answer where NATTEN
refuses (device, dtype, head dim ..), because programs branch on it. FP8 is refused, too: nhood has none.
"""

import functools
from typing import Callable, NamedTuple, Optional, Tuple, Type

import torch
from torch import Tensor

from . import _libnatten
from .context import is_flex_compile_allowed, is_flex_compile_backprop_allowed
from .utils import checks, device
from .utils.environment import _IS_TORCH_COMPILE_SUPPORTED, _TORCH_VERSION

Tensors = Tuple[Tensor, Tensor, Tensor]
"""query, key, value"""

_HALF = (torch.float16, torch.bfloat16)
_FLEX_SUPPORTED = _TORCH_VERSION >= [2, 7]
_FLEX_COMPILE_SUPPORTED = _FLEX_SUPPORTED and _IS_TORCH_COMPILE_SUPPORTED


class Backend(NamedTuple):
    """A family of CUDA kernels: neighborhood attention ("fna") and attention ("fmha")."""

    title: str
    takes_capability: Callable[[int], bool]
    capabilities: str
    dtypes: Tuple[torch.dtype, ...]
    takes_head_dim: Callable[[int, bool], bool]  # and whether gradients are needed
    head_dims: str
    head_dim_error: Type[Exception]
    same_head_dims: bool  # of value as of query and key
    nondeterministic_backward: Tuple[str, ...]


BLACKWELL = Backend(
    "Blackwell",
    lambda capability: capability in (100, 103),
    "100 or 103",
    _HALF,
    lambda head_dim, grad: head_dim % 8 == 0 and head_dim <= 128,
    "a multiple of 8 up to 128",
    NotImplementedError,
    True,
    ("fna",),
)
HOPPER = Backend(
    "Hopper",
    lambda capability: capability == 90,
    "90",
    _HALF,
    lambda head_dim, grad: head_dim in (32, 64, 128) or (head_dim == 256 and not grad),
    "32, 64 or 128, or 256 without gradients",
    NotImplementedError,
    True,
    ("fna", "fmha"),
)
CUTLASS = Backend(
    "CUTLASS",
    lambda capability: capability >= 60,
    "60 or higher",
    (torch.float32, *_HALF),
    lambda head_dim, grad: head_dim % 8 == 0 and head_dim <= 2**16,
    "a multiple of 8 up to 65536",
    ValueError,
    False,
    (),
)


def _requires_grad(*tensors: Tensor) -> bool:
    return any(t.requires_grad for t in tensors)


def _device_refusal(backend: Backend, name: str, tensor: Tensor) -> Optional[Exception]:
    if not _libnatten.HAS_LIBNATTEN or not device.is_cuda(tensor.device):
        return RuntimeError(f"{name} needs CUDA tensors, got one on {tensor.device}")
    capability = device.get_device_cc(tensor.device)
    if not backend.takes_capability(capability):
        return RuntimeError(
            f"{name} needs compute capability {backend.capabilities}, the device has {capability}"
        )
    return None


def _head_dim_refusal(backend: Backend, name: str, tensors: Tensors) -> Optional[Exception]:
    query, _, value = tensors
    for head_dim in (query.shape[-1], value.shape[-1]):
        if not backend.takes_head_dim(head_dim, _requires_grad(*tensors)):
            return backend.head_dim_error(f"{name} takes a head dim of {backend.head_dims}, got {head_dim}")
    return None


def refusal(backend: Backend, kind: str, tensors: Tensors) -> Optional[Exception]:
    checks.universal_tensor_checks(*tensors)
    name = f"{backend.title} {kind.upper()}"
    found = checks.tensor_refusal(
        kind, *tensors, must_match_head_dims=backend.same_head_dims, backend_name=name
    )
    found = found or _device_refusal(backend, name, tensors[0])
    if found is not None:
        return found
    if (
        kind in backend.nondeterministic_backward
        and _requires_grad(*tensors)
        and torch.are_deterministic_algorithms_enabled()
    ):
        return NotImplementedError(f"the backward of {name} has no deterministic mode, which torch is in")
    if tensors[0].dtype not in backend.dtypes:
        return ValueError(f"{name} takes {backend.dtypes}, got {tensors[0].dtype}")
    return _head_dim_refusal(backend, name, tensors)


def _can_run_fna(
    backend: Backend, query: Tensor, key: Tensor, value: Tensor, raise_error: bool = False
) -> bool:
    return checks.raise_or_log(refusal(backend, "fna", (query, key, value)), raise_error)


def _can_run_fmha(
    backend: Backend,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool = False,
    is_varlen: bool = False,
    raise_error: bool = False,
) -> bool:
    return checks.raise_or_log(refusal(backend, "fmha", (query, key, value)), raise_error)


can_run_cutlass_fna = functools.partial(_can_run_fna, CUTLASS)
can_run_cutlass_hopper_fna = functools.partial(_can_run_fna, HOPPER)
can_run_cutlass_blackwell_fna = functools.partial(_can_run_fna, BLACKWELL)
can_run_cutlass_fmha = functools.partial(_can_run_fmha, CUTLASS)
can_run_cutlass_hopper_fmha = functools.partial(_can_run_fmha, HOPPER)
can_run_cutlass_blackwell_fmha = functools.partial(_can_run_fmha, BLACKWELL)


def _flex_compile_refusal(tensors: Tensors) -> Optional[Exception]:
    if not _FLEX_COMPILE_SUPPORTED:
        return RuntimeError("compiled Flex Attention needs torch 2.7 and compute capability 7.0")
    if not is_flex_compile_allowed():
        return RuntimeError("compiled Flex Attention is not allowed: call natten.allow_flex_compile()")
    if _requires_grad(*tensors) and not is_flex_compile_backprop_allowed():
        return RuntimeError(
            "compiled Flex Attention is not allowed where gradients are needed: call "
            "natten.allow_flex_compile_backprop()"
        )
    return None


def _flex_refusal(
    tensors: Tensors, torch_compile: bool, is_causal: bool, is_varlen: bool
) -> Optional[Exception]:
    checks.universal_tensor_checks(*tensors)
    query, key, _ = tensors
    if is_causal or is_varlen:
        return RuntimeError("Flex FMHA has neither causal masks nor sequences of different lengths")
    if not _FLEX_SUPPORTED:
        return RuntimeError("Flex Attention needs torch 2.7")
    refusal = _flex_compile_refusal(tensors) if torch_compile else None
    kind = "fmha" if query.dim() == key.dim() == 4 and query.shape[1] != key.shape[1] else "fna"
    refusal = refusal or checks.tensor_refusal(
        kind, *tensors, must_match_head_dims=True, backend_name="Flex Attention"
    )
    if refusal is not None:
        return refusal
    if query.device.type not in ("cuda", "cpu"):
        return RuntimeError(f"Flex Attention needs CUDA, ROCm or CPU tensors, got {query.device}")
    if device.is_cuda(query.device) and device.get_device_cc(query.device) < 70:
        return RuntimeError("Flex Attention needs compute capability 70 or higher")
    dtypes = _HALF if torch_compile else (torch.float32, *_HALF)
    if query.dtype not in dtypes:
        return ValueError(f"Flex Attention takes {dtypes}, got {query.dtype}")
    least, head_dim = 32 if torch_compile else 8, query.shape[-1]
    if not least <= head_dim <= 512 or head_dim & (head_dim - 1):
        return ValueError(
            f"Flex Attention needs a head dim that is a power of 2 in {least}..512, got {head_dim}"
        )
    return None


def can_run_flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    torch_compile: bool,
    is_causal: bool = False,
    is_varlen: bool = False,
    raise_error: bool = False,
) -> bool:
    refusal = _flex_refusal((query, key, value), torch_compile, is_causal, is_varlen)
    return checks.raise_or_log(refusal, raise_error)
