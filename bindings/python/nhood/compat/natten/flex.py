"""FlexAttention as NATTEN 0.17 offered it: neighborhood attention on what that can take. nhood computes."""

import math
from typing import Dict, Optional, Sequence

from torch import Tensor

from . import _v017
from ._ranks import of_rank
from .types import CausalArgTypeOrDed, DimensionTypeOrDed
from .utils import checks


def can_run_flex_attention(input_shape: Sequence[int]) -> bool:
    """input_shape: [B, X.., H, D]. Blocks have 128 tokens; head dims are powers of 2."""
    head_dim = input_shape[-1]
    return math.prod(input_shape[1:-2]) % 128 == 0 and head_dim > 0 and head_dim & (head_dim - 1) == 0


def _flex_na(
    na_dim: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: DimensionTypeOrDed,
    dilation: DimensionTypeOrDed = 1,
    is_causal: Optional[CausalArgTypeOrDed] = False,
    additional_keys: Optional[Tensor] = None,
    additional_values: Optional[Tensor] = None,
    xformers_kwargs: Optional[Dict] = None,
) -> Tensor:
    if not query.shape == key.shape == value.shape or query.dim() != na_dim + 3:
        shapes = [tuple(t.shape) for t in (query, key, value)]
        raise ValueError(f"query, key, value have shapes {shapes}, expected one, of rank {na_dim + 3}")
    checks.universal_tensor_checks(query, key, value)
    if not can_run_flex_attention(query.shape):
        raise ValueError(
            f"{math.prod(query.shape[1:-2])} tokens and a head dim of {query.shape[-1]}, expected a multiple of 128 "
            "and a power of 2"
        )
    return _v017.na(
        query,
        key,
        value,
        kernel_size,
        dilation,
        is_causal,
        additional_keys=additional_keys,
        additional_values=additional_values,
    )


flex_na1d, flex_na2d, flex_na3d = (of_rank(_flex_na, rank, f"flex_na{rank}d") for rank in (1, 2, 3))
