"""Fixtures of all tests here. Four devices and 64-bit numbers are there everywhere: both must be said before JAX begins.

With JAX_PLATFORMS=cuda the results, derivatives and transformations are those of a GPU."""

import importlib.util
import mmap
import os
from pathlib import Path


def xla_knows(flag: str) -> bool:
    """Flags come and go, and XLA ends the process at one that it does not know."""
    for path in Path(importlib.util.find_spec("jaxlib").origin).parent.glob("*.so"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as library:
            if library.find(flag.encode()) >= 0:
                return True
    return False


flags = ["--xla_force_host_platform_device_count=4"]
# How XLA's own kernels are made is not what is tested, and its older way takes half of the time of all tests.
if xla_knows("xla_cpu_use_fusion_emitters"):
    flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags])
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # the cases are small: most of the time is that of compiling
