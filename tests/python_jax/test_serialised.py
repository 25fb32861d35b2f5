"""Programs that come from JAX's cache or from another program: the handlers find their plans by the problems' texts."""

import jax
import jax.export
import jax.numpy as jnp
import nhood
import nhood.jax
import numpy as np


def attend(x):
    return nhood.jax.na2d(x, x, x, 5)


X = jnp.asarray(np.random.default_rng(0).standard_normal((1, 9, 8, 2, 16), np.float32))


def test_persistent_cache(tmp_path):
    """The second time nothing is compiled, and no plan is at hand but what the handlers ask for."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        jax.clear_caches()
        expected = np.asarray(jax.jit(attend)(X))
        stored = {path.name for path in tmp_path.iterdir()}
        assert any("attend" in name for name in stored)
        jax.clear_caches()
        nhood.clear_cache()
        np.testing.assert_array_equal(jax.jit(attend)(X), expected)
        assert {path.name for path in tmp_path.iterdir() if "attend" in path.name} == {n for n in stored if "attend" in n}
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        jax.clear_caches()


def test_exported():
    """JAX asks to be told which calls of others a program may have."""
    allowed = [jax.export.DisabledSafetyCheck.custom_call("nhood")]
    program = jax.export.export(jax.jit(attend), disabled_checks=allowed)(X)
    nhood.clear_cache()
    np.testing.assert_array_equal(program.call(X), attend(X))
