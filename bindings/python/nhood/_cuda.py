"""The CUDA driver as far as arrays on devices need it: memory in the order of a stream, streams that wait for each other.

Streams are the driver's handles as integers; 1 is the legacy default stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from ctypes import POINTER, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

LEGACY_STREAM = 1
_POINTER_DEVICE_ORDINAL = 9
_EVENT_WITHOUT_TIMING = 2

_PROTOTYPES = {
    "cuInit": [c_uint],
    "cuGetErrorName": [c_int, POINTER(ctypes.c_char_p)],
    "cuCtxGetCurrent": [POINTER(c_void_p)],
    "cuCtxGetDevice": [POINTER(c_int)],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxPopCurrent_v2": [POINTER(c_void_p)],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuPointerGetAttribute": [c_void_p, c_int, c_uint64],
    "cuMemAllocAsync": [POINTER(c_uint64), c_size_t, c_void_p],
    "cuMemFreeAsync": [c_uint64, c_void_p],
    "cuEventCreate": [POINTER(c_void_p), c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventDestroy_v2": [c_void_p],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint],
}


@functools.lru_cache(maxsize=None)
def _driver() -> Any:
    library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    for name, arguments in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = c_int, arguments
    library.cuInit(0)
    return library


def _call(name: str, *arguments: Any) -> None:
    result = getattr(_driver(), name)(*arguments)
    if result:
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(result, byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'an unknown error').decode(errors='replace')}")


@functools.lru_cache(maxsize=None)
def _primary_context(ordinal: int) -> c_void_p:
    """Kept to the end of the process, as the CUDA runtime keeps it."""
    context = c_void_p()
    _call("cuDevicePrimaryCtxRetain", byref(context), ordinal)
    return context


@contextlib.contextmanager
def on_device(ordinal: int) -> Iterator[None]:
    """In the thread's context if that is one of the device, else in the device's primary context."""
    current, device = c_void_p(), c_int(-1)
    _call("cuCtxGetCurrent", byref(current))
    if current:
        _call("cuCtxGetDevice", byref(device))
    if device.value == ordinal:
        yield
        return
    primary = _primary_context(ordinal)
    try:
        _call("cuCtxPushCurrent_v2", primary)
        yield
    finally:
        _call("cuCtxGetCurrent", byref(current))
        if current.value == primary.value:  # an interrupt may have come before the push
            _call("cuCtxPopCurrent_v2", byref(current))


def device_of_pointer(address: int) -> int:
    """The ordinal of the device whose memory it is; of an empty array's, which may be NULL, that of the current context."""
    ordinal, current = c_int(), c_void_p()
    if not address:
        _call("cuCtxGetCurrent", byref(current))
        if current:
            _call("cuCtxGetDevice", byref(ordinal))
        return ordinal.value
    _call("cuPointerGetAttribute", byref(ordinal), _POINTER_DEVICE_ORDINAL, address)
    return ordinal.value


def let_wait(stream: int, other: int) -> None:
    """What is enqueued on `stream` from now on waits for what has been on `other`."""
    event = c_void_p()
    try:
        _call("cuEventCreate", byref(event), _EVENT_WITHOUT_TIMING)
        _call("cuEventRecord", event, other)
        _call("cuStreamWaitEvent", stream, event, 0)
    finally:
        if event:
            _call("cuEventDestroy_v2", event)


class Memory:
    """Memory of the current context's device, allocated and freed in the order of a stream."""

    _address = c_uint64()  # of one whose making was interrupted

    def __init__(self, size: int, ordinal: int, stream: int) -> None:
        self.ordinal, self.stream = ordinal, stream
        self._address = c_uint64()  # the driver writes to it: no interrupt comes between allocating and knowing where
        _call("cuMemAllocAsync", byref(self._address), max(1, size), stream)

    @property
    def address(self) -> int:
        return self._address.value

    def __del__(self, on_device: Any = on_device, call: Any = _call) -> None:
        if self._address:
            with on_device(self.ordinal):
                call("cuMemFreeAsync", self._address, self.stream)
