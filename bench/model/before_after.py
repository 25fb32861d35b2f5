#!/usr/bin/env python3
"""How fast a GPU is by this tree beside another one, such as that of an earlier commit: both time what they choose by
estimate for the same problems, drawn as bench/model/choices.py draws them, in turns. Each has its own build/choices.

    bench/model/before_after.py --base ../before/build/choices --sample 100 --dtypes f16,bf16,f32 --output DIR

A problem's ratio is the other tree's time over this one's, the median of three turns; which of the two comes first alternates.
Where they differ by more than 5 % six turns more decide, since what disturbs a turn has seldom lasted as long.

Results are appended to DIR/before_after.jsonl, a line for each problem; a command that is repeated goes on where it was.
DIR/before_after.md is made of that file's lines of this device, commit and base.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import wait
from pathlib import Path

from choices import Compilers, Worker, add_sample_options, check_sample_options, rank_of, sample

sys.path[:0] = map(str, Path(__file__).parents[1].iterdir())  # modules of all folders of bench
from report import Records, Row, Where, make_folder, table  # noqa: E402
from study import Tool, find_where  # noqa: E402

TURNS = 3
DOUBTFUL = 1.05  # a ratio of that, or one over that: more turns decide
SLOWER = 0.90  # is listed
CHOICE_ALONE = 0.0  # build/choices' CUT
TREES = ("before", "after")


def choice_of(answer: Row) -> tuple[str, float]:
    """Solver and config, and nanoseconds. ValueError if it was not timed."""
    if not answer.get("candidates") or not answer["candidates"][0][4]:
        raise ValueError(answer.get("why", "the choice could not be timed"))
    solver, config, _, median_ns, _ = answer["candidates"][0]
    return f"{solver} {config}".strip(), median_ns


def race(problem: str, clocks: dict[str, Worker]) -> Row:
    times: dict[str, list[float]] = {name: [] for name in TREES}
    chosen: dict[str, str] = {}
    turns = TURNS
    while len(times["after"]) < turns:
        first = len(times["after"]) % 2
        for name in (TREES[first], TREES[1 - first]):
            try:
                chosen[name], median_ns = choice_of(clocks[name].ask(f"time {problem}"))
            except ValueError as error:
                return {"absent": f"{name}: {error}"}
            times[name].append(median_ns)
        if len(times["after"]) == TURNS and not 1 / DOUBTFUL <= ratio_of(times) <= DOUBTFUL:
            turns = 3 * TURNS
    return {"ratio": ratio_of(times), "chosen": chosen, "ns": times}


def ratio_of(times: dict[str, list[float]]) -> float:
    return statistics.median(before / after for before, after in zip(times["before"], times["after"]))


def measure_all(options: argparse.Namespace, records: Records, problems: list[str], cache: str) -> None:
    end = time.monotonic() + options.budget
    command = shlex.join(["python3", "bench/model/before_after.py", *sys.argv[1:]])
    programs = dict(zip(TREES, (options.base, options.choices)))
    missing = [text for text in problems if (text, contender(options)) not in records.known]
    halves = dict(cut=CHOICE_ALONE, processes=1 + options.processes // 2)
    compilers = [Compilers(argparse.Namespace(**{**vars(options), **halves, "choices": p}), cache) for p in programs.values()]
    clocks = {name: Worker((path, CHOICE_ALONE), {"NHOOD_CACHE": cache}) for name, path in programs.items()}
    ready = [[each.prepare(text) for each in compilers] for text in missing]
    try:
        for text, both in zip(missing, ready):
            wait(both, max(0, end - time.monotonic()))
            if not all(made.done() for made in both) or time.monotonic() >= end:
                print("the budget is spent; the same command goes on", file=sys.stderr)
                break
            failed = [made.exception() for made in both if made.exception()]
            if failed:
                print(f"passed over: {failed[0]}", file=sys.stderr)
                continue
            records.append(text, contender(options), {**race(text, clocks), "command": command})
    finally:
        for each in compilers:
            each.close()
        for clock in clocks.values():
            clock.process.kill()


def contender(options: argparse.Namespace) -> str:
    return f"beside {options.base}"


def groups_of(lines: Iterable[Row]) -> dict[str, list[float]]:
    """Ratios by rank, and by rank and operation."""
    groups: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        if "ratio" in line:
            operation = "forward" if line["problem"].startswith("fwd") else "backward"
            for group in (f"{rank_of(line['problem'])}-D", "all"):
                groups[group].append(line["ratio"])
                groups[f"{group}, {operation}"].append(line["ratio"])
    return dict(sorted(groups.items()))


def slower(lines: Iterable[Row]) -> list[Row]:
    """Problems that take notably longer than before, the worst first."""
    return sorted((line for line in lines if line.get("ratio", 1) < SLOWER), key=lambda line: line["ratio"])


def by_group(lines: list[Row]) -> list[str]:
    rows = []
    for name, ratios in groups_of(lines).items():
        cells = [f"{f(ratios):.3f}" for f in (statistics.geometric_mean, min, max)]
        rows.append((name, len(ratios), *cells))
    return [*table(("before over after", "problems", "geometric mean", "least", "most"), rows), ""]


def list_slower(lines: list[Row]) -> list[str]:
    rows = []
    for line in slower(lines):
        cells = [f"`{line['problem']}`", f"{line['ratio']:.2f}"]
        for name in TREES:
            cells += [f"`{line['chosen'][name]}`", f"{statistics.median(line['ns'][name]) / 1e3:.1f}"]
        rows.append(cells)
    found = table(("problem", "ratio", "before", "us", "after", "us"), rows)
    absent = [f"- `{line['problem']}`: {line['absent']}" for line in lines if "absent" in line]
    return [*(found if rows else [f"No problem has a ratio below {SLOWER}."]), "", *absent]


def write_report(lines: list[Row], where: Where, folder: Path) -> None:
    text = ["# Before and after", "", f"{where.description}; driver {where.driver}; commit {where.commit}.", ""]
    (folder / "before_after.md").write_text("\n".join(text + by_group(lines) + list_slower(lines)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="build/choices of the other tree")
    add_sample_options(parser)
    options = parser.parse_args()
    check_sample_options(parser, options)
    for name in ("base", "choices"):
        if not os.access(getattr(options, name), os.X_OK):
            parser.error(f"--{name} {getattr(options, name)}: there is no such program")
    tool = Tool(options.nhood, "cuda:0", None, 0, 0)
    make_folder(options.output)
    records = Records(options.output / "before_after.jsonl", find_where(tool))
    with tempfile.TemporaryDirectory() as folder:
        measure_all(options, records, sample(tool, options), options.cache or folder)
    lines = [line for line in records.lines if line["contender"] == contender(options)]
    write_report(lines, records.where, options.output)
    print(f"{options.output / 'before_after.md'}: {len(lines)} problems")


if __name__ == "__main__":
    main()
