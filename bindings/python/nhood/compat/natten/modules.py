"""NATTEN's layers, those of 0.20 and later; _v017.py and _v015.py have the earlier ones.

State dicts are NATTEN's of every version: qkv, proj, and rpb where there is a relative bias.
"""

import functools
from typing import Any, Callable, Optional, Tuple, Type

import torch
from torch import Tensor, nn

import nhood.torch

from .context import is_fused_na_enabled
from .types import CausalArgType, CausalArgTypeOrDed, DimensionType, DimensionTypeOrDed
from .utils import checks, log

logger = log.get_logger(__name__)

_QK = {1: nhood.torch.na1d_qk, 2: nhood.torch.na2d_qk, 3: nhood.torch.na3d_qk}
_AV = {1: nhood.torch.na1d_av, 2: nhood.torch.na2d_av, 3: nhood.torch.na3d_av}

Axes = Tuple[DimensionType, DimensionType, DimensionType, CausalArgType]


class NeighborhoodAttention(nn.Module):
    """Projections around neighborhood attention: [B, X.., C] to the same. The base of the layers of all eras."""

    na_dim: int
    window_error: Type[Exception] = ValueError  # for windows that do not fit the input

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        axes: Axes,
        qkv_bias: bool,
        qk_scale: Optional[float],
        rel_pos_bias: bool,
        attn_drop: float,
        proj_drop: float,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads != 0:
            raise ValueError(f"num_heads = {num_heads} does not divide embed_dim = {embed_dim}")
        self.kernel_size, self.stride, self.dilation, self.is_causal = axes
        if rel_pos_bias and any(self.is_causal):
            raise NotImplementedError("a relative bias is not defined with causal axes")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scale = qk_scale or self.head_dim**-0.5
        self.qkv = nn.Linear(embed_dim, embed_dim * 3, bias=qkv_bias)
        self.rpb: Optional[nn.Parameter]
        if rel_pos_bias:
            self.rpb = nn.Parameter(torch.zeros(num_heads, *(2 * k - 1 for k in self.kernel_size)))
            self._reset_bias()
        else:
            self.register_parameter("rpb", None)
        self.attn_drop_rate = attn_drop
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def _reset_bias(self) -> None:
        if self.rpb is not None:
            nn.init.trunc_normal_(self.rpb, std=0.02)

    def reset_parameters(self) -> None:
        """Initial values, as a new layer draws them: for layers that were made on the device meta, after to_empty."""
        self.qkv.reset_parameters()
        self._reset_bias()
        self.proj.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        rank = self.na_dim + 2
        if x.dim() != rank:
            raise ValueError(f"{type(self).__name__} takes tensors of rank {rank}, got {x.dim()}")
        if x.shape[-1] != self.embed_dim:
            raise ValueError(f"embedding dimension = {x.shape[-1]}, expected {self.embed_dim}")
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).unbind(-3)
        axes = self.kernel_size, self.stride, self.dilation, self.is_causal
        checks.check_args_against_input(query, *axes, error=self.window_error)
        return self.proj_drop(self.proj(self._attend(query, key, value).flatten(-2)))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        axes = (self.kernel_size, self.stride, self.dilation, self.is_causal)
        bias = None if self.rpb is None else self.rpb.to(query.dtype)
        if self.training and self.attn_drop_rate > 0:
            if not is_fused_na_enabled():
                attn = _QK[self.na_dim](query, key, *axes, self.scale, bias=bias).softmax(dim=-1)
                return _AV[self.na_dim](self.attn_drop(attn).to(value.dtype), value, *axes)
            logger.error("fused neighborhood attention has no attention dropout: it is not applied")
        out = nhood.torch.neighborhood_attention(query, key, value, *axes, self.scale, bias=bias)
        return out  # type: ignore[return-value]

    def extra_repr(self) -> str:
        return (
            f"head_dim={self.head_dim}, num_heads={self.num_heads}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, dilation={self.dilation}, is_causal={self.is_causal}, "
            f"has_bias={self.rpb is not None}"
        )


_OLDER_KEYWORDS = {"dim": "embed_dim", "bias": "rel_pos_bias"}  # up to 0.17, up to 0.15


def _takes_older_keywords(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def translated(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        for older, name in _OLDER_KEYWORDS.items():
            if older in kwargs and name not in kwargs:
                kwargs[name] = kwargs.pop(older)
        init(self, *args, **kwargs)

    return translated


class _Today(NeighborhoodAttention):
    """rel_pos_bias and attn_drop are 0.17's: later NATTEN has none."""

    @_takes_older_keywords
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kernel_size: DimensionTypeOrDed,
        stride: DimensionTypeOrDed = 1,
        dilation: DimensionTypeOrDed = 1,
        is_causal: CausalArgTypeOrDed = False,
        qkv_bias: bool = True,
        qk_scale: Optional[float] = None,
        proj_drop: float = 0.0,
        *,
        rel_pos_bias: bool = False,
        attn_drop: float = 0.0,
    ) -> None:
        axes = checks.check_all_args(self.na_dim, kernel_size, stride, dilation, is_causal)
        super().__init__(embed_dim, num_heads, axes, qkv_bias, qk_scale, rel_pos_bias, attn_drop, proj_drop)


class NeighborhoodAttention1D(_Today):
    na_dim = 1


class NeighborhoodAttention2D(_Today):
    na_dim = 2


class NeighborhoodAttention3D(_Today):
    na_dim = 3
