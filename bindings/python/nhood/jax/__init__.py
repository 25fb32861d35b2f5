"""Neighborhood attention for JAX, on the CPU and on CUDA devices, under jit, grad, vmap and the other transformations.

    import jax, nhood.jax
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 56, 56, 4, 32))
    out = nhood.jax.na2d(query, key, value, kernel_size=7)

na1d, na2d, na3d, neighborhood_attention: attention; neighborhood_attention_varlen: of samples of different sizes, whose lengths
may be traced; .._qk, .._av: its unfused operators.
nhood.jax.sharded: attention over grids that are sharded over several devices.
"""

try:
    import jax as _jax
except ModuleNotFoundError as _error:
    if _error.name != "jax":
        raise
    raise ModuleNotFoundError("nhood.jax needs JAX: pip install 'nhood[jax]'", name="jax") from None

if not hasattr(_jax, "ffi") or not hasattr(_jax.ffi, "register_ffi_type"):
    raise ImportError(f"nhood.jax needs jax 0.10 or later, this is {_jax.__version__}")

from ._functions import (
    na1d,
    na1d_av,
    na1d_qk,
    na2d,
    na2d_av,
    na2d_qk,
    na3d,
    na3d_av,
    na3d_qk,
    neighborhood_attention,
    neighborhood_attention_varlen,
)

__all__ = [
    "na1d",
    "na1d_av",
    "na1d_qk",
    "na2d",
    "na2d_av",
    "na2d_qk",
    "na3d",
    "na3d_av",
    "na3d_qk",
    "neighborhood_attention",
    "neighborhood_attention_varlen",
]
