"""Tensors on their way to the library: addresses and layouts in, new tensors out.

CPU tensors run on the library's CPU device, CUDA tensors on the CUDA device of their ordinal, enqueued on
torch's current stream with a workspace from torch's allocator. Nothing here synchronises.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor

from .. import _library as c
from .. import _plans
from .._arrays import Layout
from .._plans import Request

_TO_DTYPE = {getattr(torch, name): dtype for dtype, name in c.DTYPE_NAMES.items()}
_FROM_DTYPE = {dtype: torch_dtype for torch_dtype, dtype in _TO_DTYPE.items()}
_ALIGNMENT = 16  # of tensors on CUDA, in bytes, for solvers that need some


@functools.lru_cache(maxsize=4 * _plans.PLAN_CACHE_SIZE)
def _layout(shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> Optional[Layout]:
    """None if the library cannot read such a tensor as it lies: one that is not contiguous on its last axis, or
    is broadcast on all others, for which its strides have no word."""
    if dtype not in _TO_DTYPE or len(shape) < 2:
        return None
    contiguous = strides[-1] == 1 or shape[-1] <= 1
    broadcast = not any(strides[:-1]) and shape.numel() > shape[-1]
    if broadcast or not contiguous:
        return None
    number = _TO_DTYPE[dtype]
    return tuple(shape), tuple(stride * c.DTYPE_BYTES[number] for stride in strides), number


def _readable(tensor: Tensor, name: str) -> Tensor:
    """A copy that the library can read, if there can be one."""
    if tensor.dtype not in _TO_DTYPE:
        raise ValueError(f"{name} has dtype {tensor.dtype}: not one of {', '.join(c.DTYPE_NAMES.values())}")
    if tensor.dim() < 2:
        raise ValueError(f"{name}.shape = {tuple(tensor.shape)} has {tensor.dim()} axes")
    return tensor.contiguous()


try:  # what torch's own generated code calls; the public way makes an object first
    from torch._C import _cuda_getCurrentRawStream as _current_stream
except ImportError:

    def _current_stream(device: int) -> int:
        return torch.cuda.current_stream(device).cuda_stream


def tf32_allowed() -> bool:
    """Whether torch may round factors of float32 matrix products on CUDA to TF32."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # set by the names of torch 2.9 and later, which this one then refuses to know
        return torch.backends.cuda.matmul.fp32_precision == "tf32"


def _settings(request: Request, first: Tensor) -> Request:
    """Torch's global settings apply, as they do to torch's own operations."""
    flags = request.flags
    if torch.are_deterministic_algorithms_enabled():
        flags |= c.FLAG_DETERMINISTIC
    if first.is_cuda and first.dtype is torch.float32 and tf32_allowed():
        flags |= c.FLAG_ALLOW_TF32
    return request if flags == request.flags else request._replace(flags=flags)


def run(request: Request, tensors: Sequence[Optional[Tensor]]) -> list[Tensor]:
    """Executes; the wanted results, in the order of the operation's outputs.

    Tensors are read as they lie. Only one that the library cannot read so is copied: not contiguous on its last
    axis, broadcast on all others, or a bias that is not contiguous.
    """
    first, names = tensors[0], request.operation.input_names
    assert first is not None  # no operation's first input is optional
    ordinal = first.get_device()  # -1 for the CPU
    inputs = list(tensors)  # keeps copies alive until the end of the call
    layouts: list[Optional[Layout]] = []
    addresses: list[Optional[int]] = []
    low_bits = 0
    for i, tensor in enumerate(tensors):
        if tensor is None:
            layouts.append(None)
            addresses.append(None)
            continue
        if tensor.get_device() != ordinal:
            raise ValueError(f"{names[i]} is on {tensor.device}, {names[0]} on {first.device}")
        layout = None if names[i] == "bias" else _layout(tensor.shape, tensor.stride(), tensor.dtype)
        if layout is None:
            tensor = inputs[i] = _readable(tensor, names[i])
            layout = _layout(tensor.shape, tensor.stride(), tensor.dtype)
        layouts.append(layout)
        address = tensor.data_ptr()
        addresses.append(address)
        low_bits |= address
    request = _settings(request, first)
    if ordinal < 0:
        plan = _plans.find_plan(_plans.current_context(), _plans.CPU, request, tuple(layouts))
        results = _allocate(plan, first, addresses)
        _plans.execute(plan, addresses)
        return results
    if low_bits % _ALIGNMENT:
        request = request._replace(flags=request.flags | c.FLAG_UNALIGNED)
    return _run_on_cuda(request, first, tuple(layouts), addresses)


def _run_on_cuda(
    request: Request, first: Tensor, layouts: tuple[Optional[Layout], ...], addresses: list[Optional[int]]
) -> list[Tensor]:
    context, device = _plans.current_context(), first.device
    number = context.cuda_devices.get(device.index)
    if number is None:
        notes = c.lib.nhood_context_notes(context.handle).decode()
        raise RuntimeError(f"the library does not see {device}: {notes}")
    plan = _plans.find_plan(context, number, request, layouts)
    results = _allocate(plan, first, addresses)
    bytes_needed = plan.workspace_bytes
    workspace = torch.empty(bytes_needed, dtype=torch.uint8, device=device) if bytes_needed else None
    address = workspace.data_ptr() if workspace is not None else None
    _plans.enqueue(plan, addresses, address, _current_stream(device.index))
    return results


def _allocate(plan: _plans.Plan, first: Tensor, addresses: list[Optional[int]]) -> list[Tensor]:
    """New tensors for the wanted results, on the device of the first; the addresses of all results are appended."""
    results = []
    for output in plan.outputs:
        if output is None:
            addresses.append(None)
            continue
        shape, number = output
        dtype = _FROM_DTYPE[number]
        result = first.new_empty(shape) if dtype is first.dtype else first.new_empty(shape, dtype=dtype)
        results.append(result)
        addresses.append(result.data_ptr())
    return results
