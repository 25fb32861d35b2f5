"""Where NATTEN 0.14 and 0.15 gave other arguments to later names: odd cubic windows, the first of three axes
with arguments of its own, a bias by default, and layers that pad inputs smaller than their window."""

from typing import Optional

from torch import Tensor, nn

from ._unfused import na3d_qk_with_bias
from ._unfused import na3d_av as _na3d_av
from .modules import NeighborhoodAttention
from .utils import checks


def na3d_qk(
    query: Tensor,
    key: Tensor,
    kernel_size_d: int,
    kernel_size: int,
    dilation_d: int,
    dilation: int,
    additional_keys: Optional[Tensor] = None,
) -> Tensor:
    return na3d_qk_with_bias(
        query, key, None, kernel_size_d, kernel_size, dilation_d, dilation, additional_keys
    )


def na3d_av(
    attn: Tensor,
    value: Tensor,
    kernel_size_d: int,
    kernel_size: int,
    dilation_d: int,
    dilation: int,
    additional_values: Optional[Tensor] = None,
) -> Tensor:
    axes = (kernel_size_d, kernel_size, kernel_size), (dilation_d, dilation, dilation)
    return _na3d_av(attn, value, *axes, additional_values)


class _Layer(NeighborhoodAttention):
    def _set_up(
        self,
        kernel_size: tuple,
        dilation: tuple,
        dim: int,
        num_heads: int,
        bias: bool,
        qkv_bias: bool,
        qk_scale: Optional[float],
        attn_drop: float,
        proj_drop: float,
    ) -> None:
        for k, d in zip(kernel_size, dilation):
            assert k > 1 and k % 2 == 1, f"kernel_size = {k}, expected an odd number greater than 1"
            assert d >= 1, f"dilation = {d}, expected 1 or more"
        axes = checks.check_all_args(self.na_dim, kernel_size, 1, dilation, False)
        super().__init__(dim, num_heads, axes, qkv_bias, qk_scale, bias, attn_drop, proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape[1:-1]
        if len(shape) != self.na_dim:
            return super().forward(x)  # which says what is wrong
        missing = [max(0, k * d - n) for n, k, d in zip(shape, self.kernel_size, self.dilation)]
        if not any(missing):
            return super().forward(x)
        x = nn.functional.pad(x, [0, 0] + [n for lack in reversed(missing) for n in (0, lack)])
        out = super().forward(x)
        return out[(slice(None), *(slice(n) for n in shape))]


class _Square(_Layer):
    def __init__(
        self,
        dim: int,
        num_heads: int,
        kernel_size: int,
        dilation: Optional[int] = 1,
        bias: bool = True,
        qkv_bias: bool = True,
        qk_scale: Optional[float] = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        window, spacing = (kernel_size,) * self.na_dim, (dilation or 1,) * self.na_dim
        self._set_up(window, spacing, dim, num_heads, bias, qkv_bias, qk_scale, attn_drop, proj_drop)


class NeighborhoodAttention1D(_Square):
    na_dim = 1


class NeighborhoodAttention2D(_Square):
    na_dim = 2


class NeighborhoodAttention3D(_Layer):
    na_dim = 3

    def __init__(
        self,
        dim: int,
        num_heads: int,
        kernel_size: int,
        kernel_size_d: Optional[int] = None,
        dilation: Optional[int] = 1,
        dilation_d: Optional[int] = None,
        bias: bool = True,
        qkv_bias: bool = True,
        qk_scale: Optional[float] = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        dilation = dilation or 1
        window = (kernel_size_d or kernel_size, kernel_size, kernel_size)
        spacing = (dilation_d or dilation, dilation, dilation)
        self._set_up(window, spacing, dim, num_heads, bias, qkv_bias, qk_scale, attn_drop, proj_drop)
