#!/usr/bin/env python3
"""How long RMS norm and rotary positions of queries and keys take, beside the time that memory needs: nhood.torch.norm_rope, and the same
of torch's operations, eager and under torch.compile.

    bench/gpu/norm_rope.py                            # shapes of video models, bf16, on a GPU
    bench/gpu/norm_rope.py --device cpu --dtype float32 --shapes 1x8x34x60x8x64 --turns 3

Memory's time is that of a copy of the same tensor: forward reads one and writes one; backward, of the two gradients together, reads
two and writes one. All ways take turns; times are medians, of one tensor. What torch's operations make is compared first.

Writes a file of JSON. Needs torch and the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import nhood.torch
import torch
from timing import medians_in_turn
from torch import Tensor

sys.path[:0] = map(str, Path(__file__).parents[1].iterdir())  # modules of all folders of bench
from report import find_commit, find_driver  # noqa: E402


class Shape(NamedTuple):
    sizes: tuple[int, ...]
    """batch, frames, rows, columns, heads, head dim"""
    norm: str = "head"

    @property
    def name(self) -> str:
        return "x".join(map(str, self.sizes)) + ("" if self.norm == "head" else f":{self.norm}")


SHAPES = [
    # LTX-2's diffusion decoder at 1088x1920, 121 frames
    Shape((1, 18, 34, 60, 32, 64)),
    Shape((1, 18, 68, 120, 16, 64)),
    Shape((1, 35, 68, 120, 8, 64)),
    Shape((1, 69, 136, 240, 8, 64)),
    Shape((1, 121, 272, 480, 4, 64)),
    # video transformers: a norm per head, and one of all heads together
    Shape((1, 30, 48, 80, 24, 128)),
    Shape((1, 21, 45, 80, 40, 128), "token"),
]


def dims_of(head_dim: int) -> tuple[int, int, int]:
    """How the decoder divides a head among the axes."""
    first = head_dim // 4 // 2 * 2
    return first, (head_dim - first) // 2, (head_dim - first) // 2


def of_torch(x: Tensor, tables: list[Tensor], weight: Tensor, norm: str) -> Tensor:
    """As models write it: norm, then each axis' part of a head by itself, in float32, and what was made joined."""
    channels = (x.shape[-1],) if norm == "head" else tuple(x.shape[-2:])
    normed = torch.nn.functional.rms_norm(x, channels, weight.view(channels), 1e-6)
    parts = []
    for axis, (table, part) in enumerate(zip(tables, normed.split([2 * t.shape[1] for t in tables], dim=-1))):
        angle = table.view(*(-1 if a == axis else 1 for a in range(len(tables))), 1, *table.shape[1:])
        cosine, sine = angle[..., 0], angle[..., 1]
        even, odd = part.unflatten(-1, (-1, 2)).float().unbind(-1)
        rotated = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1)
        parts.append(rotated.flatten(-2).to(x.dtype))
    return torch.cat(parts, dim=-1)


def of_nhood(x: Tensor, tables: list[Tensor], weight: Tensor, norm: str) -> Tensor:
    return nhood.torch.norm_rope(x, tables, weight, norm=norm)


def compare(name: str, found: Tensor, expected: Tensor) -> None:
    error = (found.double() - expected.double()).abs().max() / expected.double().abs().max()
    limit = 1e-4 if found.dtype == torch.float32 else 0.03
    if not error < limit:
        raise SystemExit(f"{name} differs by {error:.2g} of the largest value")


def time_shape(shape: Shape, arguments: argparse.Namespace) -> dict[str, Any]:
    torch._dynamo.reset()
    device, sizes = arguments.device, shape.sizes
    channels = sizes[-1] * (1 if shape.norm == "head" else sizes[-2])
    x = torch.randn(sizes, device=device, dtype=arguments.dtype)
    weight = torch.rand(channels, device=device, dtype=arguments.dtype) + 0.5
    tables = list(nhood.torch.rotary_tables(sizes[1:-2], dims_of(sizes[-1]), device=device))
    copy = torch.empty_like(x)
    ways = {"nhood": of_nhood}
    if arguments.all:
        ways |= {"eager": of_torch, "compiled": torch.compile(of_torch, fullgraph=True)}
        frame = (x[:, :1], [tables[0][:1], *tables[1:]], weight, shape.norm)
        compare(shape.name, of_nhood(*frame), of_torch(*frame))
    bytes_of_x = x.numel() * x.element_size()
    row: dict[str, Any] = {"shape": shape.name, "bytes": bytes_of_x}
    with torch.no_grad():
        calls: dict[str, Callable[[], Any]] = {"copy": lambda: copy.copy_(x)}
        calls |= {name: lambda way=way: way(x, tables, weight, shape.norm) for name, way in ways.items()}
        row["forward_ms"] = medians_in_turn(calls, arguments.turns)
    if bytes_of_x <= arguments.most_backward:
        del copy
        row["backward_ms"] = time_backward(x, tables, weight, shape, ways, arguments)
    for name in ("forward_ms", "backward_ms"):
        if name in row:
            moved = bytes_of_x * (2 if name == "forward_ms" else 3)
            print(f"{shape.name} {name} {row[name]}, nhood {moved / row[name]['nhood'] / 1e9:.3g} TB/s", flush=True)
    return row


def time_backward(
    x: Tensor, tables: list[Tensor], weight: Tensor, shape: Shape, ways: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, float]:
    """The gradients alone, of a forward pass that was made before; the eager formulation keeps more than there may be room for."""
    gradient = torch.randn_like(x)
    leaves = (x.requires_grad_(), weight.requires_grad_())
    calls: dict[str, Callable[[], Any]] = {}
    results = {}
    for name, way in ways.items():
        out = way(x, tables, weight, shape.norm)
        calls[name] = lambda out=out: torch.autograd.grad(out, leaves, gradient, retain_graph=True)
        results[name] = [found[:, :1] if found.dim() > 1 else found for found in calls[name]()]
    for name, found in results.items():
        for ours, theirs in zip(results["nhood"], found):
            compare(f"{shape.name}, gradients of {name}", ours, theirs)
    return medians_in_turn(calls, arguments.turns)


def shape_of(text: str) -> Shape:
    sizes, _, norm = text.partition(":")
    return Shape(tuple(map(int, sizes.split("x"))), norm or "head")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", type=shape_of, metavar="BxTxHxWxHEADSxDIM[:token]", default=SHAPES)
    parser.add_argument("--turns", type=int, default=5, help="(default 5)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--nhood-only", dest="all", action="store_false", help="leave torch's operations out")
    parser.add_argument(
        "--most-backward",
        type=float,
        default=2e9,
        metavar="BYTES",
        help="leave backward of larger tensors out (default 2e9)",
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench/norm_rope.json"), help="(default build/bench/norm_rope.json)")
    arguments = parser.parse_args()
    arguments.dtype = getattr(torch, arguments.dtype)
    return arguments


def main() -> None:
    arguments = parse_arguments()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    cuda = arguments.device.type == "cuda"
    found: dict[str, Any] = {"kind": "norm and rotary positions", "commit": find_commit(), "torch": torch.__version__}
    found["device"] = torch.cuda.get_device_name(arguments.device) if cuda else "cpu"
    if cuda:
        found["driver"] = find_driver()
    found |= {"dtype": str(arguments.dtype).removeprefix("torch."), "rows": []}
    for shape in arguments.shapes:
        found["rows"].append(time_shape(shape, arguments))
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
