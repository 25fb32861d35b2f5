"""The public operations: each is written once for every rank, as what it asks of the library, and published as na1d_..,
na2d_.., na3d_.."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

import numpy as np

from . import _quick
from ._calls import HeadsRequest, run
from ._groups import Asked as AskedOfGroup
from ._groups import HeadSets
from ._layouts import counted
from ._library import FLAG_CLAMP_WINDOW, FLAG_ZERO_FILL
from ._operations import AV, BACKWARD, FORWARD, IN, QK, Operation
from ._plans import PLAN_CACHE_SIZE, Region, Request
from ._types import ArrayAttention
from ._windows import KernelSize, Windows, text_of
from ._words import not_of_type

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec

    P = ParamSpec("P")
R = TypeVar("R")

Array = Any
"""numpy.ndarray, torch.Tensor on the CPU, or anything else with __dlpack__ or __cuda_array_interface__"""
PerAxis = Union[int, Sequence[int]]
FlagPerAxis = Union[bool, Sequence[bool]]

_AXES_PARAGRAPH = """kernel_size, stride, dilation, is_causal: one value for all axes, or one per axis.
        A kernel_size may also be a nhood.Windows, a range of keys for every query coordinate of its axis: queries then have
        its length `queries` there, and keys and values `keys`. stride and dilation are 1 on such an axis, and is_causal and
        is_periodic False; not with a bias. A query without keys gets an output of 0 and a log-sum-exp of -infinity.
        On each other axis of length L: 1 <= kernel_size, 1 <= stride <= kernel_size, 1 <= dilation,
        kernel_size * dilation <= L.
        In attention and its gradients each may also be a sequence with an entry for each of several sets of heads, such as
        kernel_size=7, dilation=[[1, 1], [8, 8]]: the key/value heads are parted evenly, in order, and if they do not part
        evenly the last sets have one more. A bias is then a sequence of tables, one for each set. Not with additional tokens
        or parts of a grid.
    clamp_window: take larger windows too, cut to max(1, L // dilation).
    is_periodic: the axis wraps around, one value or one per axis. dilation divides L then and stride divides
        L // dilation; not with is_causal on the same axis.
    grid, query_offset, key_offset: the lengths L of the grid, and where in it queries and keys begin that cover a
        part of it; one value for all axes, or one per axis. If one of them is given, the others are by default the
        lengths of the queries, 0 and 0, and keys may cover another part than queries. Windows are those of the whole
        grid. Keys of a window that are not there are left out; where none is left, outputs are 0 and log-sum-exps
        -infinity. Tokens of a periodic axis count modulo L."""

_COMMON_PARAGRAPHS = """Arrays are numpy's, torch's on the CPU, or export memory of the CPU or of a CUDA device, through DLPack or
    __cuda_array_interface__; results are of the kind of the first one. dtype float64, float32, float16 or bfloat16,
    the same for all (log-sum-exps are float64 for float64, else float32). Views are read as they lie, never copied;
    the last axis must be contiguous.

    Raises ValueError for values, shapes, dtypes and layouts that are not legal, with a text that names the
    argument, its value and the limit; TypeError for what is not an array or not an integer;
    NotImplementedError if no solver takes the problem; MemoryError.

    Source of the formulas: Hassani, Hwu, Shi, "Faster Neighborhood Attention" (2024); the stride is that of
    "Generalized Neighborhood Attention" (2025)."""

_AXIS_NAMES = {1: "X", 2: "X, Y", 3: "X, Y, Z"}
_BIAS_SHAPES = {1: "H, 2*kx-1", 2: "H, 2*kx-1, 2*ky-1", 3: "H, 2*kx-1, 2*ky-1, 2*kz-1"}

Asked = tuple[Union[Request, HeadsRequest], tuple[Optional[Array], ...]]
"""what is asked for, and the arrays in the order of the operation's inputs"""


def _publish(ask: Callable[Concatenate[int, P], Asked], name: str, rank: int) -> Callable[P, Any]:
    """What executes what `ask` asks for: one result alone, or a tuple of several."""
    parameters = tuple(inspect.signature(ask).parameters)

    def published(*args: P.args, **kwargs: P.kwargs) -> Any:
        result = _quick.call(name, *args, **kwargs)
        if result is None or result is False:
            begun = None if result is False else _quick.begin((name, *args), kwargs, parameters)
            try:
                asked = ask(rank, *args, **kwargs)
            except TypeError as error:
                raise called_wrongly(published, args, kwargs) or error from None
            results = run(*asked, begun)
            result = results[0] if len(results) == 1 else tuple(results)
        return result

    return document(published, ask, name, rank, _COMMON_PARAGRAPHS, ask)


def called_wrongly(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Optional[TypeError]:
    """What is wrong with a call of a published function that does not fit its signature: Python's own error names the function
    that is behind it. None if the call fits."""
    try:
        inspect.signature(function).bind(*args, **named)
    except TypeError as error:
        return TypeError(f"{function.__name__}() {error}")
    return None


def document(
    published: Callable[P, R],
    function: Callable[..., Any],
    name: str,
    rank: int,
    common: str,
    documented: Callable[..., Any],
) -> Callable[P, R]:
    """Names `published`, and gives it the signature of `function` without its first argument, the rank, and what `documented`
    says."""
    functools.update_wrapper(published, function)
    published.__name__ = published.__qualname__ = name
    signature = inspect.signature(function)
    without_rank = signature.replace(
        parameters=list(signature.parameters.values())[1:], return_annotation=inspect.Signature.empty
    )
    setattr(published, "__signature__", without_rank)  # type checkers know it from the types above
    published.__doc__ = (
        (documented.__doc__ or "")
        .replace("AXES_PARAGRAPH", _AXES_PARAGRAPH)
        .replace("COMMON_PARAGRAPHS", common)
        .replace("X..", _AXIS_NAMES[rank])
        .replace("BIAS_SHAPE", _BIAS_SHAPES[rank])
    )
    return published


def sizes_and_windows(
    kernel_size: KernelSize, rank: int, stride: PerAxis, dilation: PerAxis, is_causal: FlagPerAxis, is_periodic: FlagPerAxis
) -> tuple[tuple[int, ...], str]:
    """kernel_size per axis, 1 where it is a Windows, and the text of those. ValueError if other arguments do not go with them."""
    if isinstance(kernel_size, Windows):
        kernel_size = (kernel_size,) * rank
    if isinstance(kernel_size, (int, str)) or not isinstance(kernel_size, Sequence):
        return per_axis(kernel_size, rank, "kernel_size"), ""
    text = text_of(kernel_size)
    if not text:
        return per_axis(kernel_size, rank, "kernel_size"), ""  # type: ignore[arg-type]
    sizes = per_axis([1 if isinstance(entry, Windows) else entry for entry in kernel_size], rank, "kernel_size")
    expected = (
        ("stride", per_axis(stride, rank, "stride"), 1),
        ("dilation", per_axis(dilation, rank, "dilation"), 1),
        ("is_causal", flag_per_axis(is_causal, rank, "is_causal"), False),
        ("is_periodic", flag_per_axis(is_periodic, rank, "is_periodic"), False),
    )
    for i, windows in enumerate(kernel_size):
        for name, values, usual in expected:
            if isinstance(windows, Windows) and values[i] != usual:
                raise ValueError(f"{name}[{i}] = {values[i]}: it must be {usual} where kernel_size[{i}] = {windows}")
    return sizes, text


def refuse_windows(kernel_size: Any, what: str) -> None:
    """NotImplementedError if kernel_size has a Windows; `what` says what does not go with it."""
    entries = kernel_size if isinstance(kernel_size, (list, tuple)) else (kernel_size,)
    for i, entry in enumerate(entries):
        if isinstance(entry, Windows):
            raise NotImplementedError(f"kernel_size[{i}] = {entry}: {what}")


def per_axis(value: PerAxis, rank: int, name: str) -> tuple[int, ...]:
    if type(value) is int:
        return (value,) * rank
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (integer(value, name),) * rank
    if len(value) != rank:
        raise ValueError(f"{name} = {value} has {counted(len(value), 'entry', 'entries')}, not {rank}")
    return tuple([entry if type(entry) is int else integer(entry, name) for entry in value])


def integer(value: Any, name: str) -> int:
    """Any kind of integer, but no bool: that is a mistaken argument."""
    if not isinstance(value, bool) and "bool" not in _dtype_name(value):
        try:
            return index(value)
        except TypeError:
            pass
    raise not_of_type(name, value, "an integer")


def number(value: Any, name: str) -> float:
    """A real number of any kind, but no bool and no text."""
    if type(value) is float:
        return value
    kind = _dtype_name(value)
    if isinstance(value, bool) or "bool" in kind or "complex" in kind or not hasattr(value, "__float__"):
        raise not_of_type(name, value, "a number")
    try:
        return float(value)
    except TypeError:
        raise not_of_type(name, value, "a number") from None
    except OverflowError:
        raise ValueError(f"{name} = {value} is beyond float64") from None


def _dtype_name(value: Any) -> str:
    """The dtype of a scalar or array of numpy or torch, in words; empty for others."""
    return str(getattr(value, "dtype", ""))


def flag(value: bool, name: str) -> bool:
    if value is True or value is False:
        return value
    if not isinstance(value, np.bool_):
        raise not_of_type(name, value, "a bool")
    return bool(value)


def flag_per_axis(value: FlagPerAxis, rank: int, name: str) -> tuple[bool, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (flag(value, name),) * rank
    if len(value) != rank:
        raise ValueError(f"{name} = {value} has {counted(len(value), 'entry', 'entries')}, not {rank}")
    return tuple([flag(entry, name) for entry in value])


def region_of(
    rank: int, grid: Optional[PerAxis], query_offset: Optional[PerAxis], key_offset: Optional[PerAxis]
) -> Optional[Region]:
    """None if none is given: all arrays cover the whole grid."""
    if grid is None and query_offset is None and key_offset is None:
        return None
    return Region(
        None if grid is None else per_axis(grid, rank, "grid"),
        per_axis(0 if query_offset is None else query_offset, rank, "query_offset"),
        per_axis(0 if key_offset is None else key_offset, rank, "key_offset"),
    )


def flags(clamp_window: bool, zero_fill: bool = False) -> int:
    """The library's flags for these arguments. TypeError for what is no bool."""
    asked = FLAG_CLAMP_WINDOW if flag(clamp_window, "clamp_window") else 0
    return asked | FLAG_ZERO_FILL if flag(zero_fill, "zero_fill") else asked


def _request(
    operation: Operation,
    rank: int,
    kernel_size: KernelSize,
    stride: PerAxis,
    dilation: PerAxis,
    is_causal: FlagPerAxis,
    scale: Optional[float],
    flags: int,
    wanted: tuple[bool, ...],
    kv_heads: Optional[int] = None,
    is_periodic: FlagPerAxis = False,
) -> Request:
    if type(kernel_size) is type(stride) is type(dilation) is int and type(is_causal) is bool:
        if scale is None or type(scale) is float:
            return _same_on_all_axes(
                operation, rank, kernel_size, stride, dilation, is_causal, scale, flags, wanted, kv_heads
            )
    sizes, windows = sizes_and_windows(kernel_size, rank, stride, dilation, is_causal, is_periodic)
    return Request(
        operation,
        sizes,
        per_axis(stride, rank, "stride"),
        per_axis(dilation, rank, "dilation"),
        flag_per_axis(is_causal, rank, "is_causal"),
        None if scale is None else number(scale, "scale"),
        flags,
        wanted,
        kv_heads,
        windows=windows,
    )


@functools.lru_cache(maxsize=PLAN_CACHE_SIZE)
def _same_on_all_axes(
    operation: Operation,
    rank: int,
    kernel_size: int,
    stride: int,
    dilation: int,
    is_causal: bool,
    scale: Optional[float],
    flags: int,
    wanted: tuple[bool, ...],
    kv_heads: Optional[int],
) -> Request:
    axes = [(value,) * rank for value in (kernel_size, stride, dilation, is_causal)]
    return Request(operation, *axes, scale, flags, wanted, kv_heads)


def is_nested(value: Any) -> bool:
    """Whether a value per axis is given for each of several sets of heads."""
    return isinstance(value, Sequence) and any([isinstance(e, Sequence) and not isinstance(e, str) for e in value])


def head_sets(
    rank: int,
    kernel_size: Any,
    stride: Any,
    dilation: Any,
    is_causal: Any,
    is_periodic: Any,
    **refused: Any,
) -> Optional[HeadSets]:
    """The sets of heads, if any of the first four is a sequence with an entry for each set; None if there is one window for all
    heads. refused: arguments that do not go with sets, None where they are not given."""
    given = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation, "is_causal": is_causal}
    nested = {name: value for name, value in given.items() if is_nested(value)}
    if not nested:
        return None
    (first, values), *others = nested.items()
    for name, other in others:
        if len(other) != len(values):
            raise ValueError(f"{first} is of {len(values)} sets of heads, {name} of {len(other)}")
    for name, value in refused.items():
        if value is not None:
            raise NotImplementedError(f"{name} with windows per set of heads: make one call for each set")
    count = len(values)
    rows = {name: nested.get(name, [value] * count) for name, value in given.items()}
    of_steps = zip(rows["stride"], rows["dilation"], rows["is_causal"])
    pairs = [sizes_and_windows(size, rank, *steps, is_periodic) for size, steps in zip(rows["kernel_size"], of_steps)]
    texts = [text for _, text in pairs]
    steps = [
        tuple(entry for row in rows[name] for entry in per_axis(row, rank, name)) for name in ("stride", "dilation")
    ]
    causal = tuple(entry for row in rows["is_causal"] for entry in flag_per_axis(row, rank, "is_causal"))
    periodic = flag_per_axis(is_periodic, rank, "is_periodic") * count
    windows = ",".join([text or "," * (rank - 1) for text in texts]) if any(texts) else ""
    return HeadSets(count, tuple(size for sizes, _ in pairs for size in sizes), *steps, causal, periodic, windows)


def _sets_requested(
    rank: int,
    operation: Operation,
    wanted: tuple[bool, ...],
    flags: int,
    scale: Optional[float],
    windows: tuple[Any, ...],
    **refused: Any,
) -> Optional[HeadsRequest]:
    sets = head_sets(rank, *windows, **refused)
    if sets is None:
        return None
    return HeadsRequest(AskedOfGroup(operation, None if scale is None else number(scale, "scale"), flags, wanted), sets)


def _placed(
    request: Request,
    is_periodic: FlagPerAxis,
    grid: Optional[PerAxis],
    query_offset: Optional[PerAxis],
    key_offset: Optional[PerAxis],
) -> Request:
    """The request on periodic axes and parts of a grid."""
    if is_periodic is False and grid is None and query_offset is None and key_offset is None:
        return request
    rank = len(request.window)
    periodic = flag_per_axis(is_periodic, rank, "is_periodic")
    return request._replace(periodic=periodic, region=region_of(rank, grid, query_offset, key_offset))


_OUT_ALONE = (True, False)


def check_additional(keys: Optional[Array], values: Optional[Array]) -> None:
    if (keys is None) != (values is None):
        raise ValueError("additional_keys and additional_values: give both or neither")


def attention(
    rank: int,
    query: Array,
    key: Array,
    value: Array,
    kernel_size: KernelSize,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    *,
    bias: Optional[Array] = None,
    additional_keys: Optional[Array] = None,
    additional_values: Optional[Array] = None,
    return_lse: bool = False,
    clamp_window: bool = False,
    is_periodic: FlagPerAxis = False,
    grid: Optional[PerAxis] = None,
    query_offset: Optional[PerAxis] = None,
    key_offset: Optional[PerAxis] = None,
) -> Asked:
    """Neighborhood attention: each query attends the window of its nearest tokens.

    out = softmax(scale * query . key (+ bias)) value, over the keys of each query's window.

    query: [B, X.., H, D].  key: [B, X.., Hkv, D].  value: [B, X.., Hkv, Dv]; Hkv divides H.
    AXES_PARAGRAPH
    scale: any finite number; None: D ** -0.5.
    bias: [BIAS_SHAPE], added to the logits; the index on an axis is key position - query position,
        inside the dilation group, + k - 1. Not with causal axes.
    additional_keys, additional_values: [B, M, Hkv, D] and [B, M, Hkv, Dv]; M tokens that every query attends
        too, in the same softmax.

    Returns out [B, X.., H, Dv]; with return_lse, out and the log-sum-exp of the logits [B, X.., H].

    COMMON_PARAGRAPHS
    """
    check_additional(additional_keys, additional_values)
    if not type(kernel_size) is type(stride) is type(dilation) is int:
        sets = _sets_requested(
            rank,
            FORWARD,
            (True, flag(return_lse, "return_lse")),
            flags(clamp_window),
            scale,
            (kernel_size, stride, dilation, is_causal, is_periodic),
            additional_keys=additional_keys,
            grid=grid,
            query_offset=query_offset,
            key_offset=key_offset,
        )
        if sets is not None:
            return sets, (query, key, value, bias, None, None)
    request = _request(
        FORWARD,
        rank,
        kernel_size,
        stride,
        dilation,
        is_causal,
        scale,
        0 if clamp_window is False else flags(clamp_window),
        _OUT_ALONE if return_lse is False else (True, flag(return_lse, "return_lse")),
        is_periodic=is_periodic,
    )
    request = _placed(request, is_periodic, grid, query_offset, key_offset)
    return request, (query, key, value, bias, additional_keys, additional_values)


def _attention_backward(
    rank: int,
    d_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    lse: Array,
    kernel_size: KernelSize,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    *,
    bias: Optional[Array] = None,
    additional_keys: Optional[Array] = None,
    additional_values: Optional[Array] = None,
    d_lse: Optional[Array] = None,
    clamp_window: bool = False,
    is_periodic: FlagPerAxis = False,
    grid: Optional[PerAxis] = None,
    query_offset: Optional[PerAxis] = None,
    key_offset: Optional[PerAxis] = None,
) -> Asked:
    """Gradients of neighborhood attention, from the gradient d_out of its result.

    query, key, value, kernel_size .. clamp_window: as in the forward call. out, lse: its results.
    d_out: [B, X.., H, Dv].  d_lse: [B, X.., H], the gradient of the log-sum-exp; None: zero.
    AXES_PARAGRAPH

    Returns (d_query, d_key, d_value), then d_bias if bias was given, then d_additional_keys and
    d_additional_values if those were; each in the shape of what it is the gradient of.

    COMMON_PARAGRAPHS
    """
    check_additional(additional_keys, additional_values)
    additional = additional_keys is not None
    if not type(kernel_size) is type(stride) is type(dilation) is int:
        sets = _sets_requested(
            rank,
            BACKWARD,
            (True, True, True, bias is not None, False, False),
            flags(clamp_window),
            scale,
            (kernel_size, stride, dilation, is_causal, is_periodic),
            additional_keys=additional_keys,
            grid=grid,
            query_offset=query_offset,
            key_offset=key_offset,
        )
        if sets is not None:
            return sets, (query, key, value, bias, None, None, out, lse, d_out, d_lse)
    request = _request(
        BACKWARD,
        rank,
        kernel_size,
        stride,
        dilation,
        is_causal,
        scale,
        flags(clamp_window),
        (True, True, True, bias is not None, additional, additional),
        is_periodic=is_periodic,
    )
    request = _placed(request, is_periodic, grid, query_offset, key_offset)
    return request, (query, key, value, bias, additional_keys, additional_values, out, lse, d_out, d_lse)


def qk(
    rank: int,
    query: Array,
    key: Array,
    kernel_size: KernelSize,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    *,
    bias: Optional[Array] = None,
    zero_fill: bool = False,
    clamp_window: bool = False,
    is_periodic: FlagPerAxis = False,
    grid: Optional[PerAxis] = None,
    query_offset: Optional[PerAxis] = None,
    key_offset: Optional[PerAxis] = None,
) -> Asked:
    """The logits of neighborhood attention: attn[i, n] = scale * query[i] . key[N(i, n)] (+ bias).

    N(i, n) enumerates the window of query i row-major over the axes. A causal window, and keys that cover a part of
    the grid, may leave slots unused: they get -infinity, or 0 with zero_fill.

    query: [B, X.., H, D].  key: [B, X.., Hkv, D]; Hkv divides H.  bias: [BIAS_SHAPE].
    AXES_PARAGRAPH
    scale: any finite number; None: 1.

    Returns attn [B, X.., H, W], W the product of the windows; a Windows has as many slots as the query with the most keys.

    COMMON_PARAGRAPHS
    """
    asked = flags(clamp_window, zero_fill)
    request = _request(QK, rank, kernel_size, stride, dilation, is_causal, scale, asked, (True,), is_periodic=is_periodic)
    request = _placed(request, is_periodic, grid, query_offset, key_offset)
    return request, (query, key, bias)


def av(
    rank: int,
    attn: Array,
    value: Array,
    kernel_size: KernelSize,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    *,
    clamp_window: bool = False,
    is_periodic: FlagPerAxis = False,
    grid: Optional[PerAxis] = None,
    query_offset: Optional[PerAxis] = None,
    key_offset: Optional[PerAxis] = None,
) -> Asked:
    """Sums values over windows: out[i] = sum over n of attn[i, n] value[N(i, n)].

    attn: [B, X.., H, W], as the qk function gives it; unused slots are not read.
    value: [B, X.., Hkv, Dv]; Hkv divides H.
    AXES_PARAGRAPH

    Returns out [B, X.., H, Dv].

    COMMON_PARAGRAPHS
    """
    asked = flags(clamp_window)
    request = _request(AV, rank, kernel_size, stride, dilation, is_causal, None, asked, (True,), is_periodic=is_periodic)
    request = _placed(request, is_periodic, grid, query_offset, key_offset)
    return request, (attn, value)


def _in(
    rank: int,
    attn: Array,
    d_out: Array,
    kernel_size: KernelSize,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    *,
    kv_heads: Optional[int] = None,
    clamp_window: bool = False,
    is_periodic: FlagPerAxis = False,
    grid: Optional[PerAxis] = None,
    query_offset: Optional[PerAxis] = None,
    key_offset: Optional[PerAxis] = None,
    key_lengths: Optional[PerAxis] = None,
) -> Asked:
    """Sums over inverse neighborhoods, the transpose of the av function in its values:
    d_value[j] = sum over all i, n with j = N(i, n) of attn[i, n] d_out[i].

    attn: [B, X.., H, W].  d_out: [B, X.., H, Dv].
    kv_heads: Hkv, divides H; the result sums over the query heads of each group. None: H.
    key_lengths: of the result, one value for all axes, or one per axis; None: those of the grid of keys.
    AXES_PARAGRAPH

    Returns d_value [B, X.., Hkv, Dv].

    COMMON_PARAGRAPHS
    """
    if kv_heads is not None:
        kv_heads = integer(kv_heads, "kv_heads")
        if kv_heads < 1:
            raise ValueError(f"kv_heads = {kv_heads} is less than 1")
    request = _request(
        IN, rank, kernel_size, stride, dilation, is_causal, None, flags(clamp_window), (True,), kv_heads, is_periodic
    )
    request = _placed(request, is_periodic, grid, query_offset, key_offset)
    if key_lengths is not None:
        if request.region is None:
            raise ValueError(f"key_lengths = {key_lengths} without grid, query_offset or key_offset: give one of them")
        request = request._replace(
            region=request.region._replace(key_lengths=per_axis(key_lengths, rank, "key_lengths"))
        )
    return request, (attn, d_out)


na1d: ArrayAttention[Array] = _publish(attention, "na1d", 1)
na2d: ArrayAttention[Array] = _publish(attention, "na2d", 2)
na3d: ArrayAttention[Array] = _publish(attention, "na3d", 3)
na1d_backward = _publish(_attention_backward, "na1d_backward", 1)
na2d_backward = _publish(_attention_backward, "na2d_backward", 2)
na3d_backward = _publish(_attention_backward, "na3d_backward", 3)
na1d_qk = _publish(qk, "na1d_qk", 1)
na2d_qk = _publish(qk, "na2d_qk", 2)
na3d_qk = _publish(qk, "na3d_qk", 3)
na1d_av = _publish(av, "na1d_av", 1)
na2d_av = _publish(av, "na2d_av", 2)
na3d_av = _publish(av, "na3d_av", 3)
na1d_in = _publish(_in, "na1d_in", 1)
na2d_in = _publish(_in, "na2d_in", 2)
na3d_in = _publish(_in, "na3d_in", 3)
