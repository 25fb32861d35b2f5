"""What is taken as an array: views as they lie, DLPack, torch; and what comes back."""

import ctypes
import gc
import sys
import weakref

import ml_dtypes
import nhood
import numpy as np
import pytest

BF16 = np.dtype(ml_dtypes.bfloat16)


def random(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


class Producer:
    """A foreign array: nothing but DLPack. Exports what a numpy array holds, also bfloat16."""

    def __init__(self, array, device=(1, 0), bits=None):
        self.array, self.device, self.bits = array, device, bits

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        if self.array.dtype != BF16:
            return self.array.__dlpack__(**arguments)
        exported = self.array.view(np.uint16).__dlpack__(**arguments)
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = get(exported, b"dltensor_versioned") + 32  # behind version, manager, deleter, flags
        ctypes.c_uint8.from_address(tensor + 20).value = 4  # kDLBfloat
        return exported


class OldProducer(Producer):
    """From before DLPack had versions."""

    def __dlpack__(self):
        return self.array.__dlpack__()


class StandardProducer(Producer):
    """An array of a library with the array API's namespace."""

    def __array_namespace__(self):
        return self

    @staticmethod
    def asarray(array):
        return StandardProducer(array)


def test_packed_projection_is_read_in_place():
    packed = random(2, 6, 7, 3, 4, 16)
    query, key, value = (packed[:, :, :, i] for i in range(3))
    expected = nhood.na2d(*map(np.ascontiguousarray, (query, key, value)), 3)
    np.testing.assert_array_equal(nhood.na2d(query, key, value, 3), expected)


def test_heads_first_and_reversed_views():
    heads_first = random(3, 2, 4, 9, 8)
    query, key, value = heads_first.transpose(0, 1, 3, 2, 4)
    expected = nhood.na1d(*map(np.ascontiguousarray, (query, key, value)), 5)
    np.testing.assert_array_equal(nhood.na1d(query, key, value, 5), expected)
    flipped = nhood.na1d(query[:, ::-1], key[:, ::-1], value[:, ::-1], 5)
    np.testing.assert_allclose(flipped[:, ::-1], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rank", (1, 2, 3))
def test_broadcast_views(rank):
    shape = (2, *(4,) * rank, 3)
    na = (nhood.na1d, nhood.na2d, nhood.na3d)[rank - 1]
    row, query = random(8), random(*shape, 8)
    for axes in range(1, len(shape)):
        view = np.broadcast_to(row, (*shape[:axes], *(1,) * (len(shape) - axes), 8))
        view = np.broadcast_to(view, (*shape, 8))
        if rank == 3:  # where every one of the library's strides would be 0
            with pytest.raises(ValueError, match="key has stride 0 on every axis"):
                na(query, view, view, 3)
        else:
            np.testing.assert_allclose(na(query, view, view, 3), view, rtol=1e-6)


def test_nothing_is_copied():
    """A view that spans 64 GiB of address space."""
    row = random(1, 1, 1, 8)
    value = np.lib.stride_tricks.as_strided(row, (1, 2, 1, 8), (1 << 36, 0, 4, 4), writeable=False)
    np.testing.assert_allclose(nhood.na1d(value, value, value, 2), value, rtol=1e-6)


def test_views_of_lse_and_gradients():
    query, key, value, d_out = random(4, 1, 10, 4, 8)
    out, lse = nhood.na1d(query, key, value, 3, return_lse=True)
    expected = nhood.na1d_backward(d_out, query, key, value, out, lse, 3, d_lse=lse)
    strided = np.zeros((1, 4, 20), np.float32)
    strided[:, :, ::2] = lse.transpose(0, 2, 1)
    view = strided[:, :, ::2].transpose(0, 2, 1)
    got = nhood.na1d_backward(d_out, query, key, value, out, view, 3, d_lse=view)
    for one, other in zip(got, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", (np.float32, np.float16, BF16))
def test_large_results_begin_on_a_cache_line(dtype):
    query = random(2, 512, 2, 64, dtype=dtype)
    for _ in range(4):
        out, lse = nhood.na1d(query, query, query, 3, return_lse=True)
        assert out.ctypes.data % 64 == 0
        assert out.shape == query.shape and out.dtype == dtype and out.flags.c_contiguous and out.flags.writeable
        assert lse.shape == query.shape[:-1]


def test_read_only_and_subclasses():
    query = random(1, 9, 2, 8)
    expected = nhood.na1d(query, query, query, 3)
    query.flags.writeable = False

    class Named(np.ndarray):
        pass

    np.testing.assert_array_equal(nhood.na1d(query.view(Named), query, query, 3), expected)


@pytest.mark.parametrize("producer", (Producer, OldProducer))
@pytest.mark.parametrize("dtype", (np.float64, np.float32, np.float16))
def test_dlpack(producer, dtype):
    query, key, value = random(3, 1, 6, 6, 2, 8, dtype=dtype)
    expected, expected_lse = nhood.na2d(query, key, value, 3, return_lse=True)
    got, lse = nhood.na2d(producer(query), producer(key), producer(value), 3, return_lse=True)
    assert type(got) is np.ndarray and got.dtype == dtype
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(lse, expected_lse)
    views = (producer(array[:, ::2, 1:].transpose(0, 2, 1, 3, 4)) for array in (query, key, value))
    expected = nhood.na2d(*(array[:, ::2, 1:].transpose(0, 2, 1, 3, 4) for array in (query, key, value)), 3)
    np.testing.assert_array_equal(nhood.na2d(*views, 3), expected)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="numpy exports no versioned capsules")
def test_dlpack_bfloat16():
    query, key, value = random(3, 1, 6, 6, 2, 8).astype(BF16)
    expected = nhood.na2d(query, key, value, 3)
    assert expected.dtype == BF16
    got = nhood.na2d(Producer(query), Producer(key), Producer(value), 3)
    assert got.dtype == BF16
    np.testing.assert_array_equal(got, expected)


def test_dlpack_results_are_of_the_first_input_s_kind():
    query = random(1, 9, 2, 8)
    out = nhood.na1d(StandardProducer(query), query, Producer(query), 3)
    assert type(out) is StandardProducer
    np.testing.assert_array_equal(out.array, nhood.na1d(query, query, query, 3))
    assert type(nhood.na1d(query, StandardProducer(query), query, 3)) is np.ndarray


def test_dlpack_memory_is_given_back():
    query = random(1, 9, 2, 8)
    gone = weakref.ref(query)
    nhood.na1d(Producer(query), Producer(query), Producer(query), 3)
    del query
    gc.collect()
    assert gone() is None


def test_dlpack_memory_is_kept_during_the_call():
    query = random(1, 9, 2, 8)
    exported = []

    class Temporary(Producer):
        """Exports a copy that nothing but the capsule keeps alive."""

        def __dlpack__(self, **arguments):
            assert all(reference() is not None for reference in exported)
            copy = self.array.copy()
            capsule = copy.__dlpack__(**arguments)
            exported.append(weakref.ref(copy))
            return capsule

    temporary = Temporary(query)
    np.testing.assert_array_equal(nhood.na1d(temporary, temporary, temporary, 3), nhood.na1d(query, query, query, 3))
    gc.collect()
    assert [reference() for reference in exported] == [None] * 3


def test_dlpack_byte_offset():
    class Offset(Producer):
        """Points to the start of its memory, 16 bytes before its first item."""

        def __dlpack__(self, **arguments):
            capsule = self.array.__dlpack__()
            get = ctypes.pythonapi.PyCapsule_GetPointer
            get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            tensor = get(capsule, b"dltensor")
            ctypes.c_uint64.from_address(tensor).value -= 16
            ctypes.c_uint64.from_address(tensor + 40).value += 16  # byte_offset
            return capsule

    query = random(1, 10, 2, 8)[:, 1:]
    np.testing.assert_array_equal(nhood.na1d(Offset(query), query, query, 3), nhood.na1d(query, query, query, 3))


def test_dlpack_refusals():
    query = random(1, 9, 2, 8)
    with pytest.raises(ValueError, match=r"key is on DLPack device \(2, 0\): not in CPU memory"):
        nhood.na1d(query, Producer(query, device=(2, 0)), query, 3)
    with pytest.raises(ValueError, match=r"value has dtype \(DLPack code 0, 32 bits, 1 lanes\)"):
        nhood.na1d(query, query, Producer(query.astype(np.int32)), 3)


def test_torch_is_not_imported():
    if "torch" not in sys.modules:
        query = random(1, 9, 2, 8)
        nhood.na1d(Producer(query), query, query, 3)
        assert "torch" not in sys.modules


@pytest.mark.parametrize("dtype", ("float64", "float32", "float16", "bfloat16"))
def test_torch(dtype):
    torch = pytest.importorskip("torch")
    packed = torch.from_numpy(random(1, 6, 6, 3, 2, 8)).to(getattr(torch, dtype))
    query, key, value = packed.unbind(3)
    out, lse = nhood.na2d(query, key, value, 3, return_lse=True)
    assert type(out) is torch.Tensor and out.dtype == query.dtype and type(lse) is torch.Tensor
    numpy_dtype = BF16 if dtype == "bfloat16" else np.dtype(dtype)
    arrays = (tensor.to(torch.float64).numpy().astype(numpy_dtype) for tensor in (query, key, value))
    expected, expected_lse = nhood.na2d(*arrays, 3, return_lse=True)
    np.testing.assert_array_equal(out.to(torch.float64).numpy(), expected.astype(np.float64))
    np.testing.assert_array_equal(lse.numpy(), expected_lse)
    gradients = nhood.na2d_backward(out, query, key, value, out, lse, 3)
    assert all(g.dtype == query.dtype and g.shape == query.shape for g in gradients)


def test_torch_refusals():
    torch = pytest.importorskip("torch")
    query = torch.zeros(1, 9, 2, 8)
    with pytest.raises(ValueError, match=r"key requires a gradient.*key\.detach\(\)"):
        nhood.na1d(query, torch.nn.Parameter(query), query, 3)
    with pytest.raises(ValueError, match="value is on device meta: not in CPU memory"):
        nhood.na1d(query, query, query.to("meta"), 3)
    with pytest.raises(ValueError, match=r"query has dtype torch\.int32"):
        nhood.na1d(query.int(), query, query, 3)
    with pytest.raises(ValueError, match=r"query has layout torch\.sparse_coo"):
        nhood.na1d(query.to_sparse(), query, query, 3)
