"""Neighborhood attention of samples of different sizes, packed one after the other (NATTEN 0.21.9).

The names of their arguments are those of the programs that ask for them; no NATTEN with them has been published.
"""

from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor

import nhood.torch
from nhood import _groups

from .types import CausalArgTypeOrDed, DimensionType, DimensionTypeOrDed

_BACKEND_ARGUMENTS = frozenset(
    (
        "backend",
        "q_tile_shape",
        "kv_tile_shape",
        "backward_q_tile_shape",
        "backward_kv_tile_shape",
        "backward_kv_splits",
        "backward_use_pt_reduction",
        "run_persistent_kernel",
        "kernel_schedule",
        "torch_compile",
    )
)


def _check_backend(given: Dict[str, Any]) -> None:
    unknown = sorted(set(given) - _BACKEND_ARGUMENTS)
    if unknown:
        raise TypeError(f"unknown arguments {unknown}, expected some of {sorted(_BACKEND_ARGUMENTS)}")


def configure_varlen(
    token_layout_list: List[DimensionType],
    head_dim: int,
    device: Union[torch.device, str],
    dtype: torch.dtype,
    requires_grad: bool,
    is_causal: Optional[CausalArgTypeOrDed] = False,
    kernel_size: Optional[DimensionTypeOrDed] = None,
    stride: Optional[DimensionTypeOrDed] = None,
    dilation: Optional[DimensionTypeOrDed] = None,
    kernel_size_list: Optional[List[DimensionTypeOrDed]] = None,
    stride_list: Optional[List[DimensionTypeOrDed]] = None,
    dilation_list: Optional[List[DimensionTypeOrDed]] = None,
    **backend: Any,
) -> Dict[str, Any]:
    """What neighborhood_attention_varlen takes as metadata: made once, outside compiled regions.

    One kernel_size, stride and dilation for all samples, or lists with one for each. Windows may be as large as the sample, and 1.
    head_dim, device, dtype, requires_grad and what is about backends decide nothing: nhood chooses its kernels in the call.
    """
    _check_backend(backend)
    table = nhood.torch.varlen_table(
        token_layout_list,
        kernel_size,
        kernel_sizes=kernel_size_list,
        stride=stride,
        strides=stride_list,
        dilation=dilation,
        dilations=dilation_list,
        is_causal=False if is_causal is None else is_causal,
    )
    _groups.check_table(table.numpy())
    return {"table": table, "head_dim": head_dim}


def neighborhood_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    metadata: Dict[str, Any],
    scale: Optional[float] = None,
    return_lse: bool = False,
    **backend: Any,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """query [1, total, H, D], key [1, total, Hkv, D], value [1, total, Hkv, Dv]: the samples of metadata, of configure_varlen, token
    after token.

    scale: None or 0 is D ** -0.5.  Returns out [1, total, H, Dv]; with return_lse, the log-sum-exp [1, total, H] too.
    """
    _check_backend(backend)
    if query.shape[-1] != metadata["head_dim"]:
        raise ValueError(f"query has head dim {query.shape[-1]}, metadata is of head_dim = {metadata['head_dim']}")
    return nhood.torch.neighborhood_attention_varlen(
        query, key, value, table=metadata["table"], scale=scale or query.shape[-1] ** -0.5, return_lse=return_lse
    )


__all__ = ["configure_varlen", "neighborhood_attention_varlen"]
