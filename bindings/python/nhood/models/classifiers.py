"""Image classifiers: NAT and DiNAT, DiNAT_s, and the isotropic variants, ViT with relative bias among them.

Hassani, Walton, Li, Li, Shi, "Neighborhood Attention Transformer" (CVPR 2023); Hassani, Shi, "Dilated
Neighborhood Attention Transformer" (2022).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn

from ..torch import NeighborhoodAttention2D
from .layers import (
    ConvDownsampler,
    ConvTokenizer,
    PatchEmbed,
    PatchMerging,
    TransformerLayer,
    initialize,
    reset,
    rising_rates,
)


class Classifier(nn.Module):
    """Images [B, C, H, W] to logits [B, num_classes]; without classes, to features [B, num_features].

    A subclass sets patch_embed and its levels, and gives the levels' names in `body`.
    """

    body: str
    patch_embed: nn.Module

    def __init__(self, num_features: int, num_classes: int, drop_rate: float) -> None:
        super().__init__()
        self.num_features, self.num_classes = num_features, num_classes
        self.pos_drop = nn.Dropout(drop_rate)
        self.norm = nn.LayerNorm(num_features)
        self.head = nn.Linear(num_features, num_classes) if num_classes else nn.Identity()

    def reset_parameters(self) -> None:
        """Initial values of all parameters, as a new model draws them: for models made on the device meta, after to_empty."""
        reset(self)

    def forward_tokens(self, images: Tensor) -> Tensor:
        """The tokens of the last level, [B, H, W, num_features]."""
        tokens = self.pos_drop(self.patch_embed(images))
        for level in getattr(self, self.body):
            tokens = level(tokens)
        return self.norm(tokens)

    def forward_features(self, images: Tensor) -> Tensor:
        return self.forward_tokens(images).mean(dim=(1, 2))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.forward_features(images))


class Level(nn.Module):
    """Layers at one resolution, and what leads to the next."""

    def __init__(self, layers: Sequence[nn.Module], downsample: Optional[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(layers)
        self.downsample = downsample

    def forward(self, tokens: Tensor) -> Tensor:
        for layer in self.blocks:
            tokens = layer(tokens)
        return tokens if self.downsample is None else self.downsample(tokens)


_LEVELS = """embed_dim, num_heads: of the first level.  depths: layers per level.  mlp_ratio: hidden channels of a layer, as a
        multiple of its channels.  kernel_size: of all windows.
    dilations: per level, that of every second layer; the others have 1. None: 1 everywhere.
    in_channels: of images.  num_classes: 0: features instead of logits.
    qkv_bias, rel_pos_bias: whether the projections to query, key and value, and the logits, have a bias that is learned.
    drop_rate, attn_drop_rate: share of activations, of attention weights, dropped in training.
    drop_path_rate: of residual branches, of the last layer; it rises from 0 in the first.
    layer_scale: initial value of a learned factor per channel of each branch; None: no such factor."""


class HierarchicalClassifier(Classifier):
    """Levels of falling resolution, their channels and heads doubling from one to the next."""

    def __init__(
        self,
        tokenizer: Callable[[int, int], nn.Module],
        downsampler: Callable[[int], nn.Module],
        embed_dim: int,
        num_heads: int,
        depths: Sequence[int],
        mlp_ratio: float,
        kernel_size: int = 7,
        dilations: Optional[Sequence[int]] = None,
        in_channels: int = 3,
        num_classes: int = 1000,
        qkv_bias: bool = True,
        rel_pos_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.2,
        layer_scale: Optional[float] = None,
    ) -> None:
        super().__init__(embed_dim << (len(depths) - 1), num_classes, drop_rate)
        self.patch_embed = tokenizer(in_channels, embed_dim)
        drop_path = iter(rising_rates(drop_path_rate, sum(depths)))
        levels = []
        for i, depth in enumerate(depths):
            dim, heads, dilation = embed_dim << i, num_heads << i, dilations[i] if dilations else 1
            layers = [
                TransformerLayer(
                    dim,
                    NeighborhoodAttention2D(
                        dim,
                        heads,
                        kernel_size,
                        dilation=dilation if j % 2 else 1,
                        qkv_bias=qkv_bias,
                        rel_pos_bias=rel_pos_bias,
                        attn_drop=attn_drop_rate,
                        proj_drop=drop_rate,
                    ),
                    mlp_ratio,
                    drop_rate,
                    next(drop_path),
                    layer_scale,
                )
                for j in range(depth)
            ]
            levels.append(Level(layers, downsampler(dim) if i + 1 < len(depths) else None))
        setattr(self, self.body, nn.ModuleList(levels))
        self.apply(initialize)


class NAT(HierarchicalClassifier):
    """Convolutions make the tokens and halve the resolution. With dilations, DiNAT.

    ARGUMENTS"""

    body = "levels"

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        depths: Sequence[int],
        mlp_ratio: float,
        kernel_size: int = 7,
        dilations: Optional[Sequence[int]] = None,
        in_channels: int = 3,
        num_classes: int = 1000,
        qkv_bias: bool = True,
        rel_pos_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.2,
        layer_scale: Optional[float] = None,
    ) -> None:
        super().__init__(
            ConvTokenizer,
            ConvDownsampler,
            embed_dim,
            num_heads,
            depths,
            mlp_ratio,
            kernel_size,
            dilations,
            in_channels,
            num_classes,
            qkv_bias,
            rel_pos_bias,
            drop_rate,
            attn_drop_rate,
            drop_path_rate,
            layer_scale,
        )


class DiNATs(HierarchicalClassifier):
    """DiNAT_s: Swin's architecture, with patches for tokens and their merging between levels.

    ARGUMENTS
    patch_size: pixels of a token's side."""

    body = "layers"

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        depths: Sequence[int],
        mlp_ratio: float,
        kernel_size: int = 7,
        dilations: Optional[Sequence[int]] = None,
        in_channels: int = 3,
        num_classes: int = 1000,
        qkv_bias: bool = True,
        rel_pos_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.2,
        layer_scale: Optional[float] = None,
        *,
        patch_size: int = 4,
    ) -> None:
        def tokenizer(in_channels: int, dim: int) -> nn.Module:
            return PatchEmbed(in_channels, dim, patch_size)

        super().__init__(
            tokenizer,
            PatchMerging,
            embed_dim,
            num_heads,
            depths,
            mlp_ratio,
            kernel_size,
            dilations,
            in_channels,
            num_classes,
            qkv_bias,
            rel_pos_bias,
            drop_rate,
            attn_drop_rate,
            drop_path_rate,
            layer_scale,
        )


for _model in (NAT, DiNATs):
    _model.__doc__ = (_model.__doc__ or "").replace("ARGUMENTS", _LEVELS)


class GlobalAttention2D(NeighborhoodAttention2D):
    """Self attention with relative bias over a grid of size x size tokens: a window that covers the grid.

    embed_dim, num_heads, qkv_bias, qk_scale, proj_drop, attn_drop, rel_pos_bias: as of NeighborhoodAttention2D.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        size: int,
        qkv_bias: bool = True,
        qk_scale: Optional[float] = None,
        proj_drop: float = 0.0,
        *,
        attn_drop: float = 0.0,
        rel_pos_bias: bool = False,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            size,
            qkv_bias=qkv_bias,
            qk_scale=qk_scale,
            proj_drop=proj_drop,
            attn_drop=attn_drop,
            rel_pos_bias=rel_pos_bias,
            device=device,
            dtype=dtype,
        )
        if self.rpb is not None:
            # The original gathers the bias by this index, and so it is in checkpoints; here nothing reads it.
            self.register_buffer("relative_position_index", self._index())

    def _index(self) -> Tensor:
        size = self.kernel_size[0]
        axis = torch.arange(size)
        steps = axis[None, :] - axis[:, None] + size - 1
        index = (2 * size - 1) * steps[:, None, :, None] + steps[None, :, None, :]
        return index.reshape(size**2, size**2)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.rpb is not None:
            self.relative_position_index.copy_(self._index())


class IsotropicClassifier(Classifier):
    """Layers of one resolution, as in ViT; of images of one size, as far as attention is global.

    embed_dim, num_heads: of all layers.  depth: layers.  mlp_ratio: hidden channels of a layer, as a multiple of embed_dim.
    kernel_size: None: global attention.  dilation: that of every second layer; the others have 1.
    img_size: pixels of an image's side, for global attention.  patch_size: pixels of a token's side.
    in_channels: of images.  num_classes: 0: features instead of logits.
    qkv_bias, rel_pos_bias: whether the projections to query, key and value, and the logits, have a bias that is learned.
    drop_rate, attn_drop_rate: share of activations, of attention weights, dropped in training.
    drop_path_rate: of residual branches, of the last layer; it rises from 0 in the first.
    """

    body = "layers"

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        depth: int = 12,
        mlp_ratio: float = 4.0,
        kernel_size: Optional[int] = 7,
        dilation: int = 1,
        img_size: int = 224,
        patch_size: int = 16,
        in_channels: int = 3,
        num_classes: int = 1000,
        qkv_bias: bool = True,
        rel_pos_bias: bool = True,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
    ) -> None:
        super().__init__(embed_dim, num_classes, drop_rate)
        options: dict[str, Any] = dict(
            qkv_bias=qkv_bias, rel_pos_bias=rel_pos_bias, attn_drop=attn_drop_rate, proj_drop=drop_rate
        )

        def attention(i: int) -> nn.Module:
            if kernel_size is None:
                return GlobalAttention2D(embed_dim, num_heads, img_size // patch_size, **options)
            layer_dilation = dilation if i % 2 else 1
            return NeighborhoodAttention2D(
                embed_dim, num_heads, kernel_size, dilation=layer_dilation, **options
            )

        self.patch_embed = PatchEmbed(in_channels, embed_dim, patch_size)
        drop_path = rising_rates(drop_path_rate, depth)
        self.layers = nn.Sequential(
            *(
                TransformerLayer(embed_dim, attention(i), mlp_ratio, drop_rate, drop_path[i])
                for i in range(depth)
            )
        )
        self.apply(initialize)
