"""Arrays as the library sees them: an address and a layout.

Three kinds of arrays are known: numpy's, torch's (torch is never imported here, only found if the caller has
imported it), and everything else that exports its memory. Results are of the kind of the first input.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Union

import numpy as np

from . import _dlpack
from . import _library as c
from ._layouts import Layout, wrong_dtype
from ._memory import aligned_bytes
from ._words import is_traced, wrong_type


class Kind(NamedTuple):
    """How to handle one type of arrays."""

    read: Callable[[Any, str], tuple[int, Layout, Any]]
    """(array, name for errors) -> address, layout, and an object that keeps the memory alive"""
    empty: Callable[[tuple[int, ...], int], tuple[Any, int]]
    """(shape, dtype) -> a new array and its address"""
    wrap: Union[Callable[[Any, Any], Any], None]
    """(result of empty, input) -> an array of the input's type; None where empty makes that already"""


# numpy. It has no bfloat16 of its own; the dtype of that name that other packages register is taken.

_NUMPY_TO_DTYPE: dict[np.dtype, int] = {
    np.dtype(np.float64): c.DTYPE_F64,
    np.dtype(np.float32): c.DTYPE_F32,
    np.dtype(np.float16): c.DTYPE_F16,
}
_DTYPE_TO_NUMPY: dict[int, np.dtype] = {dtype: numpy_dtype for numpy_dtype, dtype in _NUMPY_TO_DTYPE.items()}


def _register_bfloat16(dtype: np.dtype, name: str) -> int:
    if dtype.name != "bfloat16" or not dtype.isnative:
        raise wrong_dtype(name, dtype)
    _NUMPY_TO_DTYPE[dtype] = c.DTYPE_BF16
    _DTYPE_TO_NUMPY[c.DTYPE_BF16] = dtype
    return c.DTYPE_BF16


def _numpy_bfloat16() -> np.dtype:
    try:
        import ml_dtypes
    except ImportError:
        raise NotImplementedError(
            "numpy has no bfloat16 to return results in: install ml_dtypes, or pass torch tensors"
        ) from None
    dtype = np.dtype(ml_dtypes.bfloat16)
    _register_bfloat16(dtype, "the result")
    return dtype


def layout_of_numpy(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype, name: str) -> Layout:
    return shape, strides, _NUMPY_TO_DTYPE.get(dtype) or _register_bfloat16(dtype, name)


_pointer_at, _HEAD = ctypes.c_void_p.from_address, object.__basicsize__


def _address_behind_head(array: np.ndarray) -> int:
    """In numpy's C API the address follows the head of the object, for good: PyArray_DATA is compiled into extensions.
    Reading it there takes an eighth of the time of `array.ctypes`, which makes an object."""
    return _pointer_at(id(array) + _HEAD).value or 0


def _address_by_ctypes(array: np.ndarray) -> int:
    return array.ctypes.data


def _is_behind_head() -> bool:
    tried = np.empty(9)[5:]
    return sys.implementation.name == "cpython" and _address_behind_head(tried) == tried.ctypes.data


address_of_numpy = _address_behind_head if _is_behind_head() else _address_by_ctypes


def _read_numpy(array: np.ndarray, name: str) -> tuple[int, Layout, Any]:
    return address_of_numpy(array), layout_of_numpy(array.shape, array.strides, array.dtype, name), array


LARGE = 1 << 16  # bytes; of smaller results, aligning costs more than it saves


Output = tuple[tuple[int, ...], np.dtype, int]
"""shape, dtype and bytes of a result"""


def output_of_numpy(shape: tuple[int, ...], dtype: int) -> Output:
    numpy_dtype = _DTYPE_TO_NUMPY[dtype] if dtype in _DTYPE_TO_NUMPY else _numpy_bfloat16()
    return shape, numpy_dtype, math.prod(shape) * numpy_dtype.itemsize


def empty_numpy(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    if size < LARGE:
        return np.empty(shape, dtype)
    return aligned_bytes(size).view(dtype).reshape(shape)


def _empty_numpy(shape: tuple[int, ...], dtype: int) -> tuple[Any, int]:
    array = empty_numpy(*output_of_numpy(shape, dtype))
    return array, address_of_numpy(array)


_NUMPY = Kind(_read_numpy, _empty_numpy, None)


# torch


def refuse_tangent(array: Any, name: str) -> None:
    """ValueError if it is a tensor of torch's with a tangent, of forward-mode differentiation."""
    forward_ad = sys.modules.get("torch.autograd.forward_ad")
    if forward_ad is None or forward_ad._current_level < 0 or not isinstance(array, sys.modules["torch"].Tensor):
        return
    if forward_ad.unpack_dual(array).tangent is not None:
        raise ValueError(f"{name} has a tangent, which would be lost: call nhood.torch, or pass the primal of {name}")


def _torch_kind(torch: Any) -> Kind:
    from_dtype = {dtype: getattr(torch, name) for dtype, name in c.DTYPE_NAMES.items()}
    to_dtype = {torch_dtype: dtype for dtype, torch_dtype in from_dtype.items()}

    def read(tensor: Any, name: str) -> tuple[int, Layout, Any]:
        dtype = to_dtype.get(tensor.dtype)
        if dtype is None:
            raise wrong_dtype(name, tensor.dtype)
        if tensor.requires_grad:
            raise ValueError(
                f"{name} requires a gradient, which would be lost: call nhood.torch, or pass {name}.detach()"
            )
        if tensor.is_nested:
            raise ValueError(f"{name} is a nested tensor: not one array; pass each of {name}.unbind() by a call of its own")
        refuse_tangent(tensor, name)
        if tensor.device.type != "cpu":
            where = f"{name} is on device {tensor.device}: not in CPU memory"
            raise ValueError(where + "; nhood.torch takes it" * tensor.is_cuda)
        if tensor.layout is not torch.strided:
            raise ValueError(f"{name} has layout {tensor.layout}: not torch.strided")
        if tensor.is_neg():  # a view whose memory holds the values with the other sign
            tensor = tensor.resolve_neg()
        size = c.DTYPE_BYTES[dtype]
        strides = tuple([stride * size for stride in tensor.stride()])
        try:
            address = tensor.data_ptr()
        except RuntimeError:
            address = 0
        if address == 0 and tensor.numel():
            raise ValueError(
                f"{name} has no memory of its own, as those of tracers, transforms and wrapping subclasses: "
                "call nhood.torch, or pass a plain tensor"
            )
        return address, (tuple(tensor.shape), strides, dtype), tensor

    def empty(shape: tuple[int, ...], dtype: int) -> tuple[Any, int]:
        tensor = torch.empty(shape, dtype=from_dtype[dtype], device="cpu")
        return tensor, tensor.data_ptr()

    return Kind(read, empty, None)


# Everything else: through DLPack if it is in CPU memory. What is on CUDA devices is read by _device_arrays.py.


def _read_exported(array: Any, name: str) -> tuple[int, Layout, Any]:
    if not hasattr(array, "__dlpack_device__"):
        raise ValueError(f"{name} is on a CUDA device: the first array is in CPU memory")
    device = tuple(array.__dlpack_device__())
    if device[0] not in (_dlpack.CPU, _dlpack.CUDA_HOST):
        raise ValueError(f"{name} is on DLPack device {device}: not in CPU memory")
    capsule = _dlpack.export_of(array)
    return (*_dlpack.read(capsule, name), capsule)


def _wrap_like(result: np.ndarray, like: Any) -> Any:
    """A result in the array type of `like`, if that has a namespace of the array API; else numpy's."""
    namespace = getattr(like, "__array_namespace__", None)
    return namespace().asarray(result) if namespace else result


EXPORTED = Kind(_read_exported, _empty_numpy, _wrap_like)


kinds: dict[type, Kind] = {np.ndarray: _NUMPY}
"""The kinds of the types met so far."""


def _exports(array: Any) -> bool:
    by_dlpack = hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")
    return by_dlpack or hasattr(array, "__cuda_array_interface__")


def find_kind(array: Any, name: str) -> Kind:
    """The kind of an array of a type that is not in `kinds` yet."""
    torch = sys.modules.get("torch")
    if is_traced(array):
        raise wrong_type(name, array, "an array")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} has a mask: only whole arrays are read; pass {name}.filled(..) or {name}.data")
    if isinstance(array, np.ndarray):
        kind = _NUMPY
    elif torch is not None and isinstance(array, torch.Tensor):
        kind = kinds.get(torch.Tensor) or _torch_kind(torch)
    elif _exports(array):
        kind = EXPORTED
    else:
        raise wrong_type(name, array, "a numpy array or anything with __dlpack__ or __cuda_array_interface__")
    kinds[type(array)] = kind
    return kind
