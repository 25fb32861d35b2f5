"""Every operation, rank, storage type and feature against the dense formulation."""

from dataclasses import replace

import dense
import nhood
import numpy as np
import pytest
from cases import CASES, DTYPES, PARTS, assert_near, random_case, random_part

FORWARD = (nhood.na1d, nhood.na2d, nhood.na3d)
BACKWARD = (nhood.na1d_backward, nhood.na2d_backward, nhood.na3d_backward)
QK = (nhood.na1d_qk, nhood.na2d_qk, nhood.na3d_qk)
AV = (nhood.na1d_av, nhood.na2d_av, nhood.na3d_av)
IN = (nhood.na1d_in, nhood.na2d_in, nhood.na3d_in)

every_case = pytest.mark.parametrize("case", CASES + PARTS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
GRADIENTS = ("query", "key", "value", "bias", "additional_keys", "additional_values")


def check_forward(case, dtype, seed=1):
    arrays = case.arrays(DTYPES[dtype], seed)
    out, lse = FORWARD[case.rank - 1](**arrays, **case.axes, scale=case.scale, return_lse=True)
    expected, expected_lse = dense.forward(case, arrays)
    assert out.dtype == DTYPES[dtype] and lse.dtype == (np.float64 if dtype == "float64" else np.float32)
    assert_near(out, expected, 16, dtype, scale=1)
    assert_near(lse, expected_lse, 64, "float64" if dtype == "float64" else "float32", scale=1)
    return arrays, out, lse


@every_dtype
@every_case
def test_forward(case, dtype):
    arrays, out, _ = check_forward(case, dtype)
    alone = FORWARD[case.rank - 1](**arrays, **case.axes, scale=case.scale)
    np.testing.assert_array_equal(alone, out)


@pytest.mark.parametrize("seed", range(40))
def test_forward_random(seed):
    check_forward(random_case(seed), "float32", seed)


@pytest.mark.parametrize("seed", range(40))
def test_part_random(seed):
    check_forward(random_part(seed), "float64", seed)


def backward(case, arrays, seed=2):
    """d_out, d_lse and the gradients, by name."""
    random = np.random.default_rng(seed)
    out, lse = FORWARD[case.rank - 1](**arrays, **case.axes, scale=case.scale, return_lse=True)
    d_out = random.standard_normal(out.shape).astype(out.dtype)
    d_lse = random.standard_normal(lse.shape).astype(lse.dtype)
    gradients = BACKWARD[case.rank - 1](
        d_out, **arrays, out=out, lse=lse, **case.axes, scale=case.scale, d_lse=d_lse
    )
    return d_out, d_lse, dict(zip((name for name in GRADIENTS if name in arrays), gradients))


def check_finite_differences(case, seed=1):
    arrays = case.arrays(np.dtype(np.float64), seed)
    d_out, d_lse, gradients = backward(case, arrays)
    assert gradients.keys() == arrays.keys()
    random = np.random.default_rng(seed + 1000)

    def loss(changed):
        out, lse = dense.forward(case, changed)
        return np.sum(out * d_out) + np.sum(np.where(np.isfinite(lse), lse, 0) * d_lse)

    for name, gradient in gradients.items():
        assert gradient.shape == arrays[name].shape and gradient.dtype == np.float64
        direction = random.standard_normal(gradient.shape)
        step = 1e-5
        above = loss({**arrays, name: arrays[name] + step * direction})
        below = loss({**arrays, name: arrays[name] - step * direction})
        slope = np.sum(gradient * direction)
        # The difference is exact to step^2, and to the rounding of the loss over the step.
        assert slope == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-6), name


@every_case
def test_backward_by_finite_differences(case):
    check_finite_differences(case)


@pytest.mark.parametrize("seed", range(100, 120))
def test_backward_by_finite_differences_random(seed):
    check_finite_differences(random_case(seed), seed)


@pytest.mark.parametrize("seed", range(20))
def test_backward_of_a_part_random(seed):
    check_finite_differences(random_part(seed), seed)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "float64"])
@every_case
def test_backward_storage_types(case, dtype):
    arrays = case.arrays(DTYPES[dtype])
    d_out, d_lse, gradients = backward(case, arrays)
    exact = {name: array.astype(np.float64) for name, array in arrays.items()}
    out, lse = FORWARD[case.rank - 1](**exact, **case.axes, scale=case.scale, return_lse=True)
    expected = BACKWARD[case.rank - 1](
        d_out.astype(np.float64),
        **exact,
        out=out,
        lse=lse,
        **case.axes,
        scale=case.scale,
        d_lse=d_lse.astype(np.float64),
    )
    for gradient, exact_gradient in zip(gradients.values(), expected):
        assert gradient.dtype == DTYPES[dtype]
        assert_near(gradient, exact_gradient, 48, dtype, scale=1)


def test_optional_arrays_of_one_call_do_not_reach_the_next():
    case = CASES[0]
    arrays = case.arrays(np.dtype(np.float64))
    out, lse = nhood.na1d(**arrays, **case.axes, return_lse=True)
    kept = lse.copy()
    lse[:] = 7
    nhood.na1d(**arrays, **case.axes)
    assert np.all(lse == 7)

    def gradients(**d_lse):
        return nhood.na1d_backward(out, **arrays, out=out, lse=kept, **case.axes, **d_lse)

    without = gradients(d_lse=np.zeros_like(kept))
    given = gradients(d_lse=kept)
    assert len(given) == 3 and not np.array_equal(given[0], without[0])
    for one, other in zip(gradients(), without):
        np.testing.assert_array_equal(one, other)


@every_dtype
@every_case
def test_unfused(case, dtype):
    arrays = case.arrays(DTYPES[dtype])
    bias = arrays.get("bias")
    attn = QK[case.rank - 1](arrays["query"], arrays["key"], **case.axes, scale=case.scale, bias=bias)
    expected = dense.qk(case, arrays, -np.inf)
    used = np.isfinite(expected)
    assert np.all(attn[~used] == -np.inf)
    assert_near(attn[used], expected[used], 32, dtype, scale=1)
    zeros = QK[case.rank - 1](
        arrays["query"], arrays["key"], **case.axes, scale=case.scale, bias=bias, zero_fill=True
    )
    np.testing.assert_array_equal(zeros, np.where(used, attn, np.zeros_like(attn)))

    weights = np.random.default_rng(3).standard_normal(attn.shape).astype(DTYPES[dtype])
    weights[~used] = np.nan  # never read
    known = np.where(used, weights, np.zeros_like(weights))
    many = weights.shape[-1] ** 0.5
    out = AV[case.rank - 1](weights, arrays["value"], **case.axes)
    assert_near(out, dense.av(case, known, arrays["value"]), 8 * many, dtype)
    d_out = np.random.default_rng(4).standard_normal(out.shape).astype(DTYPES[dtype])
    key_lengths = dict(key_lengths=case.key_shape) if case.is_part else {}
    d_value = IN[case.rank - 1](weights, d_out, **case.axes, **key_lengths, kv_heads=case.kv_heads)
    assert_near(d_value, dense.inverse(case, known, d_out), 8 * many, dtype)


@every_dtype
@every_case
def test_empty_batches(case, dtype):
    """Results have the shapes that one entry has, but for the batch; the bias, which entries share, has a gradient of zeros."""
    none, one = replace(case, batch=0), replace(case, batch=1)
    key_lengths = dict(key_lengths=case.key_shape) if case.is_part else {}

    def results(case):
        arrays = case.arrays(DTYPES[dtype])
        rank = case.rank - 1
        out, lse = FORWARD[rank](**arrays, **case.axes, scale=case.scale, return_lse=True)
        gradients = BACKWARD[rank](out, **arrays, out=out, lse=lse, **case.axes, scale=case.scale, d_lse=lse)
        attn = QK[rank](arrays["query"], arrays["key"], **case.axes, bias=arrays.get("bias"))
        values = AV[rank](attn, arrays["value"], **case.axes)
        return out, lse, attn, values, IN[rank](attn, out, **case.axes, **key_lengths, kv_heads=case.kv_heads), *gradients

    for _ in range(2):  # calls that come again go another way
        for i, (empty, like) in enumerate(zip(results(none), results(one))):
            of_bias = case.bias and i == 5 + 3
            assert empty.shape == (like.shape if of_bias else (0, *like.shape[1:])) and empty.dtype == like.dtype
            assert not of_bias or not empty.any()


def test_what_is_refused_for_an_empty_batch():
    arrays = dense.Case((9,), (3,), batch=0).arrays(np.dtype(np.float32))
    with pytest.raises(ValueError, match=r"^kernel_size = 10 exceeds the 9 tokens of axis 0"):
        nhood.na1d(**arrays, kernel_size=10)
    with pytest.raises(ValueError, match=r"key.shape = .*: the batch is 1, expected 0"):
        nhood.na1d(**{**arrays, "key": np.zeros((1, 9, 1, 32), np.float32)}, kernel_size=3)


def test_clamped_windows():
    case = dense.Case((3, 8), (3, 4), dilation=(1, 2), heads=2, bias=True)
    arrays = case.arrays(np.dtype(np.float64))
    out = nhood.na2d(**arrays, kernel_size=(7, 7), dilation=(1, 2), clamp_window=True)
    np.testing.assert_array_equal(out, nhood.na2d(**arrays, **case.axes))
    attn = nhood.na2d_qk(arrays["query"], arrays["key"], (7, 7), dilation=(1, 2), clamp_window=True)
    assert attn.shape == (1, 3, 8, 2, 12)
    assert nhood.na2d_av(attn, arrays["value"], 7, dilation=(1, 2), clamp_window=True).shape == out.shape
    with pytest.raises(ValueError, match=r"kernel_size = 7 exceeds the 3 tokens of axis 0"):
        nhood.na2d(**arrays, kernel_size=(7, 7), dilation=(1, 2))


def test_scalars_stand_for_every_axis():
    case = dense.Case((9, 9), (4, 4), stride=(2, 2), dilation=(2, 2), causal=(True, True))
    arrays = case.arrays(np.dtype(np.float32))
    scalars = nhood.na2d(**arrays, kernel_size=4, stride=2, dilation=2, is_causal=True)
    np.testing.assert_array_equal(scalars, nhood.na2d(**arrays, **case.axes))
    lists = nhood.na2d(**arrays, kernel_size=[np.int64(4), 4], stride=[2, 2], dilation=[2, 2], is_causal=[True, np.True_])
    np.testing.assert_array_equal(lists, scalars)


def test_not_a_number_outside_the_window_stays_there():
    arrays = dense.Case((16,), (3,)).arrays(np.dtype(np.float32))
    expected = nhood.na1d(**arrays, kernel_size=3)
    arrays["key"][0, 15], arrays["value"][0, 15] = np.nan, np.inf
    got = nhood.na1d(**arrays, kernel_size=3)
    np.testing.assert_array_equal(got[:, :13], expected[:, :13])
    assert np.isnan(got[:, 15]).all()
