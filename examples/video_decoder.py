#!/usr/bin/env python3
"""Decodes a video with LTX-2's diffusion decoder on nhood; prints time, attention's share of it and peak memory.

    examples/video_decoder.py --frames 121 --height 1088 --width 1920                      # on a GPU, random weights
    examples/video_decoder.py --tile 121x544x640                                           # in exact tiles, in less memory
    examples/video_decoder.py --checkpoint FOLDER --latents latents.pt --output video.pt
    examples/video_decoder.py --device cpu                                                 # 17 frames of 160x160 by a smaller decoder

FOLDER has the decoder's config.json and its weights, as diffusers keeps them; without it weights are random, and time and
memory are the same. The first decoding compiles and plans; where that takes long, on a GPU, a second one is timed.
Needs the package nhood, installed, or PYTHONPATH=bindings/python in a source tree that is built; torch; and diffusers 0.42.1 or
later.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from typing import Callable

try:
    import torch
    from diffusers import LTX2VideoDiffusionDecoderModel
    from nhood.integrations.diffusers import NhoodProcessor, decode_in_tiles, use_nhood
    from torch import Tensor
except ImportError as error:
    sys.exit(f"video_decoder.py: {error}. It needs torch, diffusers>=0.42.1, and nhood: installed, or PYTHONPATH=bindings/python in a built source tree")

SMALL = dict(
    latent_channels=16,
    decoder_head_dim=32,
    decoder_stage_channels=(256, 128, 64, 64, 64),
    decoder_upsample_channel_reductions=(2, 2, 1, 1),
    decoder_stage_depths=(1, 1, 1, 1, 2),
    decoder_stage_kernels=((3, 3, 3), (3, 5, 5), (3, 5, 5), (3, 5, 5)),
    decoder_stage5_kernel=(7, 7, 7),
    decoder_t_emb_dim=32,
)
"""A decoder of the same parts with fewer channels, blocks and keys in a window."""


class TimedProcessor(NhoodProcessor):
    """Sums up the seconds of attention, without the projections, norms and rotations before it."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.clear()

    def clear(self) -> None:
        self.ended: list[Callable[[], float]] = []

    def attend(self, *arguments: object) -> Tensor:
        if not self.cuda:
            start = time.perf_counter()
            out = super().attend(*arguments)
            seconds = time.perf_counter() - start
            self.ended.append(lambda: seconds)
            return out
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        out = super().attend(*arguments)
        end.record()
        self.ended.append(lambda: begin.elapsed_time(end) / 1000)
        return out

    def seconds(self) -> float:
        """Time on the device, which has been waited for."""
        return sum(seconds() for seconds in self.ended)


def load(arguments: argparse.Namespace) -> LTX2VideoDiffusionDecoderModel:
    if arguments.checkpoint:
        model = LTX2VideoDiffusionDecoderModel.from_pretrained(arguments.checkpoint, torch_dtype=arguments.dtype)
        return model.to(arguments.device).eval()
    torch.manual_seed(arguments.seed)
    torch.set_default_dtype(arguments.dtype)
    with torch.device(arguments.device):  # a CPU would take long to draw the weights
        model = LTX2VideoDiffusionDecoderModel(**(SMALL if arguments.small else {})).eval()
    torch.set_default_dtype(torch.float32)
    return model


def make_latents(model: LTX2VideoDiffusionDecoderModel, arguments: argparse.Namespace) -> Tensor:
    if arguments.latents:
        return torch.load(arguments.latents, weights_only=True).to(arguments.device, arguments.dtype)
    in_time, in_space = model.temporal_compression_ratio, model.spatial_compression_ratio
    if (arguments.frames - 1) % in_time or arguments.height % in_space or arguments.width % in_space:
        raise SystemExit(
            f"--frames is a multiple of {in_time} and 1 more, --height and --width are multiples of {in_space}; "
            f"got {arguments.frames}, {arguments.height}, {arguments.width}"
        )
    shape = (
        (arguments.frames - 1) // in_time + 1,
        arguments.height // in_space,
        arguments.width // in_space,
    )
    generator = torch.Generator(arguments.device).manual_seed(arguments.seed)
    channels = model.config.latent_channels
    return torch.randn(1, channels, *shape, generator=generator, device=arguments.device, dtype=arguments.dtype)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.no_grad()
def decode(model: LTX2VideoDiffusionDecoderModel, latents: Tensor, arguments: argparse.Namespace) -> Tensor:
    generator = torch.Generator(arguments.device).manual_seed(arguments.seed)
    if arguments.tile:
        return decode_in_tiles(model, latents, arguments.tile, generator)
    return model.decode(latents, generator=generator).sample


def peak_gib(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB of the GPU's memory"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB, all of the process"


def extents(text: str) -> tuple[int, int, int]:
    frames, height, width = map(int, text.split("x"))
    return frames, height, width


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=int, help="(default 121; on a CPU 17)")
    parser.add_argument("--height", type=int, help="pixels (default 512; on a CPU 160)")
    parser.add_argument("--width", type=int, help="pixels (default 768; on a CPU 160)")
    parser.add_argument(
        "--tile", type=extents, metavar="TxHxW", help="frames and pixels computed at a time (default: all)"
    )
    parser.add_argument("--checkpoint", metavar="FOLDER", help="of the decoder (random weights)")
    parser.add_argument("--small", action="store_true", help="random weights of a smaller decoder (the default on a CPU, without a size)")
    parser.add_argument("--latents", metavar="FILE", help="a tensor [B, C, F, H, W] by torch.save (random)")
    parser.add_argument("--output", metavar="FILE", help="torch.save the video, [B, 3, F, H, W], here")
    parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", help="(default bfloat16)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, latents and noise (default 0)")
    arguments = parser.parse_args()
    arguments.dtype = getattr(torch, arguments.dtype, None)
    if not isinstance(arguments.dtype, torch.dtype):
        parser.error("--dtype is a type of torch, such as bfloat16 or float32")
    if arguments.device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device {arguments.device}: PyTorch sees no GPU here; --device cpu takes seconds, with a smaller decoder")
    on_cpu, given = arguments.device.type == "cpu", (arguments.frames, arguments.height, arguments.width)
    arguments.small |= on_cpu and not (arguments.checkpoint or arguments.latents or any(given))
    usual = (17, 160, 160) if on_cpu else (121, 512, 768)
    arguments.frames, arguments.height, arguments.width = (mine or size for mine, size in zip(given, usual))
    return arguments


def main() -> None:
    arguments = parse_arguments()
    device = arguments.device
    model = load(arguments)
    processor = TimedProcessor(device)
    use_nhood(model, processor=processor)
    latents = make_latents(model, arguments)
    if device.type == "cuda":
        decode(model, latents, arguments)
        wait(device)
        torch.cuda.reset_peak_memory_stats(device)
    processor.clear()
    start = time.perf_counter()
    video = decode(model, latents, arguments)
    wait(device)
    whole, attention = time.perf_counter() - start, processor.seconds()
    frames, height, width = video.shape[2:]
    tiles = "" if not arguments.tile else f" in tiles of at most {'x'.join(map(str, arguments.tile))}"
    print(f"{frames} frames of {height}x{width}{tiles}, {arguments.dtype} on {device}")
    print(f"time {whole:.3f} s, {attention:.3f} s of it attention ({100 * attention / whole:.0f} %)")
    print(f"peak memory {peak_gib(device)}")
    if arguments.output:
        torch.save(video, arguments.output)


if __name__ == "__main__":
    main()
