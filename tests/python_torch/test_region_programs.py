"""The examples of parts of a grid and of periodic axes, and the benchmarks of these and of streaming, each cut short."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(run_program: Callable) -> Callable[..., str]:
    def checked(*arguments: object) -> str:
        ended = run_program(*arguments)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return checked


def test_tiles_are_exact(run: Callable) -> None:
    program = "examples/tiled_decoder.py"
    example = re.search(rf"^    {program} (.+)$", (ROOT / program).read_text(), flags=re.M)  # of its own docstring
    said = run(program, *example[1].split())
    differences = [float(number) for number in re.findall(r"largest difference (\S+)", said)]
    assert differences[0] < 1e-5 < 1e-2 < differences[1], said


def test_globe_has_no_seam(run: Callable, tmp_path: Path) -> None:
    said = run("examples/periodic_globe.py", "--svg", tmp_path / "globe.svg")
    steps = [float(number) for number in re.findall(r"step at the seam (\S+)", said)]
    assert steps[1] < 1.5 < 5 < steps[0], said
    assert (tmp_path / "globe.svg").read_text().count("data:image/png") == 2


def test_benchmark_of_streaming(run: Callable) -> None:
    """It compares what every way returns with the whole video's."""
    small = ("--grid", "5x6x8", "--window", "3x3x3", "--heads", 2, "--dim", 8, "--dtype", "float32", "--turns", 1)
    said = run("bench/gpu/streaming.py", "--device", "cpu", *small)
    assert len(re.findall(r"^ +\w+: [\d.]+ ms a frame", said, flags=re.M)) == 5, said


def test_benchmark_of_regions(run: Callable) -> None:
    """It compares what every way returns with the whole grid's results, or with the periodic grid's."""
    boxes, wrapped = "f32:b1h1d8:9x24:w3x5", "f32:b1h2d8:12x10:w5x4"
    said = run("bench/gpu/regions.py", "--device", "cpu", "--turns", 1, "--json", "--boxes", boxes, "--periodic", wrapped)
    rows = [json.loads(line) for line in said.splitlines()]
    copies = [f"{axes}: copies of {which}" for axes in ("p01", "p11") for which in ("K, V", "all")]
    ways = ["plain", "everything", "half", "half, its keys"] * 2 + ["plain", "p10", "p01", "p11", *copies] * 2
    assert [row["way"] for row in rows] == ways
    assert all(row["ratio"] > 0 for row in rows if row["way"] != "plain")
    assert all(row["solver"].startswith("cpu.") for row in rows)
