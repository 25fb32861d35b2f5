"""Illegal calls fail while they are traced, in the caller's words."""

import jax
import jax.numpy as jnp
import nhood.jax
import nhood.jax.sharded
import numpy as np
import pytest
from nhood import _types
from test_types import assert_functions_are_typed

X = jnp.ones((1, 7, 6, 4, 8))
WRONG = [
    (lambda x: nhood.jax.na2d(x, x, x, 8), ValueError, "kernel_size|window = 8 .*7"),
    (lambda x: nhood.jax.na2d(x, x, x, (3, 3, 3)), ValueError, r"kernel_size = \(3, 3, 3\) has 3 entries, not 2"),
    (lambda x: nhood.jax.na2d(x, x, x, 3.0), TypeError, "kernel_size = 3.0 is not an integer"),
    (lambda x: nhood.jax.na2d(x, x, x, x[0, 0, 0, 0, 0]), TypeError, "kernel_size = .* is not an integer"),
    (lambda x: nhood.jax.na2d(x, x, x, 3, stride=4), ValueError, "stride = 4"),
    (lambda x: nhood.jax.na2d(x, x, x, 3, is_causal=1), TypeError, "is_causal = 1 is not a bool"),
    (lambda x: nhood.jax.na2d(x, x, x, 3, deterministic=1), TypeError, "deterministic = 1 is not a bool"),
    (lambda x: nhood.jax.na2d(x, x, x, 3, scale="1"), TypeError, "scale = '1' is not a number"),
    (lambda x: nhood.jax.na2d(x, x[0], x, 3), ValueError, "key.shape = .* has 4 axes, not 5"),
    (lambda x: nhood.jax.na2d(x, x[..., :3, :], x, 3), ValueError, "value.shape = .*heads is 4, expected 3"),
    (lambda x: nhood.jax.na2d(x, x, x[:, :6], 3), ValueError, "value.shape = .*axis 0 is 6, expected 7"),
    (lambda x: nhood.jax.na2d(x, x, x[:0], 3), ValueError, "value.shape = .*the batch is 0"),
    (lambda x: nhood.jax.na2d(x[:0], x[:0], x[:0], 8), ValueError, "^kernel_size = 8 exceeds the 7 tokens of axis 0"),
    (lambda x: nhood.jax.na2d(x, x, x, 3, bias=x[0, 0]), ValueError, "bias.shape"),
    (lambda x: nhood.jax.na2d(x, x, x, 3, additional_keys=x[:, 0]), ValueError, "give both or neither"),
    (lambda x: nhood.jax.na2d(x, x, x.astype(jnp.float32), 3), ValueError, "value has dtype float32, expected float64"),
    (lambda x: nhood.jax.na2d(x.astype(int), x, x, 3), ValueError, "query has dtype int64: not one of float64"),
    (lambda x: nhood.jax.na2d([1.0], x, x, 3), TypeError, "query is a list, not a jax.Array"),
    (lambda x: nhood.jax.na2d(None, x, x, 3), TypeError, "query is a NoneType, not a jax.Array"),
    (lambda x: nhood.jax.na2d(x, x, x, 3, query_offset=7), ValueError, "query_offset"),
    (lambda x: nhood.jax.na2d(x, x, x, 3, is_periodic=True, is_causal=True), ValueError, "causal"),
    (lambda x: nhood.jax.na2d_qk(x, x, 8), ValueError, "^kernel_size = 8 exceeds the 7 tokens of axis 0"),
    (lambda x: nhood.jax.na2d_av(x, x, 3), ValueError, "attn.shape = .* window slots is 8, expected 9"),
    (lambda x: nhood.jax.na2d(x, x, x, 3, window=3), TypeError, r"^na2d\(\) got an unexpected keyword argument 'window'"),
    (lambda x: nhood.jax.neighborhood_attention(x[0, 0], x, x, 3), ValueError, "query.shape = .* has 3 axes"),
]


@pytest.mark.parametrize("transform", [lambda f: f, jax.make_jaxpr, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())])
@pytest.mark.parametrize("call, error, text", WRONG, ids=range(len(WRONG)))
def test_errors(call, error, text, transform):
    with pytest.raises(error, match=text):
        transform(call)(X[None] if transform is jax.vmap else X)


def test_traced_values():
    text = ", but a traced value: it is to be a part of the program, static in jax.jit"
    with pytest.raises(TypeError, match="^kernel_size = .* is not an integer" + text):
        jax.jit(lambda k: nhood.jax.na2d(X, X, X, k))(3)
    with pytest.raises(TypeError, match="^scale = .* is not a number" + text):
        jax.jit(lambda scale: nhood.jax.na2d(X, X, X, 3, scale=scale))(0.5)
    with pytest.raises(TypeError, match="^is_causal = .* is not a bool" + text):
        jax.jit(lambda causal: nhood.jax.na2d(X, X, X, 3, is_causal=causal))(True)
    for transform in (jax.jit, jax.grad):
        with pytest.raises(TypeError, match="^query is a jax.*Tracer, a value that JAX traces: only nhood.jax takes it"):
            transform(lambda x: nhood.na2d(x, x, x, 3).sum())(X)


def test_solver_that_refuses():
    """Known when the program is lowered, which is before it runs."""
    try:
        nhood.configure(solver="cpu.fused")
        with pytest.raises(NotImplementedError, match="cpu.fused"):
            jax.jit(lambda x: nhood.jax.na2d_qk(x, x, 3)).lower(X)
    finally:
        nhood.configure()


def test_numpy_arrays():
    x = np.ones((1, 5, 1, 4), np.float32)
    out = nhood.jax.na1d(x, x, x, 3)
    assert isinstance(out, jax.Array) and out.dtype == jnp.float32


def test_types():
    functions = ["na1d", "na2d", "na3d", "neighborhood_attention"]
    assert_functions_are_typed(nhood.jax, [*functions, "neighborhood_attention_varlen"], _types.JaxAttention)
    assert [getattr(nhood.jax, name).__name__ for name in functions] == functions
    assert_functions_are_typed(nhood.jax.sharded, ["neighborhood_attention"])
