"""vmap, scan and what else goes around a call."""

from functools import partial

import jax
import jax.numpy as jnp
import nhood.jax
import numpy as np
import pytest
from dense import Case

NAMES = ("query", "key", "value", "bias", "additional_keys", "additional_values")
CASES = [
    Case((7,), (3,), batch=2, heads=2, dim=4),
    Case((5, 6), (3, 4), heads=4, kv_heads=2, dim=4, dim_v=3, bias=True, extra=2),
    Case((3, 4, 3), (2, 3, 3), causal=(True, False, False), heads=2, kv_heads=1, dim=3),
]


def attend(case, names, *arrays):
    named = dict(zip(names, arrays))
    query, key, value = (named.pop(name) for name in NAMES[:3])
    return getattr(nhood.jax, f"na{case.rank}d")(query, key, value, **case.axes, return_lse=True, **named)


def one_by_one(function, in_axes, *arrays):
    """What vmap should give."""
    size = next(x.shape[axis] for x, axis in zip(arrays, in_axes) if axis is not None)
    rows = [
        function(*(x if axis is None else jnp.take(x, i, axis) for x, axis in zip(arrays, in_axes))) for i in range(size)
    ]
    return jax.tree.map(lambda *row: jnp.stack(row), *rows)


def near(got, expected):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


def mapped(case, mapping):
    """Arrays that differ along an axis of 3: along their first one, along their last one, or all but the first input."""
    arrays = case.arrays(np.dtype(np.float64))
    names, random = tuple(arrays), np.random.default_rng(2)
    given, in_axes = [], []
    for number, array in enumerate(arrays.values()):
        axis = {"first": 0, "last": array.ndim, "query": 0 if number == 0 else None, "others": 0 if number else None}[mapping]
        in_axes.append(axis)
        given.append(jnp.asarray(array if axis is None else random.standard_normal(np.insert(array.shape, axis, 3))))
    return names, tuple(in_axes), given


@pytest.mark.parametrize("mapping", ["first", "last", "query", "others"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_vmap(case, mapping):
    names, in_axes, arrays = mapped(case, mapping)
    function = partial(attend, case, names)
    near(jax.jit(jax.vmap(function, in_axes))(*arrays), jax.jit(partial(one_by_one, function, in_axes))(*arrays))


@pytest.mark.parametrize("mapping", ["first", "query", "others"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_vmap_of_gradients(case, mapping):
    """These are gradients of each by itself; and gradients of the whole, in which arrays that are the same for all sum."""
    names, in_axes, arrays = mapped(case, mapping)
    every = tuple(range(len(arrays)))

    def loss(*x):
        out, lse = attend(case, names, *x)
        return (out**2).sum() + jnp.sin(lse).sum()

    each = jax.grad(loss, every)
    near(jax.jit(jax.vmap(each, in_axes))(*arrays), jax.jit(partial(one_by_one, each, in_axes))(*arrays))

    def whole(vmap, *x):
        return vmap(*x).sum()

    near(
        jax.jit(jax.grad(partial(whole, jax.vmap(loss, in_axes)), every))(*arrays),
        jax.jit(jax.grad(partial(whole, partial(one_by_one, loss, in_axes)), every))(*arrays),
    )


def test_jacobians():
    """jacrev maps what pulls back, jacfwd what pushes forward, hessian one over the other."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 4, 2, 2)))

    def function(x):
        return nhood.jax.na1d(x, x, 2 * x, 3)[0, 1:3, :, 0]

    near(jax.jit(jax.jacrev(function))(x), jax.jit(jax.jacfwd(function))(x))
    near(jax.jit(jax.hessian(function))(x), jax.jit(jax.jacrev(jax.jacrev(function)))(x))


def test_unfused_vmap():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2, 6, 5, 4, 2)))
    bias = jnp.asarray(np.random.default_rng(1).standard_normal((3, 4, 5, 5)))

    def function(x, bias):
        return nhood.jax.na2d_av(nhood.jax.na2d_qk(x, x, 3, bias=bias), x, 3)

    gradient = jax.grad(lambda x, bias: (function(x, bias) ** 2).sum(), (0, 1))
    for f in (function, gradient):
        near(jax.jit(jax.vmap(f))(x, bias), jax.jit(partial(one_by_one, f, (0, 0)))(x, bias))


def test_scan_and_conditionals():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 6, 2, 4)))

    def layer(x, window):
        attended = jax.lax.cond(
            window > 3, lambda x: nhood.jax.na1d(x, x, x, 5), lambda x: nhood.jax.na1d(x, x, x, 3), x
        )
        return x + attended, None

    def scanned(x):
        return jax.lax.scan(layer, x, jnp.array([3, 5, 3]))[0]

    def plain(x):
        for window in (3, 5, 3):
            x = x + nhood.jax.na1d(x, x, x, window)
        return x

    near(jax.jit(scanned)(x), plain(x))
    near(jax.grad(lambda x: scanned(x).sum())(x), jax.grad(lambda x: plain(x).sum())(x))


def test_many_threads():
    """One compiled program, executed by several threads at a time."""
    from concurrent.futures import ThreadPoolExecutor

    arrays = [jnp.asarray(np.random.default_rng(i).standard_normal((1, 20, 20, 2, 16), np.float32)) for i in range(8)]
    function = jax.jit(lambda x: nhood.jax.na2d(x, x, x, 7))
    expected = [np.asarray(function(x)) for x in arrays]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for got, wanted in zip(pool.map(function, arrays), expected):
                np.testing.assert_array_equal(got, wanted)
