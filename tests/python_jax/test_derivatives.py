"""Derivatives of nhood.jax against those that JAX finds of a plain formulation, and against differences."""

from functools import partial

import jax
import jax.numpy as jnp
import nhood.jax
import numpy as np
import plain_jax
import pytest
from cases import CASES, PARTS, assert_near
from dense import Case
from jax.test_util import check_grads

NAMES = ("query", "key", "value", "bias", "additional_keys", "additional_values")
# What every kind of input, axis and part of a grid needs once, in few tokens.
SMALL = [
    Case((9,), (3,)),
    Case((11,), (4,), stride=(2,), dilation=(2,), causal=(True,), heads=2, kv_heads=1, dim=5, dim_v=3, extra=2),
    Case((5, 6), (3, 4), heads=2, dim=4, bias=True, extra=1, scale=0.7),
    Case((4, 6), (3, 4), periodic=(False, True), heads=2, kv_heads=1, dim=4, bias=True),
    Case((4, 3), (3, 3), grid=(9, 8), query_offset=(0, 3), key_offset=(3, 2), key_shape=(4, 5), heads=2, dim=4, bias=True),
    Case((3, 4, 3), (2, 3, 3), causal=(True, False, False), dim=3),
]


def attend(case, names, *arrays):
    """out and lse; those where there is no key at all are -infinity, which no sum is fond of."""
    named = dict(zip(names, arrays))
    query, key, value = (named.pop(name) for name in NAMES[:3])
    attention = getattr(nhood.jax, f"na{case.rank}d")
    out, lse = attention(query, key, value, **case.axes, scale=case.scale, return_lse=True, **named)
    return out, jnp.where(jnp.isfinite(lse), lse, 0)


def plain(case, names, *arrays):
    out, lse = plain_jax.attention(case, **dict(zip(names, arrays)))
    return out, jnp.where(jnp.isfinite(lse), lse, 0)


def arrays_of(case):
    arrays = case.arrays(np.dtype(np.float64))
    return tuple(arrays), tuple(map(jnp.asarray, arrays.values()))


def near(got, expected):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


def cotangents(case, seed=3):
    random = np.random.default_rng(seed)
    shape = (case.batch, *case.shape, case.heads)
    return jnp.asarray(random.standard_normal((*shape, case.dim_v))), jnp.asarray(random.standard_normal(shape))


@pytest.mark.parametrize("case", [*SMALL, *CASES[2::4], *PARTS[1::3]], ids=str)
def test_reverse(case):
    names, arrays = arrays_of(case)

    def pulled(function):
        return jax.jit(lambda arrays, d: jax.vjp(partial(function, case, names), *arrays)[1](d))(arrays, cotangents(case))

    near(pulled(attend), pulled(plain))


@pytest.mark.parametrize("used", [0, 1], ids=["out", "lse"])
def test_gradient_by_one_result(used):
    case = SMALL[2]
    names, arrays = arrays_of(case)
    gradients = [
        jax.jit(jax.grad(lambda *x, f=f: (f(case, names, *x)[used] ** 2).sum(), tuple(range(len(arrays)))))(*arrays)
        for f in (attend, plain)
    ]
    near(*gradients)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_forward_mode(case):
    names, arrays = arrays_of(case)
    along = tuple(jnp.asarray(np.random.default_rng(5).standard_normal(x.shape)) for x in arrays)

    def pushed(function):
        whole = jax.jvp(partial(function, case, names), arrays, along)
        return whole, jax.jvp(partial(function, case, names, *arrays[:1]), arrays[1:], along[1:])

    near(*[jax.jit(partial(pushed, f))() for f in (attend, plain)])


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_second_order(case):
    """Reverse over reverse, forward over reverse, reverse over forward, forward over forward."""
    names, arrays = arrays_of(case)
    random = np.random.default_rng(7)
    along, also = [tuple(jnp.asarray(random.standard_normal(x.shape)) for x in arrays) for _ in range(2)]
    every = tuple(range(len(arrays)))

    def derivatives(function):
        def loss(*x):
            out, lse = function(case, names, *x)
            return (jnp.sin(out) * cotangents(case)[0]).sum() + (lse**2).sum()

        def slope(*x):
            return sum((a * b).sum() for a, b in zip(jax.grad(loss, every)(*x), along))

        def pushed(*x):
            return jax.jvp(loss, x, along)[1]

        return (
            jax.grad(slope, every)(*arrays),
            jax.jvp(jax.grad(loss, every), arrays, along),
            jax.grad(pushed, every)(*arrays),
            jax.jvp(pushed, arrays, also),
        )

    near(jax.jit(partial(derivatives, attend))(), jax.jit(partial(derivatives, plain))())


@pytest.mark.parametrize("case", [SMALL[1], SMALL[4]], ids=str)
def test_unfused(case):
    """Both modes to the second order, against differences."""
    names, arrays = arrays_of(case)
    named = dict(zip(names, arrays))
    qk, av = (getattr(nhood.jax, f"na{case.rank}d_{name}") for name in ("qk", "av"))

    def attention(query, key, value, *bias):
        more = {"bias": bias[0]} if bias else {}
        attn = jnp.cos(qk(query, key, **case.axes, scale=case.scale, zero_fill=True, **more))
        return av(attn, value, **case.axes)

    given = [named[name] for name in NAMES[:4] if name in named]
    check_grads(jax.jit(attention), given, order=2, modes=("fwd", "rev"), rtol=1e-5, atol=1e-5)


def test_half_precision():
    case = CASES[8]
    arrays = case.arrays(np.dtype(jnp.bfloat16))
    names = tuple(arrays)
    exact = tuple(jnp.asarray(array, jnp.float64) for array in arrays.values())
    d_out, d_lse = cotangents(case)

    def pulled(function, arrays, *along):
        return jax.vjp(partial(function, case, names), *arrays)[1](along)

    given = tuple(map(jnp.asarray, arrays.values()))
    found = jax.jit(partial(pulled, attend))(given, d_out.astype(jnp.bfloat16), d_lse.astype(jnp.float32))
    expected = jax.jit(partial(pulled, plain))(exact, d_out.astype(jnp.bfloat16).astype(jnp.float64), d_lse)
    for name, one, other in zip(names, found, expected, strict=True):
        assert one.dtype == jnp.bfloat16, name
        assert_near(np.asarray(one), np.asarray(other), 16, "bfloat16")


def test_rematerialised():
    case = SMALL[0]
    names, arrays = arrays_of(case)

    def loss(function):
        return lambda *x: sum((y**2).sum() for y in function(*x))

    function = partial(attend, case, names)
    near(*[jax.jit(jax.grad(loss(f)))(*arrays) for f in (jax.checkpoint(function), function)])


def test_backward_is_the_fused_one():
    """Gradients come from the library's backward pass, with out and lse of the forward pass: no second forward, no weights."""
    x = jnp.ones((1, 8, 8, 1, 8), jnp.float32)
    text = jax.jit(jax.grad(lambda x: nhood.jax.na2d(x, x, x, 3).sum())).lower(x).as_text()
    calls = [line for line in text.splitlines() if "@nhood(" in line]
    assert len(calls) == 2 and '"fwd:' in calls[0] and '"bwd:' in calls[1], text
