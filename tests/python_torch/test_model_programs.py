"""The training example, cut short, and the model benchmark on its smallest model."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG"


def run(*arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=900
    )


def test_digits_are_learned(tmp_path: Path) -> None:
    """Six epochs do not reach the accuracy that is asked for; guessing would be right in a tenth."""
    plot = tmp_path / "folder" / "digits.png"
    ended = run("examples/train_digits.py", "--epochs", 6, "--device", "cpu", "--expect", 1, "--output", plot)
    said = re.search(r"cpu: (\d+\.\d)% of 360 test images", ended.stdout)
    assert said, ended.stderr
    assert float(said[1]) > 40
    assert plot.read_bytes().startswith(PNG)
    assert ended.returncode == 1 and "is below 1.0" in ended.stderr


@pytest.mark.parametrize("mode", ["no", "only"])
def test_benchmark(mode: str, tmp_path: Path) -> None:
    setting = ("--device", "cpu", "--models", "nat_mini", "--batch", 1, "--turns", 1, "--seconds", 0)
    ended = run("bench/models.py", *setting, "--train", mode, "--output", tmp_path)
    assert ended.returncode == 0, ended.stderr
    with (tmp_path / "models.csv").open() as file:
        seconds = {row["way"]: float(row["seconds"]) for row in csv.DictReader(file)}
    assert set(seconds) == {"nhood", "unfused", "gather", "none"}, ended.stdout
    assert min(seconds.values()) > 0
    assert "| nat_mini | f32 | yes | 1 |" in ended.stdout
    assert ended.stdout.count("needs CUDA") == 3
    assert (tmp_path / "models.png").read_bytes().startswith(PNG)


def test_benchmark_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that is no neighborhood attention does not get to be timed."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import models as bench

    case = bench.Case("nat_mini", "f32", True, False, 1)
    attentions = bench.attentions_in(case, "cpu")
    assert len(attentions) == 4  # one per level
    bench.check(bench.WAYS["unfused"], attentions, case, "cpu")
    with pytest.raises(bench.Absent, match="of the largest value"):
        bench.check(bench.WAYS["none"], attentions, case, "cpu")
