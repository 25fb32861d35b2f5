"""Grids sharded over four processes on the CPU, see sharded_worker.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import merge_worker
import pytest
import sharded_worker


@pytest.fixture(scope="module")
def results(tmp_path_factory: Any) -> list[dict[str, str]]:
    folder: Path = tmp_path_factory.mktemp("distributed")
    return sharded_worker.start(4, folder, "cpu")


@pytest.mark.parametrize("case", sharded_worker.CASES)
def test_case(results: list[dict[str, str]], case: str) -> None:
    assert sharded_worker.verdict(results, case)


def test_benchmark(tmp_path: Path) -> None:
    """bench/sharded/sharded.py by two processes, cut short; it compares the results with one process itself."""
    program = Path(__file__).parents[2] / "bench" / "sharded" / "sharded.py"
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(program), "b1h2d8:6x10:w3x5"]
    modes = ["--modes", "table", "link", "breakdown", "timeline", "--turns", "1", "--calls", "1", "--balanced"]
    modes += ["--strategies", "halo", "heads", "gather", "alone"]
    done = subprocess.run([*launch, *modes, "--json", str(tmp_path / "found.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    rows = {row["strategy"]: row for row in found["table"][0]["rows"]}
    assert set(rows) == {"one", "halo", "heads", "gather", "alone"}
    element, columns, heads = 4, 2 * 8, 2
    assert rows["halo"]["received_bytes"] == [6 * 2 * columns * heads * element] * 2  # 2 of 5 columns, K and V
    assert all(row["error"] < 1e-5 for name, row in rows.items() if name not in ("one", "alone"))
    assert {part["what"] for part in found["breakdown"][0]["processes"][0]["forward"]} >= {"waiting for the exchange"}


def test_merge_kernel() -> None:
    """The launch that merges two results on CUDA, by Triton's interpreter, which wants to be chosen before Triton is imported."""
    pytest.importorskip("triton")
    merge_worker.start("cpu", TRITON_INTERPRET="1")
