#!/usr/bin/env python3
"""nhood.jax beside what JAX programs use without it, compiled: jax.nn.dot_product_attention under a mask, and a scan over the
slots of the window by hand. Parts, each in a process of its own, as XLA's flags are read once:

    overhead    what the smallest call costs beyond the library's, inside a program and from Python (on the CPU)
    same        results and gradients against nhood.torch, bit by bit, with command buffers (CUDA graphs) off and on
    speed       forward, and forward and backward, in milliseconds
    profile     what a program of eight calls launches on a GPU, and how long its kernels take of the time between the first
                and the last; command buffers off and on

    bench/cpu/jax_calls.py                    # overhead and speed on the CPU
    bench/cpu/jax_calls.py --device cuda      # same, profile and speed on a GPU; needs torch, too

Needs jax, numpy and the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built. Exits with status
1 if a bit differs. Ways that would need more memory than --most-gib, or more operations than --most-tflop, are not tried.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

PROBLEMS = ("b128h4d32:56x56:w7x7", "b1h8d64:33x96x160:w5x5x5", "b1h24d128:30x48x80:w18x24x24")
SLOW = 5  # seconds; a way whose call takes longer is timed once
PROFILED = "bf16:b8h4d32:56x56:w7x7"
SAME = (  # every kind of kernel that 16-bit, 32-bit and 64-bit types take, small and large windows
    "bf16:b2h4d64:56x56:w7x7",
    "bf16:b1h8d128:16x32x40:w8x12x12",
    "f16:b1h4d32:4096:w129",
    "f32:b2h4d32:56x56:w7x7",
    "f64:b1h2d16:20x18:w5x3",
)
DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
COMMAND_BUFFERS = {
    "off": "--xla_gpu_enable_command_buffer=",
    "on": "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1",
}


class Problem(NamedTuple):
    batch: int
    heads: int
    dim: int
    grid: tuple[int, ...]
    window: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, *self.grid, self.heads, self.dim)

    @property
    def tokens(self) -> int:
        return math.prod(self.grid)

    @property
    def slots(self) -> int:
        return math.prod(self.window)


def parse(text: str) -> Problem:
    sizes, grid, window = text.split(":")
    batch, heads, dim = map(int, re.fullmatch(r"b(\d+)h(\d+)d(\d+)", sizes).groups())  # type: ignore[union-attr]
    return Problem(batch, heads, dim, tuple(map(int, grid.split("x"))), tuple(map(int, window[1:].split("x"))))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--part", choices=("overhead", "same", "profile", "speed"), action="append", help="(default: as above)")
    parser.add_argument("--problems", nargs="*", default=PROBLEMS, metavar="b1h1d8:9x9:w3x3", help="of speed")
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="of speed (default: bf16 on a GPU, f32 on the CPU)")
    parser.add_argument("--turns", type=int, default=7, help="of each way of speed; overhead takes 100 times as many")
    parser.add_argument("--most-gib", type=float, help="(default: 100 on a GPU, 8 on the CPU)")
    parser.add_argument("--most-tflop", type=float, help="of the useful operations of a forward (default: 0.2 on the CPU)")
    parser.add_argument("--command-buffers", choices=tuple(COMMAND_BUFFERS), help=argparse.SUPPRESS)
    return parser.parse_args()


def start(arguments: argparse.Namespace, part: str, command_buffers: Optional[str]) -> int:
    """Runs a part in a process of its own; its exit status."""
    flags = COMMAND_BUFFERS[command_buffers] if command_buffers else ""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": arguments.device,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # torch wants some memory, too
    }
    command = [sys.executable, __file__, *sys.argv[1:], "--part", part]
    if command_buffers:
        command += ["--command-buffers", command_buffers]
    return subprocess.run(command, env={**environment, "NHOOD_JAX_PART": part}, check=False).returncode


# The ways to compute it


def windows(problem: Problem) -> Any:
    """[tokens, slots]: which tokens each one attends."""
    import numpy as np

    axes = []
    for length, window in zip(problem.grid, problem.window):
        first = np.clip(np.arange(length) - window // 2, 0, length - window)
        axes.append(first[:, None] + np.arange(window))
    index = np.zeros((1, 1), np.int64)
    for length, axis in zip(problem.grid, axes):
        index = (index[:, None, :, None] * length + axis[None, :, None, :]).reshape(
            index.shape[0] * axis.shape[0], index.shape[1] * axis.shape[1]
        )
    return index.astype(np.int32)


def by_nhood(problem: Problem) -> Callable[..., Any]:
    import nhood.jax

    return lambda q, k, v: nhood.jax.neighborhood_attention(q, k, v, problem.window)


def by_mask(problem: Problem) -> Callable[..., Any]:
    import jax
    import numpy as np

    mask = np.zeros((problem.tokens, problem.tokens), bool)
    np.put_along_axis(mask, windows(problem), True, axis=1)

    def attend(q: Any, k: Any, v: Any) -> Any:
        flat = [x.reshape(problem.batch, problem.tokens, problem.heads, problem.dim) for x in (q, k, v)]
        return jax.nn.dot_product_attention(*flat, mask=mask[None, None]).reshape(q.shape)

    return attend


def by_scan(problem: Problem) -> Callable[..., Any]:
    """One slot of all windows after the other, with a softmax that is rescaled as it goes."""
    import jax
    import jax.numpy as jnp

    def keys_of(slot: Any) -> Any:
        """Returns the key of each token in that slot of its window. A table of all slots would be a constant of gigabytes."""
        keys = jnp.zeros((), jnp.int32)
        for length, window, offset in zip(problem.grid, problem.window, jnp.unravel_index(slot, problem.window)):
            first = jnp.clip(jnp.arange(length, dtype=jnp.int32) - window // 2, 0, length - window)
            keys = keys[..., None] * length + first + offset.astype(jnp.int32)
        return keys.reshape(-1)

    def attend(q: Any, k: Any, v: Any) -> Any:
        query, key, value = (x.reshape(problem.batch, problem.tokens, problem.heads, problem.dim) for x in (q, k, v))
        scale, kept_in = problem.dim**-0.5, jnp.promote_types(q.dtype, jnp.float32)

        @jax.checkpoint
        def slot(carry: Any, number: Any) -> Any:
            out, total, largest = carry
            keys = keys_of(number)
            logit = scale * jnp.einsum("bnhd,bnhd->bnh", query, key[:, keys], preferred_element_type=kept_in)
            larger = jnp.maximum(largest, logit)
            kept, weight = jnp.exp(largest - larger), jnp.exp(logit - larger)
            out = out * kept[..., None] + weight[..., None] * value[:, keys]
            return (out, total * kept + weight, larger), None

        zeros = jnp.zeros(query.shape, kept_in)
        begin = zeros, zeros[..., 0], jnp.full_like(zeros[..., 0], -jnp.inf)
        (out, total, _), _ = jax.lax.scan(slot, begin, jnp.arange(problem.slots))
        return (out / total[..., None]).astype(q.dtype).reshape(q.shape)

    return attend


WAYS = {"nhood.jax": by_nhood, "dot_product_attention, masked": by_mask, "scan by hand": by_scan}


def gib_of(way: str, problem: Problem, backward: bool) -> float:
    """What a way keeps in memory at the same time, beside its inputs and results."""
    rows = problem.batch * problem.heads * problem.tokens
    if way == "dot_product_attention, masked":
        return (rows * problem.tokens * 4 * (2 + backward) + problem.tokens**2) / 2**30
    if way == "scan by hand":  # backward, what is carried from slot to slot
        return rows * (problem.dim + 2) * 4 * (problem.slots if backward else 4) / 2**30
    return 0


def speed(arguments: argparse.Namespace) -> int:
    import jax
    import jax.numpy as jnp

    on_cpu = arguments.device == "cpu"
    dtype = arguments.dtype or ("f32" if on_cpu else "bf16")
    most_gib = arguments.most_gib or (8 if on_cpu else 100)
    most_tflop = arguments.most_tflop or (0.2 if on_cpu else math.inf)
    in_flight = 1 if on_cpu else 5  # calls that are waited for together: a GPU's work hides the host's, as in a program
    jax.config.update("jax_enable_x64", dtype == "f64")
    print(f"\njax {jax.__version__}, {jax.devices()[0].device_kind}, {dtype}; milliseconds, median of {arguments.turns} turns\n")
    print("| problem | pass | " + " | ".join(WAYS) + " |\n|---|---|" + "---|" * len(WAYS))
    for text in arguments.problems:
        problem = parse(text)
        tflop = 4e-12 * problem.batch * problem.heads * problem.tokens * problem.slots * problem.dim
        if tflop > most_tflop:
            print(f"| `{text}` | | not tried: {tflop:.3g} TFLOP | | |")
            continue
        keys = jax.random.split(jax.random.key(0), 3)
        arrays = [jax.random.normal(key, problem.shape, jnp.dtype(DTYPES[dtype])) for key in keys]
        for backward in (False, True):
            cells, ready = {}, {}
            for way, make in WAYS.items():
                gib = gib_of(way, problem, backward)
                if gib > most_gib:
                    cells[way] = f"needs {gib:.3g} GiB"
                    continue
                ready[way] = compiled(make(problem), arrays, backward, in_flight)
            cells.update(times_of(ready, arguments.turns, in_flight))
            name = "forward, backward" if backward else "forward"
            print(f"| `{text}` | {name} | " + " | ".join(cells[way] for way in WAYS) + " |", flush=True)
    return 0


def compiled(function: Callable[..., Any], arrays: list[Any], backward: bool, in_flight: int) -> Callable[..., Any]:
    """So many calls one after the other, and the wait for the last one's results."""
    import jax
    import jax.numpy as jnp

    if backward:
        function = jax.grad(lambda *x, f=function: f(*x).astype(jnp.float32).sum(), (0, 1, 2))
    program = jax.jit(function)

    def calls(count: int = in_flight) -> None:
        for _ in range(count):
            results = program(*arrays)
        jax.block_until_ready(results)

    return calls


def times_of(calls: dict[str, Callable[..., Any]], turns: int, in_flight: int) -> dict[str, str]:
    """Milliseconds a call, all in turns but for slow ones; or that memory was short."""
    cells, times = {}, {name: [] for name in calls}
    for name in list(calls):
        try:
            calls[name](1)
        except Exception as error:  # XLA's has no class of its own
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            cells[name] = "out of memory"
            del calls[name]
            continue
        begun = time.perf_counter()
        calls[name](1)
        taken = time.perf_counter() - begun
        if taken > SLOW:
            cells[name] = f"{1e3 * taken:.4g} (once)"
            del calls[name]
    for _ in range(turns):
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - begun) / in_flight)
    return {**cells, **{name: f"{statistics.median(times[name]):.4g}" for name in calls}}


# What a program launches


def profile(arguments: argparse.Namespace) -> int:
    import glob
    import tempfile

    import jax
    import jax.numpy as jnp

    dtype, rest = PROFILED.split(":", 1)
    problem, chain = parse(rest), 8
    keys = jax.random.split(jax.random.key(0), 3)
    query, key, value = (jax.random.normal(k, problem.shape, jnp.dtype(DTYPES[dtype])) for k in keys)
    attend = by_nhood(problem)

    @jax.jit
    def program(query: Any, key: Any, value: Any) -> Any:
        for _ in range(chain):
            query = attend(query, key, value)
        return query

    for _ in range(5):  # a program is captured after its first executions
        program(query, key, value).block_until_ready()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            program(query, key, value).block_until_ready()
        (file,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        planes = list(jax.profiler.ProfileData.from_file(file).planes)
    print(f"\n{PROFILED}, {chain} calls in a program, command buffers {arguments.command_buffers}\n")
    for plane in planes:
        on_device = plane.name.startswith("/device:GPU")
        spans = [
            (event.start_ns, event.duration_ns, event.name)
            for line in plane.lines
            for event in line.events
            if (on_device and line.name.startswith("Stream")) or (not on_device and event.name.startswith("cu"))
        ]
        if not spans:
            continue
        print(f"{'kernels and copies' if on_device else 'calls of the driver by ' + plane.name}:")
        for name in sorted({name for _, _, name in spans}):
            taken = [duration for _, duration, other in spans if other == name]
            print(f"    {len(taken):3} {name}, {1e-3 * sum(taken):.1f} us")
        if on_device:
            begin, end = min(start for start, _, _ in spans), max(start + duration for start, duration, _ in spans)
            print(f"    of {1e-3 * (end - begin):.1f} us from the first's begin to the last's end")
    return 0


# What a call costs


def overhead(arguments: argparse.Namespace) -> int:
    import jax
    import nhood.jax
    import numpy as np
    from small_calls import SHAPE, WINDOW, execution

    chain, rounds = 64, 20
    nhood.configure(threads=1)
    arrays = [np.random.default_rng(i).standard_normal(SHAPE, np.float32) for i in range(3)]
    query, key, value = map(jax.numpy.asarray, arrays)
    c_call = execution(*arrays, np.empty(SHAPE, np.float32))

    def attend(query: Any, key: Any, value: Any) -> Any:
        return nhood.jax.na2d(query, key, value, WINDOW)

    @jax.jit
    def many(query: Any, key: Any, value: Any) -> Any:
        for _ in range(chain):
            query = attend(query, key, value)
        return query

    program, sum_of_three = jax.jit(attend), jax.jit(lambda query, key, value: query + key + value)

    def repeat(call: Callable[..., Any], *given: Any) -> Callable[[], float]:
        def turn() -> float:
            begun = time.perf_counter()
            for _ in range(rounds):
                jax.block_until_ready(call(*given))
            return 1e6 * (time.perf_counter() - begun) / rounds

        return turn

    def c_turn() -> float:
        begun = time.perf_counter()
        for _ in range(rounds):
            c_call()
        return 1e6 * (time.perf_counter() - begun) / rounds

    jax_arrays = (query, key, value)
    lines = {
        "nhood_plan_execute through ctypes": c_turn,
        f"nhood.jax.na2d, one of {chain} in a program": lambda turn=repeat(many, *jax_arrays): turn() / chain,
        "a program of one nhood.jax.na2d": repeat(program, *jax_arrays),
        "a program that adds the three arrays": repeat(sum_of_three, *jax_arrays),
        "nhood.jax.na2d without jit": repeat(attend, *jax_arrays),
    }
    np.testing.assert_array_equal(program(*jax_arrays), nhood.na2d(*arrays, WINDOW))
    times: dict[str, list[float]] = {name: [] for name in lines}
    for turn in range(100 * arguments.turns + 5):
        for name, line in lines.items():
            taken = line()
            if turn >= 5:
                times[name].append(taken)
    first = next(iter(lines))
    print(f"\njax {jax.__version__}; us, {100 * arguments.turns} turns of {rounds} calls, all lines in each turn\n")
    print("| | fastest turn | median | more than through C, fastest | median of the pairs |\n|---|---|---|---|---|")
    for name, taken in times.items():
        more = [a - b for a, b in zip(taken, times[first])]
        print(
            f"| {name} | {min(taken):.2f} | {statistics.median(taken):.2f} | "
            f"{min(taken) - min(times[first]):.2f} | {statistics.median(more):.2f} |"
        )
    return 0


# The same bits as nhood.torch's


def same(arguments: argparse.Namespace) -> int:
    import jax
    import numpy as np
    import torch

    jax.config.update("jax_enable_x64", True)
    torch.use_deterministic_algorithms(True)
    different = 0
    for text in SAME:
        dtype, rest = text.split(":", 1)
        problem = parse(rest)
        random = np.random.default_rng(0)
        arrays = [random.standard_normal(problem.shape, np.float32) for _ in range(3)]
        ours, in_graph = results_of_jax(problem, arrays, DTYPES[dtype])
        theirs = results_of_torch(problem, arrays, DTYPES[dtype], arguments.device)
        for name, one, other in zip(("out", "lse", "d_query", "d_key", "d_value"), ours, theirs):
            count = int((one.view(np.uint8) != other.view(np.uint8)).sum())
            different += count
            if count:
                print(f"{text}: {name} differs in {count} bytes of {one.nbytes}")
        said = f", command buffers {arguments.command_buffers}" if arguments.command_buffers else ""
        graphs = " (XLA's program names one)" if in_graph else ""
        print(f"{text}: compared{said}{graphs}", flush=True)
    return int(different > 0)


def results_of_jax(problem: Problem, arrays: list[Any], dtype: str) -> tuple[list[Any], bool]:
    """out, lse and three gradients; called several times, so that a program that is captured is replayed, too."""
    import jax
    import jax.numpy as jnp
    import nhood.jax
    import numpy as np

    def loss(q: Any, k: Any, v: Any) -> Any:
        out, lse = nhood.jax.neighborhood_attention(q, k, v, problem.window, return_lse=True, deterministic=True)
        return out.astype(jnp.float64).sum(), (out, lse)

    given = [jnp.asarray(array).astype(dtype) for array in arrays]
    program = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True)).lower(*given).compile()
    seen = []
    for _ in range(5):
        gradients, (out, lse) = program(*given)
        seen.append([np.asarray(x) for x in (out, lse, *gradients)])
    for again in seen[1:]:
        for one, other in zip(again, seen[0]):
            np.testing.assert_array_equal(one, other)
    return seen[0], "command_buffer" in program.as_text()


def results_of_torch(problem: Problem, arrays: list[Any], dtype: str, device: str) -> list[Any]:
    import nhood.torch
    import numpy as np
    import torch

    given = [torch.from_numpy(array).to(device, getattr(torch, dtype)).requires_grad_() for array in arrays]
    out, lse = nhood.torch.neighborhood_attention(*given, problem.window, return_lse=True)
    out.backward(torch.ones_like(out))
    found = []
    for tensor in (out, lse, *(x.grad for x in given)):
        plain = tensor.detach().contiguous().cpu()
        found.append(plain.view(torch.int16).numpy() if plain.dtype == torch.bfloat16 else np.asarray(plain))
    return found


def main() -> int:
    arguments = parse_arguments()
    alone = os.environ.get("NHOOD_JAX_PART")
    if alone:
        return {"overhead": overhead, "same": same, "profile": profile, "speed": speed}[alone](arguments)
    status = 0
    for part in arguments.part or (("overhead", "speed") if arguments.device == "cpu" else ("same", "profile", "speed")):
        for command_buffers in COMMAND_BUFFERS if part in ("same", "profile") and arguments.device == "cuda" else (None,):
            status |= start(arguments, part, command_buffers)
    return status


if __name__ == "__main__":
    sys.exit(main())
