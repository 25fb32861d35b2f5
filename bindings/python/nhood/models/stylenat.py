"""StyleNAT's generator: images from noise, by attention whose heads see windows of different dilations.

Walton, Hassani, Xu, Wang, Shi, "StyleNAT: Giving Each Head a New Perspective" (2022), on the style-based
architecture of StyleGAN2 (Karras et al., 2020) and StyleSwin (Zhang et al., 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..torch import na2d
from .classifiers import GlobalAttention2D
from .layers import Mlp, initialize, reset

# Per level, from 4 x 4 tokens up: channels of the tokens, and dilations of the parts of heads.
CHANNELS = (512, 512, 512, 512, 512, 256, 128, 64, 32)
DILATIONS = ((1,), (1,), (1, 2), (1, 4), (1, 8), (1, 16), (1, 32), (1, 64), (1, 128))
KERNEL_SIZE = 7
FIRST_SIZE = 4
LAYERS_PER_LEVEL = 2


class PixelNorm(nn.Module):
    def forward(self, noise: Tensor) -> Tensor:
        return noise * torch.rsqrt(noise.square().mean(dim=1, keepdim=True) + 1e-8)


class EqualizedLinear(nn.Module):
    """Linear, its weights of unit variance scaled at run time, so that all learn at the same rate times lr_mul."""

    def __init__(self, dim_in: int, dim_out: int, lr_mul: float = 1.0, activate: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim_out, dim_in))
        self.bias = nn.Parameter(torch.empty(dim_out))
        self.scale, self.lr_mul, self.activate = lr_mul / math.sqrt(dim_in), lr_mul, activate
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=1 / self.lr_mul)
        nn.init.zeros_(self.bias)

    def forward(self, tensor: Tensor) -> Tensor:
        tensor = F.linear(tensor, self.weight * self.scale, self.bias * self.lr_mul)
        return F.leaky_relu(tensor, 0.2) * math.sqrt(2.0) if self.activate else tensor


class AdaptiveInstanceNorm(nn.Module):
    """Channels of zero mean and unit variance over the tokens, then scaled and shifted as the style says."""

    def __init__(self, dim: int, style_dim: int) -> None:
        super().__init__()
        self.style = EqualizedLinear(style_dim, 2 * dim)

    def forward(self, tokens: Tensor, style: Tensor) -> Tensor:
        scale, shift = self.style(style)[:, None, None, :].chunk(2, dim=-1)
        variance, mean = torch.var_mean(tokens, dim=(1, 2), correction=0, keepdim=True)
        return scale * (tokens - mean) * torch.rsqrt(variance + 1e-5) + shift


class HydraNeighborhoodAttention2D(nn.Module):
    """Neighborhood attention whose heads are parted, each part with a window and a dilation of its own.

    kernel_sizes, dilations: one per part. If the heads do not part evenly, the last parts have one more each.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kernel_sizes: Sequence[int],
        dilations: Sequence[int],
        qkv_bias: bool = True,
        rel_pos_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if len(kernel_sizes) != len(dilations):
            raise ValueError(f"kernel_sizes has {len(kernel_sizes)} entries, dilations {len(dilations)}")
        parts = len(dilations)
        if not 1 <= parts <= num_heads:
            raise ValueError(f"dilations has {parts} entries, not 1 .. num_heads = {num_heads}")
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim = {embed_dim} is no multiple of num_heads = {num_heads}")
        self.num_heads, self.kernel_sizes, self.dilations = num_heads, tuple(kernel_sizes), tuple(dilations)
        self.part_heads = [(num_heads + i) // parts for i in range(parts)]
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)
        self.rpb = None
        if rel_pos_bias:
            self.rpb = nn.ParameterList(
                torch.empty(heads, 2 * k - 1, 2 * k - 1) for heads, k in zip(self.part_heads, kernel_sizes)
            )
            self._reset_bias()
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def _reset_bias(self) -> None:
        for table in self.rpb or ():
            nn.init.trunc_normal_(table, std=0.02)

    def reset_parameters(self) -> None:
        """Initial values, as a new layer draws them: for layers that were made on the device meta, after to_empty."""
        self.qkv.reset_parameters()
        self._reset_bias()
        self.proj.reset_parameters()

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.qkv(tokens).unflatten(-1, (3, self.num_heads, -1)).unbind(3)
        windows, dilations = [[(n, n) for n in numbers] for numbers in (self.kernel_sizes, self.dilations)]
        bias = None if self.rpb is None else list(self.rpb)
        out = na2d(query, key, value, windows, dilation=dilations, bias=bias)
        return self.proj_drop(self.proj(out.flatten(-2)))

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *arguments: Any) -> None:
        """Takes the first published checkpoints, too: they have one bias table for each half of the heads, even
        where both halves have the same window and dilation and are one part here."""
        names = (f"{prefix}rpb0", f"{prefix}rpb1")
        if self.rpb is not None and all(name in state for name in names):
            halves = [state.pop(name) for name in names]
            tables = [torch.cat(halves)] if len(self.rpb) == 1 else halves
            state.update({f"{prefix}rpb.{i}": table for i, table in enumerate(tables)})
        super()._load_from_state_dict(state, prefix, *arguments)


class StyleLayer(nn.Module):
    """A transformer layer, its norms led by the style."""

    def __init__(self, dim: int, attention: nn.Module, mlp_ratio: float, drop: float, style_dim: int) -> None:
        super().__init__()
        self.norm1 = AdaptiveInstanceNorm(dim, style_dim)
        self.attn = attention
        self.norm2 = AdaptiveInstanceNorm(dim, style_dim)
        self.mlp = Mlp(dim, mlp_ratio, drop)

    def forward(self, tokens: Tensor, style: Tensor) -> Tensor:
        tokens = tokens + self.attn(self.norm1(tokens, style))
        return tokens + self.mlp(self.norm2(tokens, style))


class SinusoidalPositions(nn.Module):
    """Sines and cosines of the column, then of the row, as channels; columns and rows count from 1."""

    _float_tensor: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.frequencies = dim // 4
        self.register_buffer(
            "_float_tensor", torch.zeros(1)
        )  # in checkpoints; here it tells dtype and device

    def reset_parameters(self) -> None:
        self._float_tensor.zero_()

    def forward(self, height: int, width: int) -> Tensor:
        """[height, width, dim]"""
        exponents = torch.arange(self.frequencies, device=self._float_tensor.device)
        frequencies = torch.exp(exponents * (-math.log(10000.0) / (self.frequencies - 1)))

        def waves(length: int) -> Tensor:
            angles = torch.arange(1, length + 1, device=frequencies.device)[:, None] * frequencies
            return torch.cat((angles.sin(), angles.cos()), dim=-1).to(self._float_tensor.dtype)

        columns = waves(width)[None, :].expand(height, -1, -1)
        rows = waves(height)[:, None].expand(-1, width, -1)
        return torch.cat((columns, rows), dim=-1)


class BilinearUpsample(nn.Module):
    """Doubles height and width, and adds the position, weighted by a number that is learned."""

    def __init__(self, dim: int, dim_out: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.reduction = nn.Linear(dim, dim_out, bias=False)
        self.alpha = nn.Parameter(torch.zeros(1))
        self.sin_pos_embed = SinusoidalPositions(dim_out)

    def reset_parameters(self) -> None:
        """Sets its own parameters; its modules have methods for theirs."""
        nn.init.zeros_(self.alpha)

    def forward(self, tokens: Tensor) -> Tensor:
        pixels = F.interpolate(tokens.permute(0, 3, 1, 2), scale_factor=2, mode="bilinear")
        tokens = self.reduction(self.norm(pixels.permute(0, 2, 3, 1)))
        return tokens + self.alpha * self.sin_pos_embed(*tokens.shape[1:3])


class StyleLevel(nn.Module):
    """Two layers at one resolution, each with a style of its own, and the way to the next resolution."""

    def __init__(self, layers: Sequence[nn.Module], upsample: Optional[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(layers)
        self.upsample = upsample

    def forward(self, tokens: Tensor, style: Tensor) -> Tensor:
        for layer in self.blocks:
            tokens = layer(tokens, style)
        return tokens if self.upsample is None else self.upsample(tokens)


class BinomialUpsample(nn.Module):
    """Doubles height and width of an image with the filter (1, 3, 3, 1) in both directions."""

    kernel: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.empty(4, 4))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        taps = torch.tensor((1.0, 3.0, 3.0, 1.0), device=self.kernel.device)
        self.kernel.copy_(torch.outer(taps, taps) / 16.0)

    def forward(self, image: Tensor) -> Tensor:
        channels = image.shape[1]
        kernel = self.kernel.to(image.dtype).expand(channels, 1, -1, -1)
        return F.conv_transpose2d(image, kernel, stride=2, padding=1, groups=channels)


class ToRGB(nn.Module):
    """Adds what the tokens of a level say to the image of the levels before, upsampled if need be."""

    def __init__(self, dim: int, upsample: bool) -> None:
        super().__init__()
        self.upsample = BinomialUpsample() if upsample else None
        self.conv = nn.Conv2d(dim, 3, 1)
        self.bias = nn.Parameter(torch.empty(1, 3, 1, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)
        nn.init.xavier_normal_(self.conv.weight, gain=0.02)
        nn.init.zeros_(cast(Tensor, self.conv.bias))

    def forward(self, tokens: Tensor, image: Optional[Tensor]) -> Tensor:
        rgb = self.conv(tokens.permute(0, 3, 1, 2)) + self.bias
        if image is None:
            return rgb
        return rgb + (image if self.upsample is None else self.upsample(image))


class ConstantInput(nn.Module):
    """The tokens that every image starts from."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.input = nn.Parameter(torch.empty(1, dim, size, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.input)

    def forward(self, batch: int) -> Tensor:
        return self.input.permute(0, 2, 3, 1).expand(batch, -1, -1, -1)


class Generator(nn.Module):
    """Noise [B, style_dim] to images [B, 3, size, size].

    size: a power of two, 8 to 1024.
    style_dim: channels of noise and styles.  style_layers: that make a style of the noise.  style_lr_mul: how much slower they learn.
    min_heads: heads of a level, at least; otherwise one for 32 channels.  mlp_ratio: hidden channels of a layer, as a multiple.
    qkv_bias, rel_pos_bias: whether the projections to query, key and value, and the logits, have a bias that is learned.
    proj_drop: share of activations dropped in training.
    """

    def __init__(
        self,
        size: int,
        style_dim: int = 512,
        style_layers: int = 8,
        style_lr_mul: float = 0.01,
        min_heads: int = 4,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        rel_pos_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = [FIRST_SIZE << i for i in range(len(CHANNELS))]
        if size not in sizes[1:]:
            raise ValueError(f"size = {size} is not one of {', '.join(map(str, sizes[1:]))}")
        self.size, self.style_dim = size, style_dim
        mapping = [EqualizedLinear(style_dim, style_dim, style_lr_mul, True) for _ in range(style_layers)]
        self.style = nn.Sequential(PixelNorm(), *mapping)
        self.input = ConstantInput(CHANNELS[0], FIRST_SIZE)
        self.layers, self.to_rgbs = nn.ModuleList(), nn.ModuleList()
        options: dict[str, Any] = dict(qkv_bias=qkv_bias, rel_pos_bias=rel_pos_bias, proj_drop=proj_drop)
        for i in range(sizes.index(size) + 1):
            dim, last = CHANNELS[i], sizes[i] == size
            dim_out = dim if last else CHANNELS[i + 1]
            layers = [
                StyleLayer(
                    dim,
                    self._attention(i, max(dim // 32, min_heads), options),
                    mlp_ratio,
                    proj_drop,
                    style_dim,
                )
                for _ in range(LAYERS_PER_LEVEL)
            ]
            self.layers.append(StyleLevel(layers, None if last else BilinearUpsample(dim, dim_out)))
            self.to_rgbs.append(ToRGB(dim_out, upsample=not last))
        self.apply(initialize)

    def reset_parameters(self) -> None:
        """Initial values of all parameters, as a new model draws them: for models made on the device meta, after to_empty."""
        reset(self)

    @staticmethod
    def _attention(level: int, heads: int, options: dict[str, Any]) -> nn.Module:
        if level == 0:
            return GlobalAttention2D(CHANNELS[0], heads, FIRST_SIZE, **options)
        dilations = DILATIONS[level]
        kernel_sizes = (KERNEL_SIZE,) * len(dilations)
        return HydraNeighborhoodAttention2D(CHANNELS[level], heads, kernel_sizes, dilations, **options)

    def forward(self, noise: Tensor) -> Tensor:
        style, tokens = self.style(noise), self.input(noise.shape[0])
        image: Optional[Tensor] = None
        for level, to_rgb in zip(self.layers, self.to_rgbs):
            tokens = level(tokens, style)
            image = to_rgb(tokens, image)
        assert image is not None  # there is a level at least
        return image
