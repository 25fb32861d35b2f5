"""DLPack, in which libraries hand arrays to each other: reading what others export, and exporting.

A capsule that nobody takes over frees its tensor itself when it is dropped.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional

from . import _library as c
from ._layouts import Layout, packed_strides, wrong_dtype

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType


class _Tensor(ctypes.Structure):
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


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """Before version 1."""

    _fields_ = [("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", _Deleter)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_NAME, _NAME_VERSIONED = b"dltensor", b"dltensor_versioned"
_TO_DTYPE = {
    (2, 64): c.DTYPE_F64,
    (2, 32): c.DTYPE_F32,
    (2, 16): c.DTYPE_F16,
    (4, 16): c.DTYPE_BF16,
}
_FROM_DTYPE = {dtype: code_and_bits for code_and_bits, dtype in _TO_DTYPE.items()}

# Capsules as bare addresses: their destructors get them when they are no longer objects.
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def export_of(array: Any, **stream: int) -> Any:
    """The capsule of a foreign array; `stream` is given for arrays on CUDA devices."""
    try:
        return array.__dlpack__(max_version=(1, 0), **stream)
    except TypeError:  # a producer from before versions
        return array.__dlpack__(**stream)


def read(capsule: Any, name: str) -> tuple[int, Layout]:
    """Address and layout of the array `name`, valid for as long as the capsule is there."""
    if _is_named(id(capsule), _NAME_VERSIONED):
        managed = _ManagedVersioned.from_address(_pointer_in(id(capsule), _NAME_VERSIONED))
        if managed.major != 1:
            raise ValueError(f"{name} exports DLPack {managed.major}.{managed.minor}: only 1.x is known")
        tensor = managed.tensor
    else:
        tensor = _Tensor.from_address(_pointer_in(id(capsule), _NAME))
    dtype = _TO_DTYPE.get((tensor.type_code, tensor.type_bits))
    if dtype is None or tensor.type_lanes != 1:
        raise wrong_dtype(
            name, f"(DLPack code {tensor.type_code}, {tensor.type_bits} bits, {tensor.type_lanes} lanes)"
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    size = c.DTYPE_BYTES[dtype]
    if tensor.strides:
        strides = tuple(stride * size for stride in tensor.strides[: tensor.ndim])
    else:
        strides = packed_strides(shape, size)
    return (tensor.data or 0) + tensor.byte_offset, (shape, strides, dtype)


_exported: dict[int, Any] = {}
"""per address of a managed tensor that others hold, what it consists of"""


@_Deleter
def _delete(address: int, exported: dict[int, Any] = _exported) -> None:
    exported.pop(address, None)


@_Destructor
def _drop(
    capsule: int,
    is_named: Any = _is_named,
    pointer_in: Any = _pointer_in,
    delete: Any = _delete,
    names: tuple[bytes, ...] = (_NAME, _NAME_VERSIONED),
) -> None:
    """A consumer renames the capsule when it takes the tensor over; if none did, it is ours to delete."""
    for name in names:
        if is_named(capsule, name):
            delete(pointer_in(capsule, name))


for _callback in (_delete, _drop):  # consumers may call them when this module is gone
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


def capsule_of(
    address: int,
    shape: tuple[int, ...],
    dtype: int,
    device: tuple[int, int],
    owner: Any,
    max_version: Optional[tuple[int, int]],
) -> Any:
    """Exports a C-contiguous array, whose `owner` is kept until the consumer is done with it."""
    rank = len(shape)
    extents, strides = (ctypes.c_int64 * rank)(*shape), (ctypes.c_int64 * rank)(*packed_strides(shape, 1))
    pointers = [ctypes.cast(array, ctypes.POINTER(ctypes.c_int64)) for array in (extents, strides)]
    tensor = _Tensor(address, *device, rank, *_FROM_DTYPE[dtype], 1, *pointers, 0)
    if max_version is not None and max_version[0] >= 1:
        name, managed = _NAME_VERSIONED, _ManagedVersioned(1, 0, None, _delete, 0, tensor)
    else:
        name, managed = _NAME, _Managed(tensor, None, _delete)
    held = (managed, extents, strides, owner)
    at = ctypes.addressof(managed)
    try:
        _exported[at] = held
        return _new_capsule(at, name, _drop)
    except BaseException:  # no memory for the capsule, or an interrupt, which may have dropped the capsule already
        if _exported.get(at) is held:
            del _exported[at]
        raise
