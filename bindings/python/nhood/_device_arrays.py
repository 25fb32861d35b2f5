"""Arrays in the memory of CUDA devices: those of others as addresses and layouts, and the results made for them.

Others are read by __cuda_array_interface__, which tells the stream they are computed on, or by DLPack, which is told the
stream they are wanted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Optional

from . import _cuda, _dlpack
from . import _library as c
from ._layouts import Layout, packed_strides, wrong_dtype

_FROM_TYPESTR = {"<f8": c.DTYPE_F64, "<f4": c.DTYPE_F32, "<f2": c.DTYPE_F16}
_TO_TYPESTR = {dtype: typestr for typestr, dtype in _FROM_TYPESTR.items()}


def _interface(array: Any) -> Optional[dict[str, Any]]:
    """None where there is none, or DLPack says more: types strings have no bfloat16."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface and interface["typestr"] not in _FROM_TYPESTR and hasattr(array, "__dlpack__"):
        return None
    return interface


def ordinal_of(array: Any) -> Optional[int]:
    """The ordinal of the CUDA device that the array is on; None for one that is on none."""
    if hasattr(array, "__dlpack_device__"):
        kind, number = array.__dlpack_device__()
        return int(number) if kind in (_dlpack.CUDA, _dlpack.CUDA_MANAGED) else None
    interface = _interface(array)
    return _cuda.device_of_pointer(interface["data"][0]) if interface else None


def stream_of(arrays: Sequence[Any]) -> int:
    """The first that one of the arrays is computed on; the legacy default stream if none tells."""
    for array in arrays:
        interface = _interface(array)
        if interface and interface.get("stream"):
            return interface["stream"]
    return _cuda.LEGACY_STREAM


def read(array: Any, name: str, ordinal: int, stream: int) -> tuple[int, Layout, Any]:
    """Address, layout and owner of an array that is ready when `stream` gets to what is enqueued next."""
    where = ordinal_of(array)
    if where != ordinal:
        place = "on no CUDA device" if where is None else f"on cuda:{where}"
        raise ValueError(f"{name} is {place}: the first array is on cuda:{ordinal}")
    interface = _interface(array)
    if interface is None:
        capsule = _dlpack.export_of(array, stream=stream)
        return (*_dlpack.read(capsule, name), capsule)
    dtype = _FROM_TYPESTR.get(interface["typestr"])
    if dtype is None:
        raise wrong_dtype(name, interface["typestr"])
    if interface.get("mask") is not None:
        raise ValueError(f"{name} has a mask: only whole arrays are read")
    its_stream = interface.get("stream")
    if its_stream and its_stream != stream:
        _cuda.let_wait(stream, its_stream)
    shape = tuple(interface["shape"])
    strides = interface.get("strides") or packed_strides(shape, c.DTYPE_BYTES[dtype])
    return interface["data"][0], (shape, tuple(strides), dtype), array


class DeviceArray:
    """A result on a CUDA device, C-contiguous, for any library to take over without a copy, by DLPack or by
    __cuda_array_interface__ (which bfloat16 has none of).

    It is computed on `stream`, a stream of the driver, and freed in its order: who reads it on another stream keeps
    it until that is done.
    """

    def __init__(self, shape: tuple[int, ...], dtype: int, ordinal: int, stream: int) -> None:
        self.shape, self.ordinal, self.stream = shape, ordinal, stream
        self.dtype = c.DTYPE_NAMES[dtype]
        self._dtype = dtype
        self._memory = _cuda.Memory(prod(shape) * c.DTYPE_BYTES[dtype], ordinal, stream)

    @property
    def address(self) -> int:
        return self._memory.address

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._dtype not in _TO_TYPESTR:
            raise AttributeError(f"{self.dtype} has no type string: take the array by DLPack")
        return {
            "shape": self.shape,
            "typestr": _TO_TYPESTR[self._dtype],
            "data": (self.address, False),
            "strides": None,
            "stream": self.stream,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.CUDA, self.ordinal

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """stream: the consumer's, which will wait for the result; None: the legacy default one; -1: none."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"copy = {copy}, dl_device = {dl_device}: the array can only be taken where it is")
        if stream == 0:
            raise ValueError("stream = 0 is ambiguous: 1 is the legacy default stream, 2 that of the thread")
        stream = _cuda.LEGACY_STREAM if stream is None else stream
        if stream not in (-1, self.stream):
            with _cuda.on_device(self.ordinal):
                _cuda.let_wait(stream, self.stream)
        return _dlpack.capsule_of(
            self.address, self.shape, self._dtype, self.__dlpack_device__(), self._memory, max_version
        )

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device=cuda:{self.ordinal})"
