"""Samples of different sizes and windows by sets of heads: one call of the program, with the results and derivatives of a call for
each member."""

import jax
import jax.export
import jax.numpy as jnp
import nhood
import nhood.jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

LAYOUTS = [(5, 6), (3, 4), (3, 4), (0, 7), (7, 3)]
TOKENS = 75
OF_EACH = dict(
    kernel_sizes=[(3, 4), 3, 2, 1, (7, 2)], strides=[(2, 1), 1, 2, 1, 1], dilations=[1, 1, 1, 1, (1, 1)], is_causal=(True, False)
)
VARIANTS = [dict(kernel_size=3), dict(kernel_size=2, dilation=(1, 1), stride=2, is_causal=True, scale=0.7), OF_EACH]


def packed(dtype=np.float64, heads=4, kv_heads=2, seed=0):
    random = np.random.default_rng(seed)
    shapes = [(1, TOKENS, heads, 8), (1, TOKENS, kv_heads, 8), (1, TOKENS, kv_heads, 6)]
    return tuple(jnp.asarray(random.standard_normal(shape), dtype) for shape in shapes)


def together(windows):
    return lambda q, k, v: nhood.jax.neighborhood_attention_varlen(q, k, v, layouts=LAYOUTS, return_lse=True, **windows)


def one_by_one(windows):
    def function(*arrays):
        found, at = [], 0
        for i, layout in enumerate(LAYOUTS):
            count = layout[0] * layout[1]
            if not count:
                continue
            own = [x[:, at : at + count].reshape(1, *layout, *x.shape[2:]) for x in arrays]
            axes = {
                name: windows.get(f"{name}s", [windows.get(name, 1)] * len(LAYOUTS))[i]
                for name in ("kernel_size", "stride", "dilation")
            }
            others = {name: windows[name] for name in ("is_causal", "scale") if name in windows}
            found.append([x.reshape(1, count, *x.shape[3:]) for x in nhood.jax.na2d(*own, return_lse=True, **axes, **others)])
            at += count
        return tuple(jnp.concatenate(of, axis=1) for of in zip(*found))

    return function


HEADS = dict(kernel_size=[[3, 3], [5, 4]], dilation=[[2, 2], [1, 1]], is_periodic=(False, True))
TABLES = (5, 5), (9, 7)


def by_heads(x, *bias):
    return nhood.jax.na2d(x, x, 2 * x, bias=list(bias) or None, return_lse=True, **HEADS)


def set_by_set(x, *bias):
    found = []
    for i in (0, 1):
        own = x[..., 2 * i : 2 * i + 2, :]
        axes = {name: HEADS[name][i] for name in ("kernel_size", "dilation")}
        found.append(
            nhood.jax.na2d(
                own, own, 2 * own, bias=bias[i] if bias else None, is_periodic=(False, True), return_lse=True, **axes
            )
        )
    return tuple(jnp.concatenate(of, axis=3) for of in zip(*found))


def of_heads(with_bias):
    random = np.random.default_rng(1)
    x = jnp.asarray(random.standard_normal((2, 9, 8, 4, 6)))
    return (x, *[jnp.asarray(random.standard_normal((2, *table))) for table in TABLES]) if with_bias else (x,)


CASES = [
    *[(together(windows), one_by_one(windows), packed()) for windows in VARIANTS],
    (by_heads, set_by_set, of_heads(False)),
    (by_heads, set_by_set, of_heads(True)),
]
IDS = ["one window", "strides", "own windows", "heads", "heads and bias"]
every_case = pytest.mark.parametrize("case", CASES, ids=IDS)


def near(got, expected, rtol=1e-9):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-10)


def tangents(arrays, seed=5):
    random = np.random.default_rng(seed)
    return tuple(jnp.asarray(random.standard_normal(x.shape)) for x in arrays)


def loss(function):
    def of(*arrays):
        out, lse = function(*arrays)
        return (out**2).sum() + jnp.sin(lse).sum()

    return of


def calls(function, *arrays):
    return jax.jit(function).lower(*arrays).as_text().count("custom_call @nhood(")


@every_case
def test_bits(case):
    """On the CPU a member's results are those of its own plan."""
    got, expected, arrays = case
    for one, other in zip(jax.jit(got)(*arrays), expected(*arrays)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(dtype):
    arrays = packed(dtype)
    for one, other in zip(jax.jit(together(VARIANTS[0]))(*arrays), one_by_one(VARIANTS[0])(*arrays)):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one.astype(np.float32), other.astype(np.float32))


def test_as_numpy():
    arrays = packed()
    expected = nhood.neighborhood_attention_varlen(*map(np.asarray, arrays), layouts=LAYOUTS, return_lse=True, **OF_EACH)
    for one, other in zip(together(OF_EACH)(*arrays), expected):
        np.testing.assert_array_equal(one, other)


@every_case
def test_one_call(case):
    """Also for the gradient: one forward and one backward."""
    got, expected, arrays = case
    assert calls(got, *arrays) == 1 < calls(expected, *arrays)
    assert calls(jax.grad(loss(got), tuple(range(len(arrays)))), *arrays) == 2


@every_case
def test_gradients(case):
    got, expected, arrays = case
    every = tuple(range(len(arrays)))
    near(jax.jit(jax.grad(loss(got), every))(*arrays), jax.jit(jax.grad(loss(expected), every))(*arrays))
    for used in (0, 1):
        one, other = [jax.grad(lambda *x, f=f: (f(*x)[used] ** 2).sum(), every) for f in (got, expected)]
        near(jax.jit(one)(*arrays), jax.jit(other)(*arrays))


@every_case
def test_forward_mode(case):
    got, expected, arrays = case
    along = tangents(arrays)
    one, other = [jax.jit(lambda x, t, f=f: jax.jvp(f, x, t))(arrays, along) for f in (got, expected)]
    near(one, other)


@every_case
def test_second_derivatives(case):
    """Reverse over reverse, and forward over reverse."""
    got, expected, arrays = case
    every, along = tuple(range(len(arrays))), tangents(arrays)

    def twice(f):
        gradient = jax.grad(loss(f), every)
        cubes = jax.grad(lambda *x: sum((g**3).sum() for g in gradient(*x)), every)
        return jax.jit(lambda x, t: (cubes(*x), jax.jvp(gradient, x, t)[1]))(arrays, along)

    near(twice(got), twice(expected), rtol=1e-8)


@pytest.mark.parametrize("which", ["all", "first", "others"])
@every_case
def test_vmap(case, which):
    """One call serves all samples; where a bias differs, there is a call for each."""
    got, expected, arrays = case
    mapped = [which == "all" or (which == "first") == (i == 0) for i in range(len(arrays))]
    if not any(mapped):
        pytest.skip("there is one array")
    axes = tuple(x.ndim if own else None for x, own in zip(arrays, mapped))
    given = [jnp.stack([x, 2 * x, x - 1], axis=-1) if own else x for x, own in zip(arrays, mapped)]
    every = tuple(range(len(arrays)))

    def each(f):
        return lambda *x: (f(*x), jax.grad(loss(f), every)(*x))

    near(jax.jit(jax.vmap(each(got), axes))(*given), jax.jit(jax.vmap(each(expected), axes))(*given))
    bias_differs = arrays[0].ndim == 5 and any(mapped[1:])
    assert calls(jax.vmap(got, axes), *given) == (3 if bias_differs else 1)


def test_vmap_within_vmap():
    arrays = packed()
    given = [jnp.stack([jnp.stack([x, 2 * x]), jnp.stack([x + 1, x]), jnp.stack([-x, x])]) for x in arrays]
    got, expected = [jax.jit(jax.vmap(jax.vmap(f)))(*given) for f in (together(OF_EACH), one_by_one(OF_EACH))]
    near(got, expected)
    assert calls(jax.vmap(jax.vmap(together(OF_EACH))), *given) == 1


def test_nothing():
    """No samples, and samples without tokens."""
    x = jnp.zeros((1, 0, 2, 4))
    for layouts in ([], [(0, 3)], [(4, 0), (0, 0)]):
        attend = lambda x: nhood.jax.neighborhood_attention_varlen(x, x, x, 3, layouts=layouts, return_lse=True)  # noqa: E731
        out, lse = jax.jit(attend)(x)
        assert out.shape == x.shape and lse.shape == (1, 0, 2)
        assert jax.grad(lambda x: attend(x)[0].sum())(x).shape == x.shape
        assert jax.jvp(attend, (x,), (x,))[1][0].shape == x.shape


def refused(text, error=ValueError):
    return pytest.raises(error, match=text)


def test_what_is_not_legal():
    q, k, v = packed()
    attend = nhood.jax.neighborhood_attention_varlen
    with refused("layouts have 54 tokens, query has 75"):
        jax.eval_shape(lambda x: attend(x, k, v, 3, layouts=LAYOUTS[:-1]), q)
    with refused("member 2: kernel_size = 5 exceeds the 4 tokens of axis 1"):
        attend(q, k, v, kernel_sizes=[1, 1, (1, 5), 1, 1], layouts=LAYOUTS)
    with refused("kernel_size = None and kernel_sizes = None: give one of them"):
        attend(q, k, v, layouts=LAYOUTS)
    with refused("layouts have 1 tokens, query has 0"):
        attend(*[x[:, :0] for x in (q, k, v)], 1, layouts=[(1, 1)])
    with refused("a jax.Array", TypeError):
        attend([[1.0]], k, v, 3, layouts=LAYOUTS)
    x = jnp.zeros((1, 9, 8, 4, 6))
    with refused("bias: give a list of 2 tables, one for each set of heads", TypeError):
        nhood.jax.na2d(x, x, x, [[3, 3], [5, 4]], bias=jnp.zeros((2, 5, 5)))
    with refused(r"bias has a table of the shape \(2, 5, 5\), expected \(2, 9, 7\)"):
        nhood.jax.na2d(x, x, x, [[3, 3], [5, 4]], bias=[jnp.zeros((2, 5, 5))] * 2)
    with refused("3 sets of heads, there are 2 key/value heads"):
        nhood.jax.na2d(x, x[..., :2, :], x[..., :2, :], [[3, 3], [5, 4], [3, 3]])
    with refused("does not fit 8 queries and 8 keys on axis 1"):
        nhood.jax.na2d(x, x, x, [[3, nhood.Windows([[0, 3]] * 9, 8)], [5, 4]])
    with refused("additional_keys with windows per set of heads", NotImplementedError):
        extra = jnp.zeros((1, 2, 4, 6))
        nhood.jax.na2d(x, x, x, [[3, 3], [5, 4]], additional_keys=extra, additional_values=extra)


def test_serialised():
    """The program says all of the group: the handlers find its plan where none is at hand."""
    arrays = packed("float32")
    attend = together(OF_EACH)
    allowed = [jax.export.DisabledSafetyCheck.custom_call("nhood")]
    program = jax.export.export(jax.jit(attend), disabled_checks=allowed)(*arrays)
    nhood.clear_cache()
    for one, other in zip(program.call(*arrays), attend(*arrays)):
        np.testing.assert_array_equal(one, other)


def test_several_devices():
    """What is sharded is gathered first; under shard_map each device computes what it has."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    arrays = packed(kv_heads=4)
    expected = one_by_one(OF_EACH)(*arrays)
    spread = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec(None, None, "x")))
    near(jax.jit(together(OF_EACH))(*spread), expected)
    spec = PartitionSpec(None, None, "x")
    own = jax.shard_map(together(OF_EACH), mesh=mesh, in_specs=spec, out_specs=spec)
    near(jax.jit(own)(*spread), expected)
    gradients = [jax.jit(jax.grad(loss(f), (0, 1, 2)))(*arrays) for f in (own, one_by_one(OF_EACH))]
    near(*gradients)


def test_explicit_mesh():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    arrays = packed(kv_heads=4)
    with jax.sharding.set_mesh(mesh):
        spread = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec(None, None, "x")))
        with refused("on an explicit mesh"):
            jax.jit(together(OF_EACH))(*spread)
        whole = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec()))
        near(jax.jit(together(OF_EACH))(*whole), one_by_one(OF_EACH)(*arrays))
