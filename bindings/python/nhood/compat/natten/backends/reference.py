"""NATTEN's reference backend, which takes what the others refuse. nhood's answer is the same as elsewhere."""

from typing import Optional, Tuple, Union

from torch import Tensor

from .._ranks import renamed
from ..functional import neighborhood_attention_generic
from ..types import CausalArgTypeOrDed, DimensionTypeOrDed


def reference_fna_generic(
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
    return_lse: bool = False,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    return neighborhood_attention_generic(
        query,
        key,
        value,
        kernel_size,
        stride,
        dilation,
        is_causal,
        scale,
        additional_keys,
        additional_values,
        return_lse=return_lse,
    )


na1d_reference, na2d_reference, na3d_reference = (
    renamed(reference_fna_generic, f"na{rank}d_reference") for rank in (1, 2, 3)
)
