"""The summary of bench/gpu/gpu_round.py: goals beside what was measured, and the tables behind them, from all results in a folder."""

from __future__ import annotations

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import before_after
import choices
import decoder_report
import performance_report
from performance_report import Source, by_problem, dense_ratio
from report import Row, number, read_lines, table

# Of choices by estimate: the share within 10 % of the fastest candidate, the worst, and what all lose in geometric mean.
WITHIN, WORST, LOSS = 0.88, 1.6, 0.03
NEAR = 1.10
BEFORE_AFTER = 0.98  # of the geometric mean of the other tree's times over this one's
RANDOM_PROBLEMS = 300  # per solver, as tests/gpu/check-record asks for


class Goal(NamedTuple):
    step: str
    what: str
    goal: str
    """empty where none was set"""
    measured: str
    reached: Optional[bool] = None


def at_least(step: str, what: str, goal: float, measured: float, show: Callable[[float], str] = number) -> Goal:
    return Goal(step, what, f"≥ {show(goal)}", show(measured), measured >= goal)


def at_most(step: str, what: str, goal: float, measured: float, show: Callable[[float], str] = number) -> Goal:
    return Goal(step, what, f"≤ {show(goal)}", show(measured), measured <= goal)


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def ms(value: float) -> str:
    return f"{number(value)} ms"


def times(value: float) -> str:
    return f"{number(value)} ×"


# ---- check ----


def record_of(folder: Path) -> str:
    """What tests/gpu/run printed of its record; empty if it did not come that far."""
    text = (folder / "check.log").read_text(errors="replace")
    found = re.search(r"^sources \w+$.*^failed: .*?$", text, re.M | re.S)
    return found[0] if found else ""


def check_goals(folder: Path) -> Iterator[Goal]:
    record = record_of(folder)
    if not record:
        yield Goal("check", "a record", "there is one", "none", False)
        return
    failed = re.search(r"^failed: (.*)$", record, re.M)[1]
    yield Goal("check", "failed", "none", failed, failed == "none")
    counts = {solver: int(count) for solver, count in re.findall(r"^(cuda\.\w+) random (\d+)", record, re.M)}
    fewest = min(counts, key=lambda solver: counts[solver])
    yield at_least("check", f"random problems of a solver ({fewest})", RANDOM_PROBLEMS, counts[fewest], lambda n: f"{n:.0f}")
    written = (folder / "record.txt").exists()
    yield Goal("check", "tests/gpu/record.txt", "written", "written" if written else "not written", written)


def check_section(folder: Path) -> list[str]:
    return ["```", record_of(folder), "```"]


# ---- choices, before_after ----


def timed_lines(folder: Path) -> list[Row]:
    return [line for line in read_lines(folder / "choices" / "choices.jsonl") if choices.timed(line)]


def choices_goals(folder: Path) -> Iterator[Goal]:
    lines = timed_lines(folder)
    for group, ratios in choices.by_rank(lines, defaultdict(int)).items():
        if "," in group:
            continue
        what = f"{group}, {len(ratios)} problems"
        within = sum(ratio <= NEAR for ratio in ratios) / len(ratios)
        yield at_least("choices", f"{what}: within 10 % of the fastest", WITHIN, within, percent)
        yield at_most("choices", f"{what}: the worst", WORST, max(ratios), times)
        yield at_most("choices", f"{what}: lost in geometric mean", LOSS, statistics.geometric_mean(ratios) - 1, percent)
    untimed = sum(choices.behind(line, 0) is None for line in lines)
    yield Goal("choices", "choices without a time, left out above", "", str(untimed))


def choices_section(folder: Path) -> list[str]:
    lines = timed_lines(folder)
    found = choices.exceptions(lines)
    return choices.shares("choice by estimate", choices.by_rank(lines, defaultdict(int))) + choices.list_exceptions(found)


def compared_lines(folder: Path) -> list[Row]:
    return list(read_lines(folder / "before_after" / "before_after.jsonl"))


def before_after_goals(folder: Path) -> Iterator[Goal]:
    lines = compared_lines(folder)
    for group, ratios in before_after.groups_of(lines).items():
        if "," not in group:
            what = f"{group}, {len(ratios)} problems: time before over after, geometric mean"
            yield at_least("before_after", what, BEFORE_AFTER, statistics.geometric_mean(ratios), lambda x: f"{x:.3f}")
    for line in before_after.slower(lines):
        yield at_least("before_after", f"`{line['problem']}`", before_after.SLOWER, line["ratio"], lambda x: f"{x:.2f}")


def before_after_section(folder: Path) -> list[str]:
    lines = compared_lines(folder)
    return before_after.by_group(lines) + before_after.list_slower(lines)


# ---- what bench/report/performance.py and docs/performance.md know ----


def suite_goals(folder: Path) -> Iterator[Goal]:
    for row in read_lines(folder / "suite.jsonl"):
        speed = f"{row['median_ns'] * 1e-6:.4g} ms, {row['flops_per_s'] * 1e-12:.0f} TFLOP/s, {row['solver']}"
        yield Goal("suite", f"`{row['problem']}`", "", speed)


def tables_of(folder: Path) -> dict[str, Row]:
    return json.loads((folder / "performance.json").read_text())["tables"]


def performance_goals(folder: Path) -> Iterator[Goal]:
    found = tables_of(folder)
    rows = {name: by_problem(table["rows"]) for name, table in found.items()}
    for name, table in found.items():
        if "failed" in table:
            yield Goal("performance", f"table {name}", "whole", table["failed"], False)
    for rest, ops in rows.get("large_windows", {}).items():
        for op, goal in zip(("fwd", "bwd"), performance_report.LARGE_GOALS.get(rest, ())):
            if op in ops and dense_ratio(ops[op]):
                yield at_least("performance", f"`{op}:{rest}` beside dense cuDNN", goal, dense_ratio(ops[op]), times)
    small = rows.get("small_windows", {})
    for text, goal in performance_report.SMALL_GOALS_MS.items():
        op, _, rest = text.partition(":")
        if op in small.get(rest, {}):
            yield at_most("performance", f"`{text}`", goal, small[rest][op]["ms"], ms)
    for rest, ops in small.items():
        without = small.get(rest.removesuffix(":rpb"), {}).get("bwd")
        if rest.endswith(":rpb") and without and "bwd" in ops:
            what, ratio = f"`bwd:{rest}` beside that without bias", ops["bwd"]["ms"] / without["ms"]
            yield at_most("performance", what, performance_report.BIAS_GOAL, ratio, times)
    for rest, ops in rows.get("sm80", {}).items():
        for op, row in ops.items() if not rest.startswith("f32") else ():
            goal = performance_report.SM80_GOALS[op] * 1e-12
            yield at_least("performance", f"`{op}:{rest}` by sm_80's kernels, TFLOP/s", goal, row["flops_per_s"] * 1e-12)


def performance_section(folder: Path) -> list[str]:
    lines = []
    for name, table in tables_of(folder).items():
        source = Source({"tables": {name: table}}, name)
        lines += [f"### {name}", "", performance_report.TABLES[name]([source]) if table["rows"] else "No rows.", ""]
    return lines


def norm_rope_run(folder: Path) -> Row:
    return json.loads((folder / "norm_rope.json").read_text())


def norm_rope_goals(folder: Path) -> Iterator[Goal]:
    for row in norm_rope_run(folder)["rows"]:
        copy_ms = row["forward_ms"]["copy"]
        for name, tensors in (("forward", 2), ("backward", 3)):
            if f"{name}_ms" in row:
                ratio = row[f"{name}_ms"]["nhood"] / (copy_ms * tensors / 2)
                what = f"`{row['shape']}`, {name}, beside memory's time"
                yield at_most("norm_rope", what, performance_report.NORM_ROPE_GOAL, ratio, times)


def norm_rope_section(folder: Path) -> list[str]:
    return [performance_report.norm_rope([Source({"tables": {"norm_rope": norm_rope_run(folder)}}, "norm_rope")])]


# ---- regions, streams, decoder, sharded ----


def regions_goals(folder: Path) -> Iterator[Goal]:
    for row in read_lines(folder / "regions.jsonl"):
        if "way" not in row:
            yield Goal("regions", f"`{row['problem']}`", "", "no solver takes it")
        elif row["ratio"] is not None:
            sign, goal = ("≤", row["at_most"]) if row["at_most"] else ("≥", row["at_least"])
            what = f"`{row['operation']}:{row['problem']}`, {row['way']}, of {row['beside']}"
            yield Goal("regions", what, f"{sign} {goal}", f"{row['ratio']:.3f}", row["reached"])


def streams_goals(folder: Path) -> Iterator[Goal]:
    for row in read_lines(folder / "streams.jsonl"):
        measured = f"{row['ms']:.3f} ms a frame, {row['ratio']:.3f} times its share of the whole video"
        yield Goal("streams", row["way"], "", measured)


def decoder_section(folder: Path) -> list[str]:
    sizes = json.loads((folder / "video_decoder.json").read_text())["sizes"]
    return [decoder_report.times_of(size) for size in sizes]


def sharded_goals(folder: Path) -> Iterator[Goal]:
    found = json.loads((folder / "sharded.json").read_text())
    for table in found["table"]:
        for row in table["rows"]:
            if "efficiency" in row:
                forward, backward = row["efficiency"]
                what = f"`{table['problem']}` on {found['environment']['processes']} GPUs by {row['strategy']}: efficiency"
                yield Goal("sharded", what, "", f"{forward:.2f} forward, {backward:.2f} backward")


def no_goals(folder: Path) -> Iterator[Goal]:
    return iter(())


def no_section(folder: Path) -> list[str]:
    return []


# By step: the goals, and the tables below them.
REPORTS: dict[str, tuple[Callable[[Path], Iterator[Goal]], Callable[[Path], list[str]]]] = {
    "check": (check_goals, check_section),
    "choices": (choices_goals, choices_section),
    "before_after": (before_after_goals, before_after_section),
    "suite": (suite_goals, no_section),
    "performance": (performance_goals, performance_section),
    "norm_rope": (norm_rope_goals, norm_rope_section),
    "regions": (regions_goals, no_section),
    "streams": (streams_goals, no_section),
    "decoder": (no_goals, decoder_section),
    "sharded": (sharded_goals, no_section),
}


# ---- the summary ----


def read_summary(folder: Path) -> dict[str, Any]:
    """That of earlier commands."""
    try:
        return json.loads((folder / "summary.json").read_text())
    except (OSError, json.JSONDecodeError):
        return {}


def report_of(step: str, folder: Path) -> tuple[list[Goal], list[str]]:
    """Returns what there is, also of a step that has ended early."""
    goals, section = REPORTS[step]
    try:
        return list(goals(folder)), section(folder)
    except (OSError, LookupError, TypeError, ValueError, statistics.StatisticsError) as error:
        return [Goal(step, "results", "whole", f"{type(error).__name__}: {error}", False)], []


def goal_row(goal: Goal) -> tuple[str, ...]:
    missed = goal.reached is False
    return goal.step, goal.what, goal.goal, f"**{goal.measured}**" if missed else goal.measured


def step_row(name: str, outcome: dict[str, Any]) -> tuple[str, ...]:
    seconds = f"{outcome['seconds']:.0f}" if "seconds" in outcome else ""
    why = outcome.get("why", "").replace("|", "\\|")
    return name, outcome["state"], seconds, why


def markdown(summary: dict[str, Any], goals: list[Goal], sections: dict[str, list[str]]) -> str:
    steps = summary["steps"]
    missed = sum(goal.reached is False for goal in goals)
    with_goal = sum(goal.reached is not None for goal in goals)
    lines = ["# What a GPU says", ""]
    lines += [f"{summary.get('device', 'no device yet')}, {summary.get('gpus', 0)} of them; driver {summary.get('driver', '?')}; "
              f"{summary['cores']} CPUs; commit {summary['commit']}; before: {summary['base'] or 'none'}.", ""]  # fmt: skip
    lines += [f"{with_goal - missed} of {with_goal} goals were reached; **bold** is missed.", ""]
    lines += [*table(("step", "", "seconds", ""), (step_row(*each) for each in steps.items())), ""]
    lines += ["## Goals", "", *table(("step", "what", "goal", "measured"), map(goal_row, goals)), ""]
    for name, section in sections.items():
        lines += [f"## {name}", "", f"`{steps[name].get('command', '')}`", "", *section, ""]
    return "\n".join(lines)


def write(folder: Path, summary: dict[str, Any]) -> None:
    """summary.json and summary.md, of all steps that have run."""
    goals: list[Goal] = []
    sections: dict[str, list[str]] = {}
    for name in REPORTS:
        if summary["steps"].get(name, {}).get("state", "left out") != "left out":
            own, sections[name] = report_of(name, folder)
            goals += own
    found = {**summary, "goals": [goal._asdict() for goal in goals]}
    (folder / "summary.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    (folder / "summary.md").write_text(markdown(summary, goals, sections))
