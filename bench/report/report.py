"""What programs need to report: results as lines of JSON, where they were measured, tables of Markdown and pictures."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DTYPES = ("f16", "bf16", "f32")
RANKS = {1: "1-D", 2: "2-D", 3: "3-D", 0: "all ranks"}

Row = dict[str, Any]


# ---- where something was measured ----


@dataclass(frozen=True)
class Where:
    description: str
    driver: str
    commit: str


def where_all(lines: list[Row]) -> Where:
    """Where lines come from; there may be several devices, drivers or commits."""
    return Where(*(", ".join(sorted({line[key] for line in lines})) for key in ("description", "driver", "commit")))


def find_commit() -> str:
    git = ("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*")
    try:
        return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def find_driver() -> str:
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        return subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown (no nvidia-smi)"


# ---- results ----


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"--output {path}: {error.strerror}") from error


def read_lines(path: Path) -> Iterator[Row]:
    if not path.exists():
        return
    text = lzma.open(path, "rt").read() if path.suffix == ".xz" else path.read_text()
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            print(f"{path}: passed over a line that is not whole", file=sys.stderr)


class Records:
    """The file of results. Each line is whole: an interrupted one is passed over, and measured again."""

    def __init__(self, path: Path, where: Where) -> None:
        self.path, self.where = path, where
        self.lines = [line for line in read_lines(path) if all(line.get(k) == v for k, v in asdict(where).items())]
        self.known = {(line["problem"], line["contender"]) for line in self.lines}

    def append(self, problem: str, contender: str, result: Row) -> None:
        line = {**result, "problem": problem, "contender": contender, **asdict(self.where)}
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
            torn = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * torn + json.dumps(line).encode() + b"\n")
        self.lines.append(line)
        self.known.add((problem, contender))


# ---- tables and pictures ----


def number(value: float) -> str:
    """Three digits or more, without an exponent."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def table_row(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def table(titles: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    """The lines of a table in Markdown."""
    head = list(titles)
    return [table_row(head), table_row(["---"] * len(head)), *map(table_row, rows)]


def pyplot() -> Any:
    """matplotlib's module, or None, and why there is no picture."""
    try:
        import matplotlib
    except ImportError:
        print("no picture: matplotlib is not installed", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot as module

    return module
