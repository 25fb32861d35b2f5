"""docs/performance.md and docs/measurements.md of files that `bench/report/performance.py run` wrote, and templates for the prose;
and the tables of the README. In a template, {{table NAME}} stands for a table, {{short NAME}} for a part of it, {{source NAME}}
for the run it is of, {{losses NAME}} for the comparisons of a study that were lost, and for single numbers {{ratio NAME OP}},
{{share NAME OP}} and {{ahead NAME OTHER PASS}} (see the functions). Of a GPU's tables the newest run that has one counts; of a
CPU's, the newest of every device."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import decoder_report
from report import RANKS, Row, number, table

# What was set out to be reached, in the order of the tables: below it (above it, for times) a number is in bold.
LARGE_GOALS = {
    "bf16:b1h24d128:30x48x80:w18x24x24:s16x8x8": (12.1, 10),
    "bf16:b1h24d128:30x48x80:w18x24x24": (8, 6.5),
    "bf16:b1h24d128:256x256:w80x80:s16x16": (10.9, 9.5),
    "bf16:b1h24d128:256x256:w80x80": (9, 8),
    "bf16:b1h16d128:65536:w4096": (15, 14),
}
SMALL_GOALS_MS = {"fwd:bf16:b128h4d32:56x56:w7x7": 0.135, "bwd:bf16:b128h4d32:56x56:w7x7": 0.4}
BIAS_GOAL = 1.4  # times the backward without
NORM_ROPE_GOAL = 2  # times the memory's time
SM80_GOALS = {"fwd": 300e12, "bwd": 200e12}
STUDY_GOALS = {
    ("gemm", "naive", "7 to 63"): 0.9,
    ("fused", "naive", ""): 0.99,
    ("fused", "gemm", ""): 0.99,
    ("fused", "dense cuDNN", ""): 0.99,
}
PASSES = ("forward", "forward + backward")
ISA = {"amx": "AMX", "avx512": "AVX-512", "avx2": "AVX2", "neon": "NEON", "sve256": "SVE", "sve512": "SVE", "generic": "portable"}


class Fault(Exception):
    """What is wrong with a file of results or with the template."""


@dataclass(frozen=True)
class Source:
    run: Row
    name: str
    """of the table"""

    @property
    def table(self) -> Row:
        return self.run["tables"][self.name]

    @property
    def rows(self) -> list[Row]:
        return self.table["rows"]

    def text(self) -> str:
        run = self.run
        driver = f", driver {run['driver']}" if run["driver"] != "none" else ""
        parts = [f"{run['device']}{driver}; {run['system']}", f"commit {run['commit']}, {run['date']}"]
        parts += [note for note in (run.get("note"), self.table.get("note")) if note]
        parts += [f"not whole: {self.table['failed']}"] if "failed" in self.table else []
        return "; ".join(parts) + f". `{self.table['command']}`"


def bold_if(missed: bool, text: str) -> str:
    return f"**{text}**" if missed else text


def markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(table(head, rows))


def split_op(row: Row) -> tuple[str, str]:
    op, _, rest = row["problem"].partition(":")
    return op, rest


def by_problem(rows: list[Row]) -> dict[str, dict[str, Row]]:
    """op -> row, of each problem without its op."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        op, rest = split_op(row)
        found.setdefault(rest, {})[op] = row
    return found


def dense_ratio(row: Row) -> Optional[float]:
    dense = row["peers_ms"].get("cuDNN")
    return dense / row["ms"] if dense else None


def beside_dense(row: Optional[Row], goal: Optional[float]) -> list[str]:
    if not row:
        return ["", "", ""]
    ratio = dense_ratio(row)
    if not ratio:
        return [number(row["ms"]), "–", "–"]
    return [number(row["ms"]), bold_if(bool(goal) and ratio < goal, number(ratio)), number(row["peers_ms"]["cuDNN"])]


def large_windows(sources: list[Source]) -> str:
    head = ["problem", "forward, ms", "× dense", "dense, ms", "backward, ms", "× dense", "dense, ms", "ideal", "by"]
    rows = []
    for rest, ops in by_problem(sources[0].rows).items():
        goals = LARGE_GOALS.get(rest, (None, None))
        fwd, bwd = ops.get("fwd"), ops.get("bwd")
        cells = [f"`{rest}`", *beside_dense(fwd, goals[0]), *beside_dense(bwd, goals[1])]
        either = fwd or bwd
        solvers = ", ".join(row["solver"] for row in (fwd, bwd) if row)
        rows.append([*cells, number(either["ideal"]), solvers])
    return markdown(head, rows)


def small_windows(sources: list[Source]) -> str:
    def cells(row: Optional[Row]) -> list[str]:
        if not row:
            return ["", "", ""]
        goal = SMALL_GOALS_MS.get(row["problem"])
        over = number(row["ms"] / row["memory_ms"]) if row.get("memory_ms") else "–"
        return [bold_if(bool(goal) and row["ms"] > goal, number(row["ms"])), over, row["solver"]]

    problems = by_problem(sources[0].rows)
    rows = []
    for rest, ops in problems.items():
        fwd, bwd = cells(ops.get("fwd")), cells(ops.get("bwd"))
        without = problems.get(rest.removesuffix(":rpb"), {}).get("bwd")
        if rest.endswith(":rpb") and without and "bwd" in ops:
            ratio = ops["bwd"]["ms"] / without["ms"]
            bwd[0] += f", {bold_if(ratio > BIAS_GOAL, number(ratio))} × that without bias"
        rows.append([f"`{rest}`", *fwd, *bwd])
    return markdown(["problem", "forward, ms", "× memory", "by", "backward, ms", "× memory", "by"], rows)


def decoders(sources: list[Source]) -> str:
    rows = []
    for rest, ops in by_problem(sources[0].rows).items():
        cells = [beside_dense(ops.get(op), None) for op in ("fwd", "bwd")]
        rows.append([f"`{rest}`", *cells[0], *cells[1]])
    head = ["problem", "forward, ms", "× dense", "dense, ms", "backward, ms", "× dense", "dense, ms"]
    return markdown(head, rows)


def norm_rope(sources: list[Source]) -> str:
    """Beside memory's time, that of as many bytes as a copy of the tensor moves in its own: two tensors' forward, three backward."""

    def cells(times: Optional[dict[str, float]], memory_ms: float) -> list[str]:
        if not times:
            return ["–"] * 4
        of_memory = times["nhood"] / memory_ms
        others = [number(times[name]) if name in times else "–" for name in ("compiled", "eager")]
        return [number(times["nhood"]), bold_if(of_memory > NORM_ROPE_GOAL, number(of_memory)), *others]

    rows = []
    for row in sources[0].rows:
        copy_ms = row["forward_ms"]["copy"]
        rows.append([f"`{row['shape']}`", *cells(row["forward_ms"], copy_ms), *cells(row.get("backward_ms"), 1.5 * copy_ms)])
    head = ["tensor", *(f"{op}{cell}" for op in ("forward", "backward") for cell in (", ms", ": × memory", ": torch compiled", ": eager"))]
    return markdown(head, rows)


def video_decoder(sources: list[Source]) -> str:
    return "\n".join(decoder_report.times_of(size) for size in sources[0].rows).rstrip()


def sm80(sources: list[Source]) -> str:
    def cells(op: str, row: Optional[Row], half: bool) -> list[str]:
        if not row:
            return ["", ""]
        missed = half and row["flops_per_s"] < SM80_GOALS[op]
        return [number(row["ms"]), bold_if(missed, f"{row['flops_per_s'] * 1e-12:.0f}")]

    rows = []
    for rest, ops in by_problem(sources[0].rows).items():
        half = not rest.startswith("f32")
        rows.append([f"`{rest}`", *(c for op in ("fwd", "bwd") for c in cells(op, ops.get(op), half))])
    return markdown(["problem", "cuda.fused80: ms", "TFLOP/s", "cuda.split80: ms", "TFLOP/s"], rows)


def configuration(text: str) -> str:
    isa, _, threads = text.partition(", ")
    return f"{ISA.get(isa, isa)}, {threads}"


def cpu_suite(sources: list[Source]) -> str:
    return "\n\n".join(f"{source.text()}\n\n{cpu_suite_of(source)}" for source in sources)


def is_wide(problem: str) -> bool:
    """Whether its head dim is 64 or more; the suite gives such problems windows from 13 by 13 on."""
    return int(re.search(r"h\d+(?:k\d+)?d(\d+)", problem)[1]) >= 64


def cpu_goal(problem: str, name: str) -> Optional[float]:
    """Shares of the peak that wide heads and large windows, and the levels of NAT, should have."""
    if ":f32:" not in problem or not name.endswith("1 thread"):
        return None
    if is_wide(problem):
        return 0.6 if problem.startswith("fwd") else 0.45
    return 0.4 if ":w7x7" in problem and problem.startswith("fwd") else None


def cpu_suite_of(source: Source) -> str:
    names = list(dict.fromkeys(row["configuration"] for row in source.rows))
    found = {(row["problem"], row["configuration"]): row for row in source.rows}
    rows = []
    for problem in dict.fromkeys(row["problem"] for row in source.rows):
        cells = [f"`{problem}`"]
        for name in names:
            row = found.get((problem, name))
            goal = cpu_goal(problem, name)
            share = f"{100 * row['share_of_peak']:.0f} %" if row else ""
            cells += [number(row["ms"]), bold_if(bool(goal) and row["share_of_peak"] < goal, share)] if row else ["", ""]
        rows.append(cells)
    head = ["problem"]
    for name in names:
        head += [f"{configuration(name)}: ms", "of peak"]
    return markdown(head, rows)


def cpu_peers(sources: list[Source]) -> str:
    return "\n\n".join(f"{source.text()}\n\n{cpu_peers_of(source)}" for source in sources)


def cpu_peers_of(source: Source) -> str:
    peers = list(dict.fromkeys(name for row in source.rows for name in row["peers_ms"]))
    rows = []
    for row in source.rows:
        cells = [f"`{row['problem']}`", row["pass"], str(row["threads"]), number(row["ms"])]
        for name in peers:
            ms = row["peers_ms"].get(name)
            ratio = ms / row["ms"] if ms else 0
            cells.append(f"{number(ms)} ({bold_if(ratio < 1, number(ratio))}×)" if ms else "–")
        rows.append(cells)
    return markdown(["problem", "pass", "threads", "nhood, ms", *peers], rows)


def pair_of(row: Row) -> tuple[str, str, str]:
    return row["one"], row["other"], row.get("windows", "")


def study_cell(row: Optional[Row]) -> str:
    if not row:
        return "–"
    share = row["ahead"] / row["count"]
    missed = row["rank"] == 0 and share < STUDY_GOALS.get(pair_of(row), 0)
    text = f"{row['average']:.0f} ({row['least']:.0f} … {row['most']:.0f}); "
    text += bold_if(missed, f"{100 * share:.1f} %") + f" of {row['count']}"
    return text + (f", {row['bounded']} by bound" if row.get("bounded") else "")


def study_of(source: Source) -> str:
    rows = [row for row in source.rows if "one" in row]
    pairs = list(dict.fromkeys(map(pair_of, rows)))
    kinds = [(p, r, d) for p in PASSES for d in ("f16", "bf16", "f32") for r in RANKS]
    found = {(*pair_of(row), row["pass"], row["rank"], row["dtype"]): row for row in rows}
    lines = []
    for pass_name, rank, dtype in kinds:
        cells = [study_cell(found.get((*pair, pass_name, rank, dtype))) for pair in pairs]
        if set(cells) - {"–"}:
            lines.append([f"{dtype}, {pass_name}, {RANKS[rank]}", *cells])
    names = [f"{one} over {other}" + (f", windows {windows}" if windows else "") for one, other, windows in pairs]
    return markdown(["", *names], lines)


def study(sources: list[Source]) -> str:
    return study_of(sources[0])


def all_studies(sources: list[Source]) -> str:
    return "\n\n".join(f"{source.text()}\n\n{study_of(source)}" for source in sources)


def study_losses(sources: list[Source]) -> str:
    losses = [row for row in sources[0].rows if "one" not in row]
    rows = []
    for row in losses:
        times = [number(row["ms"]), row["other"], number(row["other_ms"]), f"{row['other_ms'] / row['ms']:.2f}"]
        rows.append([f"`{row['problem']}`", row["pass"], row["solver"], *times])
    return markdown(["problem", "pass", "fused by", "ms", "other", "its ms", "speed-up"], rows) if rows else "None."


def short_large_windows(sources: list[Source]) -> str:
    rows = []
    for rest, ops in by_problem(sources[0].rows).items():
        cells = [f"{number(row['ms'])} ms" if place == 0 else number(dense_ratio(row)) for row in (ops["fwd"], ops["bwd"]) for place in (0, 1)]
        rows.append([f"`{rest}`", *cells, number(ops["fwd"]["ideal"])])
    return markdown(["problem", "forward", "× dense", "backward", "× dense", "ideal"], rows)


def short_cpu_suite(sources: list[Source], device: str) -> str:
    """f32 on one AVX-512 thread, what has both passes."""
    (source,) = [source for source in sources if device in source.run["device"]]
    rows = [row for row in source.rows if row["configuration"] == "avx512, 1 thread"]
    lines = []
    for rest, ops in by_problem(rows).items():
        if rest.startswith("f32") and len(ops) == 2:
            both = (ops["fwd"], ops["bwd"])
            lines.append([f"`{rest}`", *(cell for row in both for cell in (f"{number(row['ms'])} ms", f"{100 * row['share_of_peak']:.0f} %"))])
    return markdown(["problem", "forward", "of peak", "backward", "of peak"], lines)


PEERS = {"cuDNN": "dense, cuDNN", "flash": "dense, flash", "flash4 dense": "dense, FlashAttention 4", "flex": "FlexAttention", "flash4": "FlashAttention 4", "NATTEN": "NATTEN"}


def peers(sources: list[Source]) -> str:
    """Times of all contenders of one run, and how many times as fast as dense cuDNN attention those are that are not dense."""
    found = {name for row in sources[0].rows for name in row["peers_ms"]}
    names = [name for name in PEERS if name in found]
    rows = []
    for row in sources[0].rows:
        cells, dense = [f"`{row['problem']}`"], row["peers_ms"].get("cuDNN")
        for name in ("nhood", *names):
            ms = row.get("ms") if name == "nhood" else row["peers_ms"].get(name)
            beside = dense and ms and not PEERS.get(name, "").startswith("dense")
            cells.append((number(ms) + (f" ({number(dense / ms)}×)" if beside else "")) if ms else "–")
        rows.append(cells)
    return markdown(["problem", "nhood", *(PEERS[name] for name in names)], rows)


TABLES: dict[str, Callable[[list[Source]], str]] = {
    "large_windows": large_windows,
    "peers": peers,
    "small_windows": small_windows,
    "decoders": decoders,
    "norm_rope": norm_rope,
    "video_decoder": video_decoder,
    "sm80": sm80,
    "study_f16": study,
    "study_bf16": study,
    "study_f32": study,
    "study_cpu": all_studies,
    "cpu_suite": cpu_suite,
    "cpu_peers": cpu_peers,
}


def read_runs(folder: Path) -> list[Row]:
    """The newest first."""
    runs = []
    for path in sorted(folder.glob("*.json")):
        try:
            run = json.loads(path.read_text())
            runs.append((run["date"], path.name, run))
            for key in ("kind", "device", "driver", "commit", "system", "tables"):
                run[key]
            for name, table in run["tables"].items():
                if name not in TABLES:
                    raise Fault(f"{path.name}: there is no table {name}")
                table["command"], table["rows"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise Fault(f"{path.name}: not a run: {error!r}") from error
    return [run for *_, run in sorted(runs, key=lambda entry: entry[:2], reverse=True)]


def sources_of(runs: list[Row], name: str) -> list[Source]:
    found = [run for run in runs if run["tables"].get(name, {}).get("rows")]
    newest: dict[str, Row] = {}
    for run in found:
        newest.setdefault(run["device"].rpartition(",")[0] if run["kind"] == "cpu" else "", run)
    return [Source(run, name) for run in newest.values()]


def extent(values: list[float], scale: float = 1) -> str:
    return f"{number(min(values) * scale)} to {number(max(values) * scale)}" if values else "–"


def ratio(sources: list[Source], op: str) -> str:
    """How many times as fast as dense attention, least and most."""
    found = [dense_ratio(row) for row in sources[0].rows if split_op(row)[0] == op]
    return extent([each for each in found if each])


def share(sources: list[Source], op: str) -> str:
    """% of the peak on one AVX-512 thread, where head dims and windows are as large as goals ask for: least and most."""
    rows = [row for source in sources for row in source.rows if row["configuration"] == "avx512, 1 thread"]
    rows = rows[: len({row["problem"] for row in rows})]  # of the newest source
    wide = [row for row in rows if row["problem"].startswith(f"{op}:f32") and is_wide(row["problem"])]
    return extent([row["share_of_peak"] for row in wide], 100)


def ahead(sources: list[Source], other: str, pass_name: str) -> str:
    """% of a study's problems where fused is at least as fast; blanks are written as _."""
    which = other.replace("_", " "), pass_name.replace("_", " "), 0
    found = [row for row in sources[0].rows if "one" in row and (row["other"], row["pass"], row["rank"]) == which]
    return f"{100 * found[0]['ahead'] / found[0]['count']:.1f}" if found else "–"


SHORT: dict[str, Callable[..., str]] = {"large_windows": short_large_windows, "cpu_suite": short_cpu_suite}
NUMBERS: dict[str, Callable[..., str]] = {"ratio": ratio, "share": share, "ahead": ahead}


def fill(template: str, runs: list[Row]) -> str:
    def value(match: re.Match[str]) -> str:
        kind, name, *more = match[1].split()
        if name not in (SHORT if kind == "short" else TABLES) or kind not in ("table", "short", "source", "losses", *NUMBERS):
            raise Fault(f"the template asks for {match[0]}, which there is not")
        sources = sources_of(runs, name)
        if not sources:
            return {"table": "No run has this table yet.", "losses": "", "source": ""}.get(kind, "–")
        if kind == "short":
            return SHORT[name](sources, *more)
        if kind == "table":
            return TABLES[name](sources)
        if kind == "losses":
            return study_losses(sources)
        return sources[0].text() if kind == "source" else NUMBERS[kind](sources, *more)

    return re.sub(r"\n{3,}", "\n\n", re.sub(r"\{\{(.+?)\}\}", value, template))


def fill_in(page: str, runs: list[Row]) -> str:
    """A page that is written by hand, but for what stands between <!-- {{..}} --> and <!-- end -->."""

    def part(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n\n{fill(match[1], runs)}\n\n<!-- end -->"

    return re.sub(r"<!-- (\{\{.+?\}\}) -->\n.*?<!-- end -->", part, page, flags=re.DOTALL)


def write(results: Path, templates: dict[Path, Path], readme: Path, check: bool) -> int:
    """`templates`: of the pages that are written."""
    try:
        runs = read_runs(results)
        pages = {page: fill(template.read_text(), runs) for page, template in templates.items()}
        pages[readme] = fill_in(readme.read_text(), runs)
    except Fault as fault:
        print(fault, file=sys.stderr)
        return 1
    stale = [path for path, page in pages.items() if not path.exists() or path.read_text() != page]
    for path in stale:
        if check:
            print(f"{path} is not what `make performance` writes", file=sys.stderr)
        else:
            path.write_text(pages[path])
    return int(check and bool(stale))
