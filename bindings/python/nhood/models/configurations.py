"""The published models: class and arguments by name."""

from __future__ import annotations

from typing import Any

from torch import nn

from .classifiers import NAT, DiNATs, IsotropicClassifier
from .stylenat import Generator

_MINI = dict(embed_dim=64, num_heads=2, depths=(3, 4, 6, 5), mlp_ratio=3, drop_path_rate=0.2)
_TINY = dict(embed_dim=64, num_heads=2, depths=(3, 4, 18, 5), mlp_ratio=3, drop_path_rate=0.2)
_SMALL = dict(embed_dim=96, num_heads=3, depths=(3, 4, 18, 5), mlp_ratio=2, drop_path_rate=0.3)
_BASE = dict(
    embed_dim=128, num_heads=4, depths=(3, 4, 18, 5), mlp_ratio=2, drop_path_rate=0.5, layer_scale=1e-5
)
_LARGE = dict(embed_dim=192, num_heads=6, depths=(3, 4, 18, 5), mlp_ratio=2, drop_path_rate=0.35)
_S_TINY = dict(embed_dim=96, num_heads=3, depths=(2, 2, 6, 2), mlp_ratio=4, drop_path_rate=0.2)
_S_SMALL = dict(embed_dim=96, num_heads=3, depths=(2, 2, 18, 2), mlp_ratio=4, drop_path_rate=0.3)
_S_BASE = dict(embed_dim=128, num_heads=4, depths=(2, 2, 18, 2), mlp_ratio=4, drop_path_rate=0.5)
_S_LARGE = dict(embed_dim=192, num_heads=6, depths=(2, 2, 18, 2), mlp_ratio=4, drop_path_rate=0.35)
_ISO_SMALL = dict(embed_dim=384, num_heads=12, drop_path_rate=0.1)
_ISO_BASE = dict(embed_dim=768, num_heads=24, drop_path_rate=0.4)

# Windows of 7 and these dilations cover the levels: 56, 28, 14, 7 tokens for images of 224 pixels, 96, 48,
# 24, 12 for 384.
_AT_224 = dict(dilations=(8, 4, 2, 1))
_AT_384 = dict(dilations=(13, 6, 3, 1))
_AT_384_WINDOW_11 = dict(kernel_size=11, dilations=(8, 4, 2, 1))

CONFIGURATIONS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "nat_mini": (NAT, _MINI),
    "nat_tiny": (NAT, _TINY),
    "nat_small": (NAT, {**_SMALL, "layer_scale": 1e-5}),
    "nat_base": (NAT, _BASE),
    "dinat_mini": (NAT, {**_MINI, **_AT_224}),
    "dinat_tiny": (NAT, {**_TINY, **_AT_224}),
    "dinat_small": (NAT, {**_SMALL, **_AT_224}),
    "dinat_base": (NAT, {**_BASE, **_AT_224}),
    "dinat_large": (NAT, {**_LARGE, **_AT_224}),
    "dinat_large_384": (NAT, {**_LARGE, **_AT_384}),
    "dinat_large_384_11x11": (NAT, {**_LARGE, **_AT_384_WINDOW_11}),
    "dinat_s_tiny": (DiNATs, {**_S_TINY, **_AT_224}),
    "dinat_s_small": (DiNATs, {**_S_SMALL, **_AT_224}),
    "dinat_s_base": (DiNATs, {**_S_BASE, **_AT_224}),
    "dinat_s_large": (DiNATs, {**_S_LARGE, **_AT_224}),
    "dinat_s_large_384": (DiNATs, {**_S_LARGE, **_AT_384}),
    "vitrpb_small": (IsotropicClassifier, {**_ISO_SMALL, "kernel_size": None}),
    "vitrpb_base": (IsotropicClassifier, {**_ISO_BASE, "kernel_size": None}),
    "nat_isotropic_small": (IsotropicClassifier, _ISO_SMALL),
    "nat_isotropic_base": (IsotropicClassifier, _ISO_BASE),
    "dinat_isotropic_small": (IsotropicClassifier, {**_ISO_SMALL, "dilation": 2}),
    "dinat_isotropic_base": (IsotropicClassifier, {**_ISO_BASE, "dilation": 2}),
    "stylenat_ffhq_256": (Generator, dict(size=256)),
    "stylenat_ffhq_1024": (Generator, dict(size=1024)),
}
