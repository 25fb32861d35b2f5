"""Building blocks of the models: tokenizers, downsamplers, the transformer layer. Tokens are [B, H, W, C].

Attribute names are those of the original repositories, as they are the names in their checkpoints.
"""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ConvTokenizer(nn.Module):
    """Overlapping tokens, one for 4 x 4 pixels: two convolutions of stride 2."""

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Sequential(
            nn.Conv2d(in_channels, dim // 2, 3, stride=2, padding=1),
            nn.Conv2d(dim // 2, dim, 3, stride=2, padding=1),
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.proj(images).permute(0, 2, 3, 1))


class PatchEmbed(nn.Module):
    """One token per patch of patch_size x patch_size pixels; images are padded with zeros to whole patches."""

    def __init__(self, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(dim)

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        padded = F.pad(images, (0, -width % self.patch_size, 0, -height % self.patch_size))
        return self.norm(self.proj(padded).permute(0, 2, 3, 1))


class ConvDownsampler(nn.Module):
    """Halves height and width, doubles the channels: a convolution of stride 2."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.reduction = nn.Conv2d(dim, 2 * dim, 3, stride=2, padding=1, bias=False)
        self.norm = nn.LayerNorm(2 * dim)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(self.reduction(tokens.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


class PatchMerging(nn.Module):
    """Halves height and width, doubles the channels: a projection of 2 x 2 tokens."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        height, width = tokens.shape[1:3]
        tokens = F.pad(tokens, (0, 0, 0, width % 2, 0, height % 2))
        top, bottom = tokens[:, 0::2], tokens[:, 1::2]
        quarters = (top[:, :, 0::2], bottom[:, :, 0::2], top[:, :, 1::2], bottom[:, :, 1::2])
        return self.reduction(self.norm(torch.cat(quarters, dim=-1)))


class Mlp(nn.Module):
    def __init__(self, dim: int, ratio: float, drop: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, int(dim * ratio))
        self.act = nn.GELU()
        self.fc2 = nn.Linear(int(dim * ratio), dim)
        self.drop = nn.Dropout(drop)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(tokens)))))


class DropPath(nn.Module):
    """Stochastic depth: in training, leaves a residual branch out for some of the samples."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return branch
        kept = branch.new_empty((branch.shape[0],) + (1,) * (branch.ndim - 1)).bernoulli_(1.0 - self.rate)
        return branch * kept / (1.0 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class TransformerLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); layer_scale: initial weight per channel of either branch."""

    gamma1: Optional[nn.Parameter]
    gamma2: Optional[nn.Parameter]

    def __init__(
        self,
        dim: int,
        attention: nn.Module,
        mlp_ratio: float,
        drop: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: Optional[float] = None,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = attention
        self.drop_path = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, mlp_ratio, drop)
        self.layer_scale = layer_scale
        for name in ("gamma1", "gamma2"):
            scale = None if layer_scale is None else nn.Parameter(torch.full((dim,), float(layer_scale)))
            self.register_parameter(name, scale)

    def reset_parameters(self) -> None:
        """Initial values of the parameters of its own; those of its modules have methods of their own."""
        for scale in (self.gamma1, self.gamma2):
            if scale is not None and self.layer_scale is not None:
                nn.init.constant_(scale, float(self.layer_scale))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self._branch(self.attn(self.norm1(tokens)), self.gamma1)
        return tokens + self._branch(self.mlp(self.norm2(tokens)), self.gamma2)

    def _branch(self, tokens: Tensor, scale: Optional[Tensor]) -> Tensor:
        return self.drop_path(tokens if scale is None else scale * tokens)


def initialize(module: nn.Module) -> None:
    """The original models' initial weights of linear layers; for nn.Module.apply."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def reset(model: nn.Module) -> None:
    """Initial values of all parameters, as a new model draws them; of one made on the device meta, after to_empty."""
    for module in reversed(list(model.modules())):  # what a module says of its own modules' parameters comes last
        reset_own = getattr(module, "reset_parameters", None)
        if module is not model and reset_own is not None:
            reset_own()
    model.apply(initialize)


def rising_rates(last: float, depth: int) -> list[float]:
    """Rates of stochastic depth, from 0 at the first layer to `last` at the last."""
    return [last * i / max(depth - 1, 1) for i in range(depth)]
