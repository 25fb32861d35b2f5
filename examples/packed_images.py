#!/usr/bin/env python3
"""Trains a small classifier on images of all sizes, without resizing or padding any: a batch is packed, token after token.

Every image has stripes in one of four directions, under noise, and sides of its own between 6 and 24. All layers but attention work
on tokens one by one, and so on the packed batch as it is; attention is one call of nhood.torch.neighborhood_attention_varlen. A
table says where images begin; it is made once for a batch and serves all layers.

    examples/packed_images.py --steps 60

Exits with status 1 if fewer than nine in ten fresh images are told right, or if images by themselves give other results than packed.
Needs the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import random
import sys

import nhood.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layouts = list[tuple[int, int]]
DIRECTIONS = ((1, 0), (0, 1), (1, 1), (1, -1))


def draw(count: int) -> tuple[Tensor, Layouts, Tensor]:
    """Pixels [1, tokens, 1] of packed images, their sizes, and the directions of their stripes."""
    layouts = [(random.randint(6, 24), random.randint(6, 24)) for _ in range(count)]
    labels = torch.randint(len(DIRECTIONS), (count,))
    images = []
    for (rows, columns), label in zip(layouts, labels.tolist()):
        down, right = DIRECTIONS[label]
        place = down * torch.arange(rows)[:, None] + right * torch.arange(columns)
        images.append(torch.sin(2.1 * place + 6 * random.random()) + 0.5 * torch.randn(rows, columns))
    return torch.cat([image.flatten() for image in images]).view(1, -1, 1), layouts, labels


class Layer(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + self.proj(nhood.torch.neighborhood_attention_varlen(query, key, value, table=table).flatten(-2))
        return x + self.mlp(self.norms[1](x))


class Classifier(nn.Module):
    """Two layers with windows of 5x5; pixels enter with their differences to the pixel above and to the left."""

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(3, dim)
        self.layers = nn.ModuleList([Layer(dim, heads) for _ in range(2)])
        self.head = nn.Linear(dim, len(DIRECTIONS))

    def forward(self, pixels: Tensor, layouts: Layouts) -> Tensor:
        sizes = [rows * columns for rows, columns in layouts]
        images = [part.view(layout) for part, layout in zip(pixels[0, :, 0].split(sizes), layouts)]
        shifted = [torch.stack([x, x - x.roll(1, 0), x - x.roll(1, 1)], -1).flatten(0, 1) for x in images]
        x = self.embed(torch.cat(shifted)[None])
        table = nhood.torch.varlen_table(layouts, kernel_size=5)
        for layer in self.layers:
            x = layer(x, table)
        means = [part.mean(0) for part in x[0].split(sizes)]
        return self.head(torch.stack(means))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--images", type=int, default=32, help="of a batch")
    given = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(given.steps):
        pixels, layouts, labels = draw(given.images)
        loss = F.cross_entropy(model(pixels, layouts), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.3f}")
    with torch.no_grad():
        pixels, layouts, labels = draw(200)
        packed = model(pixels, layouts)
        parts = pixels.split([rows * columns for rows, columns in layouts], 1)
        alone = torch.cat([model(part, [layout]) for part, layout in zip(parts, layouts)])
    right = (packed.argmax(-1) == labels).float().mean().item()
    difference = (packed - alone).abs().max().item()
    print(f"{right:.1%} of 200 fresh images are told right; one by one their results differ by {difference:.1g}")
    return int(right < 0.9 or difference > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
