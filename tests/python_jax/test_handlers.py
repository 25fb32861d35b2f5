"""The handlers in C: their structs against XLA's header, and what they say to calls that nhood.jax does not write."""

import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import nhood
import nhood.jax
import numpy as np
import pytest
from nhood import _bounded, _operations
from nhood.jax import _members, _ops

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[1] / "bindings" / "python" / "native"


def compile_layout(tmp_path, header):
    command = ["gcc", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-I", tmp_path, "-isystem", jax.ffi.include_dir()]
    (tmp_path / "xla_abi.h").write_text(header)
    return subprocess.run([*command, HERE / "layout.c"], capture_output=True, text=True)


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_structs_are_those_of_xla(tmp_path):
    header = (NATIVE / "xla_abi.h").read_text()
    done = compile_layout(tmp_path, header)
    assert done.returncode == 0, done.stderr
    wrong = header.replace("xla_function *memory_allocate, *memory_free", "xla_function *memory_allocate")
    done = compile_layout(tmp_path, wrong)
    assert done.returncode != 0 and "xla_api.device_ordinal_get" in done.stderr


def call(problem, tensors, shapes, *arrays):
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    handler = jax.ffi.ffi_call("nhood", results)
    return jax.jit(lambda *given: handler(*given, problem=problem, tensors=tensors))(*arrays)


PROBLEM = "fwd:f32:b1h1d4:8:w3"
X = jnp.ones((1, 8, 1, 4), jnp.float32)
OUT = ((1, 8, 1, 4), jnp.float32)
WORKSPACE = ((1 << 20,), jnp.uint8)


def test_as_it_should_be():
    out, _ = call(PROBLEM, "0,1,2>3", [OUT, WORKSPACE], X, X, X)
    np.testing.assert_array_equal(out, X)


@pytest.mark.parametrize(
    "problem, tensors, shapes, arrays, text",
    [
        ("fwd:f32:b1h1d4:8:w9", "0,1,2>3", [OUT, WORKSPACE], [X, X, X], "not what nhood.jax writes"),
        (PROBLEM, "0,1,2", [OUT, WORKSPACE], [X, X, X], "not what nhood.jax writes"),
        (PROBLEM, "0,1,x>3", [OUT, WORKSPACE], [X, X, X], "not what nhood.jax writes"),
        (PROBLEM, "0,1,99>3", [OUT, WORKSPACE], [X, X, X], "not what nhood.jax writes"),
        (PROBLEM, ",".join("0" * 40) + ">3", [OUT, WORKSPACE], [X, X, X], "not what nhood.jax writes"),
        (PROBLEM, "0,1,2>3", [OUT], [X, X, X], "not those of the problem"),
        (PROBLEM, "0,1,2>3", [OUT, WORKSPACE], [X, X], "not those of the problem"),
        (PROBLEM, "0,1,2>3", [OUT, WORKSPACE], [X, X, X[:, :7]], "not those of the problem"),
        (PROBLEM, "0,1,2>3", [OUT, WORKSPACE], [X, X, X.astype(jnp.float64)], "not those of the problem"),
        (PROBLEM, "0,1>3", [OUT, WORKSPACE], [X, X], r"data\[v\] is NULL"),
    ],
)
def test_refused(problem, tensors, shapes, arrays, text):
    with pytest.raises(Exception, match=text):
        jax.block_until_ready(call(problem, tensors, shapes, *arrays))


LENGTHS = jnp.array([[3], [5]], jnp.int32)


def call_bounded(bound, *arrays):
    """On a plan of two samples within 8 tokens."""
    within = _bounded.Bounded((8,), (3,), (1,), (1,), (False,))
    request = _members.BoundedRequest(_operations.FORWARD, None, 0, (True, False), within)
    text = _members.text_of(request, _ops.layouts_of(request, (True,) * 3, (X, X, X)), 2)
    handler = jax.ffi.ffi_call("nhood", [jax.ShapeDtypeStruct(*OUT), jax.ShapeDtypeStruct((0,), jnp.uint8)])
    return jax.jit(lambda *given: handler(*given, problem=text, tensors="0,1,2>3", bound=bound))(*arrays)


def test_samples_within_a_bound():
    out, _ = call_bounded(_members.place_of(8, 2, (2, 1), 4, [32] * 4), X, X, X, LENGTHS)
    np.testing.assert_array_equal(out, X)


@pytest.mark.parametrize(
    "bound, arrays, text",
    [
        ("8 2 2 1 4 32 32 32 ", [X, X, X, LENGTHS], "not what nhood.jax writes"),
        ("8 2 2 1 4 32 32 32 32 32 ", [X, X, X, LENGTHS], "not what nhood.jax writes"),
        ("8 2 2 1 3 32 32 32 32 ", [X, X, X, LENGTHS], "not what nhood.jax writes"),
        ("8 2 2 4 4 32 32 32 32 ", [X, X, X, LENGTHS], "not what nhood.jax writes"),
        ("8 9 2 1 4 32 32 32 32 ", [X, X, X, LENGTHS], "not what nhood.jax writes"),
        ("8 2 70000 1 4 32 32 32 32 ", [X, X, X, LENGTHS], "not what nhood.jax writes"),
        ("8 2 2 1 4 32 32 32 32 ", [X, X, X], "not those of the problem"),
        ("8 2 2 1 4 32 32 32 32 ", [X, X, X[:, :7], LENGTHS], "not those of the problem"),
        ("8 2 2 1 4 32 32 32 32 ", [X, X, X, LENGTHS[:1]], "the lengths are not those of the problem"),
        ("8 2 2 1 8 32 32 32 32 ", [X, X, X, LENGTHS], "the lengths are not those of the problem"),
        ("9 2 2 1 4 32 32 32 32 ", [X, X, X, LENGTHS], r"query_tokens = 9 is not in \[0, 8\]|the 9 tokens of query"),
    ],
)
def test_refused_within_a_bound(bound, arrays, text):
    with pytest.raises(Exception, match=text):
        jax.block_until_ready(call_bounded(bound, *arrays))


def test_small_workspace():
    problem = "fwd:f32:b1h4d32:32x32:w7x7"
    owner, size = nhood.jax._target.plan_of(problem.encode(), -1)
    assert size, "take a problem that needs a workspace"
    x = jnp.ones((1, 32, 32, 4, 32), jnp.float32)
    with pytest.raises(Exception, match="larger workspace"):
        jax.block_until_ready(call(problem, "0,1,2>3", [(x.shape, x.dtype), ((64,), jnp.uint8)], x, x, x))


def test_configured_anew():
    """Programs keep their plans; programs that are traced later take new ones."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 12, 2, 8), np.float32))
    before = jax.jit(lambda x: nhood.jax.na1d(x, x, x, 5))
    expected = before(x)
    try:
        nhood.configure(solver="reference")
        np.testing.assert_array_equal(before(x), expected)
        np.testing.assert_allclose(jax.jit(lambda x: nhood.jax.na1d(x, x, x, 5))(x), expected, rtol=1e-5)
    finally:
        nhood.configure()


def test_platforms_are_those_of_plugins():
    """Handlers of a platform without a device wait for its plugin under a name that no plugin has, if it is not one of these."""
    from jaxlib import xla_client

    assert {*xla_client._custom_callback, *xla_client._custom_callback_handler} <= {"Host", "CUDA", "ROCM", "cpu", "SYCL"}
    assert {*xla_client._custom_type_id, *xla_client._custom_type_id_handler} <= {"Host", "CUDA", "ROCM", "cpu", "SYCL"}
