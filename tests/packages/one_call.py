"""One call by the installed package: equal values come out as they went in, whatever the weights. What XLA calls must be there, and
where JAX is, that is called, too."""

import ctypes
import importlib.util
import os

import nhood
import numpy as np
from nhood import _library

query = np.random.default_rng(0).standard_normal((1, 9, 8, 2, 4)).astype(np.float32)
value = np.ones_like(query)
np.testing.assert_allclose(nhood.na2d(query, query, value, 5), value, rtol=1e-6)
handlers = _library.compiled("nhood_xla.dll" if os.name == "nt" else "nhood_xla.so")
assert ctypes.CDLL(str(handlers)).nhood_xla_cpu_execute
if importlib.util.find_spec("jax"):
    import jax
    import nhood.jax

    np.testing.assert_allclose(jax.jit(nhood.jax.na2d, static_argnums=3)(query, query, value, 5), value, rtol=1e-6)
print(nhood.__version__, nhood.library_path)
