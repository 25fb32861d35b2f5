"""The public functions: those for arrays, whose arguments and checks they have, on JAX's arrays and tracers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, Optional, Union, overload

import jax
import jax.numpy as jnp
import numpy as np

from .. import _functions as of_arrays
from .._calls import HeadsRequest, check_tables
from .._functions import FlagPerAxis, PerAxis, called_wrongly, document, flag, number
from .._layouts import counted
from .._library import FLAG_ALLOW_TF32, FLAG_DETERMINISTIC
from .._operations import FORWARD
from .._types import JaxAttention
from .._varlen import Layouts, table_of, within_bound
from .._windows import KernelSize
from .._words import wrong_type
from ._bounded import lengths_of
from ._members import BoundedRequest, GroupRequest, Packed
from ._ops import Asked, bind
from . import _rules  # noqa: F401, gives the primitives their derivatives

_COMMON_PARAGRAPHS = """deterministic: results are equal from run to run on GPUs as well, or NotImplementedError is raised. On a
        CPU they are in any case.

    Arrays are JAX's or numpy's, float64, float32, float16 or bfloat16, all of one dtype (log-sum-exps are float64 for float64,
    else float32). Everything but arrays is static: Python's own numbers, bools and sequences, and Windows. The functions can be transformed
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


def asked(request: Any, arrays: tuple[Any, ...], deterministic: bool) -> tuple[Any, tuple[Any, ...]]:
    """A request with JAX's settings, and JAX's arrays for it."""
    given = tuple(
        None if array is None and tensor.optional else _as_array(array, tensor.name)
        for tensor, array in zip(request.operation.inputs, arrays)
    )
    flags = request.flags | (FLAG_DETERMINISTIC if flag(deterministic, "deterministic") else 0)
    if given[0].dtype == jnp.float32 and _allows_tf32():
        flags |= FLAG_ALLOW_TF32
    return request._replace(flags=flags), given


def _joined_tables(request: HeadsRequest, arrays: tuple[Any, ...]) -> tuple[GroupRequest, tuple[Any, ...]]:
    """One request for all sets of heads, with the tables of a bias in one array."""
    query, key, value, tables, *others = arrays
    if tables is not None:
        query, key = _as_array(query, "query"), _as_array(key, "key")
        tables = check_tables(request, query.shape, key.shape, tables, lambda table: _as_array(table, "bias"))
        tables = jnp.concatenate([table.ravel() for table in tables])
    return GroupRequest(*request.asked, request.sets), (query, key, value, tables, *others)


def _compute(request: Union[Asked, HeadsRequest], arrays: tuple[Any, ...], deterministic: bool, *lengths: Any) -> Any:
    if isinstance(request, HeadsRequest):
        request, arrays = _joined_tables(request, arrays)
    request, given = asked(request, arrays, deterministic)
    results = bind(request, *given, *lengths)
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


@overload
def neighborhood_attention_varlen(
    query: Any,
    key: Any,
    value: Any,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Union[Layouts, jax.Array, np.ndarray],
    kernel_sizes: Optional[Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Optional[Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Optional[Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    return_lse: Literal[False] = False,
    bound: Optional[Sequence[int]] = None,
    deterministic: bool = False,
) -> jax.Array: ...


@overload
def neighborhood_attention_varlen(
    query: Any,
    key: Any,
    value: Any,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Union[Layouts, jax.Array, np.ndarray],
    kernel_sizes: Optional[Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Optional[Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Optional[Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    return_lse: Literal[True],
    bound: Optional[Sequence[int]] = None,
    deterministic: bool = False,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def neighborhood_attention_varlen(
    query: Any,
    key: Any,
    value: Any,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Union[Layouts, jax.Array, np.ndarray],
    kernel_sizes: Optional[Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Optional[Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Optional[Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    return_lse: bool,
    bound: Optional[Sequence[int]] = None,
    deterministic: bool = False,
) -> Union[jax.Array, tuple[jax.Array, jax.Array]]: ...


def neighborhood_attention_varlen(
    query: Any,
    key: Any,
    value: Any,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Union[Layouts, jax.Array, np.ndarray],
    kernel_sizes: Optional[Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Optional[Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Optional[Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    return_lse: bool = False,
    bound: Optional[Sequence[int]] = None,
    deterministic: bool = False,
) -> Any:
    """Neighborhood attention of samples of different sizes, packed token after token: one call for all of them.

    query: [1, tokens, H, D].  key: [1, tokens, Hkv, D].  value: [1, tokens, Hkv, Dv]; Hkv divides H.
    layouts: the lengths of the axes of each sample, such as [(14, 14), (20, 30)]; all have 1, 2 or 3 axes. Their tokens
        follow each other in this order, the last axis fastest, and are all there are. Samples may have none. They are static: a
        program is compiled for them, unless there is a bound.
    kernel_size, stride, dilation: of all samples, one value for all axes or one per axis; stride and dilation are 1 by default.
    kernel_sizes, strides, dilations: of each sample, instead. A kernel_size of either kind may have nhood.Windows, with as many
        queries as the layout has on their axis; a sample has their number of keys there, of which key and value hold as many.
    is_causal: one value for all axes, or one per axis.
    bound: the longest axes that samples may have, such as (64, 64). layouts is then an array [samples, axes] of int32 or int64, which
        may be traced: it is read when the program runs, and a program that is compiled once serves all lengths within the bound, for
        as many tokens and samples. Rows of zeros are no samples. Tokens behind the last sample get out 0, log-sum-exp -infinity
        and gradients 0. kernel_size, stride and dilation are of all samples, without nhood.Windows.
    scale: any finite number; None: D ** -0.5.

    Returns out [1, tokens, H, Dv]; with return_lse, out and the log-sum-exp of the logits [1, tokens, H].

    COMMON_PARAGRAPHS

    An illegal sample is named by its index, with axis, value and limit. With a bound that is an error of the program on a CPU, raised
    where its results are waited for; a GPU cannot refuse it, and gives NaN to that sample and all tokens behind it.
    """
    scale = None if scale is None else number(scale, "scale")
    wanted = (True, flag(return_lse, "return_lse"))
    arrays = (query, key, value, None, None, None)
    if bound is not None:
        of_samples = (kernel_size, kernel_sizes, stride, strides, dilation, dilations)
        is_array = isinstance(layouts, (jax.Array, np.ndarray))
        within = within_bound(bound, "an array of int32 or int64", is_array, of_samples, is_causal)
        return _compute(BoundedRequest(FORWARD, scale, 0, wanted, within), arrays, deterministic, lengths_of(layouts))
    if any([isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(layouts)]):
        raise TypeError("layouts is traced: make it an array and give a bound, such as bound=(64, 64), or give lengths that are static")
    own = np.asarray(layouts) if isinstance(layouts, jax.Array) else layouts
    table = table_of(own, kernel_size, kernel_sizes, stride, strides, dilation, dilations, is_causal)
    members = Packed(table.shape[1], table.tobytes())
    return _compute(GroupRequest(FORWARD, scale, 0, wanted, members), arrays, deterministic)


neighborhood_attention_varlen.__doc__ = (neighborhood_attention_varlen.__doc__ or "").replace(
    "COMMON_PARAGRAPHS", _COMMON_PARAGRAPHS
)
