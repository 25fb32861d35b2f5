"""What NATTEN takes and what it refuses. Refusals are exceptions that the functions here make; the caller
raises them, or logs them where it only asks whether a backend can run."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Optional, Tuple, Type, TypeVar

from torch import Tensor

from ..types import SCHEDULE_NAMES, CausalArgType, DimensionType, KernelSchedule
from . import log
from .environment import is_torch_compiling
from .varlen import check_sequence_table, generate_varlen_parameters

logger = log.get_logger(__name__)

R = TypeVar("R")


def raise_or_log(refusal: Optional[Exception], raise_error: bool) -> bool:
    """True if there is no refusal; else raises it, or logs it and returns False."""
    if refusal is None:
        return True
    if raise_error:
        raise refusal
    logger.debug(str(refusal))
    return False


def universal_tensor_checks(query: Tensor, key: Tensor, value: Tensor) -> None:
    """What is an error even where it is only asked whether a backend can run."""
    tensors = (query, key, value)
    if any(t.is_sparse for t in tensors):
        raise NotImplementedError("sparse tensors are not supported")
    if any(t.is_nested for t in tensors):
        raise NotImplementedError("nested tensors are not supported")
    if not query.device == key.device == value.device:
        raise ValueError(f"query, key and value differ in device: {[str(t.device) for t in tensors]}")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"query, key and value differ in dtype: {[str(t.dtype) for t in tensors]}")


def _heads_refusal(
    query: Tensor, key: Tensor, value: Tensor, must_match_head_dims: bool, supports_gqa_mqa: bool, name: str
) -> Optional[Exception]:
    """What is wrong with the axes that every kind of attention has: batch, heads, head dim."""
    if query.shape[-1] != key.shape[-1]:
        return ValueError(f"head dims of query and key differ: {query.shape[-1]} and {key.shape[-1]}")
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return ValueError(f"batch sizes differ: {[t.shape[0] for t in (query, key, value)]}")
    if must_match_head_dims and query.shape[-1] != value.shape[-1]:
        return ValueError(
            f"{name} needs one head dim, got {query.shape[-1]} of query and {value.shape[-1]} of value"
        )
    heads, heads_kv = query.shape[-2], key.shape[-2]
    if heads_kv != value.shape[-2]:
        return ValueError(f"numbers of heads of key and value differ: {heads_kv} and {value.shape[-2]}")
    if not supports_gqa_mqa and heads != heads_kv:
        return ValueError(
            f"{name} needs one number of heads, got {heads} of query and {heads_kv} of key and value"
        )
    if heads_kv == 0 or heads % heads_kv != 0:
        return ValueError(f"heads of key and value = {heads_kv} does not divide heads of query = {heads}")
    return None


def _fna_shape_refusal(query: Tensor, key: Tensor, value: Tensor) -> Optional[Exception]:
    if not query.dim() == key.dim() == value.dim():
        return ValueError(f"ranks differ: {[t.dim() for t in (query, key, value)]}")
    if query.dim() not in (4, 5, 6):
        return ValueError(f"query has rank {query.dim()}, expected 4, 5 or 6 for 1, 2 or 3 axes of tokens")
    layouts = [tuple(t.shape[1:-2]) for t in (query, key, value)]
    if not layouts[0] == layouts[1] == layouts[2]:
        return ValueError(f"token layouts of query, key and value differ: {layouts}")
    return None


def _fmha_shape_refusal(query: Tensor, key: Tensor, value: Tensor) -> Optional[Exception]:
    if not query.dim() == key.dim() == value.dim() == 4:
        return ValueError(f"attention takes tensors of rank 4, got {[t.dim() for t in (query, key, value)]}")
    if key.shape[1] != value.shape[1]:
        return ValueError(f"lengths of key and value differ: {key.shape[1]} and {value.shape[1]}")
    return None


_SHAPE_REFUSALS = {"fna": _fna_shape_refusal, "fmha": _fmha_shape_refusal}


def tensor_refusal(
    kind: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    must_match_head_dims: bool = False,
    supports_gqa_mqa: bool = True,
    backend_name: Optional[str] = None,
) -> Optional[Exception]:
    """What is wrong with tensors for neighborhood attention (fna) or attention over all keys (fmha)."""
    name = backend_name or "this operation"
    found = _SHAPE_REFUSALS[kind](query, key, value)
    return found or _heads_refusal(query, key, value, must_match_head_dims, supports_gqa_mqa, name)


def _tensor_checks(
    kind: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    must_match_head_dims: bool = False,
    supports_gqa_mqa: bool = True,
    raise_error: bool = True,
    backend_name: Optional[str] = None,
) -> bool:
    universal_tensor_checks(query, key, value)
    found = tensor_refusal(kind, query, key, value, must_match_head_dims, supports_gqa_mqa, backend_name)
    return raise_or_log(found, raise_error)


na_tensor_checks = functools.partial(_tensor_checks, "fna")
fmha_tensor_checks = functools.partial(_tensor_checks, "fmha")


def additional_kv_tensor_checks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    add_key: Optional[Tensor] = None,
    add_value: Optional[Tensor] = None,
    must_match_head_dims: bool = False,
    supports_gqa_mqa: bool = True,
) -> None:
    if (add_key is None) != (add_value is None):
        raise ValueError("additional_keys and additional_values: give both or neither")
    if add_key is None or add_value is None:
        return
    universal_tensor_checks(query, add_key, add_value)
    if add_key.dim() != 4 or add_value.dim() != 4:
        ranks = (add_key.dim(), add_value.dim())
        raise ValueError(f"additional_keys and additional_values have ranks {ranks}, expected 4 and 4")
    if add_key.shape[1] != add_value.shape[1]:
        lengths = (add_key.shape[1], add_value.shape[1])
        raise ValueError(f"lengths of additional_keys and additional_values differ: {lengths}")
    for name, added, own in (("additional_keys", add_key, key), ("additional_values", add_value, value)):
        expected, got = (own.shape[0], *own.shape[-2:]), (added.shape[0], *added.shape[-2:])
        if got != expected:
            raise ValueError(f"{name} has batch, heads, head dim {got}, expected {expected}")
    refusal = _heads_refusal(
        query, add_key, add_value, must_match_head_dims, supports_gqa_mqa, "this operation"
    )
    raise_or_log(refusal, raise_error=True)


def _per_axis(na_dim: int, value: Any, kind: Any, least: int, name: str) -> tuple:
    """`value` for every axis. Like NATTEN's, takes no numpy integers, and bool where int is meant."""
    if isinstance(value, kind) and value >= least:
        return (value,) * na_dim
    if isinstance(value, Sequence) and len(value) == na_dim:
        if all(isinstance(entry, kind) and entry >= least for entry in value):
            return tuple(value)
    expected = "a bool" if kind is bool else f"an int of at least {least}"
    raise ValueError(f"{name} = {value!r}, expected {expected}, or a sequence of {na_dim}")


def check_input_size_arg(na_dim: int, input_size: Any) -> DimensionType:
    return _per_axis(na_dim, input_size, int, 2, "input_size")


def check_kernel_size_arg(na_dim: int, kernel_size: Any) -> DimensionType:
    return _per_axis(na_dim, kernel_size, int, 2, "kernel_size")


def check_stride_arg(na_dim: int, stride: Any) -> DimensionType:
    return _per_axis(na_dim, 1 if stride is None else stride, int, 1, "stride")


def check_dilation_arg(na_dim: int, dilation: Any) -> DimensionType:
    return _per_axis(na_dim, 1 if dilation is None else dilation, int, 1, "dilation")


def check_causal_arg(na_dim: int, is_causal: Any) -> CausalArgType:
    return _per_axis(na_dim, False if is_causal is None else is_causal, bool, False, "is_causal")


def check_all_args(
    na_dim: int, kernel_size: Any, stride: Any, dilation: Any, is_causal: Any
) -> Tuple[DimensionType, DimensionType, DimensionType, CausalArgType]:
    return (
        check_kernel_size_arg(na_dim, kernel_size),
        check_stride_arg(na_dim, stride),
        check_dilation_arg(na_dim, dilation),
        check_causal_arg(na_dim, is_causal),
    )


def check_args_against_input(
    input_tensor: Tensor,
    kernel_size: DimensionType,
    stride: DimensionType,
    dilation: DimensionType,
    is_causal: CausalArgType,
    error: Type[Exception] = ValueError,
) -> None:
    """`error` is what NATTEN raises: up to 0.17, its library checked this."""
    for axis, (length, k, s, d) in enumerate(zip(input_tensor.shape[1:-2], kernel_size, stride, dilation)):
        if k * d > length:
            raise error(f"kernel_size * dilation = {k} * {d} exceeds the length {length} of axis {axis}")
        if s > k:
            raise ValueError(f"stride = {s} exceeds kernel_size = {k} on axis {axis}")


def with_heads_last(check: Callable[..., R], *tensors: Tensor) -> R:
    """check(*tensors), of query, key and value. What it raises has a word on tensors whose heads come before the grid, if it takes
    them once these are behind it."""
    try:
        return check(*tensors)
    except (ValueError, RuntimeError) as error:
        refusal = error
    for moved in ((0, 1, 2), (0,), (1,), (2,)):
        if all(tensors[i].dim() in (4, 5, 6) for i in moved):
            try:
                check(*[t.movedim(1, -2) if i in moved else t for i, t in enumerate(tensors)])
            except (ValueError, RuntimeError):
                continue
            name, axes = ("query", "key", "value")[moved[0]], ", ".join(f"X{i}" for i in range(tensors[moved[0]].dim() - 3))
            others = ", and so in the other tensors" if len(moved) > 1 else ""
            raise type(refusal)(
                f"{refusal}; if {name} is [B, H, {axes}, D], with the heads before the grid, move its axis 1 to -2{others}"
            )
    raise refusal


def get_num_na_weights(kernel_size: DimensionType) -> int:
    return math.prod(kernel_size)


def is_self_attention(
    input_tensor: Tensor,
    kernel_size: DimensionType,
    is_causal: CausalArgType,
    has_additional_attention: bool,
) -> bool:
    """Whether every query attends every token: NATTEN then calls `attention`, with attention_kwargs. On one
    axis causal counts too, if nothing else is attended."""
    if tuple(kernel_size) != tuple(input_tensor.shape[1:-2]):
        return False
    return not any(is_causal) or (len(kernel_size) == 1 and not has_additional_attention)


def check_tile_shape(tile_shape: Any) -> DimensionType:
    if isinstance(tile_shape, Sequence) and len(tile_shape) <= 3:
        if all(isinstance(extent, int) for extent in tile_shape):
            return tuple(tile_shape)  # type: ignore[return-value]
    raise ValueError(f"tile shape = {tile_shape!r}, expected a sequence of at most 3 ints")


def check_kernel_schedule(kernel_schedule: Any) -> Optional[KernelSchedule]:
    if kernel_schedule is None or isinstance(kernel_schedule, KernelSchedule):
        return kernel_schedule
    if kernel_schedule in SCHEDULE_NAMES:
        return SCHEDULE_NAMES[kernel_schedule]
    raise ValueError(f"kernel_schedule = {kernel_schedule!r}, expected one of {list(SCHEDULE_NAMES)}")


def varlen_tensor_checks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seqlens_Q: Optional[Tensor] = None,
    seqlens_KV: Optional[Tensor] = None,
    cumulative_seqlen_Q: Optional[Tensor] = None,
    cumulative_seqlen_KV: Optional[Tensor] = None,
    max_seqlen_Q: Optional[int] = None,
    max_seqlen_KV: Optional[int] = None,
) -> Tuple[Optional[Tensor], Optional[Tensor], int, int]:
    """The four numbers of a packed batch, the first two None where the batch is not packed."""
    tensors = (seqlens_Q, seqlens_KV, cumulative_seqlen_Q, cumulative_seqlen_KV)
    if all(t is None for t in tensors) and not max_seqlen_Q and not max_seqlen_KV:
        return None, None, 0, 0
    if seqlens_Q is not None or seqlens_KV is not None:
        return generate_varlen_parameters(query, key, value, seqlens_Q, seqlens_KV)
    given = (cumulative_seqlen_Q, cumulative_seqlen_KV, max_seqlen_Q, max_seqlen_KV)
    if any(entry is None for entry in given):
        raise ValueError("cumulative_seqlen_{Q,KV} and max_seqlen_{Q,KV}: give all four or none")
    if query.shape[0] != 1:
        raise ValueError(
            f"sequences of different lengths are packed along one batch entry, got {query.shape[0]}"
        )
    for name, largest, total in (("Q", max_seqlen_Q, query.shape[1]), ("KV", max_seqlen_KV, key.shape[1])):
        if not isinstance(largest, int):
            raise ValueError(f"max_seqlen_{name} = {largest!r} is of {type(largest)}, expected an int")
        if not 0 <= largest <= total:
            raise ValueError(
                f"max_seqlen_{name} = {largest} is not in 0..{total}, the length of the packed tensor"
            )
    # A comparison of values would make compiled graphs depend on them.
    if not is_torch_compiling() and (max_seqlen_Q == 0) != (max_seqlen_KV == 0):
        raise ValueError(
            f"max_seqlen_Q = {max_seqlen_Q} and max_seqlen_KV = {max_seqlen_KV}: both or neither is 0"
        )
    check_sequence_table("cumulative_seqlen", cumulative_seqlen_Q, cumulative_seqlen_KV, query.device, 2)
    return given  # type: ignore[return-value]
