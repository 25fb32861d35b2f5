#!/usr/bin/env python3
"""The operator study of "Faster Neighborhood Attention" (2024), Tables 1 to 4, repeated with nhood on one device.

Problems are samples of the sets `nhood suite paper-1d|2d|3d`, forward and backward. On a GPU the families are those of
the paper: naive (cuda.naive), gemm (the operators pn, nn and in by cuda.gemm, with torch's softmax between them), fused
(what nhood chooses; if that is neither of the fused solvers, the fastest of these), and torch's dense attention over all
keys, which computes something else, by cuDNN, flash and memory-efficient kernels; they need torch and the package nhood (PYTHONPATH=bindings/python in a source tree). A CPU has
no naive and no gemm solver: its reference solver is written for exactness and is no contender. There, fused
(cpu.fused) stands beside unfused (cpu.unfused, the sum of pn and nn forward and of pn, nn and twice in backward,
without the softmax between them, so that what is said of it is a lower bound) and torch's dense attention.

Results are appended to DIR/study.jsonl, one line each; a command that is repeated goes on where it was, and one that is
interrupted loses at most what is under way. DIR/study.md and DIR/*.png are made of that file's lines of this device and
commit; --report only makes them anew, of all its lines, and needs no device. Problems come in an order of their own (by
CRC), so that any budget gives a fair sample. Times are medians: on a CPU, of nhood by `nhood bench`; on a GPU, of the
fastest of the turns in which all contenders take part. torch and matplotlib are used where they are installed.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Optional

sys.path[:0] = map(str, Path(__file__).parents[1].iterdir())  # modules of all folders of bench
from report import DTYPES, ROOT, Records, Where, find_commit, find_driver, make_folder, read_lines, where_all  # noqa: E402
from study_report import Problem, Result, write_report  # noqa: E402

FORWARD = ("fwd", "pn", "nn")
TIMEOUT_S = 120  # of one `nhood bench`
LEAST_CALLS, WARM_UP_S = 3, 0.02  # as `nhood bench` does it


@dataclass(frozen=True)
class Tool:
    """The program nhood, on one device."""

    path: str
    device: str
    threads: Optional[int]
    min_time: float
    tune: float

    @property
    def target(self) -> list[str]:
        return ["--device", self.device] + (["--threads", str(self.threads)] if self.threads else [])

    def text(self, *arguments: str) -> str:
        try:
            done = subprocess.run((self.path, *arguments), capture_output=True, text=True)
        except OSError as error:
            raise SystemExit(f"--nhood {self.path}: {error.strerror}") from error
        if done.returncode:
            raise SystemExit(done.stderr.strip())
        return done.stdout

    def info(self) -> dict[str, Any]:
        return json.loads(self.text("info", "--json", *self.target))

    def suite(self, rank: int, sample: int, most_gflop: Optional[float]) -> list[str]:
        """Problems without operation and dtype."""
        limit = ["--most-gflop", str(most_gflop)] if most_gflop else []
        lines = self.text("suite", f"paper-{rank}d", "--sample", str(sample), *limit).split()
        return sorted((line.split(":", 2)[2] for line in lines), key=lambda text: zlib.crc32(text.encode()))

    def bench(self, problems: list[str], solver: Optional[str] = None) -> dict[str, Result]:
        command = [self.path, "bench", "--json", "--min-time", str(self.min_time), *self.target]
        command += ["--tune", str(self.tune)] if self.tune else []
        command += ["--solver", solver] if solver else []
        try:
            done = subprocess.run(command + problems, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return {problem: {"absent": f"took longer than {TIMEOUT_S} s"} for problem in problems}
        found = {result["problem"]: result for result in map(json.loads, done.stdout.splitlines())}
        return {problem: found.get(problem) or refusal(problem, done) for problem in problems}


def refusal(problem: str, done: subprocess.CompletedProcess[str]) -> Result:
    lines = done.stderr.strip().splitlines() or [f"nhood bench ended with status {done.returncode}"]
    reason = next((line for line in lines if problem in line), lines[-1])
    return {"absent": reason.removeprefix("nhood: ").removeprefix(f"{problem}: ")}


class Dense:
    """torch's attention over all keys, on the CPU."""

    def __init__(self, torch: Any, min_time: float, most_gflop: float) -> None:
        self.torch, self.min_time, self.most_gflop = torch, min_time, most_gflop

    def __call__(self, problems: list[str]) -> dict[str, Result]:
        found = {}
        for text in problems:
            try:
                found[text] = self.measure(Problem.parse(text))
            except (RuntimeError, ValueError) as error:  # the backend refuses, memory is short; not comparable
                found[text] = {"absent": str(error).strip().splitlines()[0]}
        return found

    def measure(self, problem: Problem) -> Result:
        gflop = problem.dense_flops * 1e-9
        if gflop > self.most_gflop:
            raise ValueError(f"above {self.most_gflop:g} GFLOP")
        call = self.prepare(problem)
        began = time.perf_counter()
        while True:
            self.time(call)
            if time.perf_counter() - began > WARM_UP_S:
                break
        samples: list[float] = []
        began = time.perf_counter()
        while len(samples) < LEAST_CALLS or time.perf_counter() - began < self.min_time:
            samples.append(self.time(call))
        ns = statistics.median(samples)
        name = f"torch {self.torch.__version__}"
        return {"median_ns": ns, "flops_per_s": gflop * 1e18 / ns, "calls": len(samples), "solver": name}

    def prepare(self, problem: Problem) -> Callable[[], Any]:
        torch = self.torch
        dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[problem.dtype]
        shape = (4, problem.batch, problem.heads, problem.tokens, problem.dim)
        *inputs, d_out = torch.randn(shape, dtype=dtype).unbind()

        def attention() -> Any:
            return torch.nn.functional.scaled_dot_product_attention(*inputs)

        if problem.op == "fwd":
            return attention
        inputs = [tensor.detach().requires_grad_() for tensor in inputs]
        out = attention()
        return lambda: torch.autograd.grad(out, inputs, d_out, retain_graph=True)

    def time(self, call: Callable[[], Any]) -> float:
        start = time.perf_counter_ns()
        call()
        return time.perf_counter_ns() - start


class CpuStudy:
    """Measures (problem text, contender) pairs: nhood by `nhood bench`, torch in this process."""

    def __init__(self, tool: Tool, torch: Any, dense_gflop: float) -> None:
        self.tool = tool
        self.dense = Dense(torch, tool.min_time, dense_gflop)
        self.contenders = {"fused": ("fwd", "bwd"), "unfused": ("pn", "nn", "in")}
        if torch:
            self.contenders["dense"] = ("fwd", "bwd")

    def measure(self, asked: list[tuple[str, str]]) -> Iterator[tuple[str, str, Result]]:
        for name in self.contenders:
            texts = [text for text, contender in asked if contender == name]
            if texts:
                found = self.dense(texts) if name == "dense" else self.tool.bench(texts, f"cpu.{name}")
                yield from ((text, name, result) for text, result in found.items())

    def close(self) -> None:
        pass


def schedule(suites: list[list[str]], dtypes: list[str]) -> Iterator[tuple[str, str]]:
    """Ranks and dtypes in turns, so that an end at any time leaves about as many of each."""
    for place in range(max(map(len, suites), default=0)):
        for suite in suites:
            for dtype in dtypes if place < len(suite) else ():
                yield suite[place], dtype


def share_of(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with 1 <= K <= N")
    return number, count


def take_share(groups: Mapping[Any, Sized], share: tuple[int, int]) -> set[Any]:
    """The groups in the share of this number, of so many of about one size."""
    number, count = share
    sizes, homes = [0] * count, defaultdict(set)
    for group in sorted(groups, key=lambda group: (-len(groups[group]), group)):
        home = sizes.index(min(sizes))
        sizes[home] += len(groups[group])
        homes[home].add(group)
    return homes[number - 1]


def keep_share(suites: list[list[str]], share: tuple[int, int]) -> list[list[str]]:
    """By ranks, head dims and whether they are dilated: those of two shares have hardly a kernel in common."""
    groups = defaultdict(list)
    for suite in suites:
        for text in suite:
            groups[group_of(text)].append(text)
    mine = take_share(groups, share)
    return [[text for text in suite if group_of(text) in mine] for suite in suites]


def group_of(text: str) -> tuple[str, int, bool]:
    sizes, lengths, _, *dilation = text.split(":")
    return sizes.partition("d")[2], lengths.count("x") + 1, bool(dilation)


def measure_all(
    records: Records, work: list[tuple[str, str]], study: Any, at_once: int, budget_s: float, command: str
) -> None:
    """`study` has contenders, each with its operations; of `at_once` problems at a time what is missing is measured."""
    end = time.monotonic() + budget_s
    for first in range(0, len(work), at_once):
        pairs = [
            (f"{op}:{dtype}:{problem}", name)
            for problem, dtype in work[first : first + at_once]
            for name, ops in study.contenders.items()
            for op in ops
        ]
        missing = [pair for pair in pairs if pair not in records.known]
        if not missing:
            continue
        for text, contender, result in study.measure(missing) if time.monotonic() < end else ():
            records.append(text, contender, {**result, "command": command})
            if sys.stderr.isatty():
                print(f"{len(records.known)} results", end="\r", file=sys.stderr, flush=True)
            if time.monotonic() >= end:
                break
        if time.monotonic() >= end:
            print("the budget is spent; the same command goes on", file=sys.stderr)
            return


def find_where(tool: Tool) -> Where:
    device = next((d for d in tool.info()["devices"] if d["name"] == tool.device), None)
    if not device:
        raise SystemExit(f"--device {tool.device}: there is none of that name; see 'nhood info'")
    driver = find_driver() if device["kind"] == "cuda" else "none"
    return Where(device["description"], driver, find_commit())


def open_study(tool: Tool, turns: int, dense_gflop: Optional[float]) -> Any:
    if tool.device != "cpu":
        multiprocessing.set_forkserver_preload(["torch"])
        forkserver.ensure_running()  # imports torch, which takes seconds, while this process does
        from study_cuda import Workers

        processes = tool.threads or max(1, (os.cpu_count() or 1) - 2)
        return Workers(processes, tool.device, turns, dense_gflop or math.inf, tool.tune)
    try:
        import torch
    except ImportError:
        print("no dense attention: torch is not installed", file=sys.stderr)
        return CpuStudy(tool, None, 0)
    torch.set_num_threads(tool.threads or torch.get_num_threads())
    return CpuStudy(tool, torch, dense_gflop or 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="by its name in 'nhood info' (cpu)")
    parser.add_argument("--threads", type=int, help="CPU threads (all); GPU: processes that prepare (all but 2)")
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="only these, such as naive and gemm (all)")
    parser.add_argument("--forward", action="store_true", help="leave out backward passes")
    parser.add_argument("--ranks", nargs="+", type=int, choices=(1, 2, 3), default=(1, 2, 3))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--sample", type=int, default=200, help="problems of each rank (200)")
    parser.add_argument("--skip", type=int, default=0, help="of these, leave out so many: another run has them (0)")
    share = "of the problems, the K-th of N shares, for as many GPUs (1/1)"
    parser.add_argument("--share", type=share_of, default=(1, 1), metavar="K/N", help=share)
    parser.add_argument("--budget", type=float, default=600, help="seconds after which nothing more is begun (600)")
    parser.add_argument("--most-gflop", type=float, help="leave out problems with more operations")
    parser.add_argument("--dense-gflop", type=float, help="leave out dense attention of more (CPU: 20; GPU: none)")
    parser.add_argument("--min-time", type=float, default=0.1, help="CPU: seconds of timing per result (0.1)")
    parser.add_argument("--turns", type=int, default=3, help="GPU: turns that all contenders of a problem take (3)")
    parser.add_argument("--tune", type=float, default=0, help="seconds of tuning per result (0: estimates choose)")
    parser.add_argument("--nhood", default=str(ROOT / "build" / "nhood"), help="the tool (build/nhood)")
    parser.add_argument("--output", type=Path, required=True, help="a folder; made if need be")
    parser.add_argument("--report", action="store_true", help="only write tables and plots of all results in DIR")
    options = parser.parse_args()
    if options.report:
        lines = list(read_lines(options.output / "study.jsonl"))
        if not lines:
            raise SystemExit(f"{options.output / 'study.jsonl'}: no results")
        write_report(lines, where_all(lines), options.output)
        return
    tool = Tool(options.nhood, options.device, options.threads, options.min_time, options.tune)
    suites = [tool.suite(rank, options.sample, options.most_gflop)[options.skip :] for rank in options.ranks]
    suites = keep_share(suites, options.share)
    make_folder(options.output)
    records = Records(options.output / "study.jsonl", find_where(tool))
    work = list(schedule(suites, options.dtypes))
    study = open_study(tool, options.turns, options.dense_gflop)
    unknown = set(options.contenders or ()) - set(study.contenders)
    if unknown:
        study.close()
        parser.error(f"--contenders: {', '.join(sorted(unknown))}: there are {', '.join(study.contenders)}")
    study.contenders = {
        name: [op for op in ops if not options.forward or op in FORWARD]
        for name, ops in study.contenders.items()
        if name in (options.contenders or study.contenders)
    }
    at_once = 1 if options.device == "cpu" else len(work)
    command = shlex.join(["python3", "bench/gpu/study.py", *sys.argv[1:]])
    try:
        measure_all(records, work, study, at_once, options.budget, command)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
    study.close()
    write_report(records.lines, records.where, options.output)
    print(f"{options.output / 'study.md'}: {len(records.lines)} results")


if __name__ == "__main__":
    main()
