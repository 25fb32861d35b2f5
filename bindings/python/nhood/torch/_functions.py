"""The public functions: each is written once for every rank, and published as na1d_.., na2d_.., na3d_.., documented as
its namesake for arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .. import _functions as of_arrays
from .. import _quick
from .._functions import (
    FlagPerAxis,
    PerAxis,
    called_wrongly,
    check_additional,
    document,
    flag,
    flag_per_axis,
    head_sets,
    number,
    per_axis,
    region_of,
    sizes_and_windows,
)
from .._groups import HeadSets, bias_shapes, parted
from .._layouts import counted
from .._operations import AV, FORWARD, QK, Operation
from .._types import TorchAttention
from .._windows import KernelSize
from .._words import is_traced, wrong_type
from ._dispatch import are_plain, only_inference_here
from ._fused import fused_attention, of_operator, remember_recorded
from ._groups import Sets, ask_na_sets, compute_na_sets, na_sets
from ._ops import ask_na
from ._tensors import deterministic, launch, run
from ._unfused import Axes, av, qk

_COMMON_PARAGRAPHS = """Tensors are on the CPU or on one CUDA device, float64, float32, float16 or bfloat16, all of one dtype
    (log-sum-exps are float64 for float64, else float32). Under autocast, float32 tensors are cast to its dtype.
    Strides are free: no input is copied whose last axis is contiguous.
    Differentiable in all tensors, in reverse and forward mode and more than once.

    Raises ValueError for values, shapes and dtypes that are not legal, with a text that names the argument, its
    value and the limit; NotImplementedError if no solver takes the problem.

    Source of the formulas: Hassani, Hwu, Shi, "Faster Neighborhood Attention" (2024); the stride is that of
    "Generalized Neighborhood Attention" (2025)."""


def _axes(
    rank: int,
    kernel_size: KernelSize,
    stride: PerAxis,
    dilation: PerAxis,
    is_causal: FlagPerAxis,
    is_periodic: FlagPerAxis,
    grid: Optional[PerAxis],
    query_offset: Optional[PerAxis],
    key_offset: Optional[PerAxis],
) -> Axes:
    sizes, windows = sizes_and_windows(kernel_size, rank, stride, dilation, is_causal, is_periodic)
    axes = Axes(
        sizes,
        per_axis(stride, rank, "stride"),
        per_axis(dilation, rank, "dilation"),
        flag_per_axis(is_causal, rank, "is_causal"),
        windows=windows,
    )
    if is_periodic is False and grid is None and query_offset is None and key_offset is None:
        return axes
    periodic = flag_per_axis(is_periodic, rank, "is_periodic")
    region = region_of(rank, grid, query_offset, key_offset)
    if region is None:
        return axes._replace(place=(periodic, (), (), ()))
    return axes._replace(place=(periodic, region.grid or (), region.query_offset, region.key_offset))


def _check_tensors(operation: Operation, required: Sequence[Any], optional: Sequence[Any]) -> None:
    for tensor in required:
        if not isinstance(tensor, Tensor) or tensor.is_nested:
            raise _no_tensor(operation, (*required, *optional), tensor)
    for tensor in optional:
        if tensor is not None and (not isinstance(tensor, Tensor) or tensor.is_nested):
            raise _no_tensor(operation, (*required, *optional), tensor)


def check_tensor(name: str, given: Any) -> None:
    """TypeError unless it is a tensor, and not a nested one."""
    if not isinstance(given, Tensor) or given.is_nested:
        raise _wrong_tensor(name, given)


def _wrong_tensor(name: str, given: Any) -> TypeError:
    if not isinstance(given, Tensor):
        return wrong_type(name, given, "a torch.Tensor; functions of nhood itself take other arrays")
    return TypeError(
        f"{name} is a nested tensor, of samples that may differ in size: pass each of {name}.unbind() by a call of its own, or "
        "samples of one size stacked to a plain tensor"
    )


def _no_tensor(operation: Operation, given: Sequence[Any], wrong: Any) -> TypeError:
    return _wrong_tensor(next(name for name, value in zip(operation.input_names, given) if value is wrong), wrong)


def autocast(*tensors: Optional[Tensor]) -> tuple[Any, ...]:
    """float32 tensors in autocast's dtype where that is on; as they are otherwise."""
    device = "cuda" if tensors[0].is_cuda else "cpu"  # type: ignore[union-attr]
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple([t.to(dtype) if t is not None and t.dtype == torch.float32 else t for t in tensors])


def attention_arguments(
    rank: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: KernelSize,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    additional_keys: Optional[Tensor] = None,
    additional_values: Optional[Tensor] = None,
    *,
    bias: Optional[Tensor] = None,
    return_lse: bool = False,
    clamp_window: bool = False,
    is_periodic: FlagPerAxis = False,
    grid: Optional[PerAxis] = None,
    query_offset: Optional[PerAxis] = None,
    key_offset: Optional[PerAxis] = None,
) -> tuple[Sequence[Optional[Tensor]], Axes, Optional[float], bool, bool]:
    """Those of fused_attention: six tensors, axes, scale, clamp_window, need_lse."""
    check_additional(additional_keys, additional_values)
    _check_tensors(FORWARD, (query, key, value), (bias, additional_keys, additional_values))
    inputs = autocast(query, key, value, bias, additional_keys, additional_values)
    axes = _axes(
        rank, kernel_size, stride, dilation, is_causal, is_periodic, grid, query_offset, key_offset
    )
    scale = None if scale is None else number(scale, "scale")
    return_lse = flag(return_lse, "return_lse")
    return inputs, axes, scale, flag(clamp_window, "clamp_window"), return_lse


def in_graph(
    function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any], refusal: TypeError
) -> Any:
    """A call that was refused, by what its arguments make of calls of torch's own functions: those of torch.fx, a node of its
    graph. Raises the refusal if none makes anything of them."""
    wrong = called_wrongly(function, args, named)
    if wrong:
        raise wrong from None
    given = (*args, *named.values())
    if not has_torch_function(given) or any([isinstance(value, Tensor) for value in given]):
        raise refusal
    return handle_torch_function(function, given, *args, **named)


_PER_SET = ("kernel_size", "stride", "dilation", "is_causal")


def _by_sets(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether a value is given for each of several sets of heads, as a sequence of sequences."""
    for value in args[3:7]:
        if type(value) in (list, tuple) and value and type(value[0]) in (list, tuple):
            return True
    for name in _PER_SET:
        value = named.get(name)
        if type(value) in (list, tuple) and value and type(value[0]) in (list, tuple):
            return True
    return False


def _arguments_of_sets(
    rank: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: Any,
    stride: Any = 1,
    dilation: Any = 1,
    is_causal: Any = False,
    scale: Optional[float] = None,
    additional_keys: Optional[Tensor] = None,
    additional_values: Optional[Tensor] = None,
    *,
    bias: Optional[Sequence[Tensor]] = None,
    return_lse: bool = False,
    clamp_window: bool = False,
    is_periodic: FlagPerAxis = False,
    grid: Optional[PerAxis] = None,
    query_offset: Optional[PerAxis] = None,
    key_offset: Optional[PerAxis] = None,
) -> tuple[Any, ...]:
    """Those of na_sets."""
    check_additional(additional_keys, additional_values)
    refused = dict(additional_keys=additional_keys, grid=grid, query_offset=query_offset, key_offset=key_offset)
    sets = head_sets(rank, kernel_size, stride, dilation, is_causal, is_periodic, **refused)
    assert sets is not None  # some value is one by sets
    tables = () if bias is None else bias
    if isinstance(tables, Tensor) or len(tables) not in (0, sets.count):
        raise ValueError(f"bias: give a list of {sets.count} tables, one for each set of heads")
    _check_tensors(FORWARD, (query, key, value), tables)
    _check_tables(sets, tables, query, key, flag(clamp_window, "clamp_window"))
    query, key, value, *tables = autocast(query, key, value, *tables)
    joined = torch.cat([table.flatten() for table in tables]) if tables else None
    scale = None if scale is None else number(scale, "scale")
    return_lse = flag(return_lse, "return_lse")
    return (query, key, value, joined, *sets, scale, clamp_window, return_lse)


def _attention_of_sets(rank: int, inference: bool, begun: Optional[_quick.Call], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """begun: the call to remember it by."""
    arguments = _arguments_of_sets(rank, *args, **named)
    if inference and are_plain(True, *arguments[:4]):
        results = launch(*ask_na_sets(*arguments), begun) if begun else compute_na_sets(*arguments)
    else:
        results = na_sets(*arguments)
        # Without a bias: its tables are a list of tensors, with which no call is remembered.
        if begun and _quick.knows("na_sets", begun.arguments[1], *arguments[:-1], True):
            parameters = arguments[4:]
            execution = _quick.Execution(("na_sets", begun.arguments[1]), (None, *parameters[:-1], True), 2)
            rest = (None, parameters, compute_na_sets, False)
            _quick.remember_function(begun, Sets.apply, ("query", "key", "value"), rest, execution, of_group=True)
    return tuple(results) if arguments[-1] else results[0]


def _check_tables(sets: HeadSets, tables: Sequence[Tensor], query: Tensor, key: Tensor, clamp: bool) -> None:
    if not tables or query.dim() != key.dim() or key.shape[-2] < sets.count or query.shape[-2] % key.shape[-2]:
        return  # the operator refuses shapes that do not go together
    heads = [own * (query.shape[-2] // key.shape[-2]) for own in parted(key.shape[-2], sets.count)]
    for i, (table, shape) in enumerate(zip(tables, bias_shapes(sets, query.shape[1:-2], heads, clamp))):
        if tuple(table.shape) != shape:
            raise ValueError(f"bias[{i}].shape = {tuple(table.shape)}, expected {shape}")


def _attention(rank: int) -> Callable[..., Any]:
    name = f"torch.na{rank}d"

    def attend(*args: Any, **named: Any) -> Any:
        known, inference = False, only_inference_here()
        if inference:
            known = _quick.call(name, deterministic(), *args, **named)
            if known is not None and known is not False:
                return known
        try:
            if _by_sets(args, named):
                begun = _quick.begin((name, deterministic(), *args), named, _PARAMETERS) if known is None else None
                return _attention_of_sets(rank, inference, begun, args, named)
            if not inference or not are_plain(True, *args, *named.values()):
                arguments = attention_arguments(rank, *args, **named)
                results = fused_attention(*arguments)
                if known is None:
                    begun = _quick.begin((name, deterministic(), *args), named, _PARAMETERS)
                    remember_recorded(begun, *arguments)
                return tuple(results) if arguments[-1] else results[0]
            begun = None
            if known is None:
                begun = _quick.begin((name, deterministic(), *args), named, _PARAMETERS)
            results = run(*ask_na(*of_operator(*attention_arguments(rank, *args, **named))), begun)
        except TypeError as refusal:
            return in_graph(attend, args, named, refusal)
        return results[0] if len(results) == 1 else tuple(results)

    return document(attend, attention_arguments, f"na{rank}d", rank, _COMMON_PARAGRAPHS, of_arrays.attention)


_PARAMETERS = ("", *inspect.signature(attention_arguments).parameters)


def _qk(
    rank: int,
    query: Tensor,
    key: Tensor,
    kernel_size: KernelSize,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    *,
    bias: Optional[Tensor] = None,
    zero_fill: bool = False,
    clamp_window: bool = False,
    is_periodic: FlagPerAxis = False,
    grid: Optional[PerAxis] = None,
    query_offset: Optional[PerAxis] = None,
    key_offset: Optional[PerAxis] = None,
) -> Tensor:
    _check_tensors(QK, (query, key), (bias,))
    query, key, bias = autocast(query, key, bias)
    axes = _axes(
        rank, kernel_size, stride, dilation, is_causal, is_periodic, grid, query_offset, key_offset
    )
    scale = 1.0 if scale is None else number(scale, "scale")
    return qk(query, key, bias, axes, scale, flag(zero_fill, "zero_fill"), flag(clamp_window, "clamp_window"))


def _av(
    rank: int,
    attn: Tensor,
    value: Tensor,
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
) -> Tensor:
    _check_tensors(AV, (attn, value), ())
    attn, value = autocast(attn, value)
    axes = _axes(
        rank, kernel_size, stride, dilation, is_causal, is_periodic, grid, query_offset, key_offset
    )
    return av(attn, value, axes, flag(clamp_window, "clamp_window"))


def _publish(function: Any, name: str, rank: int, documented: Any) -> Any:
    def published(*args: Any, **named: Any) -> Any:
        try:
            return function(rank, *args, **named)
        except TypeError as refusal:
            return in_graph(published, args, named, refusal)

    return document(published, function, name, rank, _COMMON_PARAGRAPHS, documented)


na1d: TorchAttention[Tensor] = _attention(1)
na2d: TorchAttention[Tensor] = _attention(2)
na3d: TorchAttention[Tensor] = _attention(3)
na1d_qk = _publish(_qk, "na1d_qk", 1, of_arrays.qk)
na2d_qk = _publish(_qk, "na2d_qk", 2, of_arrays.qk)
na3d_qk = _publish(_qk, "na3d_qk", 3, of_arrays.qk)
na1d_av = _publish(_av, "na1d_av", 1, of_arrays.av)
na2d_av = _publish(_av, "na2d_av", 2, of_arrays.av)
na3d_av = _publish(_av, "na3d_av", 3, of_arrays.av)

_OF_RANK = {1: na1d, 2: na2d, 3: na3d}


def attention_of_rank(rank: int, *arguments: Any, **named: Any) -> Any:
    return _OF_RANK[rank](*arguments, **named)


def _by_rank(
    query: Tensor, key: Tensor, value: Tensor, kernel_size: KernelSize, *arguments: Any, **named: Any
) -> Any:
    """na1d, na2d or na3d, by the number of axes of `query`, with the arguments of those."""
    if is_traced(query):
        raise TypeError("query is a traced value, whose number of axes is not known: call na1d, na2d or na3d")
    check_tensor("query", query)
    rank = query.dim() - 3
    if rank not in (1, 2, 3):
        raise ValueError(
            f"query.shape = {tuple(query.shape)} has {counted(query.dim(), 'axis', 'axes')}: [B, X.., H, D] has 4, 5 or 6"
        )
    return attention_of_rank(rank, query, key, value, kernel_size, *arguments, **named)


setattr(_by_rank, "__signature__", inspect.signature(na2d))
_by_rank.__name__ = _by_rank.__qualname__ = "neighborhood_attention"
neighborhood_attention: TorchAttention[Tensor] = _by_rank
