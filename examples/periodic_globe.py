#!/usr/bin/env python3
"""Smooths a field on the globe, on a grid of latitudes and longitudes whose longitudes are a periodic axis.

The geometry is that of the sphere: tokens are the cells of an equiangular grid, with their unit vectors n and their areas
cos(latitude). Query [n, 1] and key [n, log(area) / K] with scale K give the logits K n.n' + log(area), so the softmax
weights cells by area and by exp(K (cos(distance) - 1)): one attention call is a normalised smoothing with a von
Mises-Fisher kernel, the Gaussian of the sphere. Without a periodic axis, windows at the first and the last longitude see one
side only.

The field is analytic, not measured: the Rossby-Haurwitz wave of wavenumber 4 that tests of atmosphere models start from
(Williamson et al., J. Comput. Phys. 102, 1992, test case 6; its height at t = 0, turned by a quarter of a
wave, so that the seam falls on its slope), with white noise of 100 m on it.

    examples/periodic_globe.py --svg globe.svg

Exits with status 1 if the seam can still be told from any other meridian on the periodic grid.
Needs numpy and the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import base64
import struct
import sys
import zlib
from pathlib import Path

import nhood
import numpy as np

ROWS, COLUMNS = 90, 180  # cells of 2 by 2 degrees
WINDOW = (11, 31)  # of 22 degrees of latitude and 62 of longitude, more as meridians converge
CONCENTRATION = 400.0  # K: a standard deviation of 1 / sqrt(K) rad, 2.9 degrees
NOISE = 100.0  # m
NEAR = 3  # columns on either side of the seam whose error is told apart
TURN = np.pi / 8  # rad of longitude: a quarter of a wave


def rossby_haurwitz_height(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """In metres. Constants, A, B and C are those of Williamson et al."""
    radius, rotation, gravity, rest = 6.37122e6, 7.292e-5, 9.80616, 8e3
    omega = k = 7.848e-6
    r = 4
    c = np.cos(latitude)
    a_term = omega / 2 * (2 * rotation + omega) * c**2 + k**2 / 4 * c ** (2 * r) * (
        (r + 1) * c**2 + (2 * r**2 - r - 2) - 2 * r**2 * c**-2
    )
    b_term = 2 * (rotation + omega) * k / ((r + 1) * (r + 2)) * c**r * ((r**2 + 2 * r + 2) - (r + 1) ** 2 * c**2)
    c_term = k**2 / 4 * c ** (2 * r) * ((r + 1) * c**2 - (r + 2))
    waves = a_term + b_term * np.cos(r * longitude) + c_term * np.cos(2 * r * longitude)
    return rest + radius**2 / gravity * waves


def cells() -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes of cell centres, in radians."""
    latitude = (np.arange(ROWS) + 0.5) / ROWS * np.pi - np.pi / 2
    longitude = (np.arange(COLUMNS) + 0.5) / COLUMNS * 2 * np.pi
    return np.meshgrid(latitude, longitude, indexing="ij")


def smoothed(field: np.ndarray, latitude: np.ndarray, longitude: np.ndarray, periodic: bool) -> np.ndarray:
    area = np.cos(latitude)
    normal = [area * np.cos(longitude), area * np.sin(longitude), np.sin(latitude)]
    query = np.stack([*normal, np.ones_like(area)], -1)[None, :, :, None]
    key = np.stack([*normal, np.log(area) / CONCENTRATION], -1)[None, :, :, None]
    mean = field.mean()
    value = (field - mean)[None, :, :, None, None]
    out = nhood.na2d(
        *(np.ascontiguousarray(x, np.float32) for x in (query, key, value)),
        WINDOW,
        scale=CONCENTRATION,
        is_periodic=(False, periodic),
    )
    return out[0, :, :, 0, 0] + mean


def seam_step(error: np.ndarray, latitude: np.ndarray) -> float:
    """How much the error changes from the last longitude to the first, as a multiple of what it does elsewhere."""
    change = error - np.roll(error, 1, axis=1)
    steps = np.sqrt(np.average(change**2, axis=0, weights=np.cos(latitude)))
    return float(steps[0] / np.median(steps))


def png(pixels: np.ndarray) -> bytes:
    """A file of 8-bit RGB pixels [rows, columns, 3]."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")


def write_svg(path: Path, maps: list[tuple[str, np.ndarray]], largest: float) -> None:
    """Maps of errors below each other, north above, turned so that the seam is in the middle; blue is too low, red too
    high, in 15 steps up to `largest`."""
    size, margin, title = 3, 10, 22
    width, height = COLUMNS * size, ROWS * size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2 * margin}" '
        f'height="{len(maps) * (height + title) + margin}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for number, (name, error) in enumerate(maps):
        top = number * (height + title) + title
        shown = np.clip(np.rint(np.roll(error, COLUMNS // 2, axis=1)[::-1] / largest * 7) / 7, -1, 1)
        pale = (255 * (1 - np.abs(shown))).astype(np.uint8)
        full = np.full_like(pale, 255)
        red, blue = np.where(shown > 0, full, pale), np.where(shown > 0, pale, full)
        picture = base64.b64encode(png(np.stack([red, pale, blue], -1))).decode()
        parts.append(f'<text x="{margin}" y="{top - 6}">{name}</text>')
        parts.append(
            f'<image x="{margin}" y="{top}" width="{width}" height="{height}" style="image-rendering:pixelated" '
            f'preserveAspectRatio="none" href="data:image/png;base64,{picture}"/>'
        )
        parts.append(f'<rect x="{margin}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#000000"/>')
    path.write_text("\n".join([*parts, "</svg>\n"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--svg", type=Path, help="a picture of the errors, with the seam in the middle")
    arguments = parser.parse_args()
    latitude, longitude = cells()
    field = rossby_haurwitz_height(latitude, longitude + TURN)
    noisy = field + NOISE * np.random.default_rng(1).standard_normal(field.shape)
    maps, steps = [], {}
    for name, periodic in (("longitude as a plain axis", False), ("longitude as a periodic axis", True)):
        error = smoothed(noisy, latitude, longitude, periodic) - field
        near = np.abs(np.arange(COLUMNS) + 0.5 - COLUMNS / 2) > COLUMNS / 2 - NEAR
        rms = [float(np.sqrt(np.average(error[:, at] ** 2, weights=np.cos(latitude[:, at])))) for at in (near, ~near)]
        steps[periodic] = seam_step(error, latitude)
        print(
            f"{name}: error {rms[0]:.1f} m within {NEAR * 360 // COLUMNS} degrees of the seam, {rms[1]:.1f} m elsewhere; "
            f"step at the seam {steps[periodic]:.1f} times that of other meridians"
        )
        maps.append((f"Error after smoothing, {name} (the seam is in the middle)", error))
    if arguments.svg:
        write_svg(arguments.svg, maps, NOISE)
    return int(not steps[True] < 1.5)


if __name__ == "__main__":
    sys.exit(main())
