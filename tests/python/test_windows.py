"""Windows of an axis that are no formula, against masks that are built from their definitions."""

from __future__ import annotations

import base64
import copy
import itertools
import pickle
import zlib

import numpy as np
import pytest
from dense import axis_window

import nhood
from nhood import Windows
from nhood import _windows as texts


# ---- masks [queries, keys], each key judged by itself ----


def by_pairs(table, keys):
    return np.array([[first <= j < first + count for j in range(keys)] for first, count in table])


def by_resampling(queries, keys, size):
    mask = np.zeros((queries, keys), bool)
    for i in range(queries):
        nearest = int((i + 0.5) / queries * keys)  # the key in whose share of the extent the middle of the query lies
        first = min(max(nearest - size // 2, 0), keys - size)
        mask[i, first : first + size] = True
    return mask


def by_cutting(length, size):
    return np.array([[-(size // 2) <= j - i < size - size // 2 for j in range(length)] for i in range(length)])


def by_blocks(length, size, shift):
    return np.array([[(i + shift) // size == (j + shift) // size for j in range(length)] for i in range(length)])


def axis_mask(length, size, stride=1, dilation=1, causal=False, periodic=False):
    mask = np.zeros((length, length), bool)
    for i in range(length):
        mask[i, [j % length for j in axis_window(length, size, stride, dilation, causal, i, periodic)]] = True
    return mask


RAGGED = [(0, 0), (0, 2), (1, 1), (1, 4), (5, 0), (6, 2), (6, 3)]

GENERATED = [
    pytest.param(Windows(RAGGED, 10), by_pairs(RAGGED, 10), id="table"),
    pytest.param(Windows.resampled(13, 5, 3), by_resampling(13, 5, 3), id="finer"),
    pytest.param(Windows.resampled(4, 11, 4), by_resampling(4, 11, 4), id="coarser"),
    pytest.param(Windows.resampled(6, 6, 6), by_resampling(6, 6, 6), id="all"),
    pytest.param(Windows.cut(9, 4), by_cutting(9, 4), id="cut, even"),
    pytest.param(Windows.cut(5, 20), by_cutting(5, 20), id="cut, all"),
    pytest.param(Windows.blocks(10, 4), by_blocks(10, 4, 0), id="blocks"),
    pytest.param(Windows.blocks(10, 4, 3), by_blocks(10, 4, 3), id="shifted blocks"),
]


@pytest.mark.parametrize("windows, mask", GENERATED)
def test_ranges_and_inverse(windows, mask):
    assert (windows.queries, windows.keys) == mask.shape
    assert windows.ranges.dtype == windows.inverse.dtype == np.int32
    np.testing.assert_array_equal(by_pairs(windows.ranges, windows.keys), mask)
    np.testing.assert_array_equal(by_pairs(windows.inverse, windows.queries), mask.T)
    for n in range(windows.keys + 1):
        padded = mask & (np.arange(windows.keys) < n)
        np.testing.assert_array_equal(by_pairs(windows.valid(n).ranges, windows.keys), padded)
        np.testing.assert_array_equal(by_pairs(windows.valid(n).inverse, windows.queries), padded.T)
    assert windows.valid(3).valid(windows.keys) == windows.valid(3)
    assert windows.most == max(1, mask.sum(1).max())


@pytest.mark.parametrize("windows, mask", GENERATED)
def test_values(windows, mask):
    for same in (pickle.loads(pickle.dumps(windows)), copy.deepcopy(windows), Windows(windows.ranges, windows.keys)):
        assert same == windows and hash(same) == hash(windows)
    assert pickle.loads(pickle.dumps(windows)) is not windows
    assert windows != windows.valid(1) and windows != "windows"
    assert pickle.loads(pickle.dumps(windows.valid(2))) == windows.valid(2)
    assert len({windows, copy.copy(windows), windows.valid(1)}) == 2
    with pytest.raises(AttributeError, match="cannot be changed"):
        windows.keys = 3
    with pytest.raises(AttributeError, match="cannot be changed"):
        del windows.keys
    for array in (windows.ranges, windows.inverse):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_table_is_a_copy():
    table = np.array([[0, 1], [1, 1]])
    windows = Windows(table, 4)
    table[:] = 9
    assert windows.ranges.tolist() == [[0, 1], [1, 1]]


def test_documents_have_short_texts():
    """Their steps are runs, and a plan's text leads back to the Windows that it was made of."""
    first = np.arange(100_000) // 100 * 100
    windows = Windows(np.stack([first, np.full(100_000, 100)], 1), 100_000)
    assert "~" in windows._text and len(windows._text) < 2000
    assert texts.windows_of(windows._text)[0] is windows
    read = texts._read(windows._text)
    assert read == windows and read._text == windows._text and read is not windows


def test_long_tables_keep_their_numbers():
    rng = np.random.default_rng(3)
    first = np.sort(rng.integers(0, 2**31 - 1, 2000))
    count = np.minimum(np.maximum.accumulate(first + rng.integers(0, 1000, 2000)), 2**31 - 1) - first
    windows = Windows(np.stack([first, count], 1), 2**31 - 1)
    read = texts._read(windows._text)
    assert read == windows and read._text == windows._text
    np.testing.assert_array_equal(read.ranges, np.stack([first, count], 1))


def test_repr():
    assert repr(Windows(RAGGED, 10)) == "Windows(<7 ranges of 0 to 4 keys>, keys=10)"
    assert repr(Windows([(0, 2)], 2)) == "Windows(<1 range of 2 keys>, keys=2)"
    assert repr(Windows.resampled(1024, 64, 15)) == "Windows.resampled(queries=1024, keys=64, size=15)"
    assert repr(Windows.cut(8, 3).valid(6)) == "Windows.cut(length=8, size=3).valid(6)"
    assert repr(Windows.blocks(8, 4, 2)) == "Windows.blocks(length=8, size=4, shift=2)"


ILLEGAL = [
    (lambda: Windows([(0, 2), (1, 9)], 6), r"table[1] = (1, 9) is not a range of 6 keys"),
    (lambda: Windows([(-1, 2)], 6), r"table[0] = (-1, 2) is not a range of 6 keys"),
    (lambda: Windows([(0, 2), (1, -1)], 6), r"table[1] = (1, -1) is not a range of 6 keys"),
    (lambda: Windows([(2, 2), (1, 5)], 6), r"table[1] = (1, 5) goes back behind (2, 2) before it"),
    (lambda: Windows([(2, 2), (2, 2), (3, 0)], 6), r"table[2] = (3, 0) goes back behind (2, 2) before it"),
    (lambda: Windows([(0, 2**31)], 6), r"table[0] = (0, 2147483648) does not fit 32 bits"),
    (lambda: Windows([(0, 1)], 0), r"keys = 0 is not in [1, 2147483647]"),
    (lambda: Windows([], 3), r"table.shape = (0,), expected [queries, 2]"),
    (lambda: Windows(np.zeros((0, 2), int), 3), r"queries = 0 is not in [1, 2^31)"),
    (lambda: Windows([(0, 1, 2)], 3), r"table.shape = (1, 3), expected [queries, 2]"),
    (lambda: Windows.resampled(8, 4, 5), r"size = 5 is not in [1, 4]"),
    (lambda: Windows.resampled(8, 0, 1), r"keys = 0 is not in [1, 2147483647]"),
    (lambda: Windows.resampled(0, 8, 1), r"queries = 0 is not in [1, 2^31)"),
    (lambda: Windows.cut(0, 1), r"length = 0 is not in [1, 2^31)"),
    (lambda: Windows.cut(2**31, 1), r"length = 2147483648 is not in [1, 2^31)"),
    (lambda: Windows.cut(8, 0), r"size = 0 is not in [1, 2147483647]"),
    (lambda: Windows.cut(8, 2**70), r"size = 1180591620717411303424 does not fit 64 bits"),
    (lambda: Windows.blocks(8, 4, 4), r"shift = 4 is not in [0, 3]"),
    (lambda: Windows.blocks(8, 4, -1), r"shift = -1 is not in [0, 3]"),
    (lambda: Windows.cut(8, 3).valid(9), r"n = 9 is not in [0, 8]"),
    (lambda: Windows.cut(8, 3).valid(4).valid(-1), r"n = -1 is not in [0, 8]"),
]


@pytest.mark.parametrize("make, text", ILLEGAL)
def test_illegal(make, text):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Windows([(0.5, 1)], 3), "table has entries of float64, not integers"),
        (lambda: Windows([(True, True)], 3), "table has entries of bool, not integers"),
        (lambda: Windows([(0, 1)], True), "keys = True is not an integer"),
        (lambda: Windows.cut(8, 3.0), "size = 3.0 is not an integer"),
        (lambda: Windows.cut(8, 3).valid(False), "n = False is not an integer"),
        (lambda: Windows.blocks("8", 3), "length = '8' is not an integer"),
    ],
)
def test_not_integers(make, text):
    with pytest.raises(TypeError, match=text):
        make()


def of_runs(*lengths):
    return base64.b64encode(zlib.compress(np.array([(length, 0, 0) for length in lengths], "<i4").tobytes())).decode()


@pytest.mark.parametrize(
    "text",
    ["8", "8z", "8z3v", "8r4", "8t4w3", "8t4", "8z3#AAAA", "8t4#AAAA", "8t4#eAFjYAACAAAEAAE=", "z3", "8z3 ", "8z3x", "8z3~AAAA"]
    + [f"8t4~{numbers}" for numbers in ("AAAA", *(of_runs(*lengths) for lengths in ((7,), (9, -1), (0, 8), (2**31 - 1,))))],
)
def test_texts_that_nobody_wrote(text):
    with pytest.raises(ValueError, match="is no text of a Windows"):
        texts.windows_of(text)


# ---- attention ----


def mask_of(masks):
    """[queries.., keys..] of all axes."""
    whole = np.ones((1, 1), bool)
    for mask in masks:
        whole = np.kron(whole, mask.astype(int)).astype(bool)
    return whole


def dense(query, key, value, mask, extra=None, scale=None):
    """out and lse in float64: query [B, N, H, D], key [B, M, Hkv, D], value [B, M, Hkv, Dv], mask [N, M]."""
    share = query.shape[2] // key.shape[2]
    key, value = np.repeat(key, share, 2), np.repeat(value, share, 2)
    logits = np.einsum("bnhd,bmhd->bhnm", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    logits = np.where(mask, logits, -np.inf)
    if extra:
        keys, values = (np.repeat(x, share, 2) for x in extra)
        more = np.einsum("bnhd,bmhd->bhnm", query, keys) * (query.shape[-1] ** -0.5 if scale is None else scale)
        logits, value = np.concatenate([logits, more], -1), np.concatenate([value, values], 1)
    most = logits.max(-1, keepdims=True)
    weights = np.exp(logits - np.where(np.isinf(most), 0, most))
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + np.where(np.isinf(most), 0, most)
    weights = weights / np.where(total == 0, 1, total)
    return np.einsum("bhnm,bmhd->bnhd", weights, value), lse[..., 0].transpose(0, 2, 1), weights, logits


def dense_backward(d_out, d_lse, query, key, value, mask, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    out, _, weights, _ = dense(query, key, value, mask, None, scale)
    share = query.shape[2] // key.shape[2]
    wide_key, wide_value = np.repeat(key, share, 2), np.repeat(value, share, 2)
    d_weights = np.einsum("bnhd,bmhd->bhnm", d_out, wide_value)
    delta = (d_out * out).sum(-1) - d_lse
    d_logits = weights * (d_weights - delta.transpose(0, 2, 1)[..., None])
    summed = lambda x: x.reshape(*x.shape[:2], key.shape[2], share, -1).sum(3)
    return (
        scale * np.einsum("bhnm,bmhd->bnhd", d_logits, wide_key),
        summed(scale * np.einsum("bhnm,bnhd->bmhd", d_logits, query)),
        summed(np.einsum("bhnm,bnhd->bmhd", weights, d_out)),
    )


FORMULA_AXES = [
    dict(size=3),
    dict(size=4, stride=2),
    dict(size=2, dilation=3),
    dict(size=3, causal=True),
    dict(size=3, periodic=True),
]


def mixed_cases():
    """Axes of each generator alone, and among formula axes of each kind, in all ranks."""
    for param in GENERATED:
        yield [param.values]
    for place, (param, axis) in enumerate(itertools.product(GENERATED, FORMULA_AXES)):
        length = 6
        mask = axis_mask(length, **axis)
        pair = [param.values, (axis, mask)]
        yield pair if place % 2 else pair[::-1]
    tables, formulas = itertools.cycle(GENERATED), itertools.cycle(FORMULA_AXES)
    for _ in range(8):
        axis = next(formulas)
        yield [next(tables).values, (axis, axis_mask(6, **axis)), next(tables).values]
    yield [GENERATED[0].values, GENERATED[1].values]


def arguments(case):
    formula = lambda name, usual: tuple(usual if isinstance(axis, Windows) else axis.get(name, usual) for axis, _ in case)
    return dict(
        kernel_size=tuple(axis if isinstance(axis, Windows) else axis["size"] for axis, _ in case),
        stride=formula("stride", 1),
        dilation=formula("dilation", 1),
        is_causal=formula("causal", False),
        is_periodic=formula("periodic", False),
    )


def made(case, heads=4, kv_heads=2, dim=5, dim_v=3, batch=2, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    queries, keys = ([mask.shape[side] for _, mask in case] for side in (0, 1))
    shapes = (batch, *queries, heads, dim), (batch, *keys, kv_heads, dim), (batch, *keys, kv_heads, dim_v)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def flat(x, rank):
    return x.reshape(x.shape[0], -1, *x.shape[1 + rank :])


def function(rank, suffix=""):
    return getattr(nhood, f"na{rank}d{suffix}")


@pytest.mark.parametrize("case", list(mixed_cases()))
def test_attention(case):
    rank, named = len(case), arguments(case)
    query, key, value = made(case)
    mask = mask_of([mask for _, mask in case])
    rng = np.random.default_rng(1)
    extra = [rng.standard_normal((2, 3, 2, size)) for size in (5, 3)]
    out, lse = function(rank)(query, key, value, **named, return_lse=True)
    assert out.shape == (*query.shape[:-1], 3)
    rows = [flat(x, rank) for x in (query, key, value)]
    expected = dense(*rows, mask)
    np.testing.assert_allclose(flat(out, rank), expected[0], atol=1e-12)
    np.testing.assert_allclose(flat(lse, rank), expected[1], atol=1e-12)
    with_extra = function(rank)(query, key, value, **named, additional_keys=extra[0], additional_values=extra[1], scale=0.3)
    np.testing.assert_allclose(flat(with_extra, rank), dense(*rows, mask, extra, 0.3)[0], atol=1e-12)

    d_out, d_lse = rng.standard_normal(out.shape), rng.standard_normal(lse.shape)
    d_lse[np.isinf(lse)] = 0
    found = function(rank, "_backward")(d_out, query, key, value, out, lse, **named, d_lse=d_lse)
    wanted = dense_backward(flat(d_out, rank), flat(d_lse, rank), *rows, mask)
    for one, other, like in zip(found, wanted, (query, key, value)):
        assert one.shape == like.shape
        np.testing.assert_allclose(flat(one, rank), other, atol=1e-11)


@pytest.mark.parametrize("case", list(mixed_cases()))
def test_unfused(case):
    """Every slot that has a key holds the logit, and has its share in both sums. Empty slots are -infinity or 0, and never read."""
    rank, named = len(case), arguments(case)
    query, key, value = made(case, batch=1)
    logits = function(rank, "_qk")(query, key, **named)
    filled = function(rank, "_qk")(query, key, **named, zero_fill=True)
    most = [axis.most if isinstance(axis, Windows) else axis["size"] for axis, _ in case]
    assert logits.shape == (*query.shape[:-1], np.prod(most))
    mask = mask_of([mask for _, mask in case])
    rows = [flat(x, rank) for x in (query, key, value)]
    products = np.einsum("nhd,mhd->nhm", rows[0][0], np.repeat(rows[1][0], 2, 1))
    found, zeros = flat(logits, rank)[0], flat(filled, rank)[0]
    for i in range(len(mask)):
        used = np.isfinite(found[i, 0])
        assert used.sum() == mask[i].sum()
        np.testing.assert_allclose(np.sort(found[i][:, used]), np.sort(products[i][:, mask[i]]), atol=1e-12)
        assert not zeros[i][:, ~used].any()

    weights = np.where(np.isfinite(logits), np.exp(logits / 4), np.nan)  # a slot without a key is not read
    out = function(rank, "_av")(weights, value, **named)
    by_keys = np.exp(products / 4) * mask[:, None]
    np.testing.assert_allclose(flat(out, rank)[0], np.einsum("nhm,mhd->nhd", by_keys, np.repeat(rows[2][0], 2, 1)), atol=1e-10)
    grads = np.random.default_rng(2).standard_normal(out.shape)
    d_value = function(rank, "_in")(weights, grads, **named, kv_heads=2)
    assert d_value.shape == value.shape
    expected = np.einsum("nhm,nhd->mhd", by_keys, flat(grads, rank)[0])
    np.testing.assert_allclose(flat(d_value, rank)[0], expected.reshape(len(expected), 2, 2, -1).sum(2), atol=1e-10)


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 2e-6), (np.float16, 4e-3)])
def test_other_types(dtype, tolerance):
    case = [(Windows.resampled(32, 8, 3), by_resampling(32, 8, 3)), (Windows.cut(12, 5).valid(9), by_cutting(12, 5) & (np.arange(12) < 9))]
    query, key, value = made(case, dim=32, dim_v=64, dtype=dtype)
    out, lse = nhood.na2d(query, key, value, [windows for windows, _ in case], return_lse=True)
    rows = [flat(x, 2).astype(np.float64) for x in (query, key, value)]
    expected = dense(*rows, mask_of([mask for _, mask in case]))
    np.testing.assert_allclose(flat(out, 2), expected[0], atol=tolerance)
    assert out.dtype == dtype and lse.dtype == np.float32
    np.testing.assert_allclose(flat(lse, 2), expected[1], atol=1e-5)


def test_nobody_sees_and_sees_nobody():
    windows = Windows([(1, 0), (1, 2), (1, 2)], 5)
    query, key, value = made([(windows, by_pairs(windows.ranges, 5))])
    key[:, [0, 3, 4]] = value[:, [0, 3, 4]] = np.nan
    out, lse = nhood.na1d(query, key, value, windows, return_lse=True)
    assert not out[:, 0].any() and np.isneginf(lse[:, 0]).all()
    assert np.isfinite(out).all() and np.isfinite(lse[:, 1:]).all()
    dq, dk, dv = nhood.na1d_backward(np.ones_like(out), query, key, value, out, lse, windows)
    assert not dq[:, 0].any() and not dk[:, [0, 3, 4]].any() and not dv[:, [0, 3, 4]].any()
    assert dv[:, 1:3].all()
    only_padding = windows.valid(0)
    out, lse = nhood.na1d(query, key, value, only_padding, return_lse=True)
    assert not out.any() and np.isneginf(lse).all()


@pytest.mark.parametrize("windows, mask", GENERATED)
def test_regions(windows, mask):
    """Boxes of queries and of keys, each with its own grid; sums over boxes are the whole."""
    query, key, value = made([(windows, mask)])
    q0, q1, k0, k1 = 1, windows.queries - 1, 1, windows.keys - 1
    cut = query[:, q0:q1], key[:, k0:k1], value[:, k0:k1]
    place = dict(query_offset=q0, key_offset=k0)
    for grid in (dict(place), dict(place, grid=windows.queries)):
        out, lse = nhood.na1d(*cut, windows, return_lse=True, **grid)
        expected = dense(*cut, mask[q0:q1, k0:k1])
        np.testing.assert_allclose(out, expected[0], atol=1e-12)
        np.testing.assert_allclose(lse, expected[1], atol=1e-12)
    logits = nhood.na1d_qk(*cut[:2], windows, zero_fill=True, **place)
    whole = nhood.na1d_in(logits, out, windows, kv_heads=2, query_offset=q0)
    assert whole.shape == (2, windows.keys, 2, 3)
    part = nhood.na1d_in(logits, out, windows, kv_heads=2, **place, key_lengths=k1 - k0)
    np.testing.assert_allclose(part, whole[:, k0:k1], atol=1e-12)


def test_a_table_that_says_a_formula():
    """The same numbers, bit for bit, as of the axis by formula."""
    length, size = 20, 5
    members = [axis_window(length, size, 1, 1, False, i) for i in range(length)]
    windows = Windows([(min(m), len(m)) for m in members], length)
    query, key, value = np.random.default_rng(0).standard_normal((3, 1, length, length, 2, 8)).astype(np.float32)
    by_table = nhood.na2d(query, key, value, (windows, windows))
    np.testing.assert_allclose(by_table, nhood.na2d(query, key, value, size), atol=1e-6)
    np.testing.assert_array_equal(by_table, nhood.na2d(query, key, value, windows))


def test_swin():
    """Shifted blocks of an image equal attention within blocks of the rolled image under Swin's mask."""
    length, size, shift, heads, dim = 12, 4, 2, 2, 8
    query, key, value = np.random.default_rng(0).standard_normal((3, length, length, heads, dim))
    rolled = [np.roll(x, (-shift, -shift), (0, 1)) for x in (query, key, value)]
    regions = np.zeros((length, length), int)  # as Swin numbers what is not adjacent in the image
    count = 0
    for rows in (slice(0, -size), slice(-size, -shift), slice(-shift, None)):
        for columns in (slice(0, -size), slice(-size, -shift), slice(-shift, None)):
            regions[rows, columns] = count
            count += 1

    def partitioned(x):
        blocks = x.reshape(length // size, size, length // size, size, *x.shape[2:])
        return np.moveaxis(blocks, 2, 1).reshape((length // size) ** 2, size * size, *x.shape[2:])

    labels = partitioned(regions)
    parts = [partitioned(x) for x in rolled]
    found = np.stack(
        [dense(*[x[i][None] for x in parts], labels[i][:, None] == labels[i])[0][0] for i in range(len(labels))]
    )
    back = np.moveaxis(found.reshape(length // size, length // size, size, size, heads, dim), 1, 2)
    expected = np.roll(back.reshape(length, length, heads, dim), (shift, shift), (0, 1))
    shifted = Windows.blocks(length, size, (size - shift) % size)
    out = nhood.na2d(query[None], key[None], value[None], shifted)
    np.testing.assert_allclose(out[0], expected, atol=1e-12)


def test_calls_that_do_not_fit():
    windows = Windows.resampled(8, 4, 3)
    query, key, value = made([(windows, by_resampling(8, 4, 3)), (dict(size=3), axis_mask(6, 3))])
    legal = dict(kernel_size=(windows, 3))
    nhood.na2d(query, key, value, **legal, stride=(1, 2))
    refused = {
        r"stride\[0\] = 2: it must be 1 where kernel_size\[0\] = Windows.resampled\(queries=8, keys=4": dict(stride=2),
        r"dilation\[0\] = 2: it must be 1 where": dict(dilation=(2, 1)),
        r"is_causal\[0\] = True: it must be False where": dict(is_causal=True),
        r"is_periodic\[0\] = True: it must be False where": dict(is_periodic=(True, False)),
        r"grid\[0\] = 9, but kernel_size\[0\] = Windows.* has 8 queries": dict(grid=(9, 6)),
        r"bias with kernel_size\[0\] = Windows.*: a relative bias needs windows by formula": dict(bias=np.zeros((4, 1, 5))),
    }
    for text, named in refused.items():
        with pytest.raises(ValueError, match=text):
            nhood.na2d(query, key, value, **legal, **named)
    with pytest.raises(ValueError, match=r"query.shape = .*: 7 queries on axis 0, but kernel_size\[0\] = Windows.* has 8"):
        nhood.na2d(query[:, :7], key, value, **legal)
    with pytest.raises(ValueError, match=r"key.shape = .*: 3 keys on axis 0, but kernel_size\[0\] = Windows.* has 4"):
        nhood.na2d(query, key[:, :3], value[:, :3], **legal)
    with pytest.raises(ValueError, match=r"value.shape = .*the length of the keys on axis 0 is 3, expected 4"):
        nhood.na2d(query, key, value[:, :3], **legal)
    with pytest.raises(ValueError, match="has 3 entries, not 2"):
        nhood.na2d(query, key, value, kernel_size=(windows, 3, 3))
    with pytest.raises(ValueError, match=r"key_offset\[0\] = 4 is not in \[0, 4\), the grid's axis 0"):
        nhood.na2d(query, key, value, **legal, key_offset=(4, 0))
    with pytest.raises(ValueError, match=r"query.shape.* exceeds|kernel_size = .*10 exceeds the 6 tokens of axis 1"):
        nhood.na2d(query, key, value, kernel_size=(windows, 10))
    with pytest.raises(ValueError, match=r"kernel_size\[1\]\[0\] = 3 does not fit 8 queries and 4 keys on axis 0"):
        nhood.na2d(query, key, value, kernel_size=[(windows, 3), (3, 3)])
    with pytest.raises(ValueError, match=r"stride\[0\] = 2: it must be 1 where"):
        nhood.na2d(query, key, value, kernel_size=[(windows, 3), (windows, 4)], stride=2)
    with pytest.raises(ValueError, match="bias with a Windows in kernel_size"):
        nhood.na2d(query, key, value, [(windows, 3)] * 2, bias=[np.zeros((2, 1, 5))] * 2)
    packed = [x.reshape(1, -1, *x.shape[3:])[:, : x.shape[1] * 6] for x in (query, key, value)]
    with pytest.raises(ValueError, match=r"member 0: kernel_size\[0\] = Windows.* has 8 queries, axis 0 has 6"):
        nhood.neighborhood_attention_varlen(*packed, (windows, 3), layouts=[(6, 8)])
    with pytest.raises(ValueError, match=r"member 0: stride\[0\] = 2: it must be 1 where kernel_size\[0\] = Windows"):
        nhood.neighborhood_attention_varlen(*packed, (windows, 3), layouts=[(8, 6)], stride=2)


def test_clamped_windows_beside_tables():
    windows = Windows.cut(4, 9)
    case = [(windows, by_cutting(4, 9)), (dict(size=6), axis_mask(6, 6))]
    query, key, value = made(case)
    out = nhood.na2d(query, key, value, (windows, 50), clamp_window=True)
    np.testing.assert_allclose(out, nhood.na2d(query, key, value, (windows, 6)), atol=1e-12)
    assert nhood.na2d_qk(query, key, (windows, 50), clamp_window=True).shape[-1] == windows.most * 6


def test_sets_of_heads():
    """Each set has its own windows on the axis that has two grids, and a formula or windows on the other one."""
    sets = [(Windows.resampled(8, 4, 3), 3), (Windows.resampled(8, 4, 1).valid(3), Windows.cut(6, 4))]
    query, key, value = made([(sets[0][0], by_resampling(8, 4, 3)), (dict(size=3), axis_mask(6, 3))])
    out, lse = nhood.na2d(query, key, value, sets, stride=[(1, 2), 1], return_lse=True)
    grads = nhood.na2d_backward(np.ones_like(out), query, key, value, out, lse, sets, stride=[(1, 2), 1])
    for i, (size, stride) in enumerate(zip(sets, ((1, 2), 1))):
        heads, kv = slice(2 * i, 2 * i + 2), slice(i, i + 1)
        own = query[..., heads, :], key[..., kv, :], value[..., kv, :]
        expected = nhood.na2d(*own, size, stride, return_lse=True)
        np.testing.assert_allclose(out[..., heads, :], expected[0], atol=1e-12)
        np.testing.assert_allclose(lse[..., heads], expected[1], atol=1e-12)
        by_set = nhood.na2d_backward(np.ones_like(expected[0]), *own, *expected, size, stride)
        for whole, part, of in zip(grads, by_set, (heads, kv, kv)):
            np.testing.assert_allclose(whole[..., of, :], part, atol=1e-12)


def test_plans_are_kept_by_content():
    from nhood import _calls

    query, key, value = made([(Windows.cut(9, 4), by_cutting(9, 4))])
    nhood.clear_cache()
    results = [nhood.na1d(query, key, value, Windows.cut(9, 4)) for _ in range(3)]
    assert _calls._prepare_numpy.cache_info().misses == 1
    other = nhood.na1d(query, key, value, Windows.cut(9, 4).valid(5))
    assert _calls._prepare_numpy.cache_info().misses == 2
    assert (results[0] == results[2]).all() and (results[0] != other).any()


def test_tune_understands_texts():
    lines = nhood.tune("fwd:f32:b1h2d16:8x6:wr4w3xz3v5", budget=0)
    assert len(lines) == 1
