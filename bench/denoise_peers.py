#!/usr/bin/env python3
"""PSNR and seconds of examples/denoise beside other denoisers, on the same noisy picture.

    nhood     build/denoise, method M: one run, its own report of the whole job
    nlm       scikit-image's non-local means, the best of a small grid of strengths (its PSNR picks it)
    bm3d      the bm3d package

Peers that are not installed are left out: pip install scikit-image bm3d. Noise as in docs/denoising.md, seed 1.
"""

import argparse
import re
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


def read_pfm(path):
    with open(path, "rb") as file:
        if file.readline() != b"PF\n":
            raise SystemExit("a picture in colour is needed")
        width, height = map(int, file.readline().split())
        order = "<f4" if float(file.readline()) < 0 else ">f4"
        return np.frombuffer(file.read(), order).reshape(height, width, 3)[::-1].astype(np.float64)


def psnr(clean, picture):
    return 10 * np.log10(255**2 / np.mean((clean - picture) ** 2))


def run_nhood(photo, crop, sigma, folder):
    command = [ROOT / "build/denoise", photo, "--sigma", str(sigma), "--plain", "0", "--output", folder]
    text = subprocess.run(command + (["--crop", crop] if crop else []), capture_output=True, text=True)
    if text.returncode:
        raise SystemExit(text.stderr.strip())
    found = re.search(r"dB noisy, ([0-9.]+) dB.*\nattention: ([0-9.]+) s.*in all: ([0-9.]+) s", text.stdout)
    quality, attention, seconds = map(float, found.groups())
    return quality, seconds, f"attention {attention:.3f} s"


def run_nlm(clean, noisy, sigma):
    from skimage.restoration import denoise_nl_means

    best = None
    for share in (0.6, 0.8, 1.0, 1.2):
        start = time.perf_counter()
        picture = denoise_nl_means(noisy / 255, patch_size=5, patch_distance=10, h=share * sigma / 255,
                                   sigma=sigma / 255, fast_mode=True, channel_axis=2)
        seconds = time.perf_counter() - start
        row = psnr(clean, picture * 255), seconds, f"h = {share} sigma"
        best = max(best, row) if best else row
    return best


def run_bm3d(clean, noisy, sigma):
    import bm3d

    start = time.perf_counter()
    picture = bm3d.bm3d_rgb(noisy / 255, sigma / 255)
    return psnr(clean, picture * 255), time.perf_counter() - start, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photo", nargs="?", default=ROOT / "examples/data/astronaut.png", help="(default: the astronaut)")
    parser.add_argument("--sigma", type=float, default=25, help="of the noise, samples being 0..255 (default 25)")
    parser.add_argument("--crop", help="row,column,height,width of a part (default: all)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = {"nhood": run_nhood(arguments.photo, arguments.crop, arguments.sigma, folder)}
        noisy = read_pfm(Path(folder) / "noisy.pfm")
    try:
        from skimage.io import imread

        clean = imread(arguments.photo)[..., :3].astype(np.float64)
        if arguments.crop:
            row, column, height, width = map(int, arguments.crop.split(","))
            clean = clean[row : row + height, column : column + width]
        rows["nlm"] = run_nlm(clean, noisy, arguments.sigma)
        rows["bm3d"] = run_bm3d(clean, noisy, arguments.sigma)
    except ImportError as error:
        print(f"left out: {error}")
    print("| denoiser | PSNR, dB | seconds | |\n|---|---|---|---|")
    for name, (quality, seconds, note) in rows.items():
        print(f"| {name} | {quality:.2f} | {seconds:.2f} | {note} |")


if __name__ == "__main__":
    main()
