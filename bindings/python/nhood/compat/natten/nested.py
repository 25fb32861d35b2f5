"""The unfused functions of 0.17 on nested tensors, forward only; the ordinary names take those, too."""

from typing import Optional

from torch import Tensor

from . import _unfused
from ._ranks import of_rank
from .types import CausalArgTypeOrDed, DimensionTypeOrDed


def _qk_nested(
    na_dim: int,
    query: Tensor,
    key: Tensor,
    bias: Optional[Tensor],
    kernel_size: DimensionTypeOrDed,
    dilation: DimensionTypeOrDed,
    additional_keys: Optional[Tensor] = None,
    is_causal: Optional[CausalArgTypeOrDed] = False,
) -> Tensor:
    return _unfused.qk(na_dim, query, key, kernel_size, dilation, additional_keys, is_causal, bias)


def _av_nested(
    na_dim: int,
    attn: Tensor,
    value: Tensor,
    kernel_size: DimensionTypeOrDed,
    dilation: DimensionTypeOrDed,
    additional_values: Optional[Tensor] = None,
    is_causal: Optional[CausalArgTypeOrDed] = False,
) -> Tensor:
    return _unfused.av(na_dim, attn, value, kernel_size, dilation, additional_values, is_causal)


na1d_qk_nested, na2d_qk_nested, na3d_qk_nested = (
    of_rank(_qk_nested, n, f"na{n}d_qk_nested") for n in (1, 2, 3)
)
na1d_av_nested, na2d_av_nested, na3d_av_nested = (
    of_rank(_av_nested, n, f"na{n}d_av_nested") for n in (1, 2, 3)
)
