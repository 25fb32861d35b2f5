"""bench/gpu/study.py: what it makes of made-up results, and a run of it cut short on the CPU."""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path[:0] = map(str, BENCH.iterdir())
import report  # noqa: E402
import study  # noqa: E402
import study_report  # noqa: E402

WHERE = report.Where("made-up GPU", "1.2", "abc123")
A, B = "b1h1d32:64:w7", "b2h1d32:128:w9:d2"
PLANE = "b1h2d64:16x16:w5x5"


def line(problem, contender, ms=None, **more):
    timed = {} if ms is None else {"median_ns": ms * 1e6, "flops_per_s": 1e12, "bytes_per_s": 1e11}
    ceilings = {"peak_flops_per_s": 1e14, "copy_bytes_per_s": 1e12, "solver": contender, "command": "the command"}
    return {**ceilings, **timed, "problem": problem, "contender": contender, **vars(WHERE), **more}


def rows(markdown, heading):
    """The cells of the table below a heading, by those of its first row and column."""
    section = markdown.split(f"## {heading}")[1].split("\n## ")[0]
    head, _, *lines = [text.strip("| ").split(" | ") for text in section.splitlines() if text.startswith("|")]
    names = head if len(head) == len(lines[0]) - 1 else head[1:]
    return {cells[0]: dict(zip(names, cells[1:])) for cells in lines}


GPU = [
    line(f"fwd:f16:{A}", "naive", 8), line(f"fwd:f16:{A}", "gemm", 4), line(f"fwd:f16:{A}", "fused", 2),
    line(f"fwd:f16:{B}", "naive", 2), line(f"fwd:f16:{B}", "gemm", 4), line(f"fwd:f16:{B}", "fused", 2),
    line(f"bwd:f16:{A}", "naive", 2), line(f"bwd:f16:{A}", "fused", 8),
    line(f"fwd:f16:{B}", "dense flash", 1), line(f"fwd:f16:{PLANE}", "naive", absent="no memory"),
]  # fmt: skip


def test_improvement_and_share_by_hand():
    markdown = study_report.report(GPU, WHERE)
    table = rows(markdown, "Improvement")
    forward = table["f16, forward, 1-D"]
    assert forward["gemm over naive"] == "25 (-50 … 100)"
    assert forward["fused over naive"] == "150 (0 … 300)"
    assert forward["fused over gemm"] == "100 (100 … 100)"
    assert forward["fused over dense flash"] == "-50 (-50 … -50)"
    # only A was measured both ways: 10 ms against 10 ms
    assert table["f16, forward + backward, 1-D"]["fused over naive"] == "0 (0 … 0)"
    assert table["f16, forward + backward, 1-D"]["gemm over naive"] == "–"
    assert table["f16, forward, all ranks"] == forward and not any("2-D" in name for name in table)
    shares = rows(markdown, "Share")["f16, forward, 1-D"]
    assert shares["gemm over naive"] == "50.0 % of 2" and shares["fused over naive"] == "100.0 % of 2"
    assert shares["fused over dense flash"] == "0.0 % of 1"


def test_gemm_over_naive_by_the_sides_of_windows():
    table = rows(study_report.report(GPU, WHERE), "GEMM over naive")
    both = "25 (-50 … 100); 50.0 % of 2"
    assert table["f16, forward, windows 7 to 63"]["1-D"] == both
    assert table["f16, forward, windows from 7 on"]["all ranks"] == both
    assert table["f16, forward, windows from 7 on"]["2-D"] == "–"
    assert not any("up to 6" in name for name in table)


def test_dense_attention_left_out_is_bounded_by_the_peak():
    # A takes 4 * 64 * 64 * 32 operations, B four times as many for each of two entries: 5.2 and 42 ns at 1e14 a second
    lines = [line(f"fwd:f16:{problem}", "fused", 1e-5) for problem in (A, B, f"{A}:d2")]  # 10 ns
    lines.append(line(f"fwd:f16:{A}:d2", "dense cuDNN", 2e-5))
    lines += [line(f"fwd:f16:{problem}", "dense cuDNN", absent="above 0 GFLOP") for problem in (A, B)]
    lines.append(line(f"fwd:f16:{PLANE}", "dense cuDNN", absent="no memory"))
    assert rows(study_report.report(lines, WHERE), "Share")["f16, forward, 1-D"] == {
        "fused over dense cuDNN": "66.7 % of 3, 2 by bound"
    }


def test_a_cpu_bounds_f32_alone():
    # its measured peak is of f32; units for f16 and bf16 may be faster
    for dtype, share in (("f32", "50.0 % of 2, 1 by bound"), ("bf16", "0.0 % of 1")):
        lines = [line(f"fwd:{dtype}:{problem}", "fused", 1e-5, device="cpu") for problem in (A, B)]
        none = {"peak_flops_per_s": None}  # torch measures none
        lines.append(line(f"fwd:{dtype}:{A}", "dense", 5e-6, **none))
        lines.append(line(f"fwd:{dtype}:{B}", "dense", absent="above 0 GFLOP", **none))
        assert rows(study_report.report(lines, WHERE), "Share")[f"{dtype}, forward, 1-D"]["fused over dense"] == share


def test_report_of_several_commits(tmp_path):
    other = {**line(f"fwd:f16:{A}", "gemm", 1), "commit": "def456"}
    (tmp_path / "study.jsonl").write_text("".join(json.dumps(each) + "\n" for each in [*GPU, other]))
    command = (sys.executable, str(BENCH / "gpu" / "study.py"), "--report", "--output", str(tmp_path))
    subprocess.run(command, check=True, capture_output=True)
    markdown = (tmp_path / "study.md").read_text()
    assert "commit abc123, def456" in markdown
    # the later of two results counts
    assert rows(markdown, "Improvement")["f16, forward, 1-D"]["gemm over naive"] == "325 (-50 … 700)"


def test_exceptions_absences_and_origin():
    markdown = study_report.report(GPU, WHERE)
    slower = rows(markdown, "Exceptions")
    assert list(slower) == [f"`f16:{B}`"]
    assert list(slower[f"`f16:{B}`"].values()) == ["128", "64", "9", "forward", "fused", "2", "dense flash", "1", "0.50"]
    counts = rows(markdown, "Solvers of exceptions")["f16"]
    assert list(counts.values()) == ["forward", "dense flash", "fused", "1", "0.50"]
    assert "- naive: 1 × no memory" in markdown
    assert markdown.count("made-up GPU; driver 1.2; commit abc123") == 5
    assert markdown.count("`the command`") == 5


def test_unfused_is_the_sum_of_its_operators():
    cpu = [line(f"{op}:f32:{PLANE}", "unfused", ms) for op, ms in (("pn", 1), ("nn", 2), ("in", 4))]
    times = study_report.Times(cpu)
    assert times.ms(f"f32:{PLANE}", "unfused", ("fwd",)) == 3
    assert times.ms(f"f32:{PLANE}", "unfused", ("fwd", "bwd")) == 3 + 1 + 2 + 4 + 4
    assert study_report.Times(cpu[:2]).ms(f"f32:{PLANE}", "unfused", ("bwd",)) is None


def test_records_survive_an_interruption_and_keep_devices_apart(tmp_path):
    path = tmp_path / "study.jsonl"
    report.Records(path, WHERE).append("fwd:f16:one", "fused", {"median_ns": 1})
    with path.open("a") as file:
        file.write('{"problem": "fwd:f16:tw')
    records = report.Records(path, WHERE)
    assert records.known == {("fwd:f16:one", "fused")}
    records.append("fwd:f16:two", "fused", {"absent": "why"})
    assert report.Records(path, WHERE).known == {("fwd:f16:one", "fused"), ("fwd:f16:two", "fused")}
    elsewhere = report.Where("made-up GPU", "1.2", "def456")
    assert report.Records(path, elsewhere).known == set()


class Measuring:
    """A study of made-up times that remembers what it was asked."""

    def __init__(self, **contenders):
        self.contenders, self.asked = contenders, []

    def measure(self, asked):
        self.asked.append(asked)
        yield from ((*pair, {"median_ns": 1}) for pair in asked)


def test_only_what_is_missing_is_measured(tmp_path):
    fused = Measuring(fused=("fwd", "bwd"))
    records = report.Records(tmp_path / "study.jsonl", WHERE)
    records.append(f"fwd:f16:{A}", "fused", {"median_ns": 1})
    study.measure_all(records, [(A, "f16"), (B, "f16")], fused, 1, 60, "command")
    assert fused.asked == [[(f"bwd:f16:{A}", "fused")], [(f"fwd:f16:{B}", "fused"), (f"bwd:f16:{B}", "fused")]]
    study.measure_all(records, [(A, "f16"), (B, "f16"), (PLANE, "f16")], fused, 1, 0, "command")
    assert len(fused.asked) == 2


def test_several_problems_at_once(tmp_path):
    both = Measuring(fused=("fwd",), naive=("fwd",))
    records = report.Records(tmp_path / "study.jsonl", WHERE)
    study.measure_all(records, [(A, "f16"), (B, "f16"), (PLANE, "f16")], both, 2, 60, "command")
    assert [len(asked) for asked in both.asked] == [4, 2]
    assert {(line["problem"], line["contender"]) for line in records.lines} == records.known
    assert len(records.known) == 6


def test_shares_are_whole_groups_of_about_one_size():
    groups = {"a": range(7), "b": range(4), "c": range(2), "d": range(2)}
    shares = [study.take_share(groups, (number, 2)) for number in (1, 2)]
    assert shares == [{"a"}, {"b", "c", "d"}]
    suites = [[A, B, "b2h1d32:99:w9"], [PLANE]]
    kept = [study.keep_share(suites, (number, 3)) for number in (1, 2, 3)]
    assert kept == [[[A, "b2h1d32:99:w9"], []], [[B], []], [[], [PLANE]]]
    assert study.keep_share(suites, study.share_of("1/1")) == suites
    for wrong in ("0/2", "3/2", "1"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not K/N"):
            study.share_of(wrong)


def test_ranks_and_dtypes_take_turns():
    order = list(study.schedule([["a", "b"], ["c"]], ["f16", "f32"]))
    assert order == [("a", "f16"), ("a", "f32"), ("c", "f16"), ("c", "f32"), ("b", "f16"), ("b", "f32")]


def test_problem_texts():
    problem = study_report.Problem.parse("bwd:bf16:b2h3d32:4x5x6:w3x3x3:d1x1x2")
    assert problem.tokens == 120 and problem.dense_flops == 10 * 2 * 3 * 120**2 * 32
    with pytest.raises(ValueError, match="not comparable"):
        study_report.Problem.parse("fwd:f16:b1h1d32:64:w7:c1")


def test_a_run_on_the_cpu_goes_on_where_it_was(tmp_path):
    tool = BENCH.parent / "build" / "nhood"
    if not tool.exists():
        pytest.skip("build/nhood is not built")
    command = [sys.executable, str(BENCH / "gpu" / "study.py"), "--threads", "1", "--ranks", "2", "--dtypes", "f32"]
    command += ["--sample", "2", "--most-gflop", "0.01", "--min-time", "0.001", "--output", str(tmp_path)]

    def run(budget):
        subprocess.run([*command, "--budget", budget], check=True, timeout=300)
        return (tmp_path / "study.jsonl").read_text() if (tmp_path / "study.jsonl").exists() else ""

    assert run("0") == ""
    first = run("60")
    results = [json.loads(text) for text in first.splitlines()]
    ours = [result for result in results if result["contender"] in ("fused", "unfused")]
    assert len(ours) == 2 * 5 and all(result["median_ns"] > 0 for result in ours)
    assert run("60") == first
    table = rows((tmp_path / "study.md").read_text(), "Share")
    assert re.fullmatch(r"\d+\.0 % of 2", table["f32, forward, 2-D"]["fused over unfused"])


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--report"], "study.jsonl: no results"),
        (["--nhood", "/missing/nhood"], "--nhood /missing/nhood: No such file"),
        (["--share", "3/2"], "'3/2' is not K/N"),
    ],
)
def test_wrong_arguments_end_it_with_the_reason(tmp_path, arguments, text):
    command = [sys.executable, str(BENCH / "gpu" / "study.py"), "--output", str(tmp_path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode and text in done.stderr and "Traceback" not in done.stderr
