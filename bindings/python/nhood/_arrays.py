"""Arrays as the library sees them: an address and a layout.

A layout is (shape, strides in bytes, dtype): hashable, so that it can be part of a plan's key. Three kinds of
arrays are known: numpy's, torch's (torch is never imported here, only found if the caller has imported it),
and everything else that exports CPU memory through DLPack. Results are of the kind of the first input.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Union

import numpy as np

from . import _library as c

Layout = tuple[tuple[int, ...], tuple[int, ...], int]


class Kind(NamedTuple):
    """How to handle one type of arrays."""

    read: Callable[[Any, str], tuple[int, Layout, Any]]
    """(array, name for errors) -> address, layout, and an object that keeps the memory alive"""
    empty: Callable[[tuple[int, ...], int], tuple[Any, int]]
    """(shape, dtype) -> a new array and its address"""
    wrap: Union[Callable[[Any, Any], Any], None]
    """(result of empty, input) -> an array of the input's type; None where empty makes that already"""


def _refuse_dtype(name: str, dtype: object) -> ValueError:
    return ValueError(f"{name} has dtype {dtype}: not one of {', '.join(c.DTYPE_NAMES.values())}")


# numpy. It has no bfloat16 of its own; the dtype of that name that other packages register is taken.

_NUMPY_TO_DTYPE: dict[np.dtype, int] = {
    np.dtype(np.float64): c.DTYPE_F64,
    np.dtype(np.float32): c.DTYPE_F32,
    np.dtype(np.float16): c.DTYPE_F16,
}
_DTYPE_TO_NUMPY: dict[int, np.dtype] = {dtype: numpy_dtype for numpy_dtype, dtype in _NUMPY_TO_DTYPE.items()}


def _register_bfloat16(dtype: np.dtype, name: str) -> int:
    if dtype.name != "bfloat16" or not dtype.isnative:
        raise _refuse_dtype(name, dtype)
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


def _read_numpy(array: np.ndarray, name: str) -> tuple[int, Layout, Any]:
    dtype = _NUMPY_TO_DTYPE.get(array.dtype) or _register_bfloat16(array.dtype, name)
    return array.ctypes.data, (array.shape, array.strides, dtype), array


def _empty_numpy(shape: tuple[int, ...], dtype: int) -> tuple[Any, int]:
    numpy_dtype = _DTYPE_TO_NUMPY[dtype] if dtype in _DTYPE_TO_NUMPY else _numpy_bfloat16()
    array = np.empty(shape, numpy_dtype)
    return array, array.ctypes.data


_NUMPY = Kind(_read_numpy, _empty_numpy, None)


# torch


def _torch_kind(torch: Any) -> Kind:
    from_dtype = {dtype: getattr(torch, name) for dtype, name in c.DTYPE_NAMES.items()}
    to_dtype = {torch_dtype: dtype for dtype, torch_dtype in from_dtype.items()}

    def read(tensor: Any, name: str) -> tuple[int, Layout, Any]:
        dtype = to_dtype.get(tensor.dtype)
        if dtype is None:
            raise _refuse_dtype(name, tensor.dtype)
        if tensor.requires_grad:
            raise ValueError(
                f"{name} requires a gradient, which would be lost: call nhood.torch, or pass {name}.detach()"
            )
        if tensor.device.type != "cpu":
            raise ValueError(f"{name} is on device {tensor.device}: not in CPU memory")
        if tensor.layout is not torch.strided:
            raise ValueError(f"{name} has layout {tensor.layout}: not torch.strided")
        size = c.DTYPE_BYTES[dtype]
        strides = tuple([stride * size for stride in tensor.stride()])
        return tensor.data_ptr(), (tuple(tensor.shape), strides, dtype), tensor

    def empty(shape: tuple[int, ...], dtype: int) -> tuple[Any, int]:
        tensor = torch.empty(shape, dtype=from_dtype[dtype], device="cpu")
        return tensor, tensor.data_ptr()

    return Kind(read, empty, None)


# DLPack. A capsule that nobody takes over frees its tensor itself when it is dropped.


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_DLPACK_TO_DTYPE = {
    (2, 64): c.DTYPE_F64,
    (2, 32): c.DTYPE_F32,
    (2, 16): c.DTYPE_F16,
    (4, 16): c.DTYPE_BF16,
}
_CPU_MEMORY = (1, 3)  # kDLCPU, kDLCUDAHost

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype, _capsule_is.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


def _export(array: Any) -> Any:
    try:
        return array.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer from before versions
        return array.__dlpack__()


def _read_dlpack(array: Any, name: str) -> tuple[int, Layout, Any]:
    device = tuple(array.__dlpack_device__())
    if device[0] not in _CPU_MEMORY:
        raise ValueError(f"{name} is on DLPack device {device}: not in CPU memory")
    capsule = _export(array)
    if _capsule_is(capsule, b"dltensor_versioned"):
        address = _capsule_pointer(capsule, b"dltensor_versioned")
        managed = _DLManagedTensorVersioned.from_address(address)
        if managed.major != 1:
            raise ValueError(f"{name} exports DLPack {managed.major}.{managed.minor}: only 1.x is known")
        tensor = managed.tensor
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    dtype = _DLPACK_TO_DTYPE.get((tensor.type_code, tensor.type_bits))
    if dtype is None or tensor.type_lanes != 1:
        raise _refuse_dtype(
            name, f"(DLPack code {tensor.type_code}, {tensor.type_bits} bits, {tensor.type_lanes} lanes)"
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    size = c.DTYPE_BYTES[dtype]
    if tensor.strides:
        strides = tuple(stride * size for stride in tensor.strides[: tensor.ndim])
    else:
        strides = packed_strides(shape, size)
    return (tensor.data or 0) + tensor.byte_offset, (shape, strides, dtype), capsule


def packed_strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """The strides of a C-contiguous array, in bytes."""
    strides = []
    for size in reversed(shape):
        strides.append(item_bytes)
        item_bytes *= size
    return tuple(reversed(strides))


def _wrap_like(result: np.ndarray, like: Any) -> Any:
    """A result in the array type of `like`, if that has a namespace of the array API; else numpy's."""
    namespace = getattr(like, "__array_namespace__", None)
    return namespace().asarray(result) if namespace else result


_DLPACK = Kind(_read_dlpack, _empty_numpy, _wrap_like)


kinds: dict[type, Kind] = {np.ndarray: _NUMPY}
"""The kinds of the types met so far."""


def find_kind(array: Any, name: str) -> Kind:
    """The kind of an array of a type that is not in `kinds` yet."""
    torch = sys.modules.get("torch")
    if isinstance(array, np.ndarray):
        kind = _NUMPY
    elif torch is not None and isinstance(array, torch.Tensor):
        kind = kinds.get(torch.Tensor) or _torch_kind(torch)
    elif hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        kind = _DLPACK
    else:
        raise TypeError(f"{name} is a {type(array).__name__}: give a numpy array or anything with __dlpack__")
    kinds[type(array)] = kind
    return kind
