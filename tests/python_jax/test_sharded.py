"""Grids sharded over the four devices of the host, or over two or four GPUs, against one device with everything."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import nhood.jax
import nhood.jax.sharded
import numpy as np
import pytest
from dense import Case
from jax.sharding import AxisType, NamedSharding, PartitionSpec

DEVICES = jax.device_count()
if DEVICES not in (2, 4):
    pytest.skip(f"{DEVICES} devices, not 2 or 4", allow_module_level=True)
LINE = jax.make_mesh((DEVICES,), ("x",), axis_types=(AxisType.Auto,))
SQUARE = jax.make_mesh((2, DEVICES // 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
CASES = [
    (Case((16,), (3,), batch=2, heads=2, kv_heads=1), LINE, ("x",)),
    (Case((32,), (5,), stride=(3,), dilation=(2,), extra=2), LINE, ("x",)),  # no two shards alike
    (Case((24,), (11,)), LINE, ("x",)),  # beyond the neighbours
    (Case((16,), (14,)), LINE, ("x",)),  # nearly everything
    (Case((24,), (6,), causal=(True,), stride=(2,)), LINE, ("x",)),
    (Case((24,), (5,), periodic=(True,)), LINE, ("x",)),
    (Case((12,), (10,), periodic=(True,)), LINE, ("x",)),
    (Case((12, 8), (5, 3), heads=2, bias=True), SQUARE, ("x", "y")),
    (Case((5, 16), (3, 4), dilation=(1, 2), periodic=(False, True), bias=True, extra=1), SQUARE, (None, ("x", "y"))),
    (Case((4, 8, 6), (3, 3, 2), causal=(True, False, False), heads=2), SQUARE, ("x", "y", None)),
]
NAMES = ("query", "key", "value")


def spread(mesh, sharded_axes):
    return partial(nhood.jax.sharded.neighborhood_attention, mesh=mesh, sharded_axes=sharded_axes)


def arrays_of(case):
    arrays = {name: jnp.asarray(array) for name, array in case.arrays(np.dtype(np.float64)).items()}
    return [arrays.pop(name) for name in NAMES], arrays


def near(got, expected):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case, mesh, sharded_axes", CASES, ids=str)
def test_attention_and_gradients(case, mesh, sharded_axes):
    arrays, named = arrays_of(case)

    def both(function, arrays, named):
        def loss(arrays, named):
            out, lse = function(*arrays, return_lse=True, **case.axes, **named)
            return jnp.sin(out).sum() + (lse**2).sum(), (out, lse)

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(arrays, named)

    got = jax.jit(partial(both, spread(mesh, sharded_axes)))(arrays, named)
    near(got, jax.jit(partial(both, nhood.jax.neighborhood_attention))(arrays, named))
    spec = got[0][1][0].sharding.spec
    assert DEVICES == 2 or spec[1 : 1 + case.rank] == PartitionSpec(*sharded_axes)[: len(spec) - 1]


def test_only_halos_travel():
    """A shard at the border of the grid needs two tokens from its neighbour, all others one from either side."""
    x = jax.device_put(jnp.ones((1, 32, 8, 2, 4)), NamedSharding(LINE, PartitionSpec(None, "x")))
    text = jax.jit(lambda x: spread(LINE, ("x", None))(x, x, x, 3)).lower(x).compile().as_text()
    permutes = re.findall(r"f64\[([\d,]+)\]\S* collective-permute(?:-start)?\(", text)
    assert permutes and all(shape == "1,2,8,2,4" or shape == "1,1,8,2,4" for shape in permutes), text
    assert "all-gather" not in text


def test_batch_and_heads():
    case = Case((8, 6), (3, 3), batch=2, heads=4, kv_heads=2, bias=True, extra=1)
    mesh = jax.make_mesh((2, DEVICES // 2), ("b", "x"), axis_types=(AxisType.Auto,) * 2)
    arrays, named = arrays_of(case)
    expected = nhood.jax.na2d(*arrays, **case.axes, **named)
    for other in ({"batch_axis": "b"}, {"heads_axis": "b"}):
        near(jax.jit(partial(spread(mesh, ("x", None)), **case.axes, **other))(*arrays, **named), expected)


def test_explicit_mesh():
    """What jax.make_mesh makes by default: types tell how arrays are sharded."""
    mesh = jax.make_mesh((DEVICES,), ("x",))
    assert mesh.axis_types == (AxisType.Explicit,)
    arrays, _ = arrays_of(CASES[0][0])

    def loss(function, *arrays):
        return (function(*arrays, 3) ** 2).sum()

    expected = jax.jit(jax.value_and_grad(partial(loss, nhood.jax.na1d), (0, 1, 2)))(*arrays)
    function = jax.value_and_grad(partial(loss, spread(mesh, ("x",))), (0, 1, 2))
    sharded = [jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, "x"))) for x in arrays]
    near(jax.jit(function)(*sharded), expected)
    near(spread(mesh, ("x",))(*arrays, 3), nhood.jax.na1d(*arrays, 3))
    with jax.set_mesh(mesh):
        near(jax.jit(function)(*arrays), expected)


def test_without_jit_and_second_order():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 8, 1, 3)))

    def slope(function, x):
        return jax.jvp(jax.grad(lambda x: (function(x, x, x, 3) ** 2).sum()), (x,), (jnp.cos(x),))[1]

    near(spread(LINE, ("x",))(x, x, x, 3), nhood.jax.na1d(x, x, x, 3))
    near(*[jax.jit(partial(slope, function))(x) for function in (spread(LINE, ("x",)), nhood.jax.na1d)])


X = jnp.ones((2, 8, 6, 2, 4))


@pytest.mark.skipif(DEVICES != 4, reason="texts name the number of devices")
@pytest.mark.parametrize(
    "sharded_axes, named, text",
    [
        (("x",), {}, "has not one entry for each of 2 axes"),
        ("xy", {}, "has not one entry for each of 2 axes"),
        (("z", None), {}, r"sharded_axes\[0\] = 'z': 'z' is not an axis of the mesh"),
        ((None, ("x", "y")), {}, r"sharded_axes\[1\] = .*: 4 devices do not divide the length of axis 1, 6"),
        (("x", "x"), {}, "one axis of the mesh twice"),
        (("x", None), {"heads_axis": "x"}, "one axis of the mesh twice"),
        ((None, None), {"batch_axis": ("x", "y")}, "4 devices do not divide the batch, 2"),
        ((None, None), {"kernel_size": 9}, "kernel_size = 9 exceeds the 8 tokens of axis 0"),
        ((None, None), {"query": X[0, 0]}, r"query.shape = \(6, 2, 4\)"),
    ],
)
def test_errors(sharded_axes, named, text):
    arguments = {"query": X, "key": X, "value": X, "kernel_size": 3, **named}
    with pytest.raises(ValueError, match=text):
        spread(SQUARE, sharded_axes)(**arguments)
