#!/usr/bin/env python3
"""Times nhood beside the other ways to get neighborhood attention on a CPU, all in one run, f32.

    plain C   a loop as one writes it (plain_loop.c), compiled here with -O3 -march=native -ffast-math
    masked    torch's scaled_dot_product_attention over all keys, with a mask
    flex      torch's FlexAttention, compiled, with a block mask (it has no backward on CPUs)
    dense     torch's attention on a shorter sequence without a mask, of equal FLOPs: not neighborhood
              attention, but the speed that one would like it to have

Contenders take turns, so that whatever else the machine does meets all of them; times are medians over turns.
Each gets its arrays in the layout it likes best. Results of neighborhood attention are compared before anything
is timed. FLOPs are useful ones: 4 * batch * tokens * window * heads * dim forward, 2.5 times that backward.
The peak is that of multiply-adds in registers, measured between the turns with as many threads.
Peers that are not installed are left out, and all but dense where there are not two axes; torch comes by `pip install torch`. Needs the package nhood: installed, or
PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nhood
import numpy as np

PROBLEMS = (
    "b4h4d32:56x56:w7x7",
    "b4h16d32:14x14:w7x7",
    "b1h4d64:128x128:w13x13",
    "b1h4d64:64x64:w21x21:d2x2",
)
MASKED_BACKWARD_BYTES = 1 << 31  # above this much for the weights alone, masked backward is left out
SHORT_S = 0.2  # calls longer than this are not warmed up again in each turn
TURN_S = 0.03  # shorter ones are repeated for as long
PAUSE_S = 0.005  # between turns, for threads of other libraries that wait by spinning


class Absent(Exception):
    """Why a contender does not take part."""


@dataclass(frozen=True)
class Problem:
    text: str
    batch: int
    heads: int
    dim: int
    length: tuple[int, ...]
    window: tuple[int, ...]
    dilation: tuple[int, ...]

    @staticmethod
    def parse(text: str) -> Problem:
        match = re.fullmatch(r"b(\d+)h(\d+)d(\d+):([\dx]+):w([\dx]+)(?::d([\dx]+))?", text)
        if not match:
            raise SystemExit(f"problem {text!r} is not of the form b1h4d64:128x128:w13x13[:d2x2]")
        axes = [tuple(int(number) for number in part.split("x")) for part in match.groups()[3:] if part]
        if len(axes) < 3:
            axes.append((1,) * len(axes[0]))
        if not len(axes[0]) == len(axes[1]) == len(axes[2]) <= 3:
            raise SystemExit(f"problem {text!r}: grid, window and dilation differ in rank, or it is above 3")
        return Problem(text, *(int(number) for number in match.groups()[:3]), *axes)

    @property
    def tokens(self) -> int:
        return math.prod(self.length)

    @property
    def keys(self) -> int:
        return math.prod(self.window)

    def flops(self, backward: bool) -> float:
        return (10 if backward else 4) * self.batch * self.tokens * self.keys * self.heads * self.dim

    def arrays(self) -> np.ndarray:
        """query, key, value, d_out, heads last, from a cache line on as torch's tensors: numpy's large arrays are not."""
        shape = (4, self.batch, *self.length, self.heads, self.dim)
        memory = np.empty(math.prod(shape) + 15, np.float32)
        start = -memory.ctypes.data % 64 // 4
        arrays = memory[start : start + math.prod(shape)].reshape(shape)
        np.random.default_rng(1).standard_normal(dtype=np.float32, out=arrays)
        return arrays

    def axis_starts(self, axis: int) -> np.ndarray:
        """The first key of each token's window, as a position in the token's dilation group."""
        token, dilation = np.arange(self.length[axis]), self.dilation[axis]
        group_length = (self.length[axis] - token % dilation + dilation - 1) // dilation
        window = self.window[axis]
        return np.clip(token // dilation - window // 2, 0, group_length - window)


@dataclass
class Contender:
    name: str
    call: Callable[[], Any]
    result: Callable[[Any], np.ndarray] | None = None
    """what `call` returned -> out, or d_query, in the layout of nhood; None if it computes something else"""
    work: float = 1.0
    """FLOPs relative to the problem's"""
    turns: list[float] = field(default_factory=list)
    spent_s: float = 0.0

    @property
    def seconds(self) -> float:
        return statistics.median(self.turns) / self.work


def nhood_contender(problem: Problem, arrays: np.ndarray, backward: bool, threads: int) -> Contender:
    nhood.configure(threads=threads)
    query, key, value, d_out = arrays
    axes = dict(kernel_size=problem.window, dilation=problem.dilation)
    rank = len(problem.length)
    attention, attention_backward = getattr(nhood, f"na{rank}d"), getattr(nhood, f"na{rank}d_backward")
    if not backward:
        return Contender("nhood", lambda: attention(query, key, value, **axes), lambda out: out)
    out, lse = attention(query, key, value, **axes, return_lse=True)
    return Contender(
        "nhood",
        lambda: attention_backward(d_out, query, key, value, out, lse, **axes),
        lambda gradients: gradients[0],
    )


class PlainProblem(ctypes.Structure):
    _fields_ = [
        ("batch", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("length", ctypes.c_int64 * 2),
        ("window", ctypes.c_int64 * 2),
        ("dilation", ctypes.c_int64 * 2),
        ("scale", ctypes.c_float),
    ]


def compile_plain_loop(folder: str) -> ctypes.CDLL | None:
    source, library = Path(__file__).with_name("plain_loop.c"), Path(folder, "plain_loop.so")
    flags = ("-O3", "-march=native", "-ffast-math", "-shared", "-fPIC")
    try:
        subprocess.run(("cc", *flags, source, "-o", library, "-lm"), check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ctypes.CDLL(str(library))


def plain_contender(
    library: ctypes.CDLL | None, problem: Problem, arrays: np.ndarray, backward: bool, threads: int
) -> Contender:
    if library is None:
        raise Absent("cc could not compile plain_loop.c")
    query, key, value, d_out = arrays
    description = PlainProblem(problem.batch, problem.heads, problem.dim, scale=problem.dim**-0.5)
    description.length[:], description.window[:] = problem.length, problem.window
    description.dilation[:] = problem.dilation
    pairs = problem.batch * problem.heads
    bounds = [pairs * i // threads for i in range(threads + 1)]
    pool = ThreadPoolExecutor(threads)

    def spread(function: Any, *tensors: np.ndarray) -> None:
        pointers = [ctypes.c_void_p(tensor.ctypes.data) for tensor in tensors]

        def part(begin: int, end: int) -> None:
            weights = np.empty(problem.keys, np.float32)
            function(
                ctypes.byref(description),
                *pointers,
                ctypes.c_void_p(weights.ctypes.data),
                ctypes.c_int64(begin),
                ctypes.c_int64(end),
            )

        list(pool.map(part, bounds[:-1], bounds[1:]))

    def forward() -> tuple[np.ndarray, np.ndarray]:
        out, lse = np.empty_like(query), np.empty(query.shape[:-1], np.float32)
        spread(library.plain_forward, query, key, value, out, lse)
        return out, lse

    if not backward:
        return Contender("plain C", forward, lambda results: results[0])
    out, lse = forward()

    def backwards() -> tuple[np.ndarray, ...]:
        gradients = tuple(np.zeros_like(array) for array in (query, key, value))
        spread(library.plain_backward, query, key, value, out, lse, d_out, *gradients)
        return gradients

    return Contender("plain C", backwards, lambda gradients: gradients[0])


def sequence(torch: Any, array: np.ndarray) -> Any:
    """[B, X, Y, H, D] -> torch's [B, H, N, D], packed."""
    batch, *_, heads, dim = array.shape
    return torch.from_numpy(array).reshape(batch, -1, heads, dim).transpose(1, 2).contiguous()


def torch_contender(
    torch: Any, name: str, attention: Callable, tensors: list, backward: bool, like: Any, work: float = 1.0
) -> Contender:
    """`like` is an array in the layout of the results, or None if they cannot be compared."""
    query, key, value, d_out = tensors

    def result(tensor: Any) -> np.ndarray:
        return tensor.transpose(1, 2).reshape(like.shape).numpy()

    compare = None if like is None else result
    if not backward:

        def forward() -> Any:
            with torch.no_grad():
                return attention(query, key, value)

        return Contender(name, forward, compare, work)
    inputs = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
    out = attention(*inputs)

    def gradients() -> Any:
        return torch.autograd.grad(out, inputs, d_out, retain_graph=True)

    return Contender(name, gradients, compare and (lambda results: compare(results[0])), work)


def dense_contender(torch: Any, problem: Problem, arrays: np.ndarray, backward: bool) -> Contender:
    length = round((problem.tokens * problem.keys) ** 0.5)
    tensors = torch.randn(4, problem.batch, problem.heads, length, problem.dim).unbind()
    work = length**2 / (problem.tokens * problem.keys)
    attention = torch.nn.functional.scaled_dot_product_attention
    return torch_contender(torch, "dense", attention, tensors, backward, None, work)


def masked_contender(torch: Any, problem: Problem, arrays: np.ndarray, backward: bool) -> Contender:
    weights_bytes = 4 * problem.batch * problem.heads * problem.tokens**2
    if backward and weights_bytes > MASKED_BACKWARD_BYTES:
        raise Absent(f"backward would need {weights_bytes >> 30} GiB for each copy of the weights")
    masks = []
    for axis in range(2):
        token = np.arange(problem.length[axis])
        group, position = token % problem.dilation[axis], token // problem.dilation[axis]
        offset = position[None, :] - problem.axis_starts(axis)[:, None]
        masks.append((group[:, None] == group) & (offset >= 0) & (offset < problem.window[axis]))
    mask = torch.from_numpy(np.kron(masks[0], masks[1]))
    tensors = [sequence(torch, array) for array in arrays]

    def attention(query: Any, key: Any, value: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    return torch_contender(torch, "masked", attention, tensors, backward, arrays[0])


def flex_contender(torch: Any, problem: Problem, arrays: np.ndarray, backward: bool) -> Contender:
    if backward:
        raise Absent("torch has no backward of it on CPUs")
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError:
        raise Absent(f"torch {torch.__version__} has none") from None

    starts = [torch.from_numpy(problem.axis_starts(axis)) for axis in range(2)]
    columns, window, dilation = problem.length[1], problem.window, problem.dilation

    def in_window(batch: Any, head: Any, query: Any, key: Any) -> Any:
        inside = True
        for axis in range(2):
            q, k = (query // columns, key // columns) if axis == 0 else (query % columns, key % columns)
            offset = k // dilation[axis] - starts[axis][q]
            same_group = q % dilation[axis] == k % dilation[axis]
            inside = inside & same_group & (offset >= 0) & (offset < window[axis])
        return inside

    torch._dynamo.reset()
    mask = torch.compile(create_block_mask)(in_window, None, None, problem.tokens, problem.tokens, device="cpu")
    compiled = torch.compile(flex_attention)
    tensors = [sequence(torch, array) for array in arrays]

    def attention(query: Any, key: Any, value: Any) -> Any:
        return compiled(query, key, value, block_mask=mask)

    return torch_contender(torch, "flex", attention, tensors, backward, arrays[0])


def take_turn(contender: Contender) -> None:
    began = time.perf_counter()
    if not contender.turns or contender.turns[-1] < SHORT_S:
        contender.call()
    samples = []
    start = time.perf_counter()
    while not samples or time.perf_counter() - start < TURN_S:
        before = time.perf_counter()
        contender.call()
        samples.append(time.perf_counter() - before)
    contender.turns.append(statistics.median(samples))
    contender.spent_s += time.perf_counter() - began


def compare(contenders: list[Contender]) -> None:
    ours, *others = contenders
    expected = ours.result(ours.call())
    for contender in others:
        if contender.result is None:
            continue
        error = np.abs(contender.result(contender.call()) - expected).max()
        if not error < 1e-4:
            raise SystemExit(f"{contender.name} and nhood differ by {error}")


def race(contenders: list[Contender], turns: int, budget_s: float) -> float:
    """Times everybody; returns the peak, FLOP/s. The clock's frequency and other programs only ever take away
    from a peak, so the largest one counts."""
    compare(contenders)
    peak = 0.0
    for turn in range(turns):
        peak = max(peak, nhood.measure("float32").flops_per_s)
        for contender in contenders:
            if turn < 3 or contender.spent_s < budget_s:
                time.sleep(PAUSE_S)
                take_turn(contender)
    return peak


def gather(
    torch: Any, plain: Any, problem: Problem, backward: bool, threads: int, peers: tuple[str, ...]
) -> list[Contender]:
    arrays = problem.arrays()
    contenders = [nhood_contender(problem, arrays, backward, threads)]
    makers = {"plain C": lambda: plain_contender(plain, problem, arrays, backward, threads)}
    if torch:
        torch.set_num_threads(threads)
        for name, maker in (("masked", masked_contender), ("flex", flex_contender), ("dense", dense_contender)):
            makers[name] = lambda maker=maker: maker(torch, problem, arrays, backward)
    for name, make in makers.items():
        if name not in peers or (name != "dense" and len(problem.length) != 2):
            continue
        try:
            contenders.append(make())
        except Absent as reason:
            pass_name = "backward" if backward else "forward"
            print(f"{problem.text} {pass_name}: no {name}: {reason}", file=sys.stderr, flush=True)
        except RuntimeError as error:  # torch cannot compile or allocate
            line = str(error).strip().splitlines()[0]
            print(f"{problem.text}: no {name}: {line}", file=sys.stderr, flush=True)
    return contenders


NAMES = ("plain C", "masked", "flex", "dense")


def row(problem: Problem, backward: bool, contenders: list[Contender], peak: float) -> str:
    ours = contenders[0]
    speed = problem.flops(backward) / ours.seconds
    cells = [f"`{problem.text}`", f"{ours.seconds * 1e3:.3g} ms", f"{speed * 1e-9:.0f}", f"{speed / peak:.0%}"]
    others = {contender.name: contender for contender in contenders[1:]}
    for name in NAMES:
        other = others.get(name)
        cells.append(f"{other.seconds * 1e3:.3g} ms, {other.seconds / ours.seconds:.2f}×" if other else "–")
    return "| " + " | ".join(cells) + " |"


def record(problem: Problem, backward: bool, threads: int, contenders: list[Contender], peak: float) -> str:
    ours, *others = contenders
    found = {"problem": problem.text, "pass": "backward" if backward else "forward", "threads": threads}
    found |= {"ms": ours.seconds * 1e3, "share_of_peak": problem.flops(backward) / ours.seconds / peak}
    return json.dumps(found | {"peers_ms": {other.name: other.seconds * 1e3 for other in others}})


def find_torch() -> Any:
    try:
        import torch
    except ImportError:
        print("no masked, flex, dense: torch is not installed (pip install torch)", file=sys.stderr)
        return None
    return torch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "problems", nargs="*", default=PROBLEMS, metavar="problem", help="(default: those of docs/performance.md)"
    )
    parser.add_argument("--threads", nargs="+", type=int, default=(1, 2), help="one run for each (default 1 2)")
    parser.add_argument(
        "--passes", nargs="+", choices=("forward", "backward"), default=("forward", "backward"), help="(default: both)"
    )
    parser.add_argument("--turns", type=int, default=9, help="at most, per contender (default 9, at least 3)")
    parser.add_argument("--budget", type=float, default=2, help="seconds per contender after 3 turns (default 2)")
    parser.add_argument("--peers", nargs="*", choices=NAMES, default=NAMES, help="(default: all)")
    parser.add_argument("--json", action="store_true", help="print an object for each problem, once it is timed")
    options = parser.parse_args()
    problems = [Problem.parse(text) for text in options.problems]
    torch = find_torch()
    with tempfile.TemporaryDirectory() as folder:
        plain = compile_plain_loop(folder)
        for pass_name in options.passes:
            for threads in options.threads:
                rows, peaks = [], []
                for problem in problems:
                    backward = pass_name == "backward"
                    contenders = gather(torch, plain, problem, backward, threads, options.peers)
                    peaks.append(race(contenders, max(3, options.turns), options.budget))
                    rows.append(row(problem, backward, contenders, peaks[-1]))
                    if options.json:
                        print(record(problem, backward, threads, contenders, peaks[-1]), flush=True)
                if options.json:
                    continue
                torch_name = f", torch {torch.__version__}" if torch else ""
                print(f"\n{pass_name}, f32, {threads} thread{'s' * (threads > 1)}; {nhood.devices()[0].description}")
                print(f"nhood {nhood.version()}{torch_name}; peak {min(peaks) * 1e-9:.0f} to {max(peaks) * 1e-9:.0f}")
                print("GFLOP/s as measured for each row; k× after a peer's time: nhood is k times as fast\n")
                print("| problem | nhood | GFLOP/s | of peak | " + " | ".join(NAMES) + " |")
                print("|---" * (4 + len(NAMES)) + "|")
                print("\n".join(rows), flush=True)


if __name__ == "__main__":
    main()
