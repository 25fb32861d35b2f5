"""What bench/gpu/study.py makes of its results: Markdown tables as in the paper, and plots."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from report import DTYPES, RANKS, Row, Where, pyplot, table

PASSES = {"forward": ("fwd",), "forward + backward": ("fwd", "bwd")}
# What cpu.unfused has to run for a pass, besides the softmax.
UNFUSED_OPS = {"fwd": ("pn", "nn"), "bwd": ("pn", "nn", "in", "in")}
DENSE = ("dense", "dense cuDNN", "dense flash", "dense efficient")
COMPARISONS = [("gemm", "naive"), ("fused", "naive"), ("fused", "gemm"), ("fused", "unfused")]
COMPARISONS += [("fused", name) for name in DENSE]
KINDS = [(dtype, rank) for dtype in DTYPES for rank in RANKS]
COLORS = {name: f"C{i}" for i, name in enumerate(("naive", "gemm", "unfused", "fused", *DENSE))}
TEXT = re.compile(r"(\w+):(f16|bf16|f32):b(\d+)h(\d+)d(\d+):([\dx]+):w([\dx]+)(?::d([\dx]+))?")


Result = Row  # of a problem and a contender: times and rates as of `nhood bench --json`, or "absent" and why


@dataclass(frozen=True)
class Problem:
    """One whose dense counterpart is attention over all tokens: nothing but sizes, window and dilation."""

    op: str
    dtype: str
    batch: int
    heads: int
    dim: int
    lengths: tuple[int, ...]
    window: tuple[int, ...]
    dilation: tuple[int, ...]

    @staticmethod
    def parse(text: str) -> Problem:
        match = TEXT.fullmatch(text)
        if not match:
            raise ValueError(f"{text}: dense attention is not comparable")
        op, dtype, *numbers, lengths, window, dilation = match.groups()
        dilation = dilation or "x".join("1" for _ in lengths.split("x"))
        axes = (tuple(map(int, part.split("x"))) for part in (lengths, window, dilation))
        return Problem(op, dtype, *map(int, numbers), *axes)

    @property
    def tokens(self) -> int:
        return math.prod(self.lengths)

    @property
    def group_tokens(self) -> int:
        """Tokens of the largest dilation group."""
        return math.prod(-(-length // step) for length, step in zip(self.lengths, self.dilation))

    @property
    def dense_flops(self) -> float:
        return (10 if self.op == "bwd" else 4) * self.batch * self.heads * self.tokens**2 * self.dim


class Times:
    """Milliseconds by problem, dtype, contender and pass."""

    def __init__(self, lines: list[Result]) -> None:
        peaks: dict[str, float] = defaultdict(float)
        for line in lines:
            dtype = line["problem"].split(":")[1]
            if line.get("device") == "cpu" and dtype != "f32":
                continue  # the peak is that of f32; some CPUs have units that multiply others faster
            peaks[dtype] = max(peaks[dtype], line.get("peak_flops_per_s") or 0)
        self.ns: dict[tuple[str, str, str], float] = {}
        self.solver: dict[tuple[str, str, str], str] = {}
        self.least_ns: dict[tuple[str, str, str], float] = {}  # where it was left out, at the peak
        for line in lines:
            op, rest = line["problem"].split(":", 1)
            key, peak = (rest, line["contender"], op), peaks[rest.split(":")[0]]
            if "median_ns" in line:
                self.ns[key], self.solver[key] = line["median_ns"], line["solver"]
            elif line["absent"].startswith("above ") and peak:
                self.least_ns[key] = Problem.parse(line["problem"]).dense_flops / peak * 1e9
        self.least_ns.update(self.ns)
        self.problems = sorted({key[0] for key in self.ns})

    def ms(self, problem: str, contender: str, ops: tuple[str, ...], least: bool = False) -> Optional[float]:
        """`problem` is a text without its operation. None if a part was not measured; least: and is not bounded."""
        if contender == "unfused":
            ops = tuple(part for op in ops for part in UNFUSED_OPS[op])
        parts = [(self.least_ns if least else self.ns).get((problem, contender, op)) for op in ops]
        return None if None in parts else sum(parts) * 1e-6

    def outdone(self, pair: tuple[str, str], ops: tuple[str, ...], dtype: str, rank: int) -> tuple[int, int]:
        """Problems whose baseline is bounded alone, and those of them where the one is faster than the bound."""
        bounded = faster = 0
        for problem in self.problems:
            one, least = self.ms(problem, pair[0], ops), self.ms(problem, pair[1], ops, least=True)
            if is_of_kind(problem, dtype, rank) and one and least and not self.ms(problem, pair[1], ops):
                bounded += 1
                faster += one < least
        return bounded, faster

    def speedups(self, pair: tuple[str, str], ops: tuple[str, ...], dtype: str, rank: int) -> list[float]:
        return [ratio for problem, ratio, *_ in self.ratios(pair, ops) if is_of_kind(problem, dtype, rank)]

    def ratios(self, pair: tuple[str, str], ops: tuple[str, ...]) -> Iterator[tuple[str, float, float, float]]:
        """problem, speed-up, time of the one, of the baseline"""
        for problem in self.problems:
            one, baseline = (self.ms(problem, name, ops) for name in pair)
            if one and baseline:
                yield problem, baseline / one, one, baseline


def is_of_kind(problem: str, dtype: str, rank: int) -> bool:
    """rank: 0 for any"""
    own, _, lengths = problem.split(":")[:3]
    return own == dtype and rank in (0, lengths.count("x") + 1)


def improvement_of(speedups: list[float]) -> str:
    """As the paper counts it: twice as fast is an improvement of 100 %."""
    average, least, most = ((f(speedups) - 1) * 100 for f in (statistics.mean, min, max))
    return f"{average:.0f} ({least:.0f} … {most:.0f})"


def improvement(times: Times, *which: Any) -> str:
    speedups = times.speedups(*which)
    return improvement_of(speedups) if speedups else "–"


def share_ahead(speedups: list[float], bounded: int = 0, faster: int = 0) -> str:
    """At least as fast, with those that are compared with a bound, of which so many are faster."""
    count = len(speedups) + bounded
    return f"{100 * (sum(ratio >= 1 for ratio in speedups) + faster) / count:.1f} % of {count}"


def share(times: Times, *which: Any) -> str:
    speedups, (bounded, faster) = times.speedups(*which), times.outdone(*which)
    if not speedups and not bounded:
        return "–"
    return share_ahead(speedups, bounded, faster) + (f", {bounded} by bound" if bounded else "")


def comparisons(times: Times, cell: Any) -> list[str]:
    pairs = [pair for pair in COMPARISONS if any(times.speedups(pair, ("fwd",), *k) for k in KINDS)]
    head = ["", *(f"{one} over {baseline}" for one, baseline in pairs)]
    rows = []
    for pass_name, ops in PASSES.items():
        for dtype, rank in KINDS:
            cells = [cell(times, pair, ops, dtype, rank) for pair in pairs]
            if set(cells) - {"–"}:
                rows.append((f"{dtype}, {pass_name}, {RANKS[rank]}", *cells))
    return table(head, rows)


# The shortest and the longest side of a window, inclusive.
WINDOWS = {"from 7 on": (7, math.inf), "7 to 63": (7, 63), "up to 6": (1, 6)}


def by_window(times: Times, pair: tuple[str, str]) -> list[str]:
    """Improvement, and the share that is at least as fast."""

    def cell(speedups: list[float]) -> str:
        return f"{improvement_of(speedups)}; {share_ahead(speedups)}" if speedups else "–"

    rows = []
    for pass_name, ops in PASSES.items():
        ratios = [(text, ratio, Problem.parse(f"fwd:{text}").window) for text, ratio, *_ in times.ratios(pair, ops)]
        for dtype in DTYPES:
            for name, (least, most) in WINDOWS.items():
                kept = [(text, ratio) for text, ratio, window in ratios if least <= min(window) and max(window) <= most]
                cells = [cell([ratio for text, ratio in kept if is_of_kind(text, dtype, rank)]) for rank in RANKS]
                if set(cells) - {"–"}:
                    rows.append((f"{dtype}, {pass_name}, windows {name}", *cells))
    return table_or_none(("", *RANKS.values()), rows)


@dataclass(frozen=True)
class Loss:
    """A comparison in which fused is slower."""

    text: str
    """of the problem, without its operation"""
    pass_name: str
    solvers: str
    ms: float
    other: str
    other_ms: float

    @property
    def speedup(self) -> float:
        return self.other_ms / self.ms


def losses(times: Times) -> list[Loss]:
    """The worst first."""
    found = []
    for pass_name, ops in PASSES.items():
        for pair in COMPARISONS[1:]:
            for text, ratio, ms, other_ms in times.ratios(pair, ops):
                if ratio < 1:
                    solvers = ", ".join(dict.fromkeys(times.solver[text, "fused", op] for op in ops))
                    found.append(Loss(text, pass_name, solvers, ms, pair[1], other_ms))
    return sorted(found, key=lambda loss: loss.speedup)


def table_or_none(titles: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    return table(titles, rows) if rows else ["None."]


def loss_counts(found: list[Loss]) -> list[str]:
    groups = defaultdict(list)
    for loss in found:
        groups[loss.text.split(":")[0], loss.pass_name, loss.other, loss.solvers].append(loss.speedup)
    rows = [
        (*group, len(speedups), f"{min(speedups):.2f}")
        for group, speedups in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]
    return table_or_none(("dtype", "pass", "other", "fused by", "problems", "worst speed-up"), rows)


def exceptions(found: list[Loss]) -> list[str]:
    rows = []
    for loss in found:
        problem = Problem.parse(f"fwd:{loss.text}")
        cells = [f"`{loss.text}`", problem.tokens, problem.group_tokens, math.prod(problem.window), loss.pass_name]
        cells += [loss.solvers, f"{loss.ms:.4g}", loss.other, f"{loss.other_ms:.4g}", f"{loss.speedup:.2f}"]
        rows.append(tuple(cells))
    titles = ("problem", "tokens", "in a dilation group", "in a window")
    titles += ("pass", "by", "fused, ms", "other", "its ms", "speed-up")
    return [f"Comparisons where fused is slower, the worst first: {len(found)}.", "", *table_or_none(titles, rows)]


def absences(lines: list[dict[str, Any]]) -> list[str]:
    counts = Counter((line["contender"], line["absent"]) for line in lines if "absent" in line)
    return [f"- {name}: {count} × {reason}" for (name, reason), count in counts.most_common()] or ["None."]


def report(lines: list[dict[str, Any]], where: Where) -> str:
    times = Times(lines)
    found = losses(times)
    commands = sorted({line["command"] for line in lines})
    others = sorted({line["solver"] for line in lines if line.get("solver", "").startswith("torch")})
    origin = f"{where.description}; driver {where.driver}; commit {where.commit}" + "".join(f"; {o}" for o in others)
    origin = [origin, *(f"`{command}`" for command in commands)]
    origin = [line + "  " for line in origin]  # Markdown's line breaks
    parts = [
        ["# Operator study"],
        ["## Improvement, %: average (least … most)"],
        origin,
        comparisons(times, improvement),
        ["## Share of problems where it is at least as fast"],
        origin,
        ["By bound: dense attention was left out; its operations at the measured peak stand for its time."],
        comparisons(times, share),
        ["## GEMM over naive, by the sides of windows: improvement, %; share at least as fast"],
        origin,
        by_window(times, ("gemm", "naive")),
        ["## Exceptions"],
        origin,
        exceptions(found),
        ["## Solvers of exceptions"],
        origin,
        loss_counts(found),
        ["## Not measured"],
        absences(lines),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def plot_speedups(axes: Any, times: Times, lines: list[dict[str, Any]], dtype: str) -> None:
    for number, pair in enumerate(COMPARISONS):
        for ops, style in zip(PASSES.values(), ("-", "--")):
            ratios = sorted(times.speedups(pair, ops, dtype, 0))
            if ratios:
                shares = [100 * (place + 0.5) / len(ratios) for place in range(len(ratios))]
                label = f"{pair[0]} over {pair[1]}" + (", fwd + bwd" if style == "--" else "")
                axes.plot(shares, ratios, style, linewidth=1, color=f"C{number}", label=label)
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set(yscale="log", xlabel="% of problems", ylabel="speed-up")


def plot_roofline(axes: Any, times: Times, lines: list[dict[str, Any]], dtype: str) -> None:
    lines = [line for line in lines if f"fwd:{dtype}:" in line["problem"] and line.get("bytes_per_s")]
    points = defaultdict(list)
    for line in lines:
        points[line["contender"]].append((line["flops_per_s"] / line["bytes_per_s"], line["flops_per_s"]))
    for name, found in points.items():
        axes.plot(*zip(*found), ".", color=COLORS[name], label=name, markersize=3)
    ceilings = "peak_flops_per_s", "copy_bytes_per_s"
    peak, copy = (max((line[key] or 0 for line in lines), default=0) for key in ceilings)
    if peak and copy:
        xs = sorted({x for found in points.values() for x, _ in found} | {peak / copy})
        axes.plot(xs, [min(peak, x * copy) for x in xs], color="black", linewidth=1, label="roof")
    axes.set(xscale="log", yscale="log", xlabel="useful FLOP per byte", ylabel="useful FLOP/s, forward")


def plot_windows(axes: Any, times: Times, lines: list[dict[str, Any]], dtype: str) -> None:
    """Medians of windows up to 4, 8, 16 .. keys, and what lies between the tenths at either end."""
    for name, color in COLORS.items():
        bins = defaultdict(list)
        for text in times.problems:
            ms = times.ms(text, name, ("fwd",))
            if ms and text.startswith(f"{dtype}:"):
                problem = Problem.parse(f"fwd:{text}")
                elements = problem.batch * problem.heads * problem.tokens * problem.dim
                bins[math.ceil(math.log2(math.prod(problem.window)))].append(ms * 1e6 / elements)
        if bins:
            keys, ns = [2**power for power in sorted(bins)], [sorted(bins[power]) for power in sorted(bins)]
            axes.plot(keys, [statistics.median(each) for each in ns], "o-", color=color, label=name, markersize=4)
            low, high = ([each[round(part * (len(each) - 1))] for each in ns] for part in (0.1, 0.9))
            axes.fill_between(keys, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel="keys in a window, up to", ylabel="ns per element of out, forward")


PLOTS = {"speedups": plot_speedups, "roofline": plot_roofline, "windows": plot_windows}


def write_plots(lines: list[dict[str, Any]], where: Where, folder: Path) -> None:
    plots = pyplot()
    if not plots:
        return
    times = Times(lines)
    dtypes = [dtype for dtype in DTYPES if any(text.startswith(f"{dtype}:") for text in times.problems)]
    for name, plot in PLOTS.items() if dtypes else ():
        figure, axes = plots.subplots(1, len(dtypes), figsize=(3 + 5 * len(dtypes), 4.5), squeeze=False)
        for dtype, each in zip(dtypes, axes[0]):
            plot(each, times, lines, dtype)
            each.set_title(dtype)
        labels = {label: handle for each in axes[0] for handle, label in zip(*each.get_legend_handles_labels())}
        columns = 2 + len(dtypes)
        figure.legend(labels.values(), labels.keys(), loc="lower center", ncols=columns, fontsize="small")
        figure.suptitle(f"{where.description}; driver {where.driver}; commit {where.commit}", fontsize="small")
        figure.tight_layout(rect=(0, 0.02 + 0.04 * math.ceil(len(labels) / columns), 1, 1))
        figure.savefig(folder / f"{name}.png", dpi=120)
        plots.close(figure)


def write_report(lines: list[dict[str, Any]], where: Where, folder: Path) -> None:
    (folder / "study.md").write_text(report(lines, where))
    write_plots(lines, where, folder)
