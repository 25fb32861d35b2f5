#!/usr/bin/env python3
"""How good the planner's choices are on a GPU: of samples of the sets `nhood suite paper-1d|2d|3d`, forward and
backward, every candidate worth a run is timed beside the one that the estimates choose, and on some problems beside the
one that MEASURE chooses within a second.

Compiling takes far longer than timing, so many processes (build/choices) fill a cache folder with the kernels of later
problems while one of them times the earlier. As many problems of each head dim are drawn, in an order of their own (by
CRC); after the first few, those that would take many kernels of their own are passed over.

Results are appended to DIR/choices.jsonl, a line for each problem; a command that is repeated goes on where it was.
DIR/choices.md is made of that file's lines of this device and commit; --budget 0 only makes it anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Optional

sys.path[:0] = map(str, Path(__file__).parents[1].iterdir())  # modules of all folders of bench
from report import DTYPES, ROOT, Records, Row, Where, find_commit, make_folder, read_lines, table, where_all  # noqa: E402
from study import Tool, find_where, share_of, take_share  # noqa: E402


# Kernels for bf16 differ from those for f16 in the kind of a product and a conversion.
KINDS = ("fwd:f16", "bwd:f16", "fwd:f16", "bwd:f16", "fwd:f16", "bwd:f16", "fwd:f32", "bwd:f32")
MOST_OF_SUITE = 2448  # all of the smallest
CONTENDER = "choices"
LIMITS = (1.02, 1.05, 1.10, 1.15)
EXCEPTION = 1.10  # times slower
MOST_EXCEPTIONS = 60

Kernels = set[tuple[Any, ...]]  # what they are made of


class Worker:
    """A process of build/choices."""

    def __init__(self, command: Iterable[Any], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
            bufsize=1,
        )

    def ask(self, command: str) -> Row:
        print(command, file=self.process.stdin)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{command}: build/choices ended with status {self.process.wait()}")
        return json.loads(answer)


class Compilers:
    """Processes that get problems ready, each one at a time and in order; they give way to the one that times."""

    def __init__(self, options: argparse.Namespace, cache: str) -> None:
        count = max(1, options.processes - 1)
        environment = {"NHOOD_CACHE": cache}
        if options.pretended:
            folders = (str(options.pretended), os.environ.get("LD_LIBRARY_PATH", ""))
            environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
        self.pool = ThreadPoolExecutor(count)
        self.workers = [Worker(("nice", options.choices, options.cut), environment) for _ in range(count)]
        self.idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            self.idle.put(worker)

    def prepare(self, problem: str) -> Future[None]:
        return self.pool.submit(self.ask, f"prepare {problem}")

    def ask(self, command: str) -> None:
        worker = self.idle.get()
        try:
            worker.ask(command)
        finally:
            self.idle.put(worker)

    def close(self) -> None:
        """Ends what is under way, too."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.process.kill()


def rank_of(problem: str) -> int:
    return problem.split(":")[3].count("x") + 1


def head_dim(problem: str) -> str:
    return re.search(r"b\d+h\d+(?:k\d+)?d(\d+)", problem).group(1)


def group_of(problem: str) -> tuple[str, ...]:
    """Problems of two groups have no kernel in common."""
    op, dtype = problem.split(":")[:2]
    return op, dtype, head_dim(problem), str(rank_of(problem))


def kernels(line: Row) -> Kernels:
    """What has to be compiled for a problem, as far as configs tell: some hold the tiles of two launches."""
    op, dtype, _, _, window, *others = line["problem"].split(":")
    dilated = any(other.startswith("d") for other in others)
    found = set()
    for solver, config, *_ in line["candidates"]:
        common = (solver, op, dtype, head_dim(line["problem"]), rank_of(line["problem"]), dilated)
        common += (window,) if solver == "cuda.small" else ()
        knobs = [knob for knob in config.split(",") if not knob.startswith("order_axis=")]
        first = [knob for knob in knobs if not knob.startswith("dkv_")]
        second = [knob for knob in knobs if op == "bwd" and knob.startswith("dkv_")]
        found |= {(*common, ",".join(part)) for part in (first, second) if part}
    return found


def take_turns(lists: Iterable[list[str]]) -> list[str]:
    return [item for turn in itertools.zip_longest(*lists) for item in turn if item]


def draw(suite: list[str], worker: Worker, options: argparse.Namespace) -> dict[str, Kernels]:
    """As many problems of each head dim, in the suite's order, with their kernels; those past the first few that would
    take many more kernels are passed over."""
    known: Kernels = set()
    drawn: dict[str, list[str]] = {dim: [] for dim in sorted({head_dim(text) for text in suite})}
    most = math.ceil(options.sample / len(drawn))
    needed: dict[str, Kernels] = {}
    for text in suite:
        mine = drawn[head_dim(text)]
        if len(mine) == most:
            continue
        problem = f"{options.kinds[len(mine) % len(options.kinds)]}:{text}"
        needed[problem] = kernels(worker.ask(f"list {problem} {options.only}"))
        if len(mine) < options.free or len(needed[problem] - known) <= options.new:
            known |= needed[problem]
            mine.append(problem)
    return {problem: needed[problem] for problem in take_turns(drawn.values())}


def sizes_of(problem: str) -> str:
    """Whatever the operation and the dtype."""
    return problem.split(":", 2)[2]


def sample(tool: Tool, options: argparse.Namespace) -> list[str]:
    """Ranks in turns, on each of them head dims, and on each of these operations and dtypes; or those of a file."""
    if options.problems:
        lines = options.problems.read_text().splitlines()
        return [problem for line in lines for problem in line.split("#")[0].split()]
    worker = Worker((options.choices, options.cut), {})
    needed: dict[str, Kernels] = {}
    known = {sizes_of(line["problem"]) for line in read_lines(options.without)} if options.without else set()
    suites = [tool.suite(rank, MOST_OF_SUITE, None) for rank in options.ranks]
    drawn = [draw([text for text in suite if text not in known], worker, options) for suite in suites]
    worker.process.kill()
    for one in drawn:
        needed |= one
    problems = take_turns([[*one] for one in drawn])
    groups: dict[tuple[str, ...], Kernels] = defaultdict(set)
    for problem in problems:
        groups[group_of(problem)] |= needed[problem]
    mine = take_share(groups, options.share)
    return [problem for problem in problems if group_of(problem) in mine]


def measure_all(options: argparse.Namespace, records: Records, problems: list[str], cache: str) -> None:
    end = time.monotonic() + options.budget
    command = shlex.join(["python3", "bench/model/choices.py", *sys.argv[1:]])
    contender = f"{CONTENDER} {options.only}".strip()
    missing = [(i, text) for i, text in enumerate(problems) if (text, contender) not in records.known]
    compilers = Compilers(options, cache)
    clock = Worker((options.choices, options.cut), {"NHOOD_CACHE": cache})
    ready = [compilers.prepare(f"{text} {options.only}") for _, text in missing]
    try:
        for (i, text), made in zip(missing, ready):
            wait([made], max(0, end - time.monotonic()))
            if not made.done() or time.monotonic() >= end:
                print("the budget is spent; the same command goes on", file=sys.stderr)
                break
            if made.exception():
                print(f"passed over: {made.exception()}", file=sys.stderr)
                continue
            by_budget = options.measure_every and i // len(options.ranks) % options.measure_every == 0
            verb = f"measure {options.measure:g}" if by_budget else "time"
            result = clock.ask(f"{verb} {text} {options.only}")
            records.append(text, contender, {**result, "command": command})
    finally:
        compilers.close()
        clock.process.kill()


# ---- other estimates ----


def again(line: Row, planner: Worker) -> Row:
    """The line with its candidates as the estimates of `planner` would list them; a choice without a time, too."""
    times = {(solver, config): [*times] for solver, config, _, *times in line["candidates"]}
    listed = planner.ask(f"list {line['problem']}")["candidates"]
    candidates = [
        [solver, config, estimate_ns, *times.pop((solver, config), (0, 0))]
        for place, (solver, config, estimate_ns, *_) in enumerate(listed)
        if place == 0 or (solver, config) in times
    ]
    gone = [candidate for candidate in line["candidates"] if (candidate[0], candidate[1]) in times]
    return {**line, "candidates": candidates + gone, "measured": -1}


def supersede(lines: Iterable[Row]) -> list[Row]:
    """One line for each problem: later lines take the place of earlier ones, of solvers that both have."""
    found: dict[str, Row] = {}
    for line in filter(timed, lines):
        solvers = {candidate[0] for candidate in line["candidates"]}
        earlier = found.get(line["problem"], {"candidates": []})["candidates"]
        kept = [candidate for candidate in earlier if candidate[0] not in solvers]
        found[line["problem"]] = {**line, "candidates": line["candidates"] + kept}
    return list(found.values())


def choose_again(options: argparse.Namespace) -> tuple[list[Row], Where]:
    """Every time in the file, whatever its commit, and the choices of build/choices."""
    planner = Worker((options.choices, math.inf, options.again), {})
    lines = list(read_lines(options.output / "choices.jsonl"))
    known = where_all(lines)
    lines = [again(line, planner) for line in supersede(lines)]
    if not lines:
        raise SystemExit(f"{options.output / 'choices.jsonl'}: no times")
    planner.process.kill()
    return lines, replace(known, commit=f"{known.commit} (times), {find_commit()} (estimates)")


# ---- the report ----


def timed(line: Row) -> list[list[Any]]:
    return [candidate for candidate in line.get("candidates", []) if candidate[4]]


def behind(line: Row, choice: int) -> Optional[float]:
    """How many times slower than the fastest one is."""
    if choice < 0 or not line["candidates"][choice][4]:
        return None
    return line["candidates"][choice][3] / min(candidate[3] for candidate in timed(line))


def share(ratios: list[float], limit: float) -> str:
    return f"{100 * sum(ratio <= limit for ratio in ratios) / len(ratios):.1f} %"


def shares(title: str, groups: dict[str, list[float]]) -> list[str]:
    titles = (title, "problems", *(f"within {100 * (x - 1):.0f} %" for x in LIMITS), "median", "worst")
    rows = []
    for name, ratios in groups.items():
        cells = [name, len(ratios), *(share(ratios, limit) for limit in LIMITS)]
        cells += [f"{100 * (x - 1):+.1f} %" for x in (statistics.median(ratios), max(ratios))]
        rows.append(cells)
    return [*table(titles, rows), ""]


def by_rank(lines: list[Row], choices: dict[str, int]) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        ratio = behind(line, choices[line["problem"]])
        if ratio:
            op = "forward" if line["problem"].startswith("fwd") else "backward"
            for group in (f"{rank_of(line['problem'])}-D", "all"):
                groups[group].append(ratio)
                groups[f"{group}, {op}"].append(ratio)
    return dict(sorted(groups.items()))


def errors(lines: list[Row]) -> list[str]:
    logs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        for solver, _, estimate_ns, median_ns, _ in timed(line):
            kind = "f32" if ":f32:" in line["problem"] else "f16, bf16"
            logs[f"{solver}, {line['problem'][:3]}", kind].append(math.log(estimate_ns / median_ns))
    rows = []
    for (solver, kind), values in sorted(logs.items()):
        typical = math.sqrt(statistics.fmean(x * x for x in values))
        median = 100 * (math.exp(statistics.median(values)) - 1)
        rows.append((solver, kind, len(values), f"{median:+.0f} %", f"{100 * typical:.0f} %"))
    return [*table(("solver", "dtypes", "candidates", "median error", "root mean square"), rows), ""]


def exceptions(lines: list[Row]) -> list[tuple[float, Row, list[Any], list[Any]]]:
    """How many times slower the choice is, the line, the choice and the fastest candidate; the worst first."""
    found = []
    for line in lines:
        ratio = behind(line, 0)
        if ratio and ratio > EXCEPTION:
            fastest = min(timed(line), key=lambda candidate: candidate[3])
            found.append((ratio, line, line["candidates"][0], fastest))
    return sorted(found, key=lambda exception: -exception[0])


def count_exceptions(found: list[tuple[float, Row, list[Any], list[Any]]]) -> list[str]:
    counts = Counter((*line["problem"].split(":")[:2], chosen[0], best[0]) for _, line, chosen, best in found)
    rows = ((*kind, count) for kind, count in counts.most_common())
    return [*table(("op", "dtype", "chosen", "fastest", "problems"), rows), ""]


def list_exceptions(found: list[tuple[float, Row, list[Any], list[Any]]]) -> list[str]:
    titles = ("problem", "slower", "chosen", "estimate, us", "time, us", "fastest", "estimate, us", "time, us")
    rows = []
    for ratio, line, *both in found[:MOST_EXCEPTIONS]:
        cells = [f"`{line['problem']}`", f"{100 * (ratio - 1):.0f} %"]
        for solver, config, estimate_ns, median_ns, _ in both:
            cells += [f"{solver} `{config}`", f"{estimate_ns / 1e3:.1f}", f"{median_ns / 1e3:.1f}"]
        rows.append(cells)
    return [*table(titles, rows), ""]


def write_report(lines: list[Row], where: Where, folder: Path) -> None:
    lines = [line for line in lines if timed(line)]
    text = ["# How good the choices are", "", f"{where.description}; driver {where.driver}; commit {where.commit}.", ""]
    unknown = sum(behind(line, 0) is None for line in lines)
    text += [f"Timed: {sum(len(timed(line)) for line in lines)} candidates of {len(lines)} problems.", ""]
    text += [f"Of {unknown} problems the choice has no time; they are left out below.", ""] if unknown else []
    text += shares("choice by estimate", by_rank(lines, defaultdict(int)))
    measured = {line["problem"]: line["measured"] for line in lines}
    if any(choice >= 0 for choice in measured.values()):
        text += shares("choice by MEASURE", by_rank(lines, measured))
    found = exceptions(lines)
    text += errors(lines) + count_exceptions(found) + list_exceptions(found)
    (folder / "choices.md").write_text("\n".join(text))


def kinds_of(text: str) -> tuple[str, ...]:
    """Forward and backward of the dtypes in turn."""
    dtypes = text.split(",")
    if not set(dtypes) <= set(DTYPES):
        raise argparse.ArgumentTypeError(f"{text!r}: dtypes are {', '.join(DTYPES)}")
    return tuple(f"{op}:{dtype}" for dtype in dtypes for op in ("fwd", "bwd"))


def add_sample_options(parser: argparse.ArgumentParser) -> None:
    """Which problems are drawn, and who gets them ready."""
    parser.add_argument("--ranks", nargs="+", type=int, choices=(1, 2, 3), default=(1, 2, 3))
    parser.add_argument("--sample", type=int, default=300, help="problems of each rank (300)")
    parser.add_argument("--problems", type=Path, metavar="FILE", help="draw none, time these (one a line; # comments), in their order")
    without = "a choices.jsonl, or one that xz has packed; none of its problems is drawn"
    parser.add_argument("--without", type=Path, metavar="FILE", help=without)
    dtypes = "take turns, forward and backward of each, such as f16,bf16,f32 (f16 three times as often as f32)"
    parser.add_argument("--dtypes", dest="kinds", type=kinds_of, default=KINDS, help=dtypes)
    parser.add_argument("--share", type=share_of, default=(1, 1), metavar="K/N", help="its K-th of N shares (1/1)")
    parser.add_argument("--free", type=int, default=5, help="of each head dim, so many whatever they take (5)")
    parser.add_argument("--new", type=int, default=12, help="kernels that any other may take beside earlier ones' (12)")
    parser.add_argument("--budget", type=float, default=600, help="seconds after which nothing more is begun (600)")
    parser.add_argument("--cut", type=float, default=1.5, help="leave out those estimated so many times slower (1.5)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="one of which times (all cores)")
    pretended = "folder of a libcuda.so.1 for those that compile, to leave the GPU alone: build/fake_driver (none)"
    parser.add_argument("--pretended", type=Path, help=pretended)
    parser.add_argument("--nhood", default=str(ROOT / "build" / "nhood"), help="the tool (build/nhood)")
    parser.add_argument("--choices", type=Path, default=ROOT / "build" / "choices", help="(build/choices)")
    parser.add_argument("--cache", help="a folder of kernels to start from and to leave (none)")
    parser.add_argument("--output", type=Path, required=True, help="a folder; made if need be")
    parser.add_argument("--only", default="", metavar="SOLVER", help="take this solver's candidates alone (all)")


def check_sample_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    for name in ("problems", "without"):
        path = getattr(options, name)
        if path and not path.exists():
            parser.error(f"--{name} {path}: there is no such file")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sample_options(parser)
    parser.add_argument("--measure", type=float, default=1, help="MEASURE's budget in seconds (1)")
    parser.add_argument("--measure-every", type=int, default=15, help="of so many problems, MEASURE one; 0: none (15)")
    parser.add_argument("--again", metavar="GPU", help="only say, by known times, how good this build's choices are")
    options = parser.parse_args()
    if options.again:
        write_report(*choose_again(options), options.output)
        return
    check_sample_options(parser, options)
    tool = Tool(options.nhood, "cuda:0", None, 0, 0)
    make_folder(options.output)
    records = Records(options.output / "choices.jsonl", find_where(tool))
    with tempfile.TemporaryDirectory() as folder:
        measure_all(options, records, sample(tool, options), options.cache or folder)
    write_report(records.lines, records.where, options.output)
    print(f"{options.output / 'choices.md'}: {len(records.lines)} problems")


if __name__ == "__main__":
    main()
