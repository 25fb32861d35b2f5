#!/usr/bin/env python3
"""Time and peak memory of LTX-2's diffusion decoder, eager and compiled, by every way to get its attention.

    nhood           nhood.integrations.diffusers
    comfy-kitchen   comfy_kitchen.na3d, what ComfyUI uses; its package comfy-kitchen is on PyPI
    natten          NATTEN, where it is installed
    flex            FlexAttention with a mask of blocks, where that fits (CUDA)
    none            values copied: what the rest of the decoder takes, and so attention's share

    bench/gpu/video_decoder.py                                     # 512x768x121 and 1088x1920x121, bf16, on a GPU
    bench/gpu/video_decoder.py --small --sizes 128x160x9 --device cpu --dtype float32 --turns 1

Weights are random. Each way is first compared with a mask of all pairs of tokens on small grids, and its video with that of
the first way; one that differs or cannot do it is left out, with the reason. Then all take turns, eager and compiled; times are
medians. Compiled, a block is one graph but for its MLP, whose tiles are compiled, not their loop. Peak memory is the device's during
one decoding, weights and latents included.

Besides: how long RMS norm and rotary positions of query and key take, of all layers together, next to reading and writing these
tensors once: as diffusers has them and by nhood.torch.norm_rope, both eager and compiled.

Writes a file of JSON anew after each size, and a table and, with matplotlib, a picture beside it. Needs torch, diffusers 0.42.1
or later and the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import functools
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffusers
import nhood
import torch
from decoder_ways import WAYS, Absent, Compiled, Way, WayProcessor, blocks_of, by_mask
from diffusers import LTX2VideoDiffusionDecoderModel
from nhood.integrations.diffusers import _positions, use_nhood
from timing import medians_in_turn, seconds_of
from torch import Tensor

sys.path[:0] = map(str, Path(__file__).parents[1].iterdir())  # modules of all folders of bench
import decoder_report  # noqa: E402
from report import find_commit, find_driver  # noqa: E402

SMALL = dict(
    latent_channels=8,
    decoder_head_dim=16,
    decoder_stage_channels=(64, 64, 32, 32, 32),
    decoder_upsample_channel_reductions=(1, 2, 1, 1),
    decoder_stage_depths=(1, 1, 1, 1, 1),
    decoder_stage_kernels=((3, 3, 3), (3, 3, 3), (3, 5, 5), (3, 5, 5)),
    decoder_stage5_kernel=(5, 5, 5),
    decoder_t_emb_dim=16,
)
MODES = ("eager", "compiled")
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}  # of the largest value of a video

Size = tuple[int, int, int]
"""height, width and frames"""


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int | None:
    """Since reset_peak; on a CPU, of the process, where Linux tells."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return None


# ---- the decoder ----


def make_model(arguments: argparse.Namespace) -> LTX2VideoDiffusionDecoderModel:
    torch.manual_seed(0)
    torch.set_default_dtype(arguments.dtype)
    with torch.device(arguments.device):
        model = LTX2VideoDiffusionDecoderModel(**(SMALL if arguments.small else {})).eval()
    torch.set_default_dtype(torch.float32)
    return model


def make_latents(model: LTX2VideoDiffusionDecoderModel, size: Size, arguments: argparse.Namespace) -> Tensor:
    height, width, frames = size
    space, in_time = model.spatial_compression_ratio, model.temporal_compression_ratio
    shape = (1, model.config.latent_channels, (frames - 1) // in_time + 1, height // space, width // space)
    generator = torch.Generator(arguments.device).manual_seed(1)
    return torch.randn(shape, generator=generator, device=arguments.device, dtype=arguments.dtype)


def decode(model: LTX2VideoDiffusionDecoderModel, latents: Tensor) -> Tensor:
    generator = torch.Generator(latents.device).manual_seed(2)
    return model.decode(latents, generator=generator).sample


def check(way: Way, attention: Any, model: LTX2VideoDiffusionDecoderModel) -> None:
    """Raises Absent unless it is right with each of the model's windows, on a grid a few tokens larger."""
    for heads_dim, window in sorted({(b.attn.head_dim, b.attn.kernel_size) for b in blocks_of(model.decoder)}):
        grid = tuple(length + 2 * axis for axis, length in enumerate(window, 1))
        generator = torch.Generator(model.device).manual_seed(3)
        shape = (3, 1, *grid, 2, heads_dim)
        query, key, value = torch.randn(shape, generator=generator, device=model.device).to(model.dtype)
        query = query * heads_dim**-0.5
        expected = by_mask(query, key, value, window)
        difference = (attention(query, key, value, window).float() - expected).abs().max() / expected.abs().max()
        limit = 2e-3 if model.dtype == torch.float32 else 4e-2  # f32 may run as TF32
        if not difference < limit:
            raise Absent(f"with window {window} it differs by {difference:.1g} of the largest value")


# ---- whole decodings ----


class Run:
    """One way in one mode at one size."""

    def __init__(self, way: Way, mode: str, processor: WayProcessor) -> None:
        self.way, self.mode, self.processor = way, mode, processor
        self.seconds: list[float] = []
        self.peak: int | None = None
        self.first = 0.0

    @property
    def row(self) -> dict[str, Any]:
        ms = round(1e3 * statistics.median(self.seconds), 3)
        row = {"way": self.way.name, "mode": self.mode, "ms": ms, "turns": len(self.seconds)}
        return row | {"first_ms": round(1e3 * self.first, 3), "peak_bytes": self.peak}


def time_size(
    model: LTX2VideoDiffusionDecoderModel, size: Size, arguments: argparse.Namespace
) -> dict[str, Any]:
    torch._dynamo.reset()  # graphs of other sizes
    latents = make_latents(model, size, arguments)
    compiled = Compiled(model.decoder)
    absent: dict[str, str] = {}
    reference: list[Tensor] = []

    def once(run: Run) -> Tensor:
        use_nhood(model, processor=run.processor)
        try:
            with compiled if run.mode == "compiled" else contextlib.nullcontext():
                return decode(model, latents)
        finally:
            run.processor.forget()

    def begin(way: Way) -> Iterator[Run]:
        """Its runs, decoded for a first time and compared."""
        attention = way.make()
        if way.computes:
            check(way, attention, model)
        for mode in arguments.modes:
            run = Run(way, mode, WayProcessor(attention))
            videos: list[Tensor] = []
            run.first = seconds_of(lambda: videos.append(once(run)))
            print(f"{size} first: {way.name} {mode} {run.first:.3f} s", file=sys.stderr, flush=True)
            if not reference and way.computes:
                reference.append(videos[0])
            elif way.computes:
                difference = (videos[0] - reference[0]).abs().max() / reference[0].abs().max()
                if not difference < TOLERANCE[model.dtype]:
                    raise Absent(f"{mode}, its video differs by {difference:.1g} of the largest value")
            yield run

    runs: list[Run] = []
    for name in arguments.ways:
        try:
            for run in begin(WAYS[name]):
                runs.append(run)  # one at a time: the first mode stays if the second is refused
        except Absent as why:
            absent[name] = str(why)
        except (RuntimeError, NotImplementedError) as error:  # out of memory, no kernel for it
            absent[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    for turn in range(arguments.turns):
        for run in runs:
            reset_peak(latents.device)
            run.seconds.append(seconds_of(lambda: once(run)))
            run.peak = peak_bytes(latents.device)
            print(f"{size} turn {turn}: {run.way.name} {run.mode} {run.seconds[-1]:.3f} s", file=sys.stderr, flush=True)
    return {"size": "x".join(map(str, size)), "rows": [run.row for run in runs], "absent": absent}


# ---- norm and rotary positions ----


class Recorder(WayProcessor):
    """Counts the layers by their shapes."""

    def __init__(self) -> None:
        super().__init__(WAYS["none"].make())
        self.layers: collections.Counter = collections.Counter()
        self.examples: dict[tuple, Any] = {}

    def __call__(self, attn, hidden_states, block_mask=None):
        shape = (*hidden_states.shape[:-1], attn.heads, attn.head_dim)
        self.layers[shape] += 1
        self.examples[shape] = attn
        return super().__call__(attn, hidden_states, block_mask)


def time_norm_and_rope(
    model: LTX2VideoDiffusionDecoderModel, size: Size, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    recorder = Recorder()
    use_nhood(model, processor=recorder)
    decode(model, make_latents(model, size, arguments))
    rows = []
    for shape, layers in recorder.layers.items():
        torch._dynamo.reset()
        attn = recorder.examples[shape]
        query, key = (torch.randn(shape, device=arguments.device, dtype=arguments.dtype) for _ in range(2))

        def norm_and_rope(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
            """What project_qkv does after the projections."""
            return attn.rope(attn.norm_q(query) * attn.scale), attn.rope(attn.norm_k(key))

        by_operator = functools.partial(_positions.norm_and_rotate, attn)
        ways: dict[str, Callable[..., Any]] = {}
        if "eager" in arguments.modes:
            ways |= {"eager_ms": norm_and_rope, "operator_ms": by_operator}
        if "compiled" in arguments.modes:
            ways["compiled_ms"] = torch.compile(norm_and_rope, fullgraph=True)
            ways["operator_compiled_ms"] = torch.compile(by_operator, fullgraph=True)
        targets = torch.empty_like(query), torch.empty_like(key)
        calls = {"copy_ms": lambda: (targets[0].copy_(query), targets[1].copy_(key))}
        calls |= {name: functools.partial(way, query, key) for name, way in ways.items()}
        rows.append({"shape": list(shape), "layers": layers, **medians_in_turn(calls, arguments.turns)})
        print(f"{size} norm and rotary positions: {rows[-1]}", file=sys.stderr, flush=True)
    return rows


# ---- the program ----


def about(arguments: argparse.Namespace) -> dict[str, Any]:
    cuda = arguments.device.type == "cuda"
    found: dict[str, Any] = {"kind": "video decoder", "device": platform.processor() or platform.machine()}
    if cuda:
        found |= {"device": torch.cuda.get_device_name(arguments.device), "driver": find_driver()}
    now = datetime.datetime.now(datetime.timezone.utc)
    found |= {"commit": find_commit(), "date": f"{now:%Y-%m-%d %H:%M}"}
    found |= {"system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"}
    found |= {"torch": torch.__version__, "diffusers": diffusers.__version__, "nhood": nhood.__version__}
    found |= {"dtype": str(arguments.dtype).removeprefix("torch."), "decoder": "small" if arguments.small else "LTX-2"}
    return found | {"sizes": []}


def size_of(text: str) -> Size:
    height, width, frames = map(int, text.split("x"))
    return height, width, frames


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=size_of,
        metavar="HxWxT",
        default=[(512, 768, 121), (1088, 1920, 121)],
        help="pixels and frames (default 512x768x121 1088x1920x121)",
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="(default: all)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="(default: both)")
    parser.add_argument("--turns", type=int, default=3, help="per way and mode (default 3)")
    parser.add_argument("--small", action="store_true", help="a decoder of few channels and blocks, for a try")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build/bench/video_decoder.json"),
        help="(default build/bench/video_decoder.json)",
    )
    arguments = parser.parse_args()
    arguments.dtype = getattr(torch, arguments.dtype)
    for height, width, frames in arguments.sizes:
        if height % 32 or width % 32 or (frames - 1) % 8:
            parser.error(f"--sizes {height}x{width}x{frames}: multiples of 32, and frames one more than a multiple of 8")
    return arguments


@torch.no_grad()
def main() -> None:
    arguments = parse_arguments()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    model = make_model(arguments)
    found = about(arguments)
    for size in arguments.sizes:
        found["sizes"].append(time_size(model, size, arguments))
        found["sizes"][-1]["norm_and_rope"] = time_norm_and_rope(model, size, arguments)
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
        decoder_report.write(found, arguments.output)
    print(arguments.output.with_suffix(".md").read_text(), end="")


if __name__ == "__main__":
    main()
