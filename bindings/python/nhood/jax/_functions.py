"""The public functions: those for arrays, whose arguments and checks they have, on JAX's arrays and tracers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _functions as of_arrays
from .._functions import called_wrongly, document, flag
from .._layouts import counted
from .._library import FLAG_ALLOW_TF32, FLAG_DETERMINISTIC
from .._plans import Request
from .._types import JaxAttention
from .._words import wrong_type
from ._ops import bind
from . import _rules  # noqa: F401, gives the primitives their derivatives

_COMMON_PARAGRAPHS = """deterministic: results are equal from run to run on GPUs as well, or NotImplementedError is raised. On a
        CPU they are in any case.

    Arrays are JAX's or numpy's, float64, float32, float16 or bfloat16, all of one dtype (log-sum-exps are float64 for float64,
    else float32). Everything but arrays is static: Python's own numbers, bools and sequences. The functions can be transformed
    by jit, grad, jvp, vmap and shard_map in any order and depth, and run on the CPU and on CUDA devices.

    Raises ValueError for values, shapes and dtypes that are not legal, with a text that names the argument, its value and the
    limit, when the call is traced; TypeError for what is not an array or not an integer; NotImplementedError if no solver takes
    the problem.

    Source of the formulas: Hassani, Hwu, Shi, "Faster Neighborhood Attention" (2024); the stride is that of
    "Generalized Neighborhood Attention" (2025)."""

_COARSE = ("default", "fastest", "bfloat16", "high", "bfloat16_3x", "tensorfloat32")


def _allows_tf32() -> bool:
    """Whether products of float32 may be rounded to TF32: only if JAX's setting says so in words."""
    return jax.config.jax_default_matmul_precision in _COARSE


def _as_array(array: Any, name: str) -> Any:
    if isinstance(array, (jax.Array, np.ndarray)):
        return jnp.asarray(array)
    raise wrong_type(name, array, "a jax.Array; functions of nhood itself take other arrays")


def asked(request: Request, arrays: tuple[Any, ...], deterministic: bool) -> tuple[Request, tuple[Any, ...]]:
    """A request with JAX's settings, and JAX's arrays for it."""
    if request.windows:
        raise NotImplementedError("a kernel_size with a Windows: functions of nhood and nhood.torch take it, not those of nhood.jax")
    given = tuple(
        None if array is None and tensor.optional else _as_array(array, tensor.name)
        for tensor, array in zip(request.operation.inputs, arrays)
    )
    flags = request.flags | (FLAG_DETERMINISTIC if flag(deterministic, "deterministic") else 0)
    if given[0].dtype == jnp.float32 and _allows_tf32():
        flags |= FLAG_ALLOW_TF32
    return request._replace(flags=flags), given


def _compute(request: Request, arrays: tuple[Any, ...], deterministic: bool) -> Any:
    request, given = asked(request, arrays, deterministic)
    results = bind(request, *given)
    return results[0] if len(results) == 1 else tuple(results)


def _publish(ask: Callable[..., Any], name: str, rank: int) -> Callable[..., Any]:
    def published(*args: Any, deterministic: bool = False, **kwargs: Any) -> Any:
        try:
            request, arrays = ask(rank, *args, **kwargs)
        except TypeError as error:
            raise called_wrongly(published, args, kwargs) or error from None
        return _compute(request, arrays, deterministic)

    document(published, ask, name, rank, _COMMON_PARAGRAPHS, ask)
    signature = inspect.signature(published)
    last = inspect.Parameter("deterministic", inspect.Parameter.KEYWORD_ONLY, default=False, annotation="bool")
    setattr(published, "__signature__", signature.replace(parameters=[*signature.parameters.values(), last]))
    published.__module__ = __name__
    return published


na1d: JaxAttention[Any] = _publish(of_arrays.attention, "na1d", 1)
na2d: JaxAttention[Any] = _publish(of_arrays.attention, "na2d", 2)
na3d: JaxAttention[Any] = _publish(of_arrays.attention, "na3d", 3)
na1d_qk = _publish(of_arrays.qk, "na1d_qk", 1)
na2d_qk = _publish(of_arrays.qk, "na2d_qk", 2)
na3d_qk = _publish(of_arrays.qk, "na3d_qk", 3)
na1d_av = _publish(of_arrays.av, "na1d_av", 1)
na2d_av = _publish(of_arrays.av, "na2d_av", 2)
na3d_av = _publish(of_arrays.av, "na3d_av", 3)

_OF_RANK: dict[int, JaxAttention[Any]] = {1: na1d, 2: na2d, 3: na3d}


def _by_rank(query: Any, key: Any, value: Any, kernel_size: Any, *arguments: Any, **named: Any) -> Any:
    """na1d, na2d or na3d, by the number of axes of `query`, with the arguments of those."""
    query = _as_array(query, "query")
    rank = query.ndim - 3
    if rank not in _OF_RANK:
        raise ValueError(f"query.shape = {query.shape} has {counted(query.ndim, 'axis', 'axes')}: [B, X.., H, D] has 4, 5 or 6")
    return _OF_RANK[rank](query, key, value, kernel_size, *arguments, **named)


setattr(_by_rank, "__signature__", inspect.signature(na2d))
_by_rank.__name__ = _by_rank.__qualname__ = "neighborhood_attention"
neighborhood_attention: JaxAttention[Any] = _by_rank
