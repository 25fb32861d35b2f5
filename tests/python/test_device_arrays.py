"""Arrays on CUDA devices, by __cuda_array_interface__ and DLPack: needs a device, which may be an emulated one."""

import ctypes
import gc

import nhood
import numpy as np
import pytest
from cases import assert_near
from nhood import _cuda, _dlpack, _library

pytestmark = pytest.mark.skipif(
    not any(device.kind == "cuda" for device in nhood.devices()), reason="needs a CUDA device"
)
STREAM = 2  # of the thread
DTYPES = {np.dtype(np.float64): 1, np.dtype(np.float32): 2, np.dtype(np.float16): 3}


@pytest.fixture
def driver():
    return ctypes.CDLL("libcuda.so.1")


class OnDevice:
    """The values of a numpy array, in memory of the device."""

    def __init__(self, array):
        self.array = np.ascontiguousarray(array)
        with _cuda.on_device(0):
            self.memory = _cuda.Memory(self.array.nbytes, 0, _cuda.LEGACY_STREAM)
            size = ctypes.c_size_t(self.array.nbytes)
            copied = ctypes.CDLL("libcuda.so.1").cuMemcpyHtoD_v2(
                ctypes.c_uint64(self.memory.address), ctypes.c_void_p(self.array.ctypes.data), size
            )
        assert copied == 0

    def interface(self, **entries):
        return {
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "data": (self.memory.address, False),
            "version": 3,
            **entries,
        }


class ByInterface(OnDevice):
    entries = {"stream": STREAM}

    @property
    def __cuda_array_interface__(self):
        return self.interface(**self.entries)


class Columns(ByInterface):
    """Every second head, as a view."""

    @property
    def __cuda_array_interface__(self):
        view = self.array[..., ::2, :]
        return self.interface(shape=view.shape, strides=view.strides, stream=None)


class ByDlpack(OnDevice):
    asked = None

    def __dlpack_device__(self):
        return _dlpack.CUDA, 0

    def __dlpack__(self, *, stream, max_version=None):
        self.asked = stream
        dtype = DTYPES[self.array.dtype]
        where = self.__dlpack_device__()
        return _dlpack.capsule_of(self.memory.address, self.array.shape, dtype, where, self.memory, max_version)


class OldDlpack(ByDlpack):
    def __dlpack__(self, *, stream):
        return ByDlpack.__dlpack__(self, stream=stream)


class Standard(ByDlpack):
    """An array of a library with the array API's namespace."""

    def __array_namespace__(self):
        return self

    @staticmethod
    def from_dlpack(result):
        return "taken over", result


def to_host(result):
    address, (shape, strides, dtype) = _dlpack.read(result.__dlpack__(), "result")
    host = np.empty(shape, next(numpy for numpy, number in DTYPES.items() if number == dtype))
    assert strides == host.strides
    with _cuda.on_device(result.ordinal):
        copied = ctypes.CDLL("libcuda.so.1").cuMemcpyDtoH_v2(
            ctypes.c_void_p(host.ctypes.data), ctypes.c_uint64(address), ctypes.c_size_t(host.nbytes)
        )
    assert copied == 0
    return host


def inputs(dtype=np.float32):
    generator = np.random.default_rng(7)
    return [generator.standard_normal((1, 9, 2, 16)).astype(dtype) for _ in "qkv"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", [ByInterface, ByDlpack, OldDlpack])
def test_attention(kind, dtype):
    arrays = inputs(dtype)
    out, lse = nhood.na1d(*map(kind, arrays), 5, return_lse=True)
    exact_out, exact_lse = nhood.na1d(*(a.astype(np.float64) for a in arrays), 5, return_lse=True)
    assert (out.shape, out.dtype, out.ordinal) == ((1, 9, 2, 16), np.dtype(dtype).name, 0)
    assert_near(to_host(out), exact_out, 32, np.dtype(dtype).name, scale=1)
    assert_near(to_host(lse), exact_lse, 256, lse.dtype, scale=1)


def test_backward_of_results():
    arrays = inputs()
    there = [ByInterface(a) for a in arrays]
    out, lse = nhood.na1d(*there, 5, return_lse=True)
    gradients = nhood.na1d_backward(out, *there, out, lse, 5)
    exact = [a.astype(np.float64) for a in arrays]
    out, lse = nhood.na1d(*exact, 5, return_lse=True)
    for got, expected in zip(gradients, nhood.na1d_backward(out, *exact, out, lse, 5)):
        assert_near(to_host(got), expected, 64, "float32", scale=1)


def test_views_are_read_in_place():
    arrays = [np.repeat(a, 2, axis=-2) for a in inputs()]
    got = to_host(nhood.na1d(*map(Columns, arrays), 5))
    assert_near(got, nhood.na1d(*inputs(), 5), 32, "float32", scale=1)


def test_arrays_that_are_not_aligned():
    arrays = inputs()
    shifted = []
    for array in arrays:
        padded = ByInterface(np.concatenate([np.zeros(1, np.float32), array.ravel()]))
        padded.entries = {"shape": array.shape, "data": (padded.memory.address + 4, False)}
        shifted.append(padded)
    assert_near(to_host(nhood.na1d(*shifted, 5)), nhood.na1d(*arrays, 5), 32, "float32", scale=1)


def test_streams(monkeypatch):
    waits = []
    monkeypatch.setattr(_cuda, "let_wait", lambda stream, other: waits.append((stream, other)))
    query, key, value = map(ByInterface, inputs())
    out = nhood.na1d(query, key, value, 5)
    assert (out.stream, waits) == (STREAM, []), "the stream of the inputs"
    assert out.__cuda_array_interface__["stream"] == STREAM
    other = ByDlpack(inputs()[0])
    assert nhood.na1d(other, key, value, 5).stream == STREAM and other.asked == STREAM
    key.entries = {"stream": 1}
    nhood.na1d(query, key, value, 5)
    assert waits == [(STREAM, 1)], "an input of another stream is waited for"
    out.__dlpack__(stream=-1)
    out.__dlpack__(stream=STREAM)
    assert len(waits) == 1
    out.__dlpack__()
    assert waits[1:] == [(1, STREAM)], "who takes a result over waits for it"
    assert nhood.na1d(*map(ByDlpack, inputs()), 5).stream == 1


def test_results_are_of_the_first_input_s_kind():
    text, result = nhood.na1d(*map(Standard, inputs()), 5)
    assert text == "taken over" and isinstance(result, nhood.DeviceArray)


def test_memory_is_kept_for_whoever_took_the_result():
    out = nhood.na1d(*map(ByInterface, inputs()), 5)
    expected = to_host(out)
    memory, before = out._memory, len(_dlpack._exported)
    capsules = [out.__dlpack__(), out.__dlpack__(max_version=(1, 2))]
    assert len(_dlpack._exported) == before + 2
    freed = []
    memory.__class__ = type("Watched", (_cuda.Memory,), {"__del__": lambda self: freed.append(self.address)})
    address = memory.address
    del out, memory
    gc.collect()
    assert freed == []
    del capsules[0]
    _dlpack.read(capsules[0], "result")
    assert freed == [] and len(_dlpack._exported) == before + 1
    del capsules[0]
    assert freed == [address] and len(_dlpack._exported) == before
    assert np.isfinite(expected).all()


def test_repeated_calls_keep_no_memory(monkeypatch):
    held = []
    real = _cuda._driver()

    class Counting:
        def __getattr__(self, name):
            if name in ("cuMemAllocAsync", "cuMemFreeAsync"):
                held.append(1 if name == "cuMemAllocAsync" else -1)
            return getattr(real, name)

    arrays = [ByInterface(a) for a in inputs()]
    nhood.na1d(*arrays, 5)
    monkeypatch.setattr(_cuda, "_driver", Counting)
    for _ in range(20):
        nhood.na1d(*arrays, 5, return_lse=True)
    assert len(held) >= 80 and sum(held) == 0


def test_refusals():
    query, key, value = map(ByInterface, inputs())
    host = inputs()
    with pytest.raises(ValueError, match="key is on no CUDA device: the first array is on cuda:0"):
        nhood.na1d(query, host[1], value, 5)
    with pytest.raises(ValueError, match="key is on a CUDA device: the first array is in CPU memory"):
        nhood.na1d(host[0], key, host[2], 5)
    value.entries = {"typestr": "<i4"}
    with pytest.raises(ValueError, match="value has dtype <i4: not one of float64"):
        nhood.na1d(query, key, value, 5)
    value.entries = {"mask": key}
    with pytest.raises(ValueError, match="value has a mask"):
        nhood.na1d(query, key, value, 5)
    out = nhood.na1d(query, key, key, 5)
    with pytest.raises(BufferError, match="can only be taken where it is"):
        out.__dlpack__(dl_device=(1, 0))
    with pytest.raises(ValueError, match="stream = 0 is ambiguous"):
        out.__dlpack__(stream=0)


def test_bfloat16_goes_by_dlpack():
    class Bfloat16(ByDlpack):
        def __dlpack__(self, *, stream, max_version=None):
            shape, where = self.array.shape, self.__dlpack_device__()
            return _dlpack.capsule_of(
                self.memory.address, shape, _library.DTYPE_BF16, where, self.memory, max_version
            )

        @property
        def __cuda_array_interface__(self):
            return self.interface(typestr="<V2", stream=STREAM)

    arrays = inputs()
    halves = [(a.view(np.uint32) >> 16).astype(np.uint16) for a in arrays]
    exact = [(h.astype(np.uint32) << 16).view(np.float32) for h in halves]
    out = nhood.na1d(*map(Bfloat16, halves), 5)
    assert out.dtype == "bfloat16" and not hasattr(out, "__cuda_array_interface__")
    address, (shape, _, dtype) = _dlpack.read(out.__dlpack__(), "result")
    assert (shape, dtype, address) == (out.shape, _library.DTYPE_BF16, out.address)
    d_out = nhood.na1d(*exact, 5)
    host = np.empty(shape, np.uint16)
    with _cuda.on_device(0):
        ctypes.CDLL("libcuda.so.1").cuMemcpyDtoH_v2(
            ctypes.c_void_p(host.ctypes.data), ctypes.c_uint64(address), ctypes.c_size_t(host.nbytes)
        )
    assert_near((host.astype(np.uint32) << 16).view(np.float32), d_out, 32, "bfloat16", scale=1)


class WithoutMemory(ByInterface):
    """Empty arrays of some libraries have no address."""

    @property
    def __cuda_array_interface__(self):
        return self.interface(data=(0, False), stream=None)


@pytest.mark.parametrize("kind", [ByInterface, ByDlpack, WithoutMemory])
def test_an_empty_batch(kind):
    arrays = [kind(a[:0]) for a in inputs()]
    bias = ByInterface(np.ones((2, 9), np.float32))
    out, lse = nhood.na1d(*arrays, 5, bias=bias, return_lse=True)
    assert out.shape == (0, 9, 2, 16) and lse.shape == (0, 9, 2)
    *gradients, d_bias = nhood.na1d_backward(out, *arrays, out, lse, 5, bias=bias)
    assert [gradient.shape for gradient in gradients] == [(0, 9, 2, 16)] * 3
    np.testing.assert_array_equal(to_host(d_bias), np.zeros((2, 9), np.float32))
