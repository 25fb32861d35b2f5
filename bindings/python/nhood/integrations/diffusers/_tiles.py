"""Decodes a video in tiles, with the result of decoding it whole.

All layers but attention work on tokens by themselves, and upsampling on its input token. So a box of the video depends on
a box of each layer's inputs, that of its windows. From a tile of the video that leads backwards through the blocks to a box
of the features after stage 3; forwards from there each block computes what the next one needs. Windows are those of the
whole grid throughout. A block computes the box that it is given, and what is beyond the next one's is dropped.

Rotary positions are those of the whole grid. (Where a layer's are not diffusers' own, they count from the tile's corner, as in
diffusers' tiles: scores depend on differences of positions alone, so that the result is the whole's up to rounding.)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Optional

import torch
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor, nn

from ._processor import Lengths, NhoodProcessor, Region
from ._versions import ltx2

Box = tuple[tuple[int, int], ...]
"""begin and end on each of frames, rows and columns"""


def _crop(x: Tensor, covered: Box, wanted: Box) -> Tensor:
    """A box of a tensor [B, T, H, W, C] that covers a larger one."""
    parts = [slice(begin - first, end - first) for (begin, end), (first, _) in zip(wanted, covered)]
    return x[(slice(None), *parts)]


def _whole(lengths: Iterable[int]) -> Box:
    return tuple((0, length) for length in lengths)


def _windows(box: Box, kernel_size: Lengths, grid: Lengths) -> Box:
    """What the windows of a box's tokens cover."""

    def start(token: int, window: int, length: int) -> int:
        return min(max(token - window // 2, 0), length - window)

    return tuple(
        (start(begin, window, length), start(end - 1, window, length) + window)
        for (begin, end), window, length in zip(box, kernel_size, grid)
    )


def _needed(blocks: nn.ModuleList, box: Box, grid: Lengths) -> list[Box]:
    """The box that each block reads, and the last one's result."""
    boxes = [box]
    for block in reversed(blocks):
        boxes.insert(0, _windows(boxes[0], block.attn.kernel_size, grid))
    return boxes


class _Tiles:
    """Stage 4 and the diffusion steps in tiles; has what LTX2VideoDiffusionDecoder3d.denoise takes of a decoder."""

    def __init__(self, decoder: nn.Module, features: Tensor, tile: Lengths) -> None:
        self.decoder, self.tile = decoder, tile
        self.model_output_type = decoder.model_output_type
        self.feature_grid: Lengths = tuple(features.shape[1:4])
        self.stride = decoder.upsamples[-1].stride
        self.dropped = (int(self.stride[0] == 2), 0, 0)  # the upsampler's duplicate leading frame
        frames, rows, columns = (
            length * stride - dropped
            for length, stride, dropped in zip(self.feature_grid, self.stride, self.dropped)
        )
        frames -= decoder.trailing_pad_latent_frames * decoder.temporal_compression_ratio
        self.grid: Lengths = (frames, rows, columns)

    @property
    def video(self) -> Lengths:
        patch = self.decoder.patch_size
        return self.grid[0], self.grid[1] * patch, self.grid[2] * patch

    def boxes(self) -> Iterator[Box]:
        """Tiles of the grid, of about equal sizes that do not exceed those asked for."""
        axes = []
        for length, most in zip(self.grid, self.tile):
            count = -(-length // most)
            edges = [length * part // count for part in range(count + 1)]
            axes.append(list(zip(edges, edges[1:])))
        return itertools.product(*axes)

    def context(self, features: Tensor, box: Box) -> Tensor:
        """A box of stage 4's result."""
        undropped = tuple((begin + dropped, end + dropped) for (begin, end), dropped in zip(box, self.dropped))
        sources = tuple((begin // by, -(-end // by)) for (begin, end), by in zip(undropped, self.stride))
        blocks = self.decoder.det_stages[-1]
        boxes = _needed(blocks, sources, self.feature_grid)
        x = _crop(features, _whole(self.feature_grid), boxes[0])
        for block, covered, wanted in zip(blocks, boxes, boxes[1:]):
            x = _crop(block(x, _region(self.feature_grid, covered)), covered, wanted)
        x = self.decoder.upsamples[-1](x, drop_leading_frame=False)
        covered = tuple((begin * by, end * by) for (begin, end), by in zip(sources, self.stride))
        return _crop(x, covered, undropped)

    def pixels(self, x: Tensor, box: Box) -> Tensor:
        """A box of the grid of patches, as the part of [B, C, F, H, W]."""
        patch = self.decoder.patch_size
        frames, rows, columns = (slice(*span) for span in box)
        return x[
            :, :, frames, rows.start * patch : rows.stop * patch, columns.start * patch : columns.stop * patch
        ]

    def forward_diffusion_step(self, features: Tensor, x_t: Tensor, timestep: Tensor) -> Tensor:
        modulation = self._modulation(features, timestep)
        out = torch.empty_like(x_t)
        for box in self.boxes():
            self.pixels(out, box).copy_(self._predict(features, x_t, modulation, box))
        return out

    def _modulation(self, features: Tensor, timestep: Tensor) -> tuple[Tensor, ...]:
        embedded = self.decoder.t_embedder(
            self.decoder.timestep_scale_multiplier * timestep,
            resolution=None,
            aspect_ratio=None,
            batch_size=timestep.shape[0],
            hidden_dtype=features.dtype,
        )
        return self.decoder.shared_adaln(embedded)

    def _predict(self, features: Tensor, x_t: Tensor, modulation: tuple[Tensor, ...], box: Box) -> Tensor:
        """LTX2VideoDiffusionDecoder3d.forward_diffusion_step for a box."""
        decoder = self.decoder
        boxes = _needed(decoder.diff_blocks, box, self.grid)
        context = self.context(features, boxes[0])
        patches = ltx2._patchify(self.pixels(x_t, boxes[0]), decoder.patch_size).permute(0, 2, 3, 4, 1)
        x = decoder.conv_in_x_t(patches)
        for block, covered, wanted in zip(decoder.diff_blocks, boxes, boxes[1:]):
            region = _region(self.grid, covered)
            x = _crop(block(x, _crop(context, boxes[0], covered), modulation, region), covered, wanted)
        x = decoder.conv_out(decoder.norm_out(x)).permute(0, 4, 1, 2, 3)
        return ltx2._unpatchify(x, decoder.patch_size)


def _region(grid: Lengths, box: Box) -> Region:
    frames, rows, columns = box
    return Region(grid, (frames[0], rows[0], columns[0]))


def _tile_of_patches(tile: Lengths, patch: int) -> Lengths:
    for axis, (size, least) in enumerate(zip(tile, (1, patch, patch))):
        if size < least:
            raise ValueError(f"tile[{axis}] = {size} is below {least}, the extent of a patch")
    frames, rows, columns = tile
    return frames, rows // patch, columns // patch


@torch.no_grad()
def decode_in_tiles(
    model: nn.Module,
    z: Tensor,
    tile: Lengths,
    generator: Optional[torch.Generator] = None,
    num_inference_steps: Optional[int] = None,
) -> Tensor:
    """The video [B, C, F, H, W] of the latents z, as model.decode makes it of the whole, up to rounding.

    tile: frames, rows and columns of the video, in pixels, that are computed at a time from what they depend on. Stages 1
        to 3, whose grids are small, run on the whole; memory beyond theirs, the noise and the video is that of a tile with
        its surroundings. Each diffusion block reads half a window on every inner side more than the next one, which is
        computed for several tiles: large tiles, and whole axes, cost less.

    Raises TypeError for another model, ValueError for a tile below a patch or a model without use_nhood.
    """
    if not isinstance(model, ltx2.LTX2VideoDiffusionDecoderModel):
        raise TypeError(f"model is a {type(model).__name__}, not a LTX2VideoDiffusionDecoderModel")
    decoder = model.decoder
    tile = _tile_of_patches(tile, decoder.patch_size)
    for block in (*decoder.det_stages[-1], *decoder.diff_blocks):
        if not isinstance(block.attn.processor, NhoodProcessor):
            raise ValueError(
                f"an attention layer has a {type(block.attn.processor).__name__}: call use_nhood(model) first"
            )
    features = decoder.forward_stages_1_to_3(z)
    tiles = _Tiles(decoder, features, tile)
    shape = (z.shape[0], decoder.out_channels, *tiles.video)
    x_t = randn_tensor(shape, generator=generator, device=z.device, dtype=z.dtype)
    steps = num_inference_steps or decoder.default_num_inference_steps
    return type(decoder).denoise(tiles, features, x_t, steps)


def tiled_decode(
    model: nn.Module,
    z: Tensor,
    generator: Optional[torch.Generator] = None,
    num_inference_steps: Optional[int] = None,
) -> Tensor:
    """In place of LTX2VideoDiffusionDecoderModel.tiled_decode."""
    tile = (model.tile_sample_min_num_frames, model.tile_sample_min_height, model.tile_sample_min_width)
    return decode_in_tiles(model, z, tile, generator, num_inference_steps)
