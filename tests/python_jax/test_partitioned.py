"""Batch and heads sharded over the four devices of the host, or over two or four GPUs, by XLA's partitioner."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import nhood.jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

COLLECTIVES = re.compile(r"(all-gather|all-to-all|collective-permute|all-reduce)(?:-start)?\(")
DEVICES = jax.device_count()
if DEVICES not in (2, 4):
    pytest.skip(f"{DEVICES} devices, not 2 or 4", allow_module_level=True)
MESH = jax.make_mesh((2, DEVICES // 2), ("batch", "heads"), axis_types=(AxisType.Auto,) * 2)


def arrays_of(batch=4, heads=4, kv_heads=2):
    random = np.random.default_rng(0)
    shapes = [(batch, 6, 5, heads, 8), (batch, 6, 5, kv_heads, 8), (batch, 6, 5, kv_heads, 8), (heads, 5, 5)]
    return [jnp.asarray(random.standard_normal(shape)) for shape in shapes]


def attend(query, key, value, bias):
    return nhood.jax.na2d(query, key, value, 3, bias=bias, return_lse=True)


def gradients(*arrays):
    def loss(*arrays):
        out, lse = attend(*arrays)
        return (out**2).sum() + lse.sum()

    return jax.grad(loss, (0, 1, 2, 3))(*arrays)


def placed(arrays, batch, heads):
    specs = [PartitionSpec(batch, None, None, heads)] * 3 + [PartitionSpec(heads)]
    return [jax.device_put(array, NamedSharding(MESH, spec)) for array, spec in zip(arrays, specs)]


def collectives(compiled):
    return set(COLLECTIVES.findall(compiled.as_text()))


def near(got, expected):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("batch, heads", [("batch", None), (None, "heads"), ("batch", "heads"), (("batch", "heads"), None)])
def test_attention(batch, heads):
    arrays = arrays_of()
    sharded = placed(arrays, batch, heads)
    compiled = jax.jit(attend).lower(*sharded).compile()
    out, lse = compiled(*sharded)
    near((out, lse), attend(*arrays))
    near(attend(*sharded), (out, lse))  # without jit
    assert not collectives(compiled)
    assert out.sharding.is_equivalent_to(sharded[0].sharding, out.ndim)


def test_gradients():
    """All parts by themselves, but for the bias' gradient, which is summed over the batch."""
    arrays = arrays_of()
    sharded = placed(arrays, "batch", "heads")
    compiled = jax.jit(gradients).lower(*sharded).compile()
    near(compiled(*sharded), gradients(*arrays))
    assert collectives(compiled) == {"all-reduce"}


def test_what_cannot_be_sharded_is_gathered():
    """An axis of the grid, and heads that the devices do not divide."""
    arrays = arrays_of(heads=6, kv_heads=3)
    specs = [PartitionSpec("batch", "heads"), PartitionSpec(None, "heads"), PartitionSpec("batch"), PartitionSpec()]
    sharded = [jax.device_put(array, NamedSharding(MESH, spec)) for array, spec in zip(arrays, specs)]
    near(jax.jit(attend)(*sharded), attend(*arrays))
    arrays = arrays_of(heads=2, kv_heads=1)
    query = jax.device_put(arrays[0], NamedSharding(MESH, PartitionSpec(None, None, None, "heads")))
    near(jax.jit(gradients)(query, *arrays[1:]), gradients(*arrays))


def test_vmapped_and_unfused():
    query, key, value, bias = arrays_of()
    sharded = jax.device_put(query, NamedSharding(MESH, PartitionSpec("batch")))

    def function(query):
        each = jax.vmap(lambda x: nhood.jax.na2d_av(nhood.jax.na2d_qk(x[None], x[None], 3), x[None], 3)[0])
        return each(query)

    compiled = jax.jit(function).lower(sharded).compile()
    near([compiled(sharded)], [function(query)])
    assert not collectives(compiled)


def test_explicit_mesh():
    """Types tell how arrays are sharded; the grid must not be."""
    mesh = jax.make_mesh((2, DEVICES // 2), ("batch", "heads"), axis_types=(AxisType.Explicit,) * 2)
    arrays = arrays_of()
    with jax.set_mesh(mesh):
        specs = [PartitionSpec("batch", None, None, "heads")] * 3 + [PartitionSpec("heads")]
        sharded = [jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in zip(arrays, specs)]
        out, lse = jax.jit(attend)(*sharded)
        assert jax.typeof(out).sharding.spec == PartitionSpec("batch", None, None, "heads", None)
        near((out, lse), attend(*arrays))
        wrong = jax.device_put(arrays[0], NamedSharding(mesh, PartitionSpec(None, "batch")))
        with pytest.raises(ValueError, match="query has the sharding"):
            jax.jit(attend)(wrong, *sharded[1:])


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma):
    """Each device attends in what it has; the gradient of what all have is the sum."""
    arrays = arrays_of()
    specs = [PartitionSpec("batch", None, None, "heads")] * 3 + [PartitionSpec("heads")]
    wrap = partial(jax.shard_map, mesh=MESH, in_specs=tuple(specs), check_vma=check_vma)
    spread = wrap(attend, out_specs=(specs[0], PartitionSpec("batch", None, None, "heads")))
    near(jax.jit(spread)(*arrays), attend(*arrays))

    def loss(function, *arrays):
        out, lse = function(*arrays)
        return (out**2).sum() + lse.sum()

    every = (0, 1, 2, 3)
    near(jax.jit(jax.grad(partial(loss, spread), every))(*arrays), gradients(*arrays))
