"""Where NATTEN 0.17 gave other arguments to the names of today: no stride, so that dilation comes earlier."""

from typing import Any, Dict, Optional, Tuple

from torch import Tensor

from . import functional
from ._ranks import renamed
from .modules import NeighborhoodAttention
from .types import CausalArgType, CausalArgTypeOrDed, DimensionType, DimensionTypeOrDed
from .utils import checks


def na(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: DimensionTypeOrDed,
    dilation: DimensionTypeOrDed = 1,
    is_causal: Optional[CausalArgTypeOrDed] = False,
    rpb: Optional[Tensor] = None,
    scale: Optional[float] = None,
    additional_keys: Optional[Tensor] = None,
    additional_values: Optional[Tensor] = None,
    xformers_kwargs: Optional[Dict] = None,
) -> Tensor:
    """Fused neighborhood attention, heads last. rpb: [H, 2*kx-1, ..], trainable here; NATTEN's was not."""
    if query.is_nested or key.is_nested or value.is_nested:
        raise NotImplementedError("fused neighborhood attention does not take nested tensors")
    if query.dim() in (4, 5, 6):
        axes = checks.check_all_args(query.dim() - 3, kernel_size, 1, dilation, is_causal)
        checks.with_heads_last(lambda query, *_: checks.check_args_against_input(query, *axes, error=RuntimeError), query, key, value)
    return functional.neighborhood_attention_generic(  # type: ignore[return-value]
        query,
        key,
        value,
        kernel_size,
        1,
        dilation,
        is_causal,
        scale,
        additional_keys,
        additional_values,
        rpb=rpb,
    )


def check_all_args(
    na_dim: int, kernel_size: Any, dilation: Any, is_causal: Any
) -> Tuple[DimensionType, DimensionType, CausalArgType]:
    kernel_size, _, dilation, is_causal = checks.check_all_args(na_dim, kernel_size, 1, dilation, is_causal)
    return kernel_size, dilation, is_causal


na1d, na2d, na3d = (renamed(na, f"na{rank}d") for rank in (1, 2, 3))


class _Layer(NeighborhoodAttention):
    window_error = RuntimeError

    def __init__(
        self,
        dim: int,
        num_heads: int,
        kernel_size: DimensionTypeOrDed,
        dilation: DimensionTypeOrDed = 1,
        is_causal: CausalArgTypeOrDed = False,
        rel_pos_bias: bool = False,
        qkv_bias: bool = True,
        qk_scale: Optional[float] = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        use_experimental_ops: bool = False,
    ) -> None:
        axes = checks.check_all_args(self.na_dim, kernel_size, 1, dilation, is_causal)
        super().__init__(dim, num_heads, axes, qkv_bias, qk_scale, rel_pos_bias, attn_drop, proj_drop)
        self.use_experimental_ops = use_experimental_ops


class NeighborhoodAttention1D(_Layer):
    na_dim = 1


class NeighborhoodAttention2D(_Layer):
    na_dim = 2


class NeighborhoodAttention3D(_Layer):
    na_dim = 3
