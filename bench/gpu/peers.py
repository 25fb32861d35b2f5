#!/usr/bin/env python3
"""Times nhood.torch beside other attention on a GPU, all in one run, f16 and bf16, forward and backward.

    cuDNN, flash   scaled_dot_product_attention over all keys without a mask, by these backends: not neighborhood
                   attention, but the dense attention that one replaces by it
    flex           torch's FlexAttention, compiled, with the window as a block mask; tokens in row-major order
    flash4         FlashAttention 4 (the package flash_attn.cute). In 1-D, without stride and dilation, by its own windows:
                   at both ends they shrink where a neighborhood is shifted, and results are compared elsewhere. Else, and
                   where that leaves out a tenth of all pairs of query and key, by FlexAttention with its kernels
                   (`BACKEND`: `FLASH`), on tokens that lie tile after tile of 128, so that whole blocks of keys are outside
                   a window; bringing them into that order is not timed
    flash4 dense   the same package over all keys, as cuDNN and flash
    NATTEN         natten's na1d, na2d or na3d with the tiles that it chooses by itself

Contenders take turns, since a GPU's clock follows its temperature and power; times are medians over turns, between
events on the stream. Before each call a buffer larger than the L2 cache is written, which also hides what the call
costs on the CPU. A backward is torch.autograd.grad of a forward already done. Results of flex and nhood are compared
before anything is timed. FLOPs are useful ones, as `nhood bench` counts them; "ideal" is all keys / window.

Problems are texts of the nhood tool (`nhood --help`), given as arguments or in files, one a line.
Needs torch and the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import nhood
import nhood.torch
import torch
import torch._functorch.config
from nhood import _library as c
from nhood import _plans
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

SUITE = Path(__file__).parents[1] / "suites" / "cuda.txt"
FLUSH_BYTES = 2 << 30  # beyond any L2, and half a millisecond: an operation is launched while that goes on
FULL_MS, CALLS = 50.0, 10  # a turn is as many calls as take that long, but so many at most
LARGEST_ERROR = 0.03  # of the largest value, between two ways to the same result in bf16

c.lib.nhood_problem_cost.argtypes = [ctypes.POINTER(c.Problem), ctypes.c_void_p, ctypes.c_void_p]


class Absent(Exception):
    """Why a contender does not take part."""


@dataclass(frozen=True)
class Axis:
    length: int
    window: int
    stride: int
    dilation: int
    causal: bool

    @staticmethod
    def inside_grid(leader: Any, last: Any, before: int) -> Any:
        """So many places before the leader, which is at most the last one; `where`, as flash4 takes no minimum."""
        start = torch.where(leader < last, leader, last) - before
        return torch.where(start > 0, start, torch.zeros_like(start))

    def inside(self, query: Any, key: Any) -> Any:
        """Whether the key at this place is in the query's window: nhood.h's definition, for tensors of places."""
        position, group, size = query, 0, self.length
        if self.dilation > 1:
            position, group = query // self.dilation, query % self.dilation
            size = (self.length - group + self.dilation - 1) // self.dilation
        first = position // self.stride * self.stride if self.stride > 1 else position
        last = torch.zeros_like(position) + size - 1
        if self.causal:
            start, end = self.inside_grid(first + self.stride - 1, last, self.window - 1), position + 1
        else:
            start = self.inside_grid(first + self.stride // 2, last, self.window // 2)
            start = torch.where(start < last + 1 - self.window, start, last + 1 - self.window)
            end = start + self.window
        place = key // self.dilation if self.dilation > 1 else key
        found = (place >= start) & (place < end)
        return found & (key % self.dilation == group) if self.dilation > 1 else found


@dataclass(frozen=True)
class Problem:
    text: str
    backward: bool
    dtype: torch.dtype
    axes: tuple[Axis, ...]
    batch: int
    heads: int
    kv_heads: int
    dim: int
    dim_v: int
    bias: bool
    flops: float
    solver: str

    @staticmethod
    def parse(text: str, device: int) -> Problem:
        problem, flops = parse_problem(text), ctypes.c_double()
        c.check(c.lib.nhood_problem_cost(ctypes.byref(problem), ctypes.byref(flops), None))
        if problem.op not in (c.OP_FWD, c.OP_BWD) or problem.extra_tokens or not math.isnan(problem.scale):
            raise SystemExit(f"{text}: only fwd and bwd without extra tokens and scale")
        if problem.dtype not in (c.DTYPE_F16, c.DTYPE_BF16):
            raise SystemExit(f"{text}: only f16 and bf16")
        return Problem(
            text,
            problem.op == c.OP_BWD,
            torch.float16 if problem.dtype == c.DTYPE_F16 else torch.bfloat16,
            tuple(
                Axis(a.length, a.window, a.stride, a.dilation, bool(a.causal)) for a in problem.axis[: problem.rank]
            ),
            problem.batch,
            problem.heads,
            problem.kv_heads or problem.heads,
            problem.dim,
            problem.dim_v or problem.dim,
            bool(problem.has_bias),
            flops.value,
            chosen_config(problem, device).split()[0],
        )

    @property
    def tokens(self) -> int:
        return math.prod(axis.length for axis in self.axes)

    @property
    def keys(self) -> int:
        return math.prod(axis.window for axis in self.axes)

    @property
    def dense_gflop(self) -> float:
        """Operations of attention over all keys."""
        return self.flops * self.tokens / self.keys * 1e-9

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(axis.length for axis in self.axes)

    @property
    def widths(self) -> tuple[tuple[int, int], ...]:
        """heads and head dim of query, key, value, out"""
        return (
            (self.heads, self.dim),
            (self.kv_heads, self.dim),
            (self.kv_heads, self.dim_v),
            (self.heads, self.dim_v),
        )

    def tensors(self, device: torch.device) -> list[Tensor]:
        """query, key, value, d_out, heads last"""
        generator = torch.Generator(device).manual_seed(1)
        return [
            torch.randn(self.batch, *self.lengths, *width, dtype=self.dtype, device=device, generator=generator)
            for width in self.widths
        ]

    def sequences(self, device: torch.device) -> list[Tensor]:
        """The same as torch's attention likes them: [B, H, N, D], packed."""
        return [t.flatten(1, -3).transpose(1, 2).contiguous() for t in self.tensors(device)]


def parse_problem(text: str) -> c.Problem:
    problem = c.Problem()
    c.check(c.lib.nhood_problem_parse_sized(text.encode(), ctypes.byref(problem), ctypes.sizeof(problem)))
    return problem


def chosen_config(problem: c.Problem, device: int) -> str:
    """The solver that the library chooses, and its config."""
    owner, context = _plans.PlanOwner(), _plans.current_context()
    c.check(c.lib.nhood_plan_create(context.handle, device, problem, None, ctypes.byref(owner.handle)))
    return c.text(c.lib.nhood_plan_description(owner.handle)).split(": ", 1)[1].split(", ")[0].split("; ")[0]


@dataclass
class Contender:
    name: str
    call: Callable[[], Any]
    result: Optional[Callable[[], Tensor]] = None
    """out, or d_query, heads last with one axis of tokens; None if it computes something else"""
    same: tuple[int, Optional[int]] = (0, None)
    """the tokens [first, end) whose windows are those of nhood"""
    turns: list[float] = field(default_factory=list)
    fastest_ms: float = math.inf
    """of all calls: any other may have waited for another process"""

    def time(self, clock: Clock) -> float:
        ms = clock.time(self.call)
        self.fastest_ms = min(self.fastest_ms, ms)
        return ms

    @property
    def ms(self) -> float:
        return statistics.median(self.turns)

    @property
    def spread(self) -> float:
        return (max(self.turns) - min(self.turns)) / self.ms


def contender(
    name: str,
    problem: Problem,
    attention: Callable[[Tensor, Tensor, Tensor], Tensor],
    tensors: list[Tensor],
    tokens_last: Optional[Callable[[Tensor], Tensor]],
    same: tuple[int, Optional[int]] = (0, None),
) -> Contender:
    """`tokens_last` brings a result to [B, N, H, D]; None if it is not to be compared."""
    *inputs, d_out = tensors
    if problem.backward:
        for tensor in inputs:
            tensor.requires_grad_()
        out = attention(*inputs)

        def call() -> Any:
            return torch.autograd.grad(out, inputs, d_out, retain_graph=True)

        def first() -> Tensor:
            return call()[0]
    else:

        def call() -> Any:
            with torch.no_grad():
                return attention(*inputs)

        first = call
    call()
    return Contender(name, call, tokens_last and (lambda: tokens_last(first())), same)


def nhood_contender(problem: Problem, device: torch.device) -> Contender:
    function = getattr(nhood.torch, f"na{len(problem.axes)}d")
    names = dict(kernel_size="window", stride="stride", dilation="dilation", is_causal="causal")
    axes = {name: tuple(getattr(a, value) for a in problem.axes) for name, value in names.items()}
    tensors = problem.tensors(device)
    if not problem.bias:
        return contender("nhood", problem, lambda *t: function(*t, **axes), tensors, lambda t: t.flatten(1, -3))
    table = [2 * axis.window - 1 for axis in problem.axes]
    bias = torch.randn(problem.heads, *table, dtype=problem.dtype, device=device)
    *inputs, d_out = tensors
    return contender(
        "nhood",
        problem,
        lambda query, key, value, bias: function(query, key, value, bias=bias, **axes),
        [*inputs, bias, d_out],
        None,
    )


def dense_contender(name: str, backend: SDPBackend, problem: Problem, device: torch.device) -> Contender:
    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, enable_gqa=problem.kv_heads != problem.heads
            )

    return contender(name, problem, attention, problem.sequences(device), None)


def natten_contender(problem: Problem, device: torch.device) -> Contender:
    if problem.bias:
        raise Absent("it has no bias")
    try:
        import natten
    except ImportError as error:
        raise Absent("it is not installed") from error
    function = getattr(natten, f"na{len(problem.axes)}d")
    names = dict(kernel_size="window", stride="stride", dilation="dilation", is_causal="causal")
    axes = {name: tuple(getattr(a, value) for a in problem.axes) for name, value in names.items()}
    return contender("NATTEN", problem, lambda *t: function(*t, **axes), problem.tensors(device), lambda t: t.flatten(1, -3))


Places = Callable[[Any], list[Any]]
"""Coordinates of the n-th token, for tensors of such numbers."""


def masked_contender(
    name: str, problem: Problem, device: torch.device, places: Places, order: Optional[Tensor], block: int, **kernel: Any
) -> Contender:
    """FlexAttention. `order`: which token is the n-th; None: as they lie."""
    if problem.bias:
        raise Absent("a bias is not given to it here")

    def in_window(batch: Any, head: Any, query: Any, key: Any) -> Any:
        found = True
        for axis, at, of in reversed(list(zip(problem.axes, places(query), places(key)))):
            found = axis.inside(at, of) & found
        return found

    torch._dynamo.reset()
    # compiled, it does not write out the mask of every query and key
    make_mask = torch.compile(create_block_mask)
    mask = make_mask(in_window, None, None, problem.tokens, problem.tokens, device=str(device), BLOCK_SIZE=block)
    compiled = torch.compile(flex_attention, dynamic=False)

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        gqa = problem.kv_heads != problem.heads
        return compiled(query, key, value, block_mask=mask, enable_gqa=gqa, **kernel)

    def tokens_last(out: Tensor) -> Tensor:
        out = out.transpose(1, 2)
        return out if order is None else torch.empty_like(out).index_copy_(1, order, out)

    tensors = problem.sequences(device)
    if order is not None:
        tensors = [t[:, :, order].contiguous() for t in tensors]
    return contender(name, problem, attention, tensors, tokens_last)


def flex_contender(problem: Problem, device: torch.device) -> Contender:
    def places(token: Any) -> list[Any]:
        found = []
        for axis in reversed(problem.axes):
            found.insert(0, token % axis.length)
            token = token // axis.length
        return found

    return masked_contender("flex", problem, device, places, None, 128)


FLASH4_LACKING = 0.1  # of all pairs
FLASH4_TILES = {1: (128,), 2: (8, 16), 3: (2, 8, 8)}


def in_tiles(lengths: tuple[int, ...], tile: tuple[int, ...]) -> Places:
    """Tokens that lie tile after tile, and in row-major order within one."""
    size = math.prod(tile)

    def places(token: Any) -> list[Any]:
        found, inside, outside = [], token % size, token // size
        for length, extent in reversed(list(zip(lengths, tile))):
            found.insert(0, outside % (length // extent) * extent + inside % extent)
            inside, outside = inside // extent, outside // (length // extent)
        return found

    return places


def flash4_function() -> Callable[..., Tensor]:
    """On [B, N, H, D]."""
    try:
        from flash_attn.cute.interface import flash_attn_func
    except ImportError as error:
        raise Absent("flash_attn.cute is not installed") from error

    def attention(*tensors: Tensor, **options: Any) -> Tensor:
        found = flash_attn_func(*tensors, **options)
        return found[0] if isinstance(found, tuple) else found  # with the log-sum-exps

    return attention


def flash4_contender(problem: Problem, device: torch.device) -> Contender:
    attention = flash4_function()
    if sides := flash4_sides(problem):
        return flash4_line_contender(problem, device, attention, *sides)
    tile = FLASH4_TILES[len(problem.axes)]
    if any(length % extent for length, extent in zip(problem.lengths, tile)):
        raise Absent(f"lengths are no multiples of its tile of {'x'.join(map(str, tile))}")
    torch._functorch.config.donated_buffer = False  # or a graph has one backward only
    places, order = in_tiles(problem.lengths, tile), torch.zeros(problem.tokens, dtype=torch.long, device=device)
    for length, place in zip(problem.lengths, places(torch.arange(problem.tokens, device=device))):
        order = order * length + place
    return masked_contender("flash4", problem, device, places, order, 128, kernel_options={"BACKEND": "FLASH"})


def flash4_sides(problem: Problem) -> Optional[tuple[int, int]]:
    """How many keys before and behind a query its window has, if windows of FlashAttention are those of the problem but for the
    ends, and have nearly as many keys."""
    axis, *others = problem.axes
    if others or axis.stride > 1 or axis.dilation > 1:
        return None
    if axis.causal:
        return axis.window - 1, 0
    left, right = axis.window // 2, axis.window - 1 - axis.window // 2
    lacking = (left * (left + 1) + right * (right + 1)) / 2
    return (left, right) if lacking < FLASH4_LACKING * axis.length * axis.window else None


def flash4_line_contender(
    problem: Problem, device: torch.device, attention: Callable[..., Tensor], left: int, right: int
) -> Contender:
    if problem.bias:
        raise Absent("it has no bias")
    (axis,) = problem.axes
    same = (0, None) if axis.causal else (left, axis.length - right)  # causal windows are cut at the first token by both

    def in_windows(*tensors: Tensor) -> Tensor:
        return attention(*tensors, causal=axis.causal, window_size=(left, right))

    return contender("flash4", problem, in_windows, problem.tensors(device), lambda out: out, same)


def flash4_dense_contender(problem: Problem, device: torch.device) -> Contender:
    tensors = [t.flatten(1, -3) for t in problem.tensors(device)]
    return contender("flash4 dense", problem, flash4_function(), tensors, None)


PEERS = {
    "cuDNN": lambda *given: dense_contender("cuDNN", SDPBackend.CUDNN_ATTENTION, *given),
    "flash": lambda *given: dense_contender("flash", SDPBackend.FLASH_ATTENTION, *given),
    "flex": flex_contender,
    "flash4": flash4_contender,
    "flash4 dense": flash4_dense_contender,
    "NATTEN": natten_contender,
}
DENSE = ("cuDNN", "flash", "flash4 dense")


def gather(problem: Problem, device: torch.device, peers: list[str], dense_gflop: float) -> list[Contender]:
    found = [nhood_contender(problem, device)]
    for name in peers:
        try:
            if name in DENSE and problem.dense_gflop > dense_gflop:
                raise Absent(f"above {dense_gflop:g} GFLOP")
            found.append(PEERS[name](problem, device))
        except Absent as absent:
            print(f"{problem.text}: no {name}: {absent}", file=sys.stderr, flush=True)
        except Exception as error:  # the backend refuses, by an assertion too, cannot compile, or memory is short
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            print(f"{problem.text}: no {name}: {reason}", file=sys.stderr, flush=True)
    return found


def compare(problem: Problem, contenders: list[Contender]) -> None:
    ours, *others = contenders
    others = [other for other in others if other.result]
    if not others or not ours.result:
        return
    expected = ours.result().float()
    for other in others:
        tokens = slice(*other.same)
        theirs, own = other.result()[:, tokens].float(), expected[:, tokens]
        error = ((theirs - own).abs().max() / expected.abs().max()).item()
        if not error < LARGEST_ERROR:
            raise SystemExit(f"{problem.text}: {other.name} and nhood differ by {error:.2g} of the largest value")


class Clock:
    """Milliseconds of one call, with caches that do not hold its tensors."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        if self.cuda:
            self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
            self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def time(self, call: Callable[[], Any]) -> float:
        if not self.cuda:
            start = time.perf_counter()
            call()
            return (time.perf_counter() - start) * 1e3
        self.flush.zero_()
        self.start.record()
        call()
        self.end.record()
        self.end.synchronize()
        return self.start.elapsed_time(self.end)


def race(
    contenders: list[Contender], clock: Clock, turns: int, full_ms: float = FULL_MS, most_calls: int = CALLS
) -> None:
    for each in contenders:
        each.time(clock)  # to warm up
    for _ in range(turns):
        for each in random.sample(contenders, len(contenders)):  # what follows a long one finds the GPU hotter
            samples = [each.time(clock)]
            calls = min(most_calls, math.ceil(full_ms / each.fastest_ms))
            samples += [each.time(clock) for _ in range(calls - 1)]
            each.turns.append(statistics.median(samples))


def row(problem: Problem, contenders: list[Contender], peers: list[str]) -> str:
    by_name = {each.name: each for each in contenders}
    ours, dense = by_name["nhood"], by_name.get("cuDNN")
    speed = problem.flops / ours.ms * 1e-9
    cells = [
        f"`{problem.text}`",
        problem.solver,
        f"{ours.ms:.4g} ±{ours.spread / 2:.0%}",
        f"{speed:.0f}",
        f"**{dense.ms / ours.ms:.2f}×**" if dense else "–",
        f"{problem.tokens / problem.keys:.1f}×",
    ]
    for name in peers:
        other = by_name.get(name)
        relative = f", {dense.ms / other.ms:.2f}×" if other and dense and name not in DENSE else ""
        cells.append(f"{other.ms:.4g}{relative}" if other else "–")
    return "| " + " | ".join(cells) + " |"


def record(problem: Problem, contenders: list[Contender]) -> str:
    ours, *others = contenders
    found = {"problem": problem.text, "solver": problem.solver, "ms": ours.ms, "spread": ours.spread}
    found |= {"flops_per_s": problem.flops / ours.ms * 1e3, "ideal": problem.tokens / problem.keys}
    return json.dumps(found | {"peers_ms": {other.name: other.ms for other in others}})


def number_of(device: torch.device) -> int:
    """What the library calls it."""
    return _plans.current_context().cuda_devices[device.index or 0] if device.type == "cuda" else _plans.CPU


def read_suite(path: Path) -> list[str]:
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="problem", help="text of a problem, forward or backward")
    parser.add_argument("--suite", type=Path, help=f"file of problems (default, without problems: {SUITE.name})")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script (default cuda)")
    parser.add_argument("--peers", nargs="*", choices=tuple(PEERS), default=tuple(PEERS), help="(default: all)")
    parser.add_argument("--turns", type=int, default=9, help="per contender (default 9)")
    parser.add_argument("--dense-gflop", type=float, default=math.inf, help="leave out dense attention of more (all)")
    parser.add_argument("--json", action="store_true", help="print an object for each problem, once it is timed")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device")
    number = number_of(device)
    texts = list(options.problems)
    try:
        if options.suite or not texts:
            texts += read_suite(options.suite or SUITE)
        problems = [Problem.parse(text, number) for text in texts]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    clock = Clock(device)
    head = ["problem", "solver", "nhood ms", "TFLOP/s", "× dense", "ideal", *(f"{name} ms" for name in options.peers)]
    if not options.json:
        print(f"{nhood.devices()[number].description}; nhood {nhood.version()}, torch {torch.__version__}\n")
    rows = []
    for problem in problems:
        contenders = gather(problem, device, list(options.peers), options.dense_gflop)
        compare(problem, contenders)
        race(contenders, clock, max(1, options.turns))
        rows.append(row(problem, contenders, list(options.peers)))
        if options.json:
            print(record(problem, contenders), flush=True)
        del contenders
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if not options.json:
        print("\n| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
        print("\n".join(rows))


if __name__ == "__main__":
    main()
