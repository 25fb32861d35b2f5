"""The attention processor, and how a model gets it."""

from __future__ import annotations

import functools
from typing import NamedTuple, Optional, TypeVar

import torch
from torch import Tensor, nn

import nhood.torch

from . import _positions
from ._versions import ltx2

Lengths = tuple[int, int, int]
"""frames, rows and columns"""


class Region(NamedTuple):
    """Where the hidden states of a tile lie. It travels through diffusers' blocks as their block_mask."""

    grid: Lengths
    """the whole grid's, which decides the windows"""
    corner: Lengths
    """the tile's first token"""


class NhoodProcessor:
    """Computes LTX2VideoVaeNeighborhoodAttention by nhood.torch.na3d, and RMS norm and rotary positions of query and key as
    in _positions.py."""

    def __call__(
        self, attn: nn.Module, hidden_states: Tensor, block_mask: Optional[Region] = None
    ) -> Tensor:
        """[B, T, H, W, C] in and out. block_mask: None for the whole grid."""
        if _positions.is_known(attn):
            corner = block_mask.corner if isinstance(block_mask, Region) else None
            query, key, value = _positions.project_qkv(attn, hidden_states, corner)
        else:
            query, key, value = attn.project_qkv(hidden_states)
        out = self.attend(query, key, value, attn.kernel_size, block_mask)
        return attn.to_out[0](out.flatten(-2))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, kernel_size: Lengths, region: Optional[Region]
    ) -> Tensor:
        """The attention alone, [B, T, H, W, heads, D], of a query that project_qkv has scaled."""
        if region is None:
            return nhood.torch.na3d(query, key, value, kernel_size, scale=1.0)
        if not isinstance(region, Region):
            raise TypeError(
                f"block_mask is a {type(region).__name__}: NhoodProcessor takes no mask, na3d has the windows"
            )
        # The window of a query at an inner side of the tile has keys beyond it: _tiles.py drops its result.
        return nhood.torch.na3d(
            query,
            key,
            value,
            kernel_size,
            scale=1.0,
            grid=region.grid,
            query_offset=region.corner,
            key_offset=region.corner,
        )


Model = TypeVar("Model", bound=nn.Module)


def use_nhood(model: Model, exact_tiles: bool = False, processor: Optional[NhoodProcessor] = None) -> Model:
    """All neighborhood attention in the model is computed by nhood from now on. Returns the model.

    model: LTX2VideoDiffusionDecoderModel, or a module that has its layers.
    exact_tiles: of a LTX2VideoDiffusionDecoderModel; tiles that model.enable_tiling switches on then have the
        result of decoding the whole video (decode_in_tiles) in place of overlaps that are blended. The
        tile_sample_min_* are the tiles' sizes, the strides do not matter.
    processor: in place of a NhoodProcessor.

    Raises ValueError for a model without such layers, TypeError for exact_tiles of another model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model is a {type(model).__name__}, not a torch.nn.Module; of a pipeline, pass its diffusion_decoder"
        )
    if exact_tiles and not isinstance(model, ltx2.LTX2VideoDiffusionDecoderModel):
        raise TypeError(f"exact_tiles is for a LTX2VideoDiffusionDecoderModel, model is a {type(model).__name__}")
    layers = [module for module in model.modules() if isinstance(module, ltx2.LTX2VideoVaeNeighborhoodAttention)]
    if not layers:
        raise ValueError(
            f"model, a {type(model).__name__}, has no LTX2VideoVaeNeighborhoodAttention, the attention of "
            "LTX2VideoDiffusionDecoderModel: nhood.integrations.diffusers knows no other"
        )
    processor = processor or NhoodProcessor()
    for layer in layers:
        layer.set_processor(processor)
    if exact_tiles:
        from ._tiles import tiled_decode  # which needs this module

        model.tiled_decode = functools.partial(tiled_decode, model)
    return model
