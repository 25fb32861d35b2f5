#!/usr/bin/env python3
"""Upsamples the features of small patches to every pixel of a photograph, by one attention call that lets pixels query patches.

Vision models give features for patches, here of 16x16 pixels. Feature upsamplers (AnyUp, JAFAR, NAF) let the pixels of the image attend
the patches around them: queries are made of the pixels, keys of the same on the coarse grid, and values are the coarse features. Queries and
keys then lie on two grids, which is what nhood.Windows.resampled is for; nothing is copied up to the size of the image.

Upsamplers learn what makes a pixel and a patch alike. Here it is written down, and nothing is trained: the pixel's colour c and, with less
weight, its place p. Query [f, 1] and key [f', -|f'|^2 / 2] with f = (c, p) give the logits -|f - f'|^2 / 2, times a scale, up to what all
keys of a query share. The features are the 8 leading principal components of the 5x5 pixels around each one. They are known for every
pixel, then averaged over patches, so it can be told how far each way of upsampling is from the truth.

    examples/upsample.py --output upsampled.png

Exits with status 1 if attention is not at least 2 dB nearer to the truth than bilinear interpolation.
Needs numpy, matplotlib and the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import nhood
import numpy as np
from matplotlib import image

PHOTOGRAPH = Path(__file__).resolve().parent / "data" / "astronaut.png"
PATCH = 16  # pixels
WINDOW = 7  # patches that a pixel attends, on each axis
SCALE = 200.0  # of squared differences between colours in [0, 1]
PLACE = 0.05  # weight of a distance of one patch, beside that of colours


def features_of(picture: np.ndarray, components: int = 8, around: int = 2) -> np.ndarray:
    """The leading principal components of the pixels around each one: [rows, columns, components]."""
    side = 2 * around + 1
    padded = np.pad(picture, ((around, around), (around, around), (0, 0)), mode="reflect")
    patches = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(0, 1))
    patches = patches.reshape(-1, 3 * side**2)
    patches = patches - patches.mean(axis=0)
    _, directions = np.linalg.eigh(patches.T @ patches)
    return (patches @ directions[:, -components:]).reshape(*picture.shape[:2], components)


def averaged(picture: np.ndarray) -> np.ndarray:
    """Means over the patches: [rows / PATCH, columns / PATCH, channels]."""
    rows, columns, channels = picture.shape
    return picture.reshape(rows // PATCH, PATCH, columns // PATCH, PATCH, channels).mean(axis=(1, 3))


def bilinear(coarse: np.ndarray) -> np.ndarray:
    """As images are enlarged: between the centres of patches, and constant outside."""
    for _ in range(2):  # rows, then columns
        count = len(coarse)
        place = np.clip((np.arange(count * PATCH) + 0.5) / PATCH - 0.5, 0, count - 1)
        before = np.minimum(place.astype(int), count - 2)
        share = (place - before)[:, None, None]
        coarse = ((1 - share) * coarse[before] + share * coarse[before + 1]).swapaxes(0, 1)
    return coarse


def attended(coarse: np.ndarray, picture: np.ndarray) -> np.ndarray:
    """Each pixel's mean of the features of patches around it, weighted by how alike they are."""
    rows, columns = picture.shape[:2]
    place = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1)
    pixels = np.concatenate([picture, PLACE / PATCH * place], axis=-1)
    patches = averaged(pixels)
    query = np.concatenate([pixels, np.ones_like(pixels[..., :1])], axis=-1)
    key = np.concatenate([patches, -(patches**2).sum(axis=-1, keepdims=True) / 2], axis=-1)
    windows = [nhood.Windows.resampled(fine, fine // PATCH, WINDOW) for fine in (rows, columns)]
    arrays = [np.ascontiguousarray(array[None, :, :, None], np.float32) for array in (query, key, coarse)]
    return nhood.na2d(*arrays, kernel_size=windows, scale=SCALE)[0, :, :, 0]


def quality(upsampled: np.ndarray, features: np.ndarray) -> float:
    """Signal to error in dB."""
    return float(10 * np.log10(np.mean(features**2) / np.mean((upsampled - features) ** 2)))


def write(path: Path, picture: np.ndarray, maps: list[np.ndarray]) -> None:
    """The photograph and maps of features beside each other; their three leading components are colours, in the range of the first map."""
    low, high = np.percentile(maps[0][..., -3:], (1, 99), axis=(0, 1))
    shown = [picture] + [np.clip((each[..., -3:] - low) / (high - low), 0, 1) for each in maps]
    gap = np.ones((len(picture), PATCH, 3))
    strip = np.concatenate([part for panel in shown for part in (panel, gap)][:-1], axis=1)
    image.imsave(path, np.ascontiguousarray(strip[::2, ::2], np.float32))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="a picture: the photograph, coarse features, and both ways of upsampling them")
    arguments = parser.parse_args()
    picture = image.imread(PHOTOGRAPH)[:, :, :3]
    features = features_of(picture)
    coarse = averaged(features)
    before = time.perf_counter()
    by_attention = attended(coarse, picture)
    seconds = time.perf_counter() - before
    by_bilinear = bilinear(coarse)
    found = {way: quality(upsampled, features) for way, upsampled in (("bilinear", by_bilinear), ("attention", by_attention))}
    print(
        f"{coarse.shape[0]}x{coarse.shape[1]} patches to {picture.shape[0]}x{picture.shape[1]} pixels: bilinear {found['bilinear']:.2f} dB, "
        f"attention {found['attention']:.2f} dB in {seconds:.2f} s"
    )
    if arguments.output:
        write(arguments.output, picture, [np.kron(coarse, np.ones((PATCH, PATCH, 1))), by_bilinear, by_attention])
    return int(not found["attention"] > found["bilinear"] + 2)


if __name__ == "__main__":
    sys.exit(main())
