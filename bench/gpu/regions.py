#!/usr/bin/env python3
"""What parts of a grid and periodic axes cost beside the plain problem, and beside what people do without them.

    bench/gpu/regions.py                                                   # on CUDA if there is some: large problems, bf16
    bench/gpu/regions.py --device cpu                                      # smaller ones, f32, one thread
    bench/gpu/regions.py --device cuda --periodic bf16:b1h24d128:30x48x80:w18x24x24 --operations fwd

For each problem, in one run and in turns:

    --boxes       everything       a region that is the whole grid, for the plain problem: the same, within 2 %
                  half             the middle half of the longest axis as the box of queries: at most 0.53 of the whole
                  half, its keys   the same with a box of keys that has just the keys of these windows
    --periodic    p0.. p1..        each axis periodic alone, and all of them: at most 1.05 times the plain problem where windows
                                   are large, 1.10 elsewhere and on CPUs
                  copies of K, V   instead of that: K and V padded circularly at every call, and the queries as a box of that
                                   grid. Backward the copies are there from the forward, and gradients of their borders are
                                   added to those of the tokens they are copies of
                  copies of all    instead of that, without regions: Q padded too, and the result cropped
                                   The library is to be at least 1.15 times as fast as either

Problems are texts of the nhood tool without the operation. A column names the solver of each and its config. Ratios are
medians over turns of what the two took in that turn, beside the least and the largest. On CUDA a time is that between two
events, with the L2 cache emptied before (bench/gpu/peers.py, which also says how launches are hidden); on CPUs that of the process
with one thread, which other programs do not lengthen, and caches are as the call before left them.

Results are compared before they are timed. Needs the package and torch: installed, or PYTHONPATH=bindings/python in a source
tree that is built.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import nhood
import nhood.torch  # noqa: F401 (it registers torch.ops.nhood)
import torch
from nhood import _library as c
from peers import Clock, Contender, chosen_config, number_of, parse_problem, race
from torch import Tensor

EVERYTHING, HALF, FASTER = 1.02, 0.53, 1.15
PERIODIC, PERIODIC_LARGE, LARGE = 1.10, 1.05, 500  # keys of a window, from which on the tighter goal counts on CUDA
FULL_MS, CALLS = 20.0, 5  # a turn of a contender is as many calls as take that long, but so many at most
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 0.01}  # of the largest value

BOXES = {
    "cuda": (
        "bf16:b8h16d64:16384:w65",
        "bf16:b1h16d128:65536:w4096",
        "bf16:b8h4d32:224x224:w7x7",
        "bf16:b1h24d128:256x256:w24x24",
        "bf16:b1h8d64:33x96x160:w5x5x5",
        "bf16:b1h24d128:30x48x160:w9x24x24",
    ),
    "cpu": (
        "f32:b1h1d64:8192:w65",
        "f32:b1h1d64:8192:w401",
        "f32:b1h2d32:112x112:w7x7",
        "f32:b1h1d64:112x64:w21x21",
        "f32:b1h1d64:12x24x48:w5x5x5",
    ),
}
AXES = {
    "cuda": (
        "bf16:b1h16d128:65536:w4096",
        "bf16:b128h4d32:56x56:w7x7",
        "bf16:b1h8d64:33x96x160:w5x5x5",
        "bf16:b1h24d128:30x48x80:w9x24x24",
        "bf16:b1h24d128:30x48x80:w18x24x24",
    ),
    "cpu": (
        "f32:b1h1d64:8192:w65",
        "f32:b1h1d64:8192:w401",
        "f32:b2h2d32:56x56:w7x7",
        "f32:b1h1d64:64x64:w21x21",
        "f32:b1h1d64:12x32x32:w5x5x5",
    ),
}


@dataclass(frozen=True)
class Box:
    offset: tuple[int, ...]
    length: tuple[int, ...]

    def of(self, whole: Tensor) -> Tensor:
        """A view of this part of a tensor that covers the whole grid, heads last."""
        for axis, (offset, length) in enumerate(zip(self.offset, self.length)):
            whole = whole.narrow(1 + axis, offset, length)
        return whole

    def __str__(self) -> str:
        return "x".join(f"{offset}+{length}" for offset, length in zip(self.offset, self.length))


@dataclass(frozen=True)
class Problem:
    head: str
    """dtype, batch, heads and dims, as in the text"""
    lengths: tuple[int, ...]
    window: tuple[int, ...]
    periodic: tuple[bool, ...]
    queries: Optional[Box] = None
    keys: Optional[Box] = None

    @staticmethod
    def parse(text: str) -> Problem:
        parsed = parse_problem(f"fwd:{text}")
        dtype, head, grid, window, *more = text.split(":")
        if more:
            raise ValueError(f"{text}: only dtype, batch, heads, lengths and windows")
        axes = parsed.axis[: parsed.rank]
        lengths, windows = (tuple(getattr(axis, name) for axis in axes) for name in ("length", "window"))
        return Problem(f"{dtype}:{head}", lengths, windows, (False,) * parsed.rank)

    @property
    def text(self) -> str:
        grid, window = ("x".join(map(str, values)) for values in (self.lengths, self.window))
        text = f"{self.head}:{grid}:w{window}"
        if any(self.periodic):
            text += ":p" + "".join("1" if periodic else "0" for periodic in self.periodic)
        return text + (f":q{self.queries}" if self.queries else "") + (f":k{self.keys}" if self.keys else "")

    @property
    def place(self) -> tuple[Any, ...]:
        """The last arguments of the operators."""
        if not self.queries and not self.keys:
            return (list(self.periodic), [], [], [])
        offsets = [list(box.offset) if box else [0] * len(self.lengths) for box in (self.queries, self.keys)]
        return (list(self.periodic), list(self.lengths), *offsets)

    @property
    def axes(self) -> tuple[list[int], ...]:
        ones = [1] * len(self.window)
        return (list(self.window), ones, ones, [0] * len(self.window))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, need_lse: bool = False) -> list[Tensor]:
        tensors = (query, key, value, None, None, None)
        return torch.ops.nhood.na(*tensors, *self.axes, None, False, need_lse, *self.place)

    def backward(self, *tensors: Tensor) -> list[Tensor]:
        """Takes query, key, value, out, lse and d_out; returns d_query, d_key and d_value."""
        query, key, value, out, lse, d_out = tensors
        wanted = [True] * 3 + [False] * 3
        inputs = (query, key, value, None, None, None, out, lse, d_out, None)
        return torch.ops.nhood.na_backward(*inputs, *self.axes, None, False, wanted, *self.place)


def plan_of(text: str, device: int) -> str:
    """The solver and its config, or why there is none."""
    try:
        return chosen_config(parse_problem(text), device)
    except NotImplementedError as reason:
        return f"none: {reason}"


# ---- what is compared ----


@dataclass
class Way:
    """A way to compute a problem, or a part of it."""

    name: str
    problem: Problem
    """what the library is asked for"""
    beside: Optional[str] = None
    """the way that its time is a multiple of"""
    at_most: Optional[float] = None
    at_least: Optional[float] = None
    padded: tuple[int, ...] = ()
    """the periodic axes that are emulated; none: the tensors are taken as they are"""
    pads_queries: bool = False


def padding(problem: Problem, axis: int) -> tuple[int, int]:
    """The tokens before and after an axis that the windows of its first and last tokens reach into."""
    before = problem.window[axis] // 2
    return before, problem.window[axis] - 1 - before


def box_ways(whole: Problem) -> list[Way]:
    rank = len(whole.lengths)
    everything = Box((0,) * rank, whole.lengths)
    axis = max(range(rank), key=lambda i: whole.lengths[i])
    length, window = whole.lengths[axis], whole.window[axis]
    first, count = length // 4, length // 2

    def cut(start: int, end: int) -> Box:
        start, end = max(0, start), min(length, end)
        offset, extent = [0] * rank, list(whole.lengths)
        offset[axis], extent[axis] = start, end - start
        return Box(tuple(offset), tuple(extent))

    half = cut(first, first + count)
    keys = cut(first - window // 2, first + count + (window - 1) // 2)
    return [
        Way("plain", whole),
        Way("everything", replace(whole, queries=everything, keys=everything), "plain", at_most=EVERYTHING),
        Way("half", replace(whole, queries=half, keys=everything), "plain", at_most=HALF),
        Way("half, its keys", replace(whole, queries=half, keys=keys), "plain", at_most=HALF),
    ]


def emulations(plain: Problem, wrapped: Way) -> list[Way]:
    """The same as `wrapped`, by copies."""
    axes = tuple(i for i, periodic in enumerate(wrapped.problem.periodic) if periodic)
    both = {i: padding(plain, i) for i in axes}
    lengths = tuple(n + sum(both.get(i, (0, 0))) for i, n in enumerate(plain.lengths))
    padded = replace(plain, lengths=lengths)
    tokens = Box(tuple(both.get(i, (0,))[0] for i in range(len(lengths))), plain.lengths)
    boxed = replace(padded, queries=tokens, keys=Box((0,) * len(lengths), lengths))
    beside = {"beside": wrapped.name, "at_least": FASTER, "padded": axes}
    which = wrapped.name
    return [
        Way(f"{which}: copies of K, V", boxed, **beside),
        Way(f"{which}: copies of all", padded, **beside, pads_queries=True),
    ]


def periodic_ways(plain: Problem, device: str) -> list[Way]:
    rank = len(plain.lengths)
    alone = [tuple(i == axis for i in range(rank)) for axis in range(rank)]
    sets = alone + ([(True,) * rank] if rank > 1 else [])
    goal = PERIODIC_LARGE if device == "cuda" and math.prod(plain.window) >= LARGE else PERIODIC
    ways = [Way("plain", plain)]
    for periodic in sets:
        name = "p" + "".join("1" if wraps else "0" for wraps in periodic)
        ways.append(Way(name, replace(plain, periodic=periodic), "plain", at_most=goal))
    last = ways[-1]
    return ways + (emulations(plain, ways[rank]) if rank > 1 else []) + emulations(plain, last)


# ---- circular copies ----


def pad(tensor: Tensor, way: Way) -> Tensor:
    """With the tokens that windows reach around the ends, axis by axis: a copy is written for each."""
    for axis in way.padded:
        before, after = padding(way.problem, axis)
        length = tensor.shape[1 + axis]
        parts = (tensor.narrow(1 + axis, length - before, before), tensor, tensor.narrow(1 + axis, 0, after))
        tensor = torch.cat(parts, 1 + axis)
    return tensor


def pad_with_zeros(tensor: Tensor, way: Way, lengths: Sequence[int]) -> Tensor:
    padded = tensor.new_zeros(tensor.shape[0], *way.problem.lengths, *tensor.shape[1 + len(lengths) :])
    crop(padded, way, lengths).copy_(tensor)
    return padded


def crop(padded: Tensor, way: Way, lengths: Sequence[int]) -> Tensor:
    """A view of what is not padding."""
    for axis in way.padded:
        padded = padded.narrow(1 + axis, padding(way.problem, axis)[0], lengths[axis])
    return padded


def fold(gradient: Tensor, way: Way, lengths: Sequence[int]) -> Tensor:
    """The gradient of what was padded: in place, and a view of the middle."""
    for axis in reversed(way.padded):
        before, after = padding(way.problem, axis)
        length, dim = lengths[axis], 1 + axis
        gradient.narrow(dim, length, before).add_(gradient.narrow(dim, 0, before))
        gradient.narrow(dim, before, after).add_(gradient.narrow(dim, before + length, after))
        gradient = gradient.narrow(dim, before, length)
    return gradient


# ---- calls ----


def forward_call(way: Way, tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    query, key, value = (part.contiguous() for part in parts_of(way, tensors[:3]))
    lengths = query.shape[1:-2]
    if not way.padded:
        return lambda: way.problem.forward(query, key, value)

    def call() -> list[Tensor]:
        asked = pad(query, way) if way.pads_queries else query
        (out,) = way.problem.forward(asked, pad(key, way), pad(value, way))
        return [crop(out, way, lengths) if way.pads_queries else out]

    return call


def backward_call(way: Way, tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    query, key, value, d_out = (part.contiguous() for part in parts_of(way, tensors))
    lengths = query.shape[1:-2]
    if way.padded:
        key, value = pad(key, way), pad(value, way)
        query = pad(query, way) if way.pads_queries else query
    out, lse = way.problem.forward(query, key, value, True)
    if not way.padded:
        return lambda: way.problem.backward(query, key, value, out, lse, d_out)

    def call() -> list[Tensor]:
        given = pad_with_zeros(d_out, way, lengths) if way.pads_queries else d_out
        d_query, d_key, d_value = way.problem.backward(query, key, value, out, lse, given)
        d_query = crop(d_query, way, lengths) if way.pads_queries else d_query
        return [d_query, fold(d_key, way, lengths), fold(d_value, way, lengths)]

    return call


def parts_of(way: Way, tensors: Sequence[Tensor]) -> list[Tensor]:
    """What the way is given of query, key, value and d_out over the whole grid; for copies, what they are made of."""
    if way.padded:
        return list(tensors)
    boxes = (way.problem.queries, way.problem.keys, way.problem.keys, way.problem.queries)
    return [box.of(tensor) if box else tensor for box, tensor in zip(boxes, tensors)]


def compare(way: Way, call: Callable[[], list[Tensor]], expected: list[Tensor]) -> None:
    """With the results of the way that it stands beside, which are those of the whole grid where it has a part."""
    for found, wanted in zip(call(), expected):
        if way.problem.queries and not way.padded:
            wanted = way.problem.queries.of(wanted)
        error = ((found.float() - wanted.float()).abs().max() / wanted.float().abs().max()).item()
        if not error < TOLERANCE[wanted.dtype]:
            raise SystemExit(f"{way.problem.text}, {way.name}: differs by {error:.2g} of the largest value")
        if way.name.startswith("half"):
            return  # gradients of keys are a part of the whole's


# ---- a run ----


class ThreadClock:
    """Milliseconds that the process computes."""

    def time(self, call: Callable[[], Any]) -> float:
        start = time.process_time()
        call()
        return (time.process_time() - start) * 1e3


@dataclass
class Row:
    way: Way
    operation: str
    solver: str
    ms: float
    ratios: Sequence[float] = ()
    """of the turns"""

    @property
    def ratio(self) -> Optional[float]:
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def reached(self) -> Optional[bool]:
        if self.ratio is None:
            return None
        way = self.way
        return self.ratio <= way.at_most if way.at_most else self.ratio >= (way.at_least or 0)

    def line(self) -> str:
        way = self.way
        cells = [self.operation, way.name, f"`{way.problem.text}`", self.solver, f"{self.ms:.4g}"]
        if self.ratio is None:
            cells += [""] * 3
        else:
            goal = f"≤ {way.at_most}" if way.at_most else f"≥ {way.at_least}"
            cells += [f"{self.ratio:.3f} × {way.beside}", f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"]
            cells.append(goal if self.reached else f"**{goal}: missed**")
        return "| " + " | ".join(cells) + " |"

    def record(self) -> str:
        way = self.way
        found = {"operation": self.operation, "way": way.name, "problem": way.problem.text, "solver": self.solver}
        found |= {"ms": self.ms, "beside": way.beside, "ratio": self.ratio, "ratios": self.ratios}
        return json.dumps(found | {"at_most": way.at_most, "at_least": way.at_least, "reached": self.reached})


def measure(ways: list[Way], operation: str, device: torch.device, clock: Any, options: Any) -> list[Row]:
    plain = ways[0].problem
    parsed = parse_problem(f"fwd:{plain.text}")
    dtype = getattr(torch, c.DTYPE_NAMES[parsed.dtype])
    shape = (parsed.batch, *plain.lengths, parsed.heads, parsed.dim)
    tensors = [torch.randn(shape, dtype=dtype, device=device) for _ in range(4)]
    make = forward_call if operation == "fwd" else backward_call
    contenders, results = [], {}
    for way in ways:
        call = make(way, tensors)
        if way.beside and way.problem.periodic == ways[0].problem.periodic:
            compare(way, call, results[way.beside])
        if any(other.beside == way.name for other in ways):
            results[way.name] = call()
        contenders.append(Contender(way.name, call))
    results.clear()
    race(contenders, clock, options.turns, FULL_MS, CALLS)
    turns = {each.name: each.turns for each in contenders}
    rows = []
    for way, contender in zip(ways, contenders):
        row = Row(way, operation, plan_of(f"{operation}:{way.problem.text}", number_of(device)), contender.ms)
        if way.beside:
            row.ratios = [a / b for a, b in zip(turns[way.name], turns[way.beside])]
        rows.append(row)
    return rows


def prepare(cases: list[list[Way]], operations: Sequence[str], device: int) -> set[str]:
    """Makes all plans, which compiles their kernels, on all CPUs; the texts of problems that no solver takes."""
    needed = {"fwd", *operations}  # a backward pass needs a forward one's results
    texts = sorted({f"{op}:{way.problem.text}" for way in itertools.chain(*cases) for op in needed})
    with concurrent.futures.ThreadPoolExecutor() as pool:
        plans = pool.map(lambda text: plan_of(text, device), texts)
        return {text for text, plan in zip(texts, plans) if plan.startswith("none")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--boxes", nargs="*", metavar="problem", help="for parts of grids (default: of all ranks)")
    parser.add_argument("--periodic", nargs="*", metavar="problem", help="for periodic axes (default: of all ranks)")
    parser.add_argument("--operations", nargs="+", choices=("fwd", "bwd"), default=("fwd", "bwd"), help="(both)")
    parser.add_argument("--turns", type=int, default=7, help="of which medians are taken (default 7)")
    parser.add_argument("--json", action="store_true", help="print an object for each row, once it is timed")
    options = parser.parse_args()
    if options.boxes is None and options.periodic is None:
        options.boxes, options.periodic = BOXES[options.device], AXES[options.device]
    try:
        cases = [box_ways(Problem.parse(text)) for text in options.boxes or ()]
        cases += [periodic_ways(Problem.parse(text), options.device) for text in options.periodic or ()]
    except ValueError as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    nhood.configure(threads=1)
    run(cases, torch.device(options.device), options)


@torch.inference_mode()
def run(cases: list[list[Way]], device: torch.device, options: argparse.Namespace) -> None:
    clock = Clock(device) if device.type == "cuda" else ThreadClock()
    number = number_of(device)
    start = time.perf_counter()
    refused = prepare(cases, options.operations, number)
    if not options.json:
        print(f"{nhood.devices()[number].description}; nhood {nhood.version()}, torch {torch.__version__}")
        print(f"plans and kernels in {time.perf_counter() - start:.1f} s; {options.turns} turns\n")
        print("| | way | what the library is asked for | solver | ms | ratio | of turns | goal |\n" + "|---" * 8 + "|")
    for ways, operation in itertools.product(cases, options.operations):
        ways = [way for way in ways if not refused & {f"{op}:{way.problem.text}" for op in ("fwd", operation)}]
        names = {way.name for way in ways}
        ways = [way for way in ways if way.beside is None or way.beside in names]
        for row in measure(ways, operation, device, clock, options):
            print(row.record() if options.json else row.line(), flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    for text in sorted(refused):
        print(json.dumps({"problem": text, "solver": None}) if options.json else f"no solver: {text}")


if __name__ == "__main__":
    main()
