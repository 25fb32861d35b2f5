#!/usr/bin/env python3
"""Makes docs/performance.md, docs/measurements.md and the README's tables: `run` times the tables that one device can fill
and writes them to a file, `report` turns all files of bench/results and the prose of bench/report/performance.md.in and
measurements.md.in into the pages. `make performance` is the latter.

On a GPU: large windows and video decoders beside dense cuDNN attention, and beside whatever of FlexAttention, NATTEN and
FlashAttention 4 is installed (bench/gpu/peers.py), small windows, the kernels for sm_80 (nhood bench), a sample of the
operator study in f16 and f32 (bench/gpu/study.py). On a CPU: bench/suites/cpu.txt on one and two threads and by AVX2, and
nhood beside a plain loop and torch's dense attention of equal operations (bench/cpu/cpu_peers.py). What runs is nhood as built in build/; torch is needed for what stands beside it, and the package
nhood (PYTHONPATH is set to the source tree's).

A file is one run: device, driver, commit, date, and per table the command and its rows. It is written anew after every
table. A table that fails is named with its reason, and the exit status is 1. Each table gets its share of the budget and
what others left; when that is spent nothing more of it is begun, or, where another program times it, it is ended.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import performance_report
import study_report
from report import ROOT, read_lines

sys.path[:0] = map(str, Path(__file__).parents[1].iterdir())  # modules of all folders of bench
import study  # noqa: E402

RESULTS = ROOT / "bench" / "results"
TEMPLATES = ("performance.md.in", "measurements.md.in")
GRACE_S = 60.0  # beyond its own budget, for the study's processes to end
BENCH_S = 120.0  # of one `nhood bench` at most
Row = dict[str, Any]

LARGE = (
    "bf16:b1h24d128:30x48x80:w18x24x24:s16x8x8",
    "bf16:b1h24d128:30x48x80:w18x24x24",
    "bf16:b1h24d128:256x256:w80x80:s16x16",
    "bf16:b1h24d128:256x256:w80x80",
    "bf16:b1h16d128:65536:w4096",
)
# What FlashAttention 4 has windows for by itself (bench/gpu/peers.py), and an image with a small window for its head dim.
BESIDE_FLASH4 = (
    "bf16:b16h16d64:64x64:w15x15",
    "bf16:b1h16d128:65536:w512",
    "bf16:b1h32k8d128:65536:w1024:c1",
    "bf16:b4h16d64:8192:w256:c1",
)
# The levels of NAT, the first one with a relative bias, too.
SMALL = ("b128h4d32:56x56:w7x7", "b128h8d32:28x28:w7x7", "b128h16d32:14x14:w7x7", "b128h32d32:7x7:w7x7")
# Video decoders and volumes: large grids, small windows; the last two also backward.
DECODERS = (
    "bf16:b1h32d64:18x34x60:w3x7x7",
    "bf16:b1h16d64:18x68x120:w3x7x7",
    "bf16:b1h8d64:35x68x120:w3x5x5",
    "bf16:b1h8d64:69x136x240:w3x5x5",
    "bf16:b1h4d64:121x272x480:w11x11x11",
    "bf16:b1h8d64:33x96x160:w5x5x5",
    "bf16:b2h4d32:48x48x48:w5x5x5",
)
DECODER_DENSE_GFLOP = 1.5e6  # a call of dense cuDNN attention then takes some three seconds
SM80 = (
    "bf16:b1h24d128:30x48x80:w18x24x24:s16x8x8",
    "bf16:b1h24d128:256x256:w80x80:s16x16",
    "bf16:b1h16d128:65536:w4096",
)
SM80_F32 = "fwd:f32:b1h8d64:16384:w2048"
CPU_THREADS = (1, 2)


def rounded(value: Any) -> Any:
    """Five digits are more than any clock here has."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return value


def python(script: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "bench" / script), *arguments]


def shown(command: list[str]) -> str:
    """As one types it in the root of the tree."""
    words = ["python3" if word == sys.executable else word.removeprefix(f"{ROOT}/") for word in command]
    return shlex.join(words)


class Failure(Exception):
    """Why a table is not whole."""


def objects(command: list[str], seconds: float) -> Iterator[Row]:
    """What a command prints as JSON, line by line, until it ends, or is ended as its time is over."""
    path = os.pathsep.join(filter(None, (str(ROOT / "bindings" / "python"), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryFile("w+") as errors:
        run = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "PYTHONPATH": path}
        )
        clock = threading.Timer(max(seconds, 1), run.terminate)
        clock.start()
        try:
            yield from (json.loads(line) for line in run.stdout if line.startswith("{") and line.endswith("}\n"))
        finally:
            in_time = clock.is_alive()
            clock.cancel()
            run.wait()
        errors.seek(0)
        message = errors.read().strip()
    if not in_time:
        raise Failure(f"ended after {seconds:.0f} s, as the budget of this table was spent")
    if run.returncode:
        lines = message.splitlines() or [f"exit status {run.returncode}"]
        raise Failure(next((line for line in lines if line.startswith("nhood: ")), lines[-1]))


class Table:
    """One table of a run: `rows` appends rows until the time given to it, in seconds, is over."""

    def __init__(self, name: str, share: float, command: str, rows: Callable[[list[Row], float], None]) -> None:
        self.name, self.share, self.command, self.rows = name, share, command, rows

    def fill(self, seconds: float) -> Row:
        found: list[Row] = []
        table: Row = {"command": self.command, "rows": found}
        try:
            self.rows(found, seconds)
        except Failure as failure:
            table["failed"] = str(failure)
        found[:] = [rounded(row) for row in found]
        return table


def from_program(name: str, share: float, command: list[str]) -> Table:
    def rows(found: list[Row], seconds: float) -> None:
        for row in objects(command, seconds):
            found.append(row)

    return Table(name, share, shown(command), rows)


def from_bench(name: str, share: float, tool: str, calls: list[tuple[list[str], str]], most_rounds: int) -> Table:
    """`calls` are options of `nhood bench`, and a problem. All are timed in turns: the fastest of the rounds' medians."""

    def rows(found: list[Row], seconds: float) -> None:
        end = time.monotonic() + seconds
        samples: dict[int, list[Row]] = defaultdict(list)
        for place in [place for _ in range(most_rounds) for place in range(len(calls))]:
            if time.monotonic() < end:
                options, problem = calls[place]
                left = min(BENCH_S, end - time.monotonic() + GRACE_S)
                samples[place] += list(objects([tool, "bench", "--json", *options, problem], left))
        peaks: dict[tuple[str, str], float] = defaultdict(float)
        kinds = {place: (shlex.join(options), problem.split(":")[1]) for place, (options, problem) in enumerate(calls)}
        for place, rounds in samples.items():
            peaks[kinds[place]] = max([peaks[kinds[place]], *(each["peak_flops_per_s"] or 0 for each in rounds)])
        found += [best_row(samples[place], peaks[kinds[place]]) for place in sorted(samples)]
        if len(found) < len(calls):
            raise Failure(f"{len(calls) - len(found)} of {len(calls)} rows missing: the budget of this table was spent")

    options = sorted({shlex.join(options) for options, _ in calls})
    commands = [f"{shown([tool, 'bench'])} {each} PROBLEM" for each in options]
    return Table(name, share, "; ".join(commands), rows)


def best_row(samples: list[Row], peak: float) -> Row:
    """The median of the calls in the fastest round: other work on the machine only ever takes away. For the same reason the
    share is of the largest peak that any round of this configuration has found."""
    best = min(samples, key=lambda sample: sample["median_ns"])
    row = {key: best[key] for key in ("problem", "solver", "flops_per_s")}
    row |= {"configuration": best["description"].partition(", ")[2], "rounds": len(samples)}
    ms, share_of_copy = best["median_ns"] * 1e-6, best["share_of_copy"] or 0
    return row | {"ms": ms, "share_of_peak": best["flops_per_s"] / peak if peak else 0, "memory_ms": ms * share_of_copy}


def study_row(speedups: list[float], bounded: int = 0, faster: int = 0) -> Row:
    """The improvement in %, as the paper counts it, and how many are at least as fast, of how many."""
    row = {name: (f(speedups) - 1) * 100 for name, f in (("average", statistics.mean), ("least", min), ("most", max))}
    ahead = sum(ratio >= 1 for ratio in speedups) + faster
    return row | {"ahead": ahead, "count": len(speedups) + bounded, "bounded": bounded}


def study_rows(lines: list[Row]) -> Iterator[Row]:
    times = study_report.Times(lines)
    kinds = [(*item, *kind) for item in study_report.PASSES.items() for kind in study_report.KINDS]
    for pair in study_report.COMPARISONS:
        for pass_name, ops, dtype, rank in kinds:
            speedups = times.speedups(pair, ops, dtype, rank)
            kind = {"one": pair[0], "other": pair[1], "dtype": dtype, "pass": pass_name, "rank": rank}
            if speedups:
                yield kind | study_row(speedups, *times.outdone(pair, ops, dtype, rank))
            if pair != ("gemm", "naive"):
                continue
            # the paper's kinds of problems
            least, most = study_report.WINDOWS["7 to 63"]
            found = [(text, ratio) for text, ratio, *_ in times.ratios(pair, ops)]
            windows = {text: study_report.Problem.parse(f"fwd:{text}").window for text, _ in found}
            found = [(text, ratio) for text, ratio in found if least <= min(windows[text]) <= max(windows[text]) <= most]
            speedups = [ratio for text, ratio in found if study_report.is_of_kind(text, dtype, rank)]
            if speedups:
                yield kind | {"windows": "7 to 63"} | study_row(speedups)
    for loss in study_report.losses(times):
        row = {"problem": loss.text, "pass": loss.pass_name, "solver": loss.solvers, "ms": loss.ms}
        yield row | {"other": loss.other, "other_ms": loss.other_ms}


def from_study(name: str, share: float, device: str, sample: int, contenders: list[str], *options: str) -> Table:
    command = python("gpu/study.py", "--device", device, "--sample", str(sample), "--contenders", *contenders, *options)

    def rows(found: list[Row], seconds: float) -> None:
        with tempfile.TemporaryDirectory() as folder:
            own = ["--budget", f"{seconds:.0f}", "--output", folder]
            try:
                list(objects(command + own, seconds + GRACE_S))
            finally:
                found += study_rows(list(read_lines(Path(folder) / "study.jsonl")))
        if not found:
            raise Failure("no results: the budget of this table was spent")

    return Table(name, share, f"{shown(command)} --budget S --output DIR", rows)


def both(problem: str) -> list[str]:
    return [f"fwd:{problem}", f"bwd:{problem}"]


def cuda_tables(tool: str, device: str, sample: int, rounds: int) -> list[Table]:
    torch_device = ["--device", device]
    large = [text for problem in LARGE for text in both(problem)]
    beside_flash4 = [text for problem in BESIDE_FLASH4 for text in both(problem)]
    decoders = [f"fwd:{problem}" for problem in DECODERS] + [f"bwd:{problem}" for problem in DECODERS[-2:]]
    on_device = ["--device", device]
    small = [(on_device, text) for problem in SMALL for text in both(f"bf16:{problem}")]
    small.append((on_device, f"bwd:bf16:{SMALL[0]}:rpb"))
    sm80 = [(["--solver", "cuda.fused80"], f"fwd:{problem}") for problem in SM80]
    sm80 += [(["--solver", "cuda.split80"], f"bwd:{problem}") for problem in SM80]
    sm80.append((["--solver", "cuda.fused80"], SM80_F32))
    peers = python("gpu/peers.py", *torch_device, "--json", "--peers", "cuDNN")
    dense = ["--dense-gflop", f"{DECODER_DENSE_GFLOP:g}"]
    everyone = python("gpu/peers.py", *torch_device, "--json", "--turns", "3")
    return [
        from_program("large_windows", 20, [*peers, "--turns", "5", *large]),
        from_program("peers", 14, [*everyone, *large, *both(f"bf16:{SMALL[0]}"), *beside_flash4]),
        from_bench("small_windows", 8, tool, small, rounds),
        from_program("decoders", 14, [*peers, "--turns", "3", *dense, *decoders]),
        from_bench("sm80", 8, tool, [([*on_device, *options], text) for options, text in sm80], rounds),
        from_study("study_f16", 30, device, sample, ["fused", "dense cuDNN", "dense flash", "gemm", "naive"],
                   "--dtypes", "f16", "--dense-gflop", "5000"),
        from_study("study_f32", 20, device, sample, ["fused", "gemm", "naive"], "--dtypes", "f32"),
    ]  # fmt: skip


def cpu_tables(tool: str, device: str, sample: int, rounds: int) -> list[Table]:
    lines = (line.split("#")[0].strip() for line in (ROOT / "bench/suites/cpu.txt").read_text().splitlines())
    suite = [line for line in lines if line]
    configurations = [["--threads", str(threads)] for threads in CPU_THREADS]
    if any(isa in study.Tool(tool, device, None, 0, 0).text("info") for isa in ("avx512", "amx")):
        configurations.append(["--threads", "1", "--isa", "avx2"])
    threads = list(map(str, CPU_THREADS))
    peers = python("cpu/cpu_peers.py", "--json", "--threads", *threads, "--peers", "plain C", "dense")
    return [
        from_bench("cpu_suite", 3, tool, [(each, text) for each in configurations for text in suite], rounds),
        from_program("cpu_peers", 1, peers),
    ]


def run(options: argparse.Namespace) -> int:
    tool = study.Tool(options.nhood, options.device, None, 0, 0)
    where = study.find_where(tool)
    cuda = options.device != "cpu"
    tables = (cuda_tables if cuda else cpu_tables)(options.nhood, options.device, options.sample, options.rounds)
    unknown = set(options.tables or ()) - {table.name for table in tables}
    if unknown:
        raise SystemExit(f"--tables: {', '.join(sorted(unknown))}: there are {', '.join(t.name for t in tables)}")
    found: Row = {"kind": "cuda" if cuda else "cpu", "device": where.description, "driver": where.driver}
    now = datetime.datetime.now(datetime.timezone.utc)
    found |= {"commit": options.commit or where.commit, "date": f"{now:%Y-%m-%d %H:%M}"}
    found |= {"system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"}
    found |= {"note": options.note} if options.note else {}
    found["tables"] = {}
    end = time.monotonic() + options.budget
    left = [table for table in tables if not options.tables or table.name in options.tables]
    while left:
        share = left[0].share / sum(table.share for table in left)
        table = left.pop(0)
        found["tables"][table.name] = filled = table.fill(max(0, end - time.monotonic()) * share)
        print(f"{table.name}: {len(filled['rows'])} rows. {filled.get('failed', '')}", file=sys.stderr, flush=True)
        options.output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return any("failed" in table for table in found["tables"].values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    timing = commands.add_parser("run", help="time the tables of one device")
    timing.add_argument("--device", default="cpu", help="by its name in 'nhood info' (cpu)")
    timing.add_argument("--budget", type=float, default=480, help="seconds for all tables (480)")
    timing.add_argument("--output", type=Path, required=True, help="the file to write")
    timing.add_argument("--tables", nargs="+", metavar="NAME", help="only these (all)")
    timing.add_argument("--sample", type=int, default=100, help="problems of each rank in the study (100)")
    timing.add_argument("--rounds", type=int, default=5, help="of `nhood bench` over a table, if the budget allows (5)")
    timing.add_argument("--commit", help="what is timed, where there is no repository to ask")
    timing.add_argument("--note", help="what else to know of machine and run, for the page")
    timing.add_argument("--nhood", default=str(ROOT / "build" / "nhood"), help="the tool (build/nhood)")
    page = commands.add_parser("report", help="write the pages of all results")
    page.add_argument("--results", type=Path, default=RESULTS, help="folder of files that `run` wrote (bench/results)")
    page.add_argument("--output", type=Path, default=ROOT / "docs", help="folder of the pages (docs)")
    page.add_argument("--readme", type=Path, default=ROOT / "README.md", help="whose tables are written, too (README.md)")
    page.add_argument("--check", action="store_true", help="write nothing; fail if a page is another")
    options = parser.parse_args()
    if options.command == "run":
        return run(options)
    templates = {options.output / name.removesuffix(".in"): ROOT / "bench" / "report" / name for name in TEMPLATES}
    return performance_report.write(options.results, templates, options.readme, options.check)


if __name__ == "__main__":
    sys.exit(main())
