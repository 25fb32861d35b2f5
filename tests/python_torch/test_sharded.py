"""Grids sharded over four processes on the CPU, see sharded_worker.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import sharded_worker
import pytest

PROCESSES = 4


@pytest.fixture(scope="module")
def results(tmp_path_factory: Any) -> list[dict[str, str]]:
    """Per process what it found, by case."""
    folder = tmp_path_factory.mktemp("distributed")
    command = [sys.executable, sharded_worker.__file__]
    running = [subprocess.Popen([*command, str(rank), str(PROCESSES), str(folder)]) for rank in range(PROCESSES)]
    for process in running:
        process.wait(timeout=600)
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(PROCESSES)]


@pytest.mark.parametrize("case", sharded_worker.CASES)
def test_case(results: list[dict[str, str]], case: str) -> None:
    for rank, found in enumerate(results):
        assert case in found, f"process {rank} did not come to it"
        assert not found[case], f"process {rank}: {found[case]}"
