"""A problem of bench/sharded/sharded.py: its tensors, whole and sharded, and the calls that are timed."""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import nhood.torch
import torch
import torch.distributed as dist
from nhood import _library as c
from nhood.torch import distributed
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
NAMES = "uvw"

Forward = Callable[..., Tensor]
"""(query, key, value) -> out"""


@dataclass(frozen=True)
class Problem:
    text: str
    """without operation and dtype"""
    dtype: str
    shards: tuple[int, ...]
    """per axis"""
    lengths: tuple[int, ...]
    window: tuple[int, ...]
    options: dict[str, tuple[int, ...]]
    """stride, dilation, is_causal, is_periodic"""
    batch: int
    heads: int
    kv_heads: int
    dim: int
    dim_v: int

    @staticmethod
    def parse(text: str, dtype: str, processes: int) -> Problem:
        """Reads TEXT or TEXT@SHARDS, such as @1x2x2."""
        text, _, given = text.partition("@")
        problem = c.Problem(struct_size=ctypes.sizeof(c.Problem))
        whole = f"fwd:{dtype}:{text}"
        c.check(c.lib.nhood_problem_parse_sized(whole.encode(), ctypes.byref(problem), ctypes.sizeof(problem)))
        regions = any(region.query_length or region.key_length for region in problem.region)
        if problem.extra_tokens or problem.has_bias or not math.isnan(problem.scale) or regions:
            raise SystemExit(f"{text}: only whole grids, without extra tokens, bias and scale")
        axes = problem.axis[: problem.rank]
        shards = tuple(map(int, given.split("x"))) if given else (1,) * (len(axes) - 1) + (processes,)
        if len(shards) != len(axes) or math.prod(shards) != processes:
            raise SystemExit(f"{text}@{given}: not one number for each of {len(axes)} axes, whose product is {processes}")
        return Problem(
            text,
            dtype,
            shards,
            tuple(a.length for a in axes),
            tuple(a.window for a in axes),
            {
                "stride": tuple(a.stride for a in axes),
                "dilation": tuple(a.dilation for a in axes),
                "is_causal": tuple(bool(a.causal) for a in axes),
                "is_periodic": tuple(bool(a.periodic) for a in axes),
            },
            problem.batch,
            problem.heads,
            problem.kv_heads or problem.heads,
            problem.dim,
            problem.dim_v or problem.dim,
        )

    def grown(self, factor: float, tile: int) -> Problem:
        """With the first axis longer, by a multiple of `tile` tokens."""
        length = max(1, round(self.lengths[0] * factor / tile)) * tile
        head, sizes, rest = self.text.split(":", 2)
        sizes = "x".join(map(str, (length, *self.lengths[1:])))
        return Problem.parse(f"{head}:{sizes}:{rest}@{'x'.join(map(str, self.shards))}", self.dtype, self.processes)

    @property
    def processes(self) -> int:
        return math.prod(self.shards)

    @property
    def shards_text(self) -> str:
        return "x".join(map(str, self.shards))

    def shapes(self, lengths: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The shapes of query, key, value and out."""
        heads = ((self.heads, self.dim), (self.kv_heads, self.dim), (self.kv_heads, self.dim_v), (self.heads, self.dim_v))
        return [(self.batch, *lengths, *pair) for pair in heads]

    def random(self, lengths: tuple[int, ...], device: torch.device, seed: int) -> tuple[list[Tensor], Tensor]:
        """query, key and value, which take gradients, and a gradient of out."""
        make = torch.Generator(device).manual_seed(seed)
        shapes = self.shapes(lengths)
        found = [torch.randn(s, dtype=DTYPES[self.dtype], device=device, generator=make) for s in shapes]
        return [tensor.requires_grad_() for tensor in found[:3]], found[3]

    def one(self, *inputs: Tensor) -> Tensor:
        return nhood.torch.neighborhood_attention(*inputs, self.window, **self.options)


_meshes: dict[tuple[Any, ...], DeviceMesh] = {}


def mesh_of(device: torch.device, extents: tuple[int, ...], blocks: int) -> DeviceMesh:
    """All processes. blocks: of a collective's kernel on CUDA at most, a multiprocessor each; 0: NCCL's choice."""
    if (device.type, extents, blocks) not in _meshes:
        names = tuple(NAMES[: len(extents)])
        groups = {}
        if device.type == "cuda" and blocks:
            options = dist.ProcessGroupNCCL.Options()
            options.config.max_ctas = blocks
            groups["backend_override"] = {name: ("nccl", options) for name in names}
        _meshes[device.type, extents, blocks] = init_device_mesh(device.type, extents, mesh_dim_names=names, **groups)
    return _meshes[device.type, extents, blocks]


class Shards:
    """How the processes share a problem's grid."""

    def __init__(self, problem: Problem, device: torch.device, blocks: int, balanced: bool) -> None:
        """blocks: see mesh_of; balanced: of lengths with which all compute about as much, else of equal ones."""
        self.problem = problem
        self.mesh = mesh_of(device, tuple(count for count in problem.shards if count > 1) or (1,), blocks)
        names = iter(NAMES)
        self.axes = tuple(next(names) if count > 1 else None for count in problem.shards)
        grid, options = problem.lengths, problem.options if balanced else {}
        self.sizes = distributed.balanced_sizes(grid, problem.window, self.mesh, self.axes, **options)

    def own(self, tensor: Tensor) -> Tensor:
        """This process' part of [B, X.., ..], not copied."""
        for axis, name in enumerate(self.axes):
            if name is not None:
                parts = tensor.split(list(self.sizes[axis] or ()), 1 + axis)
                tensor = parts[self.mesh.get_local_rank(name)]
        return tensor

    @property
    def lengths(self) -> tuple[int, ...]:
        """The extents of this process' part."""
        return tuple(self.own(torch.empty((1, *self.problem.lengths), device="meta")).shape[1:])

    def sharding(self, strategy: str) -> distributed.Sharding:
        return distributed.Sharding(self.mesh, self.axes, sizes=self.sizes, strategy=strategy)

    def forward(self, strategy: str, **more: Any) -> Forward:
        sharding = {**self.sharding(strategy)._asdict(), **self.problem.options, **more}
        return lambda *inputs: distributed.neighborhood_attention(*inputs, self.problem.window, **sharding)

    def explain(self, inputs: list[Tensor]) -> list[distributed.Choice]:
        return distributed.explain(*inputs, self.problem.window, self.sharding("auto"), **self.problem.options)


def simulated(problem: Problem) -> dict[str, dict[str, dict[str, float]]]:
    """What `nhood simulate --gpus` predicts: operation -> strategy -> its members. Nothing where there is no tool."""
    beside = Path(os.environ.get("NHOOD_LIBRARY", "")).with_name("nhood")
    tool: Optional[str] = str(beside) if beside.is_file() else shutil.which("nhood")
    found: dict[str, dict[str, dict[str, float]]] = {"fwd": {}, "bwd": {}}
    for operation, by_strategy in found.items():
        text = f"{operation}:{problem.dtype}:{problem.text}"
        command = [tool or "", "simulate", "--gpus", str(problem.processes), "--json", text]
        done = subprocess.run(command, capture_output=True, text=True) if tool else None
        if done is None or done.returncode:
            continue
        for sharding in json.loads(done.stdout)["shardings"]:
            if sharding["strategy"] == "heads" or sharding["shards"] == problem.shards_text:
                by_strategy[sharding["strategy"]] = sharding
    return found
