"""Functions that name a backend: those of natten with `backend` filled in, and no shortcuts around it."""

from typing import Any, Callable, Optional

from torch import Tensor

from .._requirements import _FLEX_COMPILE_SUPPORTED, _FLEX_SUPPORTED  # noqa: F401  asked of backends.flex
from ..functional import attention, neighborhood_attention_generic
from ..types import CausalArgTypeOrDed, DimensionTypeOrDed


def _fna(backend: str, name: str) -> Callable[..., Any]:
    def fna(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kernel_size: DimensionTypeOrDed,
        stride: DimensionTypeOrDed = 1,
        dilation: DimensionTypeOrDed = 1,
        is_causal: Optional[CausalArgTypeOrDed] = False,
        scale: Optional[float] = None,
        **tuning: Any,
    ) -> Any:
        return neighborhood_attention_generic(
            query, key, value, kernel_size, stride, dilation, is_causal, scale, backend=backend, **tuning
        )

    fna.__name__ = fna.__qualname__ = name
    return fna


def _fmha(backend: str, name: str) -> Callable[..., Any]:
    def fmha(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool = False,
        scale: Optional[float] = None,
        **tuning: Any,
    ) -> Any:
        return attention(query, key, value, is_causal, scale, backend=backend, **tuning)

    fmha.__name__ = fmha.__qualname__ = name
    return fmha


cutlass_fna_generic = _fna("cutlass-fna", "cutlass_fna_generic")
cutlass_hopper_fna_generic = _fna("hopper-fna", "cutlass_hopper_fna_generic")
cutlass_blackwell_fna_generic = _fna("blackwell-fna", "cutlass_blackwell_fna_generic")
flex_fna_generic = _fna("flex-fna", "flex_fna_generic")

na1d_cutlass_fna, na2d_cutlass_fna, na3d_cutlass_fna = (
    _fna("cutlass-fna", f"na{rank}d_cutlass_fna") for rank in (1, 2, 3)
)
na1d_cutlass_hopper_fna, na2d_cutlass_hopper_fna, na3d_cutlass_hopper_fna = (
    _fna("hopper-fna", f"na{rank}d_cutlass_hopper_fna") for rank in (1, 2, 3)
)
na1d_cutlass_blackwell_fna, na2d_cutlass_blackwell_fna, na3d_cutlass_blackwell_fna = (
    _fna("blackwell-fna", f"na{rank}d_cutlass_blackwell_fna") for rank in (1, 2, 3)
)
na1d_flex, na2d_flex, na3d_flex = (_fna("flex-fna", f"na{rank}d_flex") for rank in (1, 2, 3))

cutlass_fmha = _fmha("cutlass-fmha", "cutlass_fmha")
cutlass_hopper_fmha = _fmha("hopper-fmha", "cutlass_hopper_fmha")
cutlass_blackwell_fmha = _fmha("blackwell-fmha", "cutlass_blackwell_fmha")
flex_fmha = _fmha("flex-fmha", "flex_fmha")

__all__ = [name for name in dir() if name.startswith(("cutlass_", "flex_", "na1d_", "na2d_", "na3d_"))]
