"""NATTEN's functions, those of 0.20 and later. _unfused.py has those that were dropped then, which this module
offers too; _v017.py and _v015.py have those that kept their names and changed their arguments.

Tensors are heads last, [B, X.., H, D]. NATTEN's tuning arguments are checked as it checks them and then ignored:
nhood chooses its kernels by itself.
"""

import inspect
from typing import Any, Dict, Optional, Tuple, Union

from torch import Tensor

import nhood.torch

from . import _choice
from ._choice import FMHA_BACKENDS, FNA_BACKENDS, Call, Tensors, Tuning
from ._ranks import renamed
from ._unfused import *  # noqa: F403
from ._unfused import __all__ as _unfused_names
from .attn_merge import merge_attentions
from .context import *  # noqa: F403  where 0.15 had its switches
from .types import CausalArgType, CausalArgTypeOrDed, DimensionType, DimensionTypeOrDed, KernelSchedule
from .utils import checks
from .varlen_attention import Sequences, packed_attention

Result = Union[Tensor, Tuple[Tensor, Tensor]]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool = False,
    scale: Optional[float] = None,
    seqlens_Q: Optional[Tensor] = None,
    seqlens_KV: Optional[Tensor] = None,
    cumulative_seqlen_Q: Optional[Tensor] = None,
    cumulative_seqlen_KV: Optional[Tensor] = None,
    max_seqlen_Q: Optional[int] = None,
    max_seqlen_KV: Optional[int] = None,
    backend: Optional[str] = None,
    q_tile_size: Optional[int] = None,
    kv_tile_size: Optional[int] = None,
    backward_q_tile_size: Optional[int] = None,
    backward_kv_tile_size: Optional[int] = None,
    backward_kv_splits: Optional[int] = None,
    backward_use_pt_reduction: bool = False,
    run_persistent_kernel: bool = True,
    kernel_schedule: Optional[Union[str, KernelSchedule]] = None,
    torch_compile: bool = False,
    return_lse: bool = False,
) -> Result:
    """Every query attends every key: query [B, N, H, D], key [B, M, Hkv, D], value [B, M, Hkv, Dv].

    is_causal: query i attends keys 0..i.
    seqlens_.., or cumulative_seqlen_.. with max_seqlen_..: B is 1, and sequences lie one after the other.

    Returns out [B, N, H, Dv]; with return_lse, the log-sum-exp [B, N, H] too.
    """
    checks.fmha_tensor_checks(query, key, value)
    sequences = checks.varlen_tensor_checks(
        query,
        key,
        value,
        seqlens_Q,
        seqlens_KV,
        cumulative_seqlen_Q,
        cumulative_seqlen_KV,
        max_seqlen_Q,
        max_seqlen_KV,
    )
    _choice.check(
        backend,
        FMHA_BACKENDS,
        (query, key, value),
        Call(is_causal, sequences[0] is not None, torch_compile),
        Tuning(
            q_tile_size,
            kv_tile_size,
            backward_q_tile_size,
            backward_kv_tile_size,
            checks.check_kernel_schedule(kernel_schedule),
        ),
    )
    scale = scale or query.shape[-1] ** -0.5
    if sequences[0] is not None:
        out, lse = packed_attention(query, key, value, Sequences(*sequences), is_causal, scale)
        return (out, lse) if return_lse else out
    return nhood.torch.attention(query, key, value, is_causal=is_causal, scale=scale, return_lse=return_lse)


_ATTENTION_KWARGS = frozenset(inspect.signature(attention).parameters) - {
    "query",
    "key",
    "value",
    "is_causal",
    "scale",
    "return_lse",
}


def _of_one_axis(tensor: Tensor) -> Tensor:
    """A view of rank 4 with the batch, heads and head dim of `tensor`, which is all that backends look at."""
    while tensor.dim() > 4:
        tensor = tensor.select(1, 0)
    return tensor


def _check_attention_kwargs(
    attention_kwargs: Optional[Dict[str, Any]], torch_compile: bool, tensors: Tensors
) -> None:
    """As `attention` would check them where NATTEN calls it inside of neighborhood attention."""
    kwargs = {"torch_compile": torch_compile, **(attention_kwargs or {})}
    query, key, value = (_of_one_axis(t) for t in tensors)
    unknown = sorted(set(kwargs) - _ATTENTION_KWARGS)
    if unknown:
        raise TypeError(f"attention_kwargs has {unknown}, expected some of {sorted(_ATTENTION_KWARGS)}")
    tuning = Tuning(
        kwargs.get("q_tile_size"),
        kwargs.get("kv_tile_size"),
        kwargs.get("backward_q_tile_size"),
        kwargs.get("backward_kv_tile_size"),
        checks.check_kernel_schedule(kwargs.get("kernel_schedule")),
    )
    call = Call(torch_compile=kwargs["torch_compile"])
    _choice.check(kwargs.get("backend"), FMHA_BACKENDS, (query, key, value), call, tuning)


def neighborhood_attention_generic(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: DimensionTypeOrDed,
    stride: DimensionTypeOrDed = 1,
    dilation: DimensionTypeOrDed = 1,
    is_causal: Optional[CausalArgTypeOrDed] = False,
    scale: Optional[float] = None,
    additional_keys: Optional[Tensor] = None,
    additional_values: Optional[Tensor] = None,
    attention_kwargs: Optional[Dict] = None,
    backend: Optional[str] = None,
    q_tile_shape: Optional[DimensionType] = None,
    kv_tile_shape: Optional[DimensionType] = None,
    backward_q_tile_shape: Optional[DimensionType] = None,
    backward_kv_tile_shape: Optional[DimensionType] = None,
    backward_kv_splits: Optional[DimensionType] = None,
    backward_use_pt_reduction: bool = False,
    run_persistent_kernel: bool = True,
    kernel_schedule: Optional[Union[str, KernelSchedule]] = None,
    torch_compile: bool = False,
    return_lse: bool = False,
    *,
    rpb: Optional[Tensor] = None,
    xformers_kwargs: Optional[Dict] = None,
) -> Result:
    """Neighborhood attention; the number of axes is that of query, [B, X.., H, D].

    key [B, X.., Hkv, D], value [B, X.., Hkv, Dv]; additional_keys and additional_values: [B, M, Hkv, D or Dv],
    attended by every query too. On each axis kernel_size >= 2, stride <= kernel_size and
    kernel_size * dilation <= length.

    scale: None or 0 is D ** -0.5.  rpb: relative bias [H, 2*kx-1, ..], not with causal axes.
    attention_kwargs, backend and the arguments after it: checked as NATTEN does. xformers_kwargs: ignored.

    Returns out [B, X.., H, Dv]; with return_lse, the log-sum-exp [B, X.., H] too.
    """
    schedule = checks.check_kernel_schedule(kernel_schedule)

    def check(
        query: Tensor, key: Tensor, value: Tensor
    ) -> Tuple[DimensionType, DimensionType, DimensionType, CausalArgType]:
        checks.na_tensor_checks(query, key, value)
        checks.additional_kv_tensor_checks(query, key, value, additional_keys, additional_values)
        axes = checks.check_all_args(query.dim() - 3, kernel_size, stride, dilation, is_causal)
        checks.check_args_against_input(query, *axes)
        return axes

    kernel_size, stride, dilation, is_causal = checks.with_heads_last(check, query, key, value)
    if rpb is not None and any(is_causal):
        raise NotImplementedError("rpb is not defined with causal axes")

    # Where NATTEN would call its attention and nothing else, it does not look at the other arguments.
    if checks.is_self_attention(query, kernel_size, is_causal, additional_keys is not None):
        if attention_kwargs:
            _check_attention_kwargs(attention_kwargs, False, (query, key, value))
    else:
        tuning = Tuning(q_tile_shape, kv_tile_shape, backward_q_tile_shape, backward_kv_tile_shape, schedule)
        call = Call(torch_compile=torch_compile)
        _choice.check(backend, FNA_BACKENDS, (query, key, value), call, tuning)
        if additional_keys is not None and additional_values is not None and attention_kwargs:
            _check_attention_kwargs(
                attention_kwargs, torch_compile, (query, additional_keys, additional_values)
            )

    return nhood.torch.neighborhood_attention(
        query,
        key,
        value,
        kernel_size,
        stride,
        dilation,
        is_causal,
        scale or query.shape[-1] ** -0.5,
        additional_keys,
        additional_values,
        bias=None if rpb is None else rpb.to(query.dtype),
        return_lse=return_lse,
    )


# The rank is the tensors', whichever of the three is called: NATTEN's do not check it, either.
na1d, na2d, na3d = (renamed(neighborhood_attention_generic, f"na{rank}d") for rank in (1, 2, 3))

__all__ = [
    "attention",
    "merge_attentions",
    "na1d",
    "na2d",
    "na3d",
    "neighborhood_attention_generic",
    *_unfused_names,
]
