"""bench/gpu/gpu_round.py: how it ends programs, what it says of bad arguments, and its summary of made-up results. tests/cuda_host/round
and tests/python_torch/test_gpu_round_torch.py run it from end to end."""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = map(str, (ROOT / "bench").iterdir())
import gpu_round  # noqa: E402
import round_report  # noqa: E402

RECORD = """sources 0123
cuda.gemm random 336 named 1 past 2^31 elements 4 captured and concurrent 3
cuda.naive random 299 named 1 past 2^31 elements 4 captured and concurrent 3
failed: none"""


@pytest.fixture
def made(tmp_path):
    options = argparse.Namespace(output=tmp_path, build=tmp_path, budget=100, commit="abc", base=None, pretend=False)
    return gpu_round.Round(options)


def step(*command, seconds=30.0, needs=()):
    return gpu_round.Step("check", seconds, None, lambda r, limit: list(command), needs)


def outcome(r, one):
    r.take(one)
    return json.loads((r.output / "summary.json").read_text())["steps"]["check"]


def test_failures_are_noted_at_once(made):
    found = outcome(made, step("sh", "-c", "echo started; echo wrong >&2; exit 3"))
    assert found["state"] == "failed" and found["why"] == "exit status 3: wrong"
    assert (made.output / "check.log").read_text() == "started\nwrong\n"
    assert "No such file" in outcome(made, step("/nowhere/program"))["why"]
    assert outcome(made, step("true"))["state"] == "done"


def test_what_hangs_is_ended_with_all_that_it_started(made):
    start = time.monotonic()
    # its child has a process group of its own, as those of timeout(1) have
    command = "import os, subprocess, time; subprocess.Popen(['timeout', '60', 'sleep', '50']); print(os.getpid()); time.sleep(60)"
    found = outcome(made, step(sys.executable, "-uc", command, seconds=1.0))
    assert found["state"] == "failed" and found["why"] == "ended after its limit of 1 s" and time.monotonic() - start < 40
    leader = int((made.output / "check.log").read_text())
    assert leader > 1 and not gpu_round.session_of(leader)


def test_steps_are_left_out_with_the_reason(made):
    made.missing["torch"] = "no torch"
    assert outcome(made, step("false", needs=("torch",))) == {"state": "left out", "why": "no torch"}
    assert "100 s of the budget were left" in outcome(made, step("false", seconds=400.0))["why"]
    made.stopped = True
    assert outcome(made, step("false"))["why"] == "stopped"


def test_logs_are_cut(made):
    outcome(made, step("sh", "-c", f"head -c {2 * gpu_round.LOG_BYTES} /dev/zero; echo end"))
    log = (made.output / "check.log").read_bytes()
    assert len(log) == gpu_round.LOG_BYTES and log.endswith(b"end\n")


def test_two_gpus_are_used_at_once(made):
    made.gpus = ["4", "7"]
    met = made.output / "met"
    commands = {  # choices ends only if suite begins meanwhile
        "check": "true",
        "choices": f"until [ -e {met} ]; do sleep 0.05; done",
        "suite": f"touch {met}",
        "norm_rope": "true",
    }
    lanes = {"check": None, "choices": 0, "suite": 1, "norm_rope": 1}
    shell = {name: ["sh", "-c", f"echo $CUDA_VISIBLE_DEVICES; {command}"] for name, command in commands.items()}
    steps = [gpu_round.Step(name, 20, lane, lambda r, limit, name=name: shell[name]) for name, lane in lanes.items()]
    gpu_round.take_all(made, steps)
    assert all(found["state"] == "done" for found in made.summary["steps"].values())
    seen = {name: (made.output / f"{name}.log").read_text().strip() for name in lanes}
    assert seen == {"check": "4,7", "choices": "4", "suite": "7", "norm_rope": "7"}


@pytest.mark.parametrize("arguments, words", [
    (["--budget", "0"], "--budget: '0' is not a number above 0"),
    (["--budget", "9", "--steps", "chekc"], "invalid choice: 'chekc'"),
    (["--budget", "9", "--base", "nowhere"], "'nowhere' is neither a folder with a CMakeLists.txt nor a commit"),
    (["--budget", "9", "--sample", "0"], "--sample 0 is below 1"),
    (["--budget", "9", "--pretend", "--build", "/nowhere"], "/nowhere has no program choices"),
    ([], "required: --budget"),
])  # fmt: skip
def test_bad_arguments(tmp_path, arguments, words):
    command = [sys.executable, str(ROOT / "bench" / "gpu" / "gpu_round.py"), "--output", str(tmp_path / "out"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and words in done.stderr and not (tmp_path / "out").exists()


# ---- the summary ----


def write_lines(path, *lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def goals(name, folder):
    return {goal.what: goal for goal in round_report.report_of(name, folder)[0]}


def test_the_check(tmp_path):
    (tmp_path / "check.log").write_text(f"== result (246 s)\n-- cuda.gemm\nwrong\n{RECORD}\n")
    found = goals("check", tmp_path)
    assert found["failed"].reached and not found["random problems of a solver (cuda.naive)"].reached
    assert found["tests/gpu/record.txt"].measured == "not written"
    (tmp_path / "check.log").write_text(RECORD.replace("none", "named.7"))
    assert goals("check", tmp_path)["failed"].measured == "named.7"
    (tmp_path / "check.log").write_text("== build (0 s)\n")
    assert goals("check", tmp_path)["a record"].reached is False


def test_choices(tmp_path):
    def line(problem, *ns):
        return {"problem": problem, "candidates": [["cuda.gemm", f"q={i}", 1, each, 7] for i, each in enumerate(ns)]}

    lines = [line("fwd:f16:b1h1d32:64:w7", 100, 110), line("bwd:bf16:b1h1d32:64:w7", 200, 100)]
    write_lines(tmp_path / "choices" / "choices.jsonl", *lines, line("fwd:f32:b1h1d32:8x8:w3x3", 109, 100))
    found = goals("choices", tmp_path)
    assert found["1-D, 2 problems: within 10 % of the fastest"].measured == "50.0 %"
    assert found["1-D, 2 problems: the worst"].measured == "2 ×" and not found["1-D, 2 problems: the worst"].reached
    assert found["1-D, 2 problems: lost in geometric mean"].measured == "41.4 %"
    assert found["2-D, 1 problems: within 10 % of the fastest"].reached and not found["2-D, 1 problems: lost in geometric mean"].reached


def test_before_and_after(tmp_path):
    chosen, ns = {"before": "cuda.a", "after": "cuda.b"}, {"before": [8.0], "after": [10.0]}
    lines = [{"problem": f"fwd:f16:b1h1d32:64:w{w}", "ratio": r, "chosen": chosen, "ns": ns} for w, r in ((3, 0.8), (5, 1.25))]
    write_lines(tmp_path / "before_after" / "before_after.jsonl", *lines)
    found = goals("before_after", tmp_path)
    assert found["1-D, 2 problems: time before over after, geometric mean"].reached
    assert found["`fwd:f16:b1h1d32:64:w3`"] == ("before_after", "`fwd:f16:b1h1d32:64:w3`", "≥ 0.90", "0.80", False)
    assert "`fwd:f16:b1h1d32:64:w5`" not in found


def test_tables_of_performance(tmp_path):
    case, level = "bf16:b1h16d128:65536:w4096", "bf16:b128h4d32:56x56:w7x7"
    rows = [{"problem": f"{op}:{case}", "solver": "s", "ms": 4.0, "ideal": 16.0, "peers_ms": {"cuDNN": 58.0}} for op in ("fwd", "bwd")]
    small = [{"problem": f"bwd:{level}{bias}", "solver": "s", "ms": time, "memory_ms": 0.2} for bias, time in (("", 0.3), (":rpb", 0.45))]
    sm80 = [{"problem": f"fwd:{case}", "ms": 1.0, "flops_per_s": 2.9e14}]
    tables = {name: {"rows": found} for name, found in (("large_windows", rows), ("small_windows", small), ("sm80", sm80))}
    tables["decoders"] = {"rows": [], "failed": "no torch"}
    (tmp_path / "performance.json").write_text(json.dumps({"tables": tables}))
    found = goals("performance", tmp_path)
    assert found[f"`fwd:{case}` beside dense cuDNN"][2:] == ("≥ 15 ×", "14.5 ×", False)
    assert found[f"`bwd:{case}` beside dense cuDNN"].reached
    assert found[f"`bwd:{level}`"].reached and not found[f"`bwd:{level}:rpb` beside that without bias"].reached
    assert found[f"`fwd:{case}` by sm_80's kernels, TFLOP/s"].measured == "290" and not found["table decoders"].reached


def test_norm_rope_regions_and_the_others(tmp_path):
    row = {"shape": "1x2", "forward_ms": {"copy": 1.0, "nhood": 1.5}, "backward_ms": {"copy": 1.0, "nhood": 3.3}}
    (tmp_path / "norm_rope.json").write_text(json.dumps({"rows": [row]}))
    found = goals("norm_rope", tmp_path)
    assert [goal.measured for goal in found.values()] == ["1.5 ×", "2.2 ×"] and [goal.reached for goal in found.values()] == [True, False]
    region = {"operation": "fwd", "problem": "p", "way": "half", "beside": "plain", "at_most": 0.53, "at_least": None}
    write_lines(tmp_path / "regions.jsonl", {**region, "ratio": 0.6, "reached": False}, {"problem": "q", "solver": None})
    found = goals("regions", tmp_path)
    assert found["`fwd:p`, half, of plain"][2:] == ("≤ 0.53", "0.600", False) and found["`q`"].measured == "no solver takes it"
    write_lines(tmp_path / "streams.jsonl", {"way": "ring", "ms": 0.75, "ratio": 1.25})
    assert "1.250 times its share" in goals("streams", tmp_path)["ring"].measured
    efficient = {"problem": "p", "rows": [{"strategy": "one"}, {"strategy": "halo", "efficiency": [0.98, 0.91]}]}
    (tmp_path / "sharded.json").write_text(json.dumps({"environment": {"processes": 2}, "table": [efficient]}))
    assert goals("sharded", tmp_path)["`p` on 2 GPUs by halo: efficiency"].measured == "0.98 forward, 0.91 backward"


def test_results_that_are_not_there_are_a_goal_missed(tmp_path):
    (tmp_path / "performance.json").write_text("{")
    for name in ("performance", "norm_rope", "sharded", "decoder"):
        assert goals(name, tmp_path)["results"].reached is False


def test_the_summary_is_of_several_commands(made):
    made.summary |= {"device": "made-up GPU", "gpus": 1}
    made.note("check", {"state": "failed", "why": "a | b", "seconds": 3.0, "command": "the check"})
    again = gpu_round.Round(made.options)
    again.note("streams", {"state": "left out", "why": "no torch"})
    text = (made.output / "summary.md").read_text()
    assert "made-up GPU, 1 of them; driver ?" in text and "commit abc; before: none." in text
    assert "| check | failed | 3 | a \\| b |" in text and "| streams | left out |  | no torch |" in text
    assert "## check\n\n`the check`" in text and "## streams" not in text
    assert "0 of 1 goals were reached" in text and "**FileNotFoundError" in text
