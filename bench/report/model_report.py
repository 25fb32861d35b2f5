"""What bench/gpu/models.py writes: a line of JSON per case, a table and a plot of them all."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from attention_ways import WAYS
from model_cases import Case
from nhood import models
from report import pyplot, table


def append(case: Case, machine: str, path: Path) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"machine": machine, **asdict(case)}) + "\n")


def load(path: Path) -> tuple[list[Case], str]:
    """In the order of settings and models, whatever was done first; and the machines they were measured on."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    machines = dict.fromkeys(line.pop("machine") for line in lines)
    cases = [Case(**line) for line in lines]
    cases.sort(key=lambda case: (case.training, case.dtype, not case.bias, models.names().index(case.model)))
    return cases, "; ".join(machines)


def ways_of(cases: list[Case]) -> list[str]:
    """That compute, and were asked for in some case."""
    asked = {name for case in cases for name in (*case.seconds, *case.absent)}
    return [name for name, way in WAYS.items() if way.computes and name in asked]


def rounded(value: float) -> str:
    """Three digits or more, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def row(case: Case, names: list[str]) -> list[str]:
    medians = {name: case.median(name) for name in names}
    cells = [
        "–" if m is None else rounded(1e3 * m if case.training else case.batch / m) for m in medians.values()
    ]
    others = [m for name, m in medians.items() if name != "nhood" and m]
    ratio = f"{min(others) / medians['nhood']:.2f}×" if others and medians.get("nhood") else "–"
    share = "–" if case.share is None else f"{case.share:.0%}"
    setting = [case.model, case.dtype, "yes" if case.bias else "no", str(case.batch)]
    unit = "ms/step" if case.training else "images/s"
    return [*setting, unit, *cells, ratio, share]


def speeds(cases: list[Case]) -> str:
    """Markdown: images/s for forward passes, ms for training steps."""
    names = ways_of(cases)
    titles = ("model", "dtype", "bias", "batch", "", *names, "best other", "in attention")
    lines = table(titles, (row(case, names) for case in cases))
    reasons = sorted({f"- {case.text}, {way}: {why}" for case in cases for way, why in case.absent.items()})
    return "\n".join([*lines, *([""] if reasons else []), *reasons]) + "\n"


def write(path: Path) -> None:
    """Table and plot beside the lines."""
    cases, machines = load(path)
    path.with_suffix(".md").write_text(f"{machines}\n\n{speeds(cases)}")
    plot(cases, path.with_suffix(".png"), machines)


def plot(cases: list[Case], path: Path, title: str) -> None:
    """Speed of each way relative to nhood: one group of bars per case."""
    plots = pyplot()
    if not plots:
        return
    shown = [case for case in cases if case.median("nhood")]
    names = ways_of(shown)
    if not shown:
        return
    figure, axes = plots.subplots(figsize=(max(6, 0.8 * len(shown) + 2), 4.5), layout="constrained")
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        speeds = [case.median("nhood") / (case.median(name) or float("inf")) for case in shown]
        axes.bar([x + (i + 0.5) * width - 0.4 for x in range(len(shown))], speeds, width, label=name)
    bounds = [(x, case.median("nhood") / case.median("none")) for x, case in enumerate(shown) if case.median("none")]
    for x, bound in bounds:
        axes.hlines(bound, x - 0.45, x + 0.45, "black", label="no attention" if x == bounds[0][0] else None)
    axes.set(ylabel="speed of the whole model, nhood = 1", title=title)
    axes.set_xticks(range(len(shown)), [case.text for case in shown], rotation=60, ha="right", fontsize=7)
    figure.legend(loc="outside upper center", ncols=len(names) + 1, fontsize=7)
    figure.savefig(path, dpi=150)
    plots.close(figure)
