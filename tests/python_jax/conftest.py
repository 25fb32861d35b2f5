"""Fixtures of all tests here. Four devices and 64-bit numbers are there everywhere: both must be said before JAX begins.

With JAX_PLATFORMS=cuda the results, derivatives and transformations are those of a GPU."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # the cases are small: most of the time is that of compiling
