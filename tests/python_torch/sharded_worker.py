"""One of several processes that run sharded attention and compare with one process' results.

    python sharded_worker.py RANK PROCESSES FOLDER cpu|cuda CREW CREWS

On the CPU by gloo, on GPUs, one for each process, by NCCL. Every CREWS-th case is this crew's. FOLDER has the store by which a
crew meets; each process writes its results there, as JSON: case -> "", what went wrong, or TOO_FEW.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from random import Random
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
except ImportError:  # torch 2.4
    from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_tensor

import nhood.models
import nhood.torch
from nhood.torch import distributed

CASES: dict[str, Callable[[], None]] = {}
CUDA_CASES: dict[str, Callable[[], None]] = {}
"""on GPUs besides, and first"""
MESHES: dict[tuple[int, ...], DeviceMesh] = {}
TOO_FEW = "too few processes"
device = torch.device("cpu")


class TooFew(Exception):
    """Processes, for a case."""


def mesh_of(*shape: int) -> DeviceMesh:
    """A mesh of the first processes; all have to make it, in the same order."""
    size = torch.Size(shape).numel()
    if size > dist.get_world_size():
        raise TooFew
    if shape not in MESHES:
        MESHES[shape] = DeviceMesh(device.type, torch.arange(size).view(shape), mesh_dim_names=tuple("uvw"[: len(shape)]))
    return MESHES[shape]


def named(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(case: Callable[[], None]) -> Callable[[], None]:
        CASES[name] = case
        return case

    return add


def shard_of(tensor: torch.Tensor, mesh: DeviceMesh, axes: Any, sizes: Any = None) -> torch.Tensor:
    """This process' part of [B, X.., ..]."""
    for axis, dimension in enumerate(axes):
        if dimension is None:
            continue
        index, count = mesh.get_local_rank(dimension), mesh.size("uvw".index(dimension))
        given = sizes[axis] if sizes else None
        parts = tensor.split(list(given), 1 + axis) if given else tensor.chunk(count, 1 + axis)
        tensor = parts[index]
    return tensor.detach().clone().contiguous()


def random_inputs(
    lengths: tuple[int, ...],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    extra: int,
    bias: Any,
    dim_v: Optional[int] = None,
    keys: Optional[tuple[int, ...]] = None,
):
    """dim_v: dim + 1 if it is not given; keys: lengths of keys that are not those of queries"""
    dim_v = dim_v or dim + 1
    make = torch.Generator().manual_seed(7)
    shapes = [(2, *lengths, heads, dim), *[(2, *(keys or lengths), kv_heads, width) for width in (dim, dim_v)]]
    tensors = [torch.randn(shape, generator=make, dtype=torch.float64) for shape in shapes]
    tensors.append(torch.randn((heads, *(2 * k - 1 for k in bias)), generator=make, dtype=torch.float64) if bias else None)
    for width in (dim, dim_v):
        shape = (2, extra, kv_heads, width)
        tensors.append(torch.randn(shape, generator=make, dtype=torch.float64) if extra else None)
    return [None if t is None else t.to(device, dtype).requires_grad_() for t in tensors]


def random_tensor(*shape: int, seed: int = 4) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)


def compare(
    what: str, got: torch.Tensor, expected: torch.Tensor, limit: float
) -> None:
    assert got.shape == expected.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    expected = expected.detach()
    scale = max(1.0, float(expected.abs().max()))
    error = float((got.detach().double() - expected.double()).abs().max()) / scale
    assert error <= limit, f"{what} is off by {error:g}, more than {limit:g}"


def check(
    shape: tuple[int, ...],
    axes: tuple[Any, ...],
    lengths: tuple[int, ...],
    kernel_size: Any,
    *,
    strategy: str = "halo",
    heads: int = 4,
    kv_heads: int = 4,
    dim: int = 4,
    dim_v: Optional[int] = None,
    dtype: torch.dtype = torch.float64,
    extra: int = 0,
    bias: bool = False,
    masked: bool = False,
    sizes: Any = None,
    known: bool = True,
    compiled: bool = False,
    **window: Any,
) -> None:
    """Outputs, log-sum-exps and all gradients against one process. masked: half of the bias, but what each query has for itself, is
    -infinity."""
    mesh = mesh_of(*shape)
    if mesh.get_coordinate() is None:
        return  # not of this mesh
    limit = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-2}[dtype]
    kernel = (kernel_size,) * len(lengths) if isinstance(kernel_size, int) else kernel_size
    keys = tuple(k.keys if isinstance(k, nhood.Windows) else n for k, n in zip(kernel, lengths))
    whole = random_inputs(lengths, heads, kv_heads, dim, dtype, extra, kernel if bias else None, dim_v, keys)
    if masked:
        low = random_tensor(*whole[3].shape) < 0
        low[(slice(None), *(k - 1 for k in kernel))] = False
        whole[3].data.masked_fill_(low, -torch.inf)
    named_extras = ("bias", "additional_keys", "additional_values")
    extras = dict(zip(named_extras, whole[3:]))
    out, lse = nhood.torch.neighborhood_attention(*whole[:3], kernel, return_lse=True, **extras, **window)
    weights = [random_tensor(*t.shape, seed=3) for t in (out, lse)]
    ((out * weights[0].to(dtype)).sum() + (lse * weights[1].to(lse.dtype)).sum()).backward()

    local = [shard_of(t, mesh, axes, sizes).requires_grad_() for t in whole[:3]]
    own_extras = {n: None if t is None else t.detach().clone().requires_grad_() for n, t in extras.items()}
    function = distributed.neighborhood_attention
    if compiled:
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    if known and not sizes:
        window = {**window, "grid": lengths}
    got, got_lse = function(
        *local, kernel, mesh=mesh, sharded_axes=axes, strategy=strategy, sizes=sizes, timeout=60.0, return_lse=True, **own_extras, **window
    )
    own_weights = [shard_of(w, mesh, axes, sizes) for w in weights]
    ((got * own_weights[0].to(dtype)).sum() + (got_lse * own_weights[1].to(lse.dtype)).sum()).backward()
    # Not before: what one process found wrong would leave the others waiting for it in backward.
    compare("out", got, shard_of(out, mesh, axes, sizes), limit)
    compare("lse", got_lse, shard_of(lse, mesh, axes, sizes), limit)
    for name, mine, full in zip(("d_query", "d_key", "d_value"), local, whole):
        compare(name, mine.grad, shard_of(full.grad, mesh, axes, sizes), 4 * limit)
    for name, mine in own_extras.items():
        if mine is not None:
            compare(f"d_{name}", mine.grad, extras[name].grad, 4 * limit)


# Every strategy, axis and kind of window

for strategy in ("halo", "heads", "gather", "auto"):
    for processes in (2, 3, 4):
        heads = 6 if processes == 3 else 4
        CASES[f"line-{strategy}-{processes}"] = lambda s=strategy, p=processes, h=heads: check(
            (p,), ("u",), (25,), 7, strategy=s, heads=h, kv_heads=h
        )
    CASES[f"plane-{strategy}-corners"] = lambda s=strategy: check((2, 2), ("v", "u"), (13, 11), (5, 4), strategy=s)
    CASES[f"volume-{strategy}"] = lambda s=strategy: check(
        (2, 2), (None, "u", "v"), (5, 9, 8), (3, 5, 4), strategy=s, bias=True
    )
    CASES[f"periodic-{strategy}"] = lambda s=strategy: check(
        (4,), ("u", None), (16, 5), (5, 3), strategy=s, is_periodic=(True, False), extra=3
    )

WINDOWS: dict[str, dict[str, Any]] = {
    "even": dict(kernel_size=6),
    "stride": dict(kernel_size=6, stride=3),
    "dilation": dict(kernel_size=5, dilation=3),
    "causal": dict(kernel_size=9, is_causal=True),
    "causal-stride-dilation": dict(kernel_size=6, stride=2, dilation=2, is_causal=True),
    "wider-than-shards": dict(kernel_size=23),
    "whole": dict(kernel_size=30),
    "periodic": dict(kernel_size=7, is_periodic=True),
    "periodic-stride-dilation": dict(kernel_size=5, stride=5, dilation=2, is_periodic=True),
    "periodic-whole": dict(kernel_size=30, is_periodic=True),
    "periodic-wide": dict(kernel_size=21, is_periodic=True),
}
for (name, window), processes in itertools.product(WINDOWS.items(), (2, 4)):
    CASES[f"window-{name}-{processes}"] = lambda w=window, p=processes: check((p,), ("u",), (30,), **w)

CASES["uneven"] = lambda: check((3,), ("u",), (21,), 5, sizes=[(2, 12, 7)], heads=6, kv_heads=6)
CASES["uneven-heads"] = lambda: check((3,), ("u",), (21,), 5, sizes=[(2, 12, 7)], heads=6, kv_heads=3, strategy="heads")
CASES["sizes-asked"] = lambda: check((3,), ("u", None), (20, 6), 5, known=False, heads=6, kv_heads=6)
CASES["shared-heads"] = lambda: check((4,), (None, "u"), (6, 17), 5, heads=4, kv_heads=2, extra=2)
CASES["f32"] = lambda: check((4,), ("u", None), (18, 9), 5, dtype=torch.float32, bias=True, extra=2)
CASES["bf16"] = lambda: check((2,), ("u", None), (18, 9), 5, dtype=torch.bfloat16)
CASES["compiled"] = lambda: check((4,), ("u", None), (18, 9), 5, dtype=torch.float32, compiled=True)
CASES["compiled-heads"] = lambda: check((4,), ("u", None), (18, 9), 5, strategy="heads", compiled=True)
# What two processes, and so two GPUs, can show of these
CASES["pair-uneven"] = lambda: check((2,), (None, "u"), (5, 21), 5, sizes=[None, (5, 16)], dtype=torch.float32)
CASES["pair-uneven-heads"] = lambda: check((2,), ("u",), (21,), 5, sizes=[(4, 17)], heads=4, kv_heads=2, strategy="heads")
CASES["pair-sizes-asked"] = lambda: check((2,), ("u", None), (20, 6), 5, known=False)
CASES["pair-compiled"] = lambda: check((2,), ("u", None), (18, 9), 5, dtype=torch.float32, compiled=True)
for strategy, dtype in itertools.product(("halo", "heads", "gather"), (torch.float32, torch.bfloat16)):
    CASES[f"pair-{strategy}-extras-{str(dtype)[6:]}"] = lambda s=strategy, d=dtype: check(
        (2,), ("u", None), (18, 9), 5, strategy=s, heads=4, kv_heads=2, dtype=d, bias=True, extra=3
    )



TABLE = nhood.Windows([(0, 2), (1, 2), (1, 3), (4, 0), (4, 1), (4, 3)], keys=7)
"""one query has no key"""
for strategy, compiled in itertools.product(("halo", "heads", "gather"), (False, True)):
    CASES[f"table-{strategy}{'-compiled' * compiled}"] = lambda s=strategy, c=compiled: check(
        (2,), (None, "u"), (6, 11), (TABLE, 5), strategy=s, kv_heads=2, compiled=c, extra=2
    )
CASES["table-axes"] = lambda: check(
    (2, 2), ("v", None, "u"), (9, 6, 8), (3, nhood.Windows.resampled(6, 4, 3), 5), extra=1, is_causal=(True, False, False)
)


def random_axis(random: Random, processes: int) -> tuple[Any, ...]:
    """length, kernel_size, stride, dilation, is_causal, is_periodic and the sizes of its shards"""
    kernel_size, dilation, is_periodic = random.randint(1, 5), random.choice((1, 1, 1, 2, 3)), random.random() < 0.3
    stride = random.choice((1, 1, random.randint(1, kernel_size)))
    length = dilation * kernel_size + random.randint(0, 6)
    if is_periodic:
        length = dilation * stride * (-(-kernel_size // stride) + random.randint(0, 3))
    if length < processes:
        return random_axis(random, processes)
    is_causal = not is_periodic and random.random() < 0.25
    cuts = sorted(random.sample(range(1, length), processes - 1))
    sizes = tuple(end - begin for begin, end in zip([0, *cuts], [*cuts, length]))
    return length, kernel_size, stride, dilation, is_causal, is_periodic, sizes


def check_random(shape: tuple[int, ...], axes: str, count: int, seed: int) -> None:
    """Small problems: along two axes of a mesh many queries have no key among those at hand, nor in their halos."""
    random, of_axis = Random(seed), dict(zip("uvw", shape))
    names = ("lengths", "kernel_size", "stride", "dilation", "is_causal", "is_periodic", "sizes")
    for _ in range(count):
        order = tuple(random.sample(axes, len(axes)))
        problem = dict(zip(names, zip(*(random_axis(random, of_axis[axis]) for axis in order))))
        problem["sizes"] = random.choice((problem["sizes"], None))
        problem["strategy"] = random.choice(("halo", "halo", "gather", "heads"))
        problem["extra"], problem["dtype"] = random.choice((0, 0, 2)), random.choice((torch.float64, torch.float32))
        problem["bias"] = random.random() < 0.5 and not any(problem["is_causal"])
        problem["masked"] = problem["bias"] and random.random() < 0.5
        try:
            check(shape, order, dim=2, **problem)
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"{order} {problem}: {error}") from error


for seed in range(2):
    CASES[f"random-plane-{seed}"] = lambda s=seed: check_random((2, 2), "uv", 60, s)
    CASES[f"random-volume-{seed}"] = lambda s=seed: check_random((1, 2, 2), "uvw", 40, s)

CASES["one-process"] = lambda: check((1,), ("u",), (12,), 5)
CASES["not-sharded"] = lambda: check((2,), (None, None), (12, 7), 5)


@named("dtensor")
def dtensor() -> None:
    mesh = mesh_of(2, 2)
    whole = random_inputs((14, 9), 4, 4, 4, torch.float64, 2, (5, 3))
    named_extras = ("bias", "additional_keys", "additional_values")
    out = nhood.torch.na2d(*whole[:3], (5, 3), **dict(zip(named_extras, whole[3:])))
    out.square().sum().backward()
    placements = [Shard(1), Shard(2)]
    parts = [distribute_tensor(t.detach(), mesh, placements).requires_grad_() for t in whole[:3]]
    extras = [distribute_tensor(t.detach(), mesh, [Replicate(), Replicate()]).requires_grad_() for t in whole[3:]]
    got = distributed.neighborhood_attention(*parts, (5, 3), **dict(zip(named_extras, extras)))
    assert isinstance(got, DTensor) and tuple(got.placements) == tuple(placements)
    compare("out", got.full_tensor(), out, 1e-13)
    got.square().sum().backward()
    for name, mine, full in zip(("query", "key", "value", *named_extras), (*parts, *extras), whole):
        compare(f"d_{name}", mine.grad.full_tensor(), full.grad, 1e-12)


class Layer(torch.nn.Module):
    """Projections around sharded attention, with a parameter that all processes have in common."""

    def __init__(self, mesh: DeviceMesh, strategy: str) -> None:
        super().__init__()
        self.project = torch.nn.Parameter(random_tensor(3, 4, 4))
        self.bias = torch.nn.Parameter(random_tensor(4, 9))
        self.named = dict(mesh=mesh, sharded_axes=("u",), grid=(18,), strategy=strategy)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return distributed.neighborhood_attention(*(x @ weight for weight in self.project), 5, bias=self.bias, **self.named)


@named("exported")
def exported() -> None:
    """A graph that holds only the operator trains as the module that it was made of."""
    mesh = mesh_of(2)
    if mesh.get_coordinate() is None:
        return
    x = shard_of(random_tensor(1, 18, 4, 4), mesh, ("u",))
    for strategy, strict in itertools.product(("halo", "heads"), (False, True)):
        layer = Layer(mesh, strategy)
        layer(x).square().sum().backward()
        expected = [parameter.grad.clone() for parameter in layer.parameters()]
        layer.zero_grad()
        program = torch.export.export(layer, (x,), strict=strict).module()
        program(x).square().sum().backward()
        for name, mine, full in zip(("project", "bias"), program.parameters(), expected):
            assert mine.grad is not None, f"{strategy}, strict {strict}: no gradient of {name}"
            compare(f"{strategy}, strict {strict}: d_{name}", mine.grad, full, 1e-13)


@named("derivatives")
def derivatives() -> None:
    """The first in reverse mode, also by torch.func; others are refused by all processes alike."""
    mesh = mesh_of(2)
    if mesh.get_coordinate() is None:
        return
    layer, x = Layer(mesh, "halo"), shard_of(random_tensor(1, 18, 4, 4), mesh, ("u",))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return layer(x).square().sum()

    wanted = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(wanted), wanted)
    compare("func.grad", torch.func.grad(loss)(x), expected, 1e-13)
    (gradient,) = torch.autograd.grad(loss(wanted), wanted, create_graph=True)
    for text, refused, error in (
        ("twice", gradient.sum().backward, RuntimeError),
        ("forward", lambda: torch.func.jvp(layer, (x,), (x,)), NotImplementedError),
        ("torch.vmap", lambda: torch.vmap(layer)(torch.stack([x, x])), NotImplementedError),
    ):
        try:
            refused()
        except error as caught:
            assert text in str(caught), f"{text}: {caught}"
        else:
            raise AssertionError(f"{text}: no {error.__name__}")


@named("dtensor-batch-and-heads")
def dtensor_batch() -> None:
    mesh = mesh_of(2, 2)
    whole = random_inputs((14, 9), 4, 4, 4, torch.float64, 0, None)
    out = nhood.torch.na2d(*whole[:3], 5)
    parts = [distribute_tensor(t.detach(), mesh, [Shard(0), Shard(3)]) for t in whole[:3]]
    compare("out", distributed.neighborhood_attention(*parts, 5).full_tensor(), out, 1e-13)


def check_module(make: Callable[[], torch.nn.Module], shape: tuple[int, ...], axes: Any, inputs: torch.Tensor, spatial: int) -> None:
    """A module on shards against itself on one process: outputs and gradients. `spatial`: where the grid's axes begin."""
    mesh = mesh_of(*shape)
    if mesh.get_coordinate() is None:
        return
    inputs = inputs.to(device)
    torch.manual_seed(1)
    whole = make().double().to(device)
    torch.manual_seed(1)
    parts = make().double().to(device)
    expected = whole(inputs)
    weights = random_tensor(*expected.shape, seed=2)
    (expected * weights).sum().backward()
    sharding = distributed.Sharding(mesh, axes, timeout=60.0)
    distributed.shard(parts, sharding)
    local = inputs.detach()
    own_weights, own_expected = weights, expected
    for axis, dimension in enumerate(axes):
        if dimension is not None:
            index, count = mesh.get_local_rank(dimension), mesh.size("uvw".index(dimension))
            local = local.chunk(count, spatial + axis)[index]
            if expected.dim() > 2:  # not the logits of a classifier
                own_weights = own_weights.chunk(count, 1 + axis)[index]
                own_expected = own_expected.chunk(count, 1 + axis)[index]
    got = parts(local)
    compare("out", got, own_expected, 1e-12)
    (got * own_weights).sum().backward()
    distributed.reduce_gradients(parts, sharding)
    for (name, mine), theirs in zip(parts.named_parameters(), whole.parameters()):
        compare(f"gradient of {name}", mine.grad, theirs.grad, 1e-11)


CASES["layer"] = lambda: check_module(
    lambda: nhood.torch.NeighborhoodAttention2D(16, 4, (5, 3), dilation=(2, 1), rel_pos_bias=True),
    (2, 2),
    ("u", "v"),
    random_tensor(2, 14, 9, 16),
    1,
)
CASES["model-nat"] = lambda: check_module(
    lambda: nhood.models.NAT(16, 2, (2, 1), 2.0, kernel_size=3, dilations=(2, 1), num_classes=5, drop_path_rate=0.0),
    (2, 2),
    ("u", "v"),
    random_tensor(1, 3, 64, 48),
    2,
)
CASES["model-dinats"] = lambda: check_module(
    lambda: nhood.models.DiNATs(16, 2, (1, 1), 2.0, kernel_size=3, num_classes=5, drop_path_rate=0.0),
    (4,),
    (None, "u"),
    random_tensor(1, 3, 24, 64),
    2,
)


@named("explain")
def explain() -> None:
    mesh = mesh_of(4)
    query = torch.empty(1, 64, 8, 6, 16, device=device)
    sharding = distributed.Sharding(mesh, ("u", None), grid=(256, 8))
    near = distributed.explain(query, query, query, 5, sharding)
    gather = next(choice for choice in near if choice.strategy == "gather")
    assert near[0].strategy == "halo" and near[0].sent_bytes < gather.sent_bytes
    heads = next(choice for choice in near if choice.strategy == "heads")
    assert heads.seconds == float("inf") and "4 processes do not divide 6 query heads" in heads.reason


@named("balanced")
def balanced() -> None:
    """Every process' queries attend as many keys as the others', but for a query's at each end; the results are right."""
    mesh, lengths, kernel, causal = mesh_of(2), (61, 6), (9, 3), (True, False)
    sizes = distributed.balanced_sizes(lengths, kernel, mesh, ("u", None), is_causal=causal, dilation=(2, 1))
    begin, end = 0, sizes[0][0]
    pairs = [sum(min(token // 2 + 1, 9) for token in range(*part)) for part in ((begin, end), (end, 61))]
    assert sizes[1] is None and sum(sizes[0]) == 61 and sizes[0][0] > 31 and abs(pairs[0] - pairs[1]) <= 9, (sizes, pairs)
    check((2,), ("u", None), lengths, kernel, sizes=sizes, is_causal=causal, dilation=(2, 1))
    even = distributed.balanced_sizes(lengths, kernel, mesh, ("u", None), multiple_of=8)
    assert even == ((32, 29), None), even
    try:
        distributed.balanced_sizes(lengths, kernel, mesh, ("u", None), multiple_of=99)
    except ValueError as error:
        assert "multiples of 99" in str(error)
    else:
        raise AssertionError("a shard without tokens")


def expect(kind: type[Exception], words: str, *arguments: Any, **named_arguments: Any) -> None:
    try:
        distributed.neighborhood_attention(*arguments, **named_arguments)
    except kind as error:
        assert words in str(error), f"{error} does not say {words!r}"
    else:
        raise AssertionError(f"no {kind.__name__}")


@named("bad-arguments")
def bad_arguments() -> None:
    mesh = mesh_of(4)
    x = torch.zeros(1, 5, 4, 4, 8, device=device)
    good = dict(mesh=mesh, sharded_axes=("u", None), grid=(20, 4))
    expect(TypeError, "mesh is None", x, x, x, 3)
    expect(ValueError, "'z' is not a dimension of the mesh", x, x, x, 3, **{**good, "sharded_axes": ("z", None)})
    expect(ValueError, "has not one entry for each of 2 axes", x, x, x, 3, **{**good, "sharded_axes": ("u",)})
    expect(ValueError, "two axes of the grid", x, x, x, 3, **{**good, "sharded_axes": ("u", "u")})
    expect(ValueError, "its shard", x, x, x, 3, **{**good, "grid": (24, 4)})
    expect(ValueError, "not one for each of 4 processes", x, x, x, 3, **{**good, "grid": (5, 4)})
    expect(ValueError, "kernel_size[0] = 21", x, x, x, (21, 3), **good)
    expect(ValueError, "stride[1] = 4", x, x, x, 3, stride=(1, 4), **good)
    expect(ValueError, "a causal axis cannot wrap", x, x, x, 3, is_causal=True, is_periodic=True, **good)
    expect(ValueError, "strategy = 'fast'", x, x, x, 3, strategy="fast", **good)
    three = torch.zeros(1, 5, 4, 3, 8, device=device)
    expect(ValueError, "do not divide 3 query heads", three, three, three, 3, strategy="heads", **good)
    expect(ValueError, "key.shape", x, x[:, :3], x, 3, **good)
    table = nhood.Windows.cut(20, 3)
    expect(NotImplementedError, "kernel_size[0] = Windows.cut(length=20, size=3): axis 0 is sharded", x, x, x, (table, 3), **good)
    expect(ValueError, "kernel_size[1] = Windows.cut(length=20, size=3) has 20 queries, axis 1 of query has 4", x, x, x, (3, table), **good)
    expect(ValueError, "key.shape", x, x, x, (3, nhood.Windows.resampled(4, 9, 3)), **good)


@named("differing-arguments")
def differing_arguments() -> None:
    """An argument that one process has otherwise is named in all, by calls and compiled calls, and the group goes on."""
    mesh, rank = mesh_of(2, 2), dist.get_rank()
    x = torch.zeros(1, 5, 4, 4, 8, device=device)
    extra, bias = torch.zeros(1, 3, 4, 8, device=device), torch.zeros(4, 5, 5, device=device)
    same = dict(kernel_size=3, mesh=mesh, sharded_axes=("u", "v"), grid=(10, 8), timeout=60.0)
    others: dict[str, Any] = {
        "kernel_size": dict(kernel_size=(3, 5)),
        "stride": dict(stride=3),
        "dilation": dict(dilation=(1, 2)),
        "is_causal": dict(is_causal=True),
        "is_periodic": dict(is_periodic=(True, False)),
        "scale": dict(scale=0.5),
        "sharded_axes": dict(sharded_axes=("v", "u")),
        "grid": dict(grid=(12, 8)),
        "sizes": dict(sizes=((5, 6), (4, 4))),
        "bias.shape": dict(bias=bias),
        "additional_keys.shape": dict(additional_keys=extra, additional_values=extra),
        "strategy": dict(strategy="gather"),
        "query.dtype": x.double(),
        "query.shape": torch.zeros(2, 5, 4, 4, 8, device=device),
        "key.shape[-2:]": (x, x[..., :2, :], x[..., :2, :]),
        "value.shape[-2:]": (x, x, x[..., :7]),
    }
    torch.compiler.reset()  # as many graphs of a function as are kept may be there
    compiled = torch.compile(distributed.neighborhood_attention, fullgraph=True, backend="aot_eager")
    for i, (name, other) in enumerate(others.items()):
        tensors, named, differs = (x, x, x), dict(same), rank == i % 4
        if differs and isinstance(other, dict):
            named.update(other)
        elif differs:
            tensors = other if isinstance(other, tuple) else (other,) * 3
        traced = name in ("stride", "scale", "additional_keys.shape")
        for function in [distributed.neighborhood_attention] + [compiled] * traced:
            try:
                function(*tensors, **named)
            except ValueError as error:
                message = str(error)
            else:
                raise AssertionError(f"{name}: no ValueError")
            start = f"{name} is not the same in all processes that share the grid: "
            assert message.startswith(start) and f"process {i % 4}" in message, f"{name}: {message}"
    q, k, v = (x.clone().requires_grad_() for _ in range(3))
    out = distributed.neighborhood_attention(q, k, v, bias=bias.clone().requires_grad_(rank != 2), **same)
    try:
        out.sum().backward()
    except ValueError as error:
        assert "the gradient of bias is not the same" in str(error), error
    else:
        raise AssertionError("gradients of the bias in three of four processes")
    torch.testing.assert_close(distributed.neighborhood_attention(x + rank, x, x, **same), x)


@named("arguments-compared-once")
def arguments_compared_once() -> None:
    """No collective but those of the exchange from the second call of a problem on."""
    mesh = mesh_of(2, 2)
    x = torch.zeros(1, 7, 4, 4, 8, device=device).requires_grad_()
    same = dict(kernel_size=3, mesh=mesh, sharded_axes=("u", "v"), grid=(14, 8), strategy="halo", timeout=60.0)
    real, calls = dist.all_gather, []

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(named["group"].group_name)
        return real(*arguments, **named)

    dist.all_gather = counted
    try:
        for times in range(3):
            distributed.neighborhood_attention(x, x, x, **same).sum().backward()
            assert len(calls) == 4, calls  # forward and backward, two axes
        distributed.neighborhood_attention(x, x, x, **{**same, "kernel_size": 4})
        assert len(calls) == 6, calls
    finally:
        dist.all_gather = real


@named("missing-process")
def missing_process() -> None:
    """The last process does not take part: the others fail and do not hang. By NCCL, which waits only for processes that send
    something, those that are not beside it may also succeed. It is the last case, as its group is of no use afterwards."""
    processes = dist.get_world_size()
    mesh = mesh_of(processes)
    x = torch.zeros(1, 20 // processes, 4, 8, device=device)
    all_the_same = dict(mesh=mesh, sharded_axes=("u",), strategy="halo", grid=(20,))
    distributed.neighborhood_attention(x, x, x, 7, **all_the_same)
    if dist.get_rank() == processes - 1:
        return
    if dist.get_backend() == "gloo" or dist.get_rank() == processes - 2:
        expect(RuntimeError, "", x, x, x, 7, timeout=2.0, **all_the_same)
    else:
        with contextlib.suppress(RuntimeError):
            distributed.neighborhood_attention(x, x, x, 7, timeout=2.0, **all_the_same)


# Large enough, and of head dims, for the solvers that the problems of docs/distributed.md get

LARGE: dict[str, dict[str, Any]] = {
    "line": dict(lengths=(1500,), kernel_size=257),
    "line-causal": dict(lengths=(1500,), kernel_size=257, is_causal=True),
    "line-dilated": dict(lengths=(1500,), kernel_size=101, dilation=3),
    "line-strided": dict(lengths=(1500,), kernel_size=256, stride=32),
    "line-periodic": dict(lengths=(1536,), kernel_size=257, is_periodic=True),
    "line-uneven": dict(lengths=(1500,), kernel_size=257, sizes=[(411, 1089)]),
    "line-wide": dict(lengths=(1500,), kernel_size=1301),
    "line-shared-heads": dict(lengths=(1500,), kernel_size=257, kv_heads=2),
    "plane": dict(lengths=(40, 70), kernel_size=(9, 23)),
    "plane-bias": dict(lengths=(40, 70), kernel_size=(9, 23), bias=True),
    "plane-extra": dict(lengths=(40, 70), kernel_size=(9, 23), extra=17),
    "plane-causal-periodic": dict(lengths=(40, 72), kernel_size=(9, 23), is_causal=(True, False), is_periodic=(False, True)),
    "volume": dict(lengths=(9, 14, 40), kernel_size=(5, 7, 12)),
    "volume-planes": dict(lengths=(12, 20, 56), kernel_size=(5, 11, 11)),
    "volume-causal-dilated": dict(lengths=(9, 14, 40), kernel_size=(5, 7, 9), is_causal=(True, False, False), dilation=(1, 1, 2)),
}
for (name, case), dtype in itertools.product(LARGE.items(), (torch.bfloat16, torch.float32)):
    axes = (None,) * (len(case["lengths"]) - 1) + ("u",)
    # nearly all of their time is compilation, of which float32 takes most: of it the strategy with most launches
    for strategy in ("halo", "heads", "gather") if dtype is torch.bfloat16 else ("halo",):
        CUDA_CASES[f"large-{name}-{strategy}-{str(dtype)[6:]}"] = lambda c=case, a=axes, s=strategy, d=dtype: check(
            (2,), a, strategy=s, dtype=d, dim=64, dim_v=64, **c
        )


def start(processes: int, folder: Path, device_type: str, crews: int = 1) -> list[dict[str, str]]:
    """Runs the cases in so many processes, shared by crews of as many each; what each found, by case."""
    command = [sys.executable, __file__]
    # After an error NCCL's watchdog is to leave the process alive, which has results to write.
    environment = {**os.environ, "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}
    running = [
        subprocess.Popen(list(map(str, [*command, rank, processes, folder, device_type, crew, crews])), env=environment)
        for crew, rank in itertools.product(range(crews), range(processes))
    ]
    deadline = time.monotonic() + 600
    try:
        for process in running:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
    finally:
        for process in running:
            process.kill()
    results: list[dict[str, str]] = [{} for _ in range(processes)]
    for crew, rank in itertools.product(range(crews), range(processes)):
        results[rank].update(json.loads((folder / f"{crew}.{rank}.json").read_text()))
    return results


def verdict(results: list[dict[str, str]], case: str) -> bool:
    """Whether the case was run, for which there may have been too few processes. AssertionError if it failed."""
    for rank, found in enumerate(results):
        assert case in found, f"process {rank} did not come to it"
        assert found[case] in ("", TOO_FEW), f"process {rank}: {found[case]}"
    return results[0][case] == ""


def main() -> None:
    global device
    rank, processes, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    crew, crews = map(int, sys.argv[5:7])
    torch.set_num_threads(1)
    nhood.configure(threads=1)
    cuda = sys.argv[4] == "cuda"
    if cuda:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    store = dist.FileStore(str(folder / f"{crew}.store"), processes)
    dist.init_process_group(
        "nccl" if cuda else "gloo", store=store, rank=rank, world_size=processes, timeout=datetime.timedelta(seconds=120)
    )
    for shape in ((1,), (2,), (3,), (4,), (2, 2), (1, 2, 2)):
        if torch.Size(shape).numel() <= processes:
            mesh_of(*shape)
    results = {}
    cases = {**(CUDA_CASES if cuda else {}), **CASES}
    for name in list(cases)[crew::crews]:
        try:
            cases[name]()
            results[name] = ""
        except TooFew:
            results[name] = TOO_FEW
        except Exception:  # told to the test
            results[name] = traceback.format_exc()
        (folder / f"{crew}.{rank}.json").write_text(json.dumps(results))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # groups that a process has left hang in their destructors
