"""nhood.jax's results against dense attention in numpy and f64."""

import dense
import jax
import jax.numpy as jnp
import ml_dtypes
import nhood.jax
import numpy as np
import pytest
from cases import CASES, DTYPES, PARTS, assert_near, random_case, random_part

ALL = [*CASES, *PARTS]


def attend(case, arrays, **named):
    query, key, value = (jnp.asarray(arrays[name]) for name in ("query", "key", "value"))
    rest = {name: jnp.asarray(array) for name, array in arrays.items() if name not in ("query", "key", "value")}
    attention = getattr(nhood.jax, f"na{case.rank}d")
    return attention(query, key, value, **case.axes, scale=case.scale, **rest, **named)


@pytest.mark.parametrize(
    "case, dtype",
    [(case, "float64") for case in ALL] + [(case, dtype) for dtype in ("float32", "float16", "bfloat16") for case in ALL[8::6]],
    ids=str,
)
def test_forward(case, dtype):
    arrays = case.arrays(DTYPES[dtype])
    out, lse = attend(case, arrays, return_lse=True)
    expected, expected_lse = dense.forward(case, arrays)
    assert out.dtype == DTYPES[dtype] and lse.dtype == (np.float64 if dtype == "float64" else np.float32)
    assert_near(np.asarray(out), expected, 32, dtype)
    assert_near(np.asarray(lse), expected_lse, 32, "float64" if dtype == "float64" else "float32", scale=8)


@pytest.mark.parametrize("seed", range(8))
def test_random(seed):
    for case in (random_case(seed), random_part(seed)):
        arrays = case.arrays(np.dtype(np.float64), seed)
        out = attend(case, arrays, deterministic=True)
        assert_near(np.asarray(out), dense.forward(case, arrays)[0], 64, "float64")


@pytest.mark.parametrize("case", ALL, ids=str)
def test_unfused(case):
    arrays = case.arrays(np.dtype(np.float64))
    query, key, value = (jnp.asarray(arrays[name]) for name in ("query", "key", "value"))
    qk, av = (getattr(nhood.jax, f"na{case.rank}d_{name}") for name in ("qk", "av"))
    for zero_fill, unused in ((False, -np.inf), (True, 0)):
        named = {"bias": arrays["bias"]} if case.bias else {}
        attn = qk(query, key, **case.axes, scale=case.scale, zero_fill=zero_fill, **named)
        assert_near(np.asarray(attn), dense.qk(case, arrays, unused), 64, "float64")
    out = av(attn, value, **case.axes)
    assert_near(np.asarray(out), dense.av(case, np.asarray(attn), arrays["value"]), 64, "float64")


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="arrays are attended on the CPU")
def test_same_bits_as_for_arrays():
    """Under jit, and called one after the other."""
    query, key, value = np.random.default_rng(0).standard_normal((3, 2, 14, 13, 3, 16), np.float32)
    expected = nhood.na2d(query, key, value, 5, dilation=2)
    for call in (nhood.jax.na2d, jax.jit(nhood.jax.na2d, static_argnums=(3,), static_argnames=("dilation",))):
        np.testing.assert_array_equal(np.asarray(call(query, key, value, 5, dilation=2)), expected)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_by_rank(rank):
    query = jnp.ones((1, *(6,) * rank, 1, 8))
    out = nhood.jax.neighborhood_attention(query, query, query, 3, 2)
    np.testing.assert_array_equal(out, getattr(nhood.jax, f"na{rank}d")(query, query, query, 3, 2))


def test_clamped_window():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 5, 9, 2, 8)))
    np.testing.assert_array_equal(
        nhood.jax.na2d(x, x, x, 7, clamp_window=True), nhood.jax.na2d(x, x, x, (5, 7))
    )


def test_bfloat16_of_jax():
    x = jnp.ones((1, 9, 1, 8), jnp.bfloat16)
    out = nhood.jax.na1d(x, x, x, 3)
    assert out.dtype == jnp.bfloat16 == ml_dtypes.bfloat16


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["as it is", "jit"])
def test_empty_batch(transform):
    x, bias, extra = jnp.ones((0, 6, 5, 4, 8)), jnp.ones((4, 5, 5)), jnp.ones((0, 3, 4, 8))

    def loss(x, bias, extra):
        out, lse = nhood.jax.na2d(
            x, x, x[..., :7], 3, bias=bias, additional_keys=extra, additional_values=extra[..., :7], return_lse=True
        )
        assert out.shape == (0, 6, 5, 4, 7) and lse.shape == (0, 6, 5, 4) and lse.dtype == jnp.float64
        return out.sum() + lse.sum()

    def shapes_and_zeros(gradients):
        assert [g.shape for g in gradients] == [x.shape, bias.shape, extra.shape] and not gradients[1].any()

    def slope(*arrays):
        return sum(g.sum() for g in jax.grad(loss, (0, 1, 2))(*arrays))

    shapes_and_zeros(transform(jax.grad(loss, (0, 1, 2)))(x, bias, extra))
    shapes_and_zeros(jax.jit(jax.grad(slope, (0, 1, 2)))(x, bias, extra))
    assert nhood.jax.na2d_qk(x, x, 3).shape == (0, 6, 5, 4, 9)
    assert nhood.jax.na2d_av(jnp.ones((0, 6, 5, 4, 9)), x, 3).shape == x.shape


def test_additional_tokens_may_be_none():
    x, extra = jnp.ones((1, 6, 2, 8)), jnp.ones((1, 0, 2, 8))
    out = nhood.jax.na1d(x, x, x, 3, additional_keys=extra, additional_values=extra)
    np.testing.assert_array_equal(out, nhood.jax.na1d(x, x, x, 3))


def test_tf32_only_where_jax_says_so():
    """It is for float32: the text of the problem tells, which GPUs go by."""
    x = jnp.ones((1, 6, 1, 8), jnp.float32)

    def text(x):
        return jax.jit(lambda x: nhood.jax.na1d(x, x, x, 3)).lower(x).as_text()

    assert ":tf32" not in text(x)
    for precision, allowed in (("highest", False), ("tensorfloat32", True), ("default", True)):
        with jax.default_matmul_precision(precision):
            assert (":tf32" in text(x)) == allowed
            assert ":tf32" not in text(x.astype(jnp.float64))
