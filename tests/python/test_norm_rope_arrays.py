"""RMS norm and rotary positions of arrays in CPU memory: values, gradients, kinds of arrays, and what is refused."""

import nhood
import numpy as np
import pytest
from cases import DTYPES, ROUNDOFF

GRIDS = {1: (7,), 2: (3, 5), 3: (2, 3, 4)}


def plain(x, tables, weight=None, *, norm="head", eps=1e-6, scale=1.0, pairs="interleaved", offset=0):
    """In float64, from the definition."""
    z = x.astype(np.float64)
    if norm:
        z = z / np.sqrt((z**2).mean(-1 if norm == "head" else (-2, -1), keepdims=True) + eps)
    if weight is not None:
        z = z * weight.astype(np.float64).reshape(x.shape[-1:] if norm == "head" else x.shape[-2:])
    z = z * scale
    rank, angles = x.ndim - 3, []
    for axis, table in enumerate(tables):
        if table is None:
            continue
        part = table[offset : offset + x.shape[1 + axis]].astype(np.float64)
        part = part.reshape(*(len(part) if a == axis else 1 for a in range(rank)), 1, *part.shape[1:])
        angles.append(np.broadcast_to(part, (*x.shape[1:-2], 1, *part.shape[-2:])))
    if not angles:
        return z
    cosine, sine = np.moveaxis(np.concatenate(angles, axis=-2), -1, 0)
    count = cosine.shape[-1]
    first = np.arange(count) if pairs == "halves" else 2 * np.arange(count)
    second = first + (count if pairs == "halves" else 1)
    a, b = z[..., first], z[..., second]
    z[..., first], z[..., second] = a * cosine - b * sine, a * sine + b * cosine
    return z


def make(rank, dtype, norm="head", heads=3, dim=32, joined=False):
    """x, tables with room for an offset of 1, and a weight."""
    random = np.random.default_rng(rank)
    shape = (2, *GRIDS[rank], heads, dim)
    if joined:
        x = random.standard_normal((*shape[:-2], 3, heads, dim)).astype(dtype)[..., 1, :, :]
    else:
        x = random.standard_normal(shape).astype(dtype)
    dims = {1: (24,), 2: (12, 12), 3: (8, 12, 12)}[rank]
    wide = np.float64 if dtype == np.float64 else np.float32
    tables = nhood.rotary_tables([length + 1 for length in GRIDS[rank]], dims, dtype=wide)
    channels = {"head": dim, "token": heads * dim, None: 0}[norm]
    return x, tables, (random.random(channels) + 0.5).astype(dtype) if channels else None


@pytest.mark.parametrize("norm", ["head", "token", None])
@pytest.mark.parametrize("rank", GRIDS)
def test_an_empty_batch(rank, norm):
    x, tables, weight = make(rank, np.float32, norm)
    out = nhood.norm_rope(x[:0], tables, weight, norm=norm)
    gradients = nhood.norm_rope_backward(out, x[:0], tables, weight, norm=norm)
    d_x, *d_weight = gradients if isinstance(gradients, tuple) else (gradients,)
    assert out.shape == d_x.shape == (0, *x.shape[1:])
    assert [d.shape for d in d_weight] == [w.shape for w in (weight,) if w is not None]
    assert not any(d.any() for d in d_weight)
    with pytest.raises(ValueError, match=r"norm = 'heads' is not"):
        nhood.norm_rope(x[:0], tables, weight, norm="heads")


def near(got, expected, dtype, factor=4):
    error = np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max()
    assert error < factor * max(ROUNDOFF[dtype], 2**-50), error


@pytest.mark.parametrize("joined", [False, True], ids=["packed", "joined"])
@pytest.mark.parametrize("pairs", ["interleaved", "halves"])
@pytest.mark.parametrize("norm", ["head", "token", None])
@pytest.mark.parametrize("rank", GRIDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(dtype, rank, norm, pairs, joined):
    x, tables, weight = make(rank, DTYPES[dtype], norm, joined=joined)
    named = dict(norm=norm, pairs=pairs, scale=0.3, offset=1, eps=1e-3)
    out = nhood.norm_rope(x, tables, weight, **named)
    assert out.dtype == x.dtype and out.shape == x.shape and out.flags.c_contiguous
    near(out, plain(x, tables, weight, **named), dtype)
    d_out = np.random.default_rng(8).standard_normal(x.shape).astype(x.dtype)
    found = nhood.norm_rope_backward(d_out, x, tables, weight, **named)
    found = (found,) if weight is None else found
    inputs = [x, weight][: len(found)]
    wides = [array.astype(np.float64) for array in inputs]
    for i, (got, given) in enumerate(zip(found, inputs)):
        assert got.dtype == given.dtype and got.shape == given.shape
        # along one direction, by central differences, whose error is about 1e-9
        way, step = np.random.default_rng(9).standard_normal(given.shape), 1e-5
        sums = []
        for sign in (1, -1):
            moved = [wide + sign * step * way if j == i else wide for j, wide in enumerate(wides)]
            sums.append((plain(moved[0], tables, *moved[1:], **named) * d_out.astype(np.float64)).sum())
        slope = (sums[0] - sums[1]) / (2 * step)
        size = np.sqrt((got.astype(np.float64) ** 2).sum() * (way**2).sum())
        assert abs((got.astype(np.float64) * way).sum() - slope) < (2 * ROUNDOFF[dtype] + 1e-8) * size


def test_tables():
    """Complex ones, those of other dtypes and strides, and axes that rotate nothing."""
    x, tables, weight = make(3, np.float32)
    expected = nhood.norm_rope(x, tables, weight)
    for others in (
        [t[..., 0] + 1j * t[..., 1] for t in tables],
        [t.astype(np.float64) for t in tables],
        [t.swapaxes(0, 1).copy().swapaxes(0, 1) for t in tables],
    ):
        np.testing.assert_array_equal(nhood.norm_rope(x, others, weight), expected)
    some = [None, tables[1], None]
    near(nhood.norm_rope(x, some, weight), plain(x, some, weight), "float32")
    np.testing.assert_array_equal(nhood.norm_rope(x, None, weight), nhood.norm_rope(x, [None] * 3, weight))
    near(nhood.norm_rope(x, None, weight), plain(x, [None] * 3, weight), "float32")
    assert nhood.rotary_tables((4, 5), (8, 0))[1] is None


def test_weights_beside_16_bits():
    x, tables, weight = make(2, np.float16, "token")
    wide = weight.astype(np.float32).reshape(3, 32)
    expected = plain(x, tables, wide, norm="token")
    near(nhood.norm_rope(x, tables, wide, norm="token"), expected, "float16")
    d_weight = nhood.norm_rope_backward(np.ones_like(x), x, tables, wide, norm="token")[1]
    assert d_weight.dtype == np.float32 and d_weight.shape == (3, 32)


def test_strides():
    """Reversed, broadcast, transposed and sliced arrays are read where they lie, also as the gradient of the result."""
    x, tables, weight = make(2, np.float32)
    d_out = np.random.default_rng(5).standard_normal(x.shape).astype(np.float32)
    for view in (
        lambda array: array[::-1],
        lambda array: array[:, ::-1],
        lambda array: np.broadcast_to(array[..., :1, :], array.shape),
        lambda array: np.broadcast_to(array[:1], array.shape),
        lambda array: array.transpose(0, 3, 1, 2, 4).copy().transpose(0, 2, 3, 1, 4),
        lambda array: array.repeat(2, axis=2)[:, :, ::2],
        lambda array: array[:1, :, :, :1],
    ):
        near(nhood.norm_rope(view(x), tables, weight), plain(view(x), tables, weight), "float32")
        found = nhood.norm_rope_backward(view(d_out), view(x), tables, weight)
        for got, expected in zip(found, nhood.norm_rope_backward(view(d_out).copy(), view(x).copy(), tables, weight)):
            np.testing.assert_array_equal(got, expected)


def test_inputs_are_left_as_they_are():
    x, tables, weight = make(2, np.float32)
    before = [array.copy() for array in (x, *tables, weight)]
    for array in (x, *tables, weight):
        array.flags.writeable = False
    nhood.norm_rope(x, tables, weight)
    nhood.norm_rope_backward(x, x, tables, weight)
    for array, copy in zip((x, *tables, weight), before):
        np.testing.assert_array_equal(array, copy)


def test_errors():
    x, tables, weight = make(2, np.float32)
    for arguments, named, words in (
        ((x.astype(np.int32), tables), {}, "x has dtype int32"),
        ((x.astype(">f4"), tables), {}, "x has dtype >f4"),
        ((x[:, :, :0], tables), {}, r"^x.shape = .*: the length of axis 1, 0, is not in"),
        ((x[..., :31].copy(),), {}, "the head dim, 31, is not even"),
        ((np.zeros((1, 2, 1, 1026), np.float32),), {}, r"the head dim, 1026, is not in \[2, 1024\]"),
        ((np.zeros((1, 2, 17, 1024), np.float32),), {"norm": "token"}, "the number of heads, 17, times dim 1024 exceeds 16384"),
        ((x, nhood.rotary_tables((3, 5), (24, 24))), {}, "tables rotate 24 .* 24 channels, a head of x has 32"),
        ((x, ["a", None]), {}, r"tables\[0\] is no array of numbers: could not convert"),
        ((x, tables), {"offset": (0, -1)}, r"offset\[1\] = -1 is less than 0"),
        ((x, tables), {"offset": (0,)}, r"offset = \(0,\) has 1 entry, not 2"),
        ((x, tables), {"eps": float("nan")}, "eps = nan"),
        ((x, tables), {"scale": float("inf")}, "scale = inf is not finite"),
        ((x, tables), {"norm": ["head"]}, r"norm = \['head'\] is not"),
        ((x, tables), {"pairs": ["halves"]}, r"pairs = \['halves'\] is not"),
        ((x[..., ::2], tables), {}, "x has a stride of 8 bytes on its last axis"),
        ((np.broadcast_to(x[0, 0, 0, 0], x.shape), tables), {}, "x has strides of 0 on every axis but the last"),
        ((x[0, 0, 0], tables), {}, "has 2 axes"),
        ((x, tables[:1]), {}, "tables has 1 entry, one for each of the 2 axes"),
        ((x, [t[:, 0] for t in tables]), {}, r"tables\[0\].shape = \(4, 2\) is not"),
        ((x, tables), {"offset": 2}, r"tables\[0\] has 4 positions, offset 2 and 3 tokens"),
        ((x, tables, weight.astype(np.float64)), {}, "weight has dtype float64: not float32"),
        ((x, tables, weight[:-1]), {}, "does not have the 32 channels"),
        ((x, tables, np.ones(64, np.float32)[::2]), {}, "weight has strides"),
        ((x, tables, weight), {"norm": None}, "weight is given, but norm = None"),
        ((x, tables), {"norm": "row"}, "norm = 'row' is not"),
        ((x, tables), {"pairs": "thirds"}, "pairs = 'thirds' is not"),
        ((x, tables), {"eps": -1.0}, "eps = -1"),
    ):
        with pytest.raises(ValueError, match=words):
            nhood.norm_rope(*arguments, **named)
    for arguments, named, words in (
        (([1.0], tables), {}, "x is a list"),
        ((x, tables, [1.0] * 32), {}, "weight is a list"),
        ((x, 3), {}, "tables is a int, not a sequence"),
        ((x, "ab"), {}, "tables is a str, not a sequence"),
        ((x, tables), {"offset": 1.0}, "offset = 1.0 is not an integer"),
        ((x, tables), {"eps": "1"}, "eps = '1' is not a number"),
        ((x, tables), {"scale": None}, "scale = None is not a number"),
    ):
        with pytest.raises(TypeError, match=words):
            nhood.norm_rope(*arguments, **named)


def test_errors_of_gradients():
    x, tables, weight = make(2, np.float32)
    for d_out, words in (
        (x.astype(np.float16), "d_out has shape .* and dtype float16, x .* float32"),
        (x[:1], r"d_out has shape \(1, 3, 5, 3, 32\) and"),
        (x.repeat(2, axis=-1)[..., ::2], "d_out has a stride of 8 bytes on its last axis"),
    ):
        with pytest.raises(ValueError, match=words):
            nhood.norm_rope_backward(d_out, x, tables, weight)
    with pytest.raises(TypeError, match="d_out is a list"):
        nhood.norm_rope_backward([1.0], x, tables, weight)


@pytest.mark.parametrize(
    "arguments, named, error, words",
    [
        (((3, 4), (8,)), {}, ValueError, "lengths has 2 entries, dims 1"),
        (((3, 4), (8, 3)), {}, ValueError, r"dims\[1\] = 3 is not an even number"),
        (((3,), (-2,)), {}, ValueError, r"dims\[0\] = -2 is not an even number"),
        (((3,), (4.0,)), {}, TypeError, r"dims\[0\] = 4.0 is not an integer"),
        (((3, 0), (4, 4)), {}, ValueError, r"lengths\[1\] = 0 is less than 1"),
        (((3.5,), (4,)), {}, TypeError, r"lengths\[0\] = 3.5 is not an integer"),
        (((3,), (4,), 0), {}, ValueError, r"base = 0 is not in \(0, infinity\)"),
        (((3,), (4,), float("nan")), {}, ValueError, "base = nan is not in"),
        (((3,), (4,), "10"), {}, TypeError, "base = '10' is not a number"),
        (((3,), (4,)), {"dtype": int}, ValueError, "dtype = int64 is not a floating-point type"),
    ],
)
def test_errors_of_tables(arguments, named, error, words):
    with pytest.raises(error, match=words):
        nhood.rotary_tables(*arguments, **named)


class Exported:
    """Nothing but DLPack, of a CUDA device."""

    def __dlpack__(self, **_):
        raise AssertionError("read")

    def __dlpack_device__(self):
        return 2, 0


def test_arrays_of_other_devices():
    x, tables, weight = make(2, np.float32)
    for call, arguments, name in (
        (nhood.norm_rope, (Exported(),), "x"),
        (nhood.norm_rope, (x, tables, Exported()), "weight"),
        (nhood.norm_rope_backward, (Exported(), x), "d_out"),
    ):
        with pytest.raises(NotImplementedError, match=f"{name} is on a CUDA device: nhood.torch.norm_rope"):
            call(*arguments)
