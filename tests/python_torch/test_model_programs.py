"""The training example, cut short, and the model benchmark on its smallest model."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG"


def run(*arguments: object) -> subprocess.CompletedProcess:
    """In a process of its own, as it starts others."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=900
    )


def test_digits_are_learned(run_program: Callable, tmp_path: Path) -> None:
    """Three epochs do not reach the accuracy that is asked for; guessing would be right in a tenth."""
    plot = tmp_path / "folder" / "digits.png"
    ended = run_program("examples/train_digits.py", "--epochs", 3, "--device", "cpu", "--expect", 1, "--output", plot)
    said = re.search(r"cpu: (\d+\.\d)% of 360 test images", ended.stdout)
    assert said, ended.stderr
    assert float(said[1]) > 25
    assert plot.read_bytes().startswith(PNG)
    assert ended.returncode == 1 and "is below 1.0" in ended.stderr


def benchmark(run: Callable, output: Path, *arguments: object) -> tuple[list[dict], str]:
    """The lines that bench/gpu/models.py leaves, and what it says."""
    setting = ("--device", "cpu", "--batch", 1, "--turns", 1, "--seconds", 0, "--output", output)
    ended = run("bench/gpu/models.py", *setting, *arguments)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in (output / "models.jsonl").read_text().splitlines()], ended.stdout


@pytest.mark.parametrize("mode", ["no", "only"])
def test_benchmark(run_program: Callable, mode: str, tmp_path: Path) -> None:
    (case,), said = benchmark(run_program, tmp_path, "--models", "nat_mini", "--train", mode)
    assert set(case["seconds"]) == {"nhood", "unfused", "gather", "none"}, said
    assert min(seconds for turns in case["seconds"].values() for seconds in turns) > 0
    assert "| nat_mini | f32 | yes | 1 |" in said
    assert said.count("needs CUDA") == 2  # naive and flex
    assert (tmp_path / "models.png").read_bytes().startswith(PNG)


def test_benchmark_in_processes_and_resumed(run_program: Callable, tmp_path: Path) -> None:
    """What is there stays as it is, what is missing comes to it, and rows have the order of the models. Without the way that
    gathers windows, which takes ten times as long as the others: test_benchmark has all."""
    asked = ("--ways", "nhood", "none", "--resume")
    (first,), _ = benchmark(run_program, tmp_path, "--models", "dinat_mini", *asked)
    cases, said = benchmark(run, tmp_path, "--models", "dinat_mini", "nat_mini", "dinat_s_tiny", "--jobs", 2, *asked)
    assert cases[0] == first
    assert {case["model"] for case in cases[1:]} == {"nat_mini", "dinat_s_tiny"}
    rows = [line.split()[1] for line in said.splitlines() if "| f32 |" in line]
    assert rows == ["nat_mini", "dinat_mini", "dinat_s_tiny"]


@pytest.mark.parametrize("training", [False, True])
def test_benchmark_finds_what_is_wrong(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A way that is no neighborhood attention, or has another gradient, does not get to be timed."""
    monkeypatch.syspath_prepend(str(ROOT / "bench" / "gpu"))
    import model_cases as bench
    from attention_ways import WAYS, Way

    case = bench.Case("nat_mini", "f32", True, training, 1)
    attentions = bench.attentions_in(case.model, case.bias)
    assert len(attentions) == 4  # one per level
    bench.check(WAYS["unfused"], attentions, case, "cpu")
    with pytest.raises(bench.Absent, match="of the largest value"):
        bench.check(WAYS["none"], attentions, case, "cpu")

    def detached(query, key, value, kernel_size, dilation, bias):
        return WAYS["gather"].attention(query, key.detach(), value, kernel_size, dilation, bias)

    with pytest.raises(bench.Absent) if training else contextlib.nullcontext():
        bench.check(Way("detached", detached), attentions, case, "cpu")
