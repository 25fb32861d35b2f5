"""nhood.Windows in kernel_size: results of functions for arrays, and derivatives of attention that plain JAX computes under a mask."""

import jax
import jax.export
import jax.numpy as jnp
import nhood
import nhood.jax
import nhood.jax.sharded
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from nhood import Windows

TABLE = Windows([(0, 2), (0, 3), (2, 1), (3, 0), (3, 2)], keys=5)  # one query has no key
KINDS = {
    "resampled": (Windows.resampled(6, 4, 3), 4),
    "table": (TABLE, Windows.cut(5, 3)),
    "blocks": (Windows.blocks(5, 3, 1), Windows.blocks(6, 2).valid(5)),
}
every_kind = pytest.mark.parametrize("kernel_size", KINDS.values(), ids=KINDS)


def arrays(kernel_size, seed=0, heads=(4, 2), batch=2):
    """query, key and value of a grid whose last axis has 6 coordinates where windows are by formula."""
    random = np.random.default_rng(seed)
    queries, keys = zip(*[(of.queries, of.keys) if isinstance(of, Windows) else (6, 6) for of in kernel_size])
    shapes = [(batch, *queries, heads[0], 8), (batch, *keys, heads[1], 8), (batch, *keys, heads[1], 6)]
    return tuple(random.standard_normal(shape) for shape in shapes)


def mask_of(windows):
    ranges = windows.ranges if isinstance(windows, Windows) else [(min(max(i - windows // 2, 0), 6 - windows), windows) for i in range(6)]
    keys = windows.keys if isinstance(windows, Windows) else 6
    return np.array([[first <= j < first + count for j in range(keys)] for first, count in ranges])


def dense(kernel_size):
    mask = np.ones((1, 1), bool)
    for windows in kernel_size:
        mask = np.kron(mask, mask_of(windows)).astype(bool)

    def attend(query, key, value):
        batch, *_, heads, dim = query.shape
        q, k, v = (x.reshape(batch, -1, *x.shape[-2:]) for x in (query, key, value))
        k, v = (jnp.repeat(x, heads // x.shape[2], axis=2) for x in (k, v))
        logits = jnp.einsum("bihd,bjhd->bihj", q, k) * dim**-0.5
        weights = jnp.where(mask[:, None], jnp.exp(logits), 0)
        total = weights.sum(-1, keepdims=True)
        out = jnp.einsum("bihj,bjhv->bihv", weights, v) / jnp.where(total == 0, 1, total)
        return out.reshape(*query.shape[:-1], v.shape[-1])

    return jax.jit(attend)  # one program, where each operation by itself would be compiled, too


def by_library(kernel_size):
    return lambda *given: nhood.jax.na2d(*given, kernel_size)


def near(got, expected, rtol=1e-9):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-10)


@every_kind
def test_bits_of_all_functions(kernel_size):
    query, key, value = arrays(kernel_size)
    got = jax.jit(lambda *given: nhood.jax.na2d(*given, kernel_size, return_lse=True))(query, key, value)
    for one, other in zip(got, nhood.na2d(query, key, value, kernel_size, return_lse=True)):
        assert np.array_equal(one, other)
    attn = jax.jit(lambda q, k: nhood.jax.na2d_qk(q, k, kernel_size, scale=0.3))(query, key)
    expected = nhood.na2d_qk(query, key, kernel_size, scale=0.3)
    assert np.array_equal(attn, expected)
    weights = np.where(expected > -np.inf, expected, 0)
    assert np.array_equal(nhood.jax.na2d_av(weights, value, kernel_size), nhood.na2d_av(weights, value, kernel_size))


@every_kind
def test_derivatives(kernel_size):
    given = tuple(map(jnp.asarray, arrays(kernel_size)))
    along = tuple(map(jnp.asarray, arrays(kernel_size, seed=1)))
    function, plain = by_library(kernel_size), dense(kernel_size)
    near(function(*given), plain(*given))

    def loss(of):
        return lambda *x: (of(*x) ** 2).sum()

    gradients, expected = (jax.grad(loss(of), (0, 1, 2)) for of in (function, plain))
    near(jax.jit(gradients)(*given), expected(*given))
    near(jax.jvp(function, given, along), jax.jvp(plain, given, along))
    second, wanted = (
        jax.jit(lambda x, t, of=of: (jax.jvp(of, x, t), jax.grad(lambda *x: sum((g**2).sum() for g in of(*x)), (0, 1, 2))(*x)))
        for of in (gradients, expected)
    )
    for got, plain_one, rtol in zip(second(given, along), wanted(given, along), (1e-8, 1e-7)):
        near(got, plain_one, rtol)
    mapped = jax.vmap(function, in_axes=(0, None, None))(jnp.stack([given[0], 2 * given[0]]), *given[1:])
    near(mapped, jnp.stack([plain(x, *given[1:]) for x in (given[0], 2 * given[0])]))


def test_sets_of_heads():
    sizes = [(TABLE, 3), (Windows([(0, 5)] * 5, keys=5), 4)]
    query, key, value = arrays(sizes[0])

    def function(*given):
        return nhood.jax.na2d(*given, sizes)

    def plain(query, key, value):
        parts = [dense(size)(query[..., 2 * i : 2 * i + 2, :], *[x[..., i : i + 1, :] for x in (key, value)]) for i, size in enumerate(sizes)]
        return jnp.concatenate(parts, -2)

    assert np.array_equal(jax.jit(function)(query, key, value), nhood.na2d(query, key, value, sizes))
    along = arrays(sizes[0], seed=1)
    for of in (lambda f: jax.grad(lambda *x: jnp.sin(f(*x)).sum(), (0, 1, 2)), lambda f: lambda *x: jax.jvp(f, x, along)):
        near(of(function)(query, key, value), of(plain)(query, key, value))
    queries = np.stack([query, 2 * query])
    near(jax.vmap(function, (0, None, None))(queries, key, value), jnp.stack([plain(x, key, value) for x in queries]))


LAYOUTS = [(5, 6), (0, 3), (6, 5)]
SIZES = [KINDS["table"][:1] + (3,), 1, (Windows.resampled(6, 4, 3), Windows.cut(5, 3))]


def test_samples():
    random = np.random.default_rng(3)
    query, key, value = (random.standard_normal((1, n, 2, 8)) for n in (60, 50, 50))
    named = dict(layouts=LAYOUTS, kernel_sizes=SIZES)

    def function(*given):
        return nhood.jax.neighborhood_attention_varlen(*given, **named)

    def plain(query, key, value):
        first = dense(SIZES[0])(query[:, :30].reshape(1, 5, 6, 2, 8), *[x[:, :30].reshape(1, 5, 6, 2, 8) for x in (key, value)])
        second = dense(SIZES[2])(query[:, 30:].reshape(1, 6, 5, 2, 8), *[x[:, 30:].reshape(1, 4, 5, 2, 8) for x in (key, value)])
        return jnp.concatenate([x.reshape(1, 30, 2, 8) for x in (first, second)], 1)

    assert np.array_equal(jax.jit(function)(query, key, value), nhood.neighborhood_attention_varlen(query, key, value, **named))
    near(function(query, key, value), plain(query, key, value))
    along = tuple(random.standard_normal(x.shape) for x in (query, key, value))
    for of in (lambda f: jax.grad(lambda *x: jnp.sin(f(*x)).sum(), (0, 1, 2)), lambda f: lambda *x: jax.jvp(f, x, along)):
        near(of(function)(query, key, value), of(plain)(query, key, value))
    queries = np.stack([query, 2 * query])
    near(jax.vmap(function, (0, None, None))(queries, key, value), jnp.stack([plain(x, key, value) for x in queries]))


def test_text_of_a_program():
    """A generator is in the problem's text; a table is behind it, and other tables are other programs, cached apart."""
    query, key, value = (x.astype(np.float32) for x in arrays(KINDS["table"]))
    text = jax.jit(by_library(KINDS["resampled"])).lower(*arrays(KINDS["resampled"])).as_text()
    assert ":wr4w3x4" in text and "custom_call @nhood(" in text
    wide = tuple(np.random.default_rng(2).standard_normal((3, 1, 4000, 1, 8), np.float32))
    for size in (Windows([(i, 5) for i in range(3996)] + [(3995, 5)] * 4, keys=4000), Windows([(i // 2, 7) for i in range(4000)], keys=4000)):
        program = jax.jit(lambda *x, size=size: nhood.jax.na1d(*x, size))
        lowered = program.lower(*wide).as_text()
        assert ":wr4000w" in lowered and len(lowered) < 10_000
        assert np.array_equal(program(*wide), nhood.na1d(*wide, size))
    allowed = [jax.export.DisabledSafetyCheck.custom_call("nhood")]
    program = jax.export.export(jax.jit(by_library(KINDS["table"])), disabled_checks=allowed)(query, key, value)
    nhood.clear_cache()
    assert np.array_equal(program.call(query, key, value), nhood.na2d(query, key, value, KINDS["table"]))


@pytest.mark.skipif(jax.device_count() < 2, reason="one device")
def test_sharded():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    kernel_size = (TABLE, 3)
    given = tuple(map(jnp.asarray, arrays(kernel_size)))

    def spread(*x, axes=(None, "x"), sizes=kernel_size):
        return nhood.jax.sharded.neighborhood_attention(*x, sizes, mesh=mesh, sharded_axes=axes)

    near(spread(*given), nhood.jax.na2d(*given, kernel_size))
    got, expected = (jax.grad(lambda *x: jnp.sin(of(*x)).sum(), (0, 1, 2)) for of in (spread, by_library(kernel_size)))
    near(got(*given), expected(*given))
    with pytest.raises(NotImplementedError, match=r"kernel_size\[1\] = Windows.cut\(.*\) with sharded_axes\[1\] = 'x': a sharded axis has"):
        spread(*given, sizes=(TABLE, Windows.cut(6, 3)))
    by_batch = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("x"))) for x in given]
    near(jax.jit(by_library(kernel_size))(*by_batch), nhood.jax.na2d(*given, kernel_size))


def test_refused():
    query, key, value = arrays(KINDS["table"])
    with pytest.raises(ValueError, match=r"key.shape = .*4 keys on axis 0, but kernel_size\[0\] = Windows.* has 5"):
        nhood.jax.na2d(query, key[:, :4], value[:, :4], KINDS["table"])
    with pytest.raises(ValueError, match=r"stride\[0\] = 2: it must be 1 where"):
        nhood.jax.na2d(query, key, value, KINDS["table"], stride=2)
    with pytest.raises(ValueError, match="member 0: kernel_size.* has 5 queries, axis 0 has 6"):
        nhood.jax.neighborhood_attention_varlen(*[x[:1, 0, :6] for x in (query, key, value)], TABLE, layouts=[(6,)])
