#!/usr/bin/env python3
"""Decodes a picture in tiles whose memory is bounded, with the result of decoding it whole: no seams, nothing to blend.

The decoder has what decoders of latent diffusion models have: neighborhood attention, convolutions, pointwise layers and
upsampling. Each layer says which of its inputs a box of its outputs depends on. From a tile of the picture that leads,
backwards through the layers, to a box of the latents; forwards from there every layer computes the box that the next one
needs, and no more. Attention does so with windows of the whole grid, by query_offset and key_offset: at a border of a tile
nothing happens, at a border of the picture what always happens there.

    examples/tiled_decoder.py --size 48 --tile 48

Weights are random, as only equality matters here. Exits with status 1 if the pictures differ by more than roundings.
Needs the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import NamedTuple

import nhood.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Box(NamedTuple):
    """Rows top .. bottom - 1 and columns left .. right - 1 of a grid."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def corner(self) -> tuple[int, int]:
        return self.top, self.left

    def crop(self, x: Tensor, covered: Box) -> Tensor:
        """This box of a tensor [1, rows, columns, channels] that covers a larger one."""
        rows = slice(self.top - covered.top, self.bottom - covered.top)
        return x[:, rows, self.left - covered.left : self.right - covered.left]

    def grown(self, by: int, grid: Grid) -> Box:
        """By `by` tokens on every side, as far as the grid goes."""
        return Box(
            max(self.top - by, 0),
            max(self.left - by, 0),
            min(self.bottom + by, grid[0]),
            min(self.right + by, grid[1]),
        )


Grid = tuple[int, int]


class Pointwise(nn.Module):
    """x + MLP(norm(x)). The norm is of the channels of a token: one over the picture would need all of it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(channels), nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels)
        )

    def needs(self, box: Box, grid: Grid) -> Box:
        return box

    def forward(self, x: Tensor, covered: Box, box: Box, grid: Grid) -> Tensor:
        return x + self.layers(x)


class Convolution(nn.Module):
    """3x3, zeros beyond the border of the grid."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, out_channels, 3)

    def needs(self, box: Box, grid: Grid) -> Box:
        return box.grown(1, grid)

    def forward(self, x: Tensor, covered: Box, box: Box, grid: Grid) -> Tensor:
        beyond = [
            covered.left - box.left,
            box.right - covered.right,
            covered.top - box.top,
            box.bottom - covered.bottom,
        ]
        padded = F.pad(x.movedim(-1, 1), [1 + side for side in beyond])
        return self.convolution(padded).movedim(1, -1)


class Attention(nn.Module):
    """x + projected neighborhood attention of norm(x)."""

    def __init__(self, channels: int, heads: int, window: int, dilation: int) -> None:
        super().__init__()
        self.heads, self.window, self.dilation = heads, window, dilation
        self.norm = nn.LayerNorm(channels)
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def needs(self, box: Box, grid: Grid) -> Box:
        (top, bottom), (left, right) = (
            self.keys(box[axis], box[axis + 2], length) for axis, length in enumerate(grid)
        )
        return Box(top, left, bottom, right)

    def keys(self, begin: int, end: int, length: int) -> tuple[int, int]:
        """Where the first window of the tokens begin .. end - 1 of an axis begins, and where the last one ends."""
        first, behind = length, 0
        for token in range(begin, end):
            position, group = divmod(token, self.dilation)
            in_group = -(-(length - group) // self.dilation)
            start = min(max(position - self.window // 2, 0), in_group - self.window)
            first = min(first, start * self.dilation + group)
            behind = max(behind, (start + self.window - 1) * self.dilation + group + 1)
        return first, behind

    def forward(self, x: Tensor, covered: Box, box: Box, grid: Grid) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(3)
        attended = nhood.torch.na2d(
            box.crop(query, covered),
            key,
            value,
            self.window,
            dilation=self.dilation,
            grid=grid,
            query_offset=box.corner,
            key_offset=covered.corner,
        )
        return box.crop(x, covered) + self.proj(attended.flatten(-2))


class Upsampling(nn.Module):
    """Every token becomes 2x2: `grid` is that of the results."""

    def needs(self, box: Box, grid: Grid) -> Box:
        return Box(box.top // 2, box.left // 2, -(-box.bottom // 2), -(-box.right // 2))

    def forward(self, x: Tensor, covered: Box, box: Box, grid: Grid) -> Tensor:
        doubled = x.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
        return box.crop(doubled, Box(*(2 * side for side in covered)))


class Decoder(nn.Module):
    """Latents [1, rows, columns, channels] to a picture [1, 4 * rows, 4 * columns, 3]."""

    def __init__(self, channels: int = 16, heads: int = 2, window: int = 5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(2):
            for dilation in (1, 2):
                layers += [Attention(channels, heads, window, dilation), Pointwise(channels)]
            layers += [Upsampling(), Convolution(channels, channels)]
        self.layers = nn.ModuleList([*layers, Convolution(channels, 3)])
        self.largest = 0
        """elements of the largest tensor between two layers since this was last set to 0"""

    def forward(self, latents: Tensor, box: Box) -> Tensor:
        """A box of the picture."""
        grid = (latents.shape[1], latents.shape[2])
        grids = []
        for layer in self.layers:
            grid = (2 * grid[0], 2 * grid[1]) if isinstance(layer, Upsampling) else grid
            grids.append(grid)
        boxes = [box]
        for layer, grid in zip(reversed(self.layers), reversed(grids)):
            boxes.insert(0, layer.needs(boxes[0], grid))
        x = boxes[0].crop(latents, Box(0, 0, *latents.shape[1:3]))
        for layer, grid, covered, wanted in zip(self.layers, grids, boxes, boxes[1:]):
            x = layer(x, covered, wanted, grid)
            self.largest = max(self.largest, x.numel())
        return x


def tiles(rows: int, columns: int, side: int) -> Iterator[Box]:
    for top in range(0, rows, side):
        for left in range(0, columns, side):
            yield Box(top, left, min(top + side, rows), min(left + side, columns))


@torch.no_grad()
def compare(size: int, side: int) -> tuple[float, float, float]:
    """Largest differences from the picture decoded whole, of exact tiles and of tiles of the latents decoded alone; and the
    share of the whole's memory that exact tiles take."""
    torch.manual_seed(0)
    decoder, latents = Decoder(), torch.randn(1, size, size, 16)
    picture = Box(0, 0, 4 * size, 4 * size)
    whole = decoder(latents, picture)
    of_whole, decoder.largest = decoder.largest, 0
    exact, alone = torch.empty_like(whole), torch.empty_like(whole)
    for tile in tiles(4 * size, 4 * size, side):
        tile.crop(exact, picture).copy_(decoder(latents, tile))
    share = decoder.largest / of_whole
    for tile in tiles(4 * size, 4 * size, side):
        part = Box(*(edge // 4 for edge in tile)).crop(latents, Box(0, 0, size, size))
        tile.crop(alone, picture).copy_(decoder(part, Box(0, 0, tile.bottom - tile.top, tile.right - tile.left)))
    print(f"picture {4 * size}x{4 * size} in tiles of {side}x{side}; values up to {whole.abs().max():.2f}")
    return (exact - whole).abs().max().item(), (alone - whole).abs().max().item(), share


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=96, help="rows and columns of the latents (default 96)")
    parser.add_argument(
        "--tile", type=int, default=96, help="of the picture, a multiple of 4 of at least 40 (default 96)"
    )
    arguments = parser.parse_args()
    size, tile = arguments.size, arguments.tile
    if size < 10 or tile % 4 or tile < 40 or 0 < 4 * size % tile < 40:  # dilated windows reach over 10 latents
        parser.error(f"--size {size} --tile {tile}: tiles, also the last ones, are multiples of 4 of at least 40")
    exact, alone, share = compare(size, tile)
    print(
        f"exact tiles: largest difference {exact:.1e} from the picture decoded whole; their largest tensor has "
        f"{100 * share:.0f} % of the elements of the whole's"
    )
    print(f"tiles of the latents, decoded each on its own, for comparison: largest difference {alone:.1e}")
    return int(not exact < 1e-4)


if __name__ == "__main__":
    sys.exit(main())
