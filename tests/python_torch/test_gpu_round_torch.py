"""bench/gpu/gpu_round.py: the steps that need torch, on the CPU and on tiny problems."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nhood
import pytest

PROGRAM = Path(__file__).parents[2] / "bench" / "gpu" / "gpu_round.py"
STEPS = ("norm_rope", "regions", "streams", "sharded")


def test_steps_that_need_torch(tmp_path: Path) -> None:
    build = Path(nhood.library_path).parent
    if not (build / "fake_driver").exists():
        pytest.skip(f"{build} has no pretended driver")
    command = [sys.executable, str(PROGRAM), "--pretend", "--build", str(build), "--budget", "3000", "--output", str(tmp_path)]
    environment = {**os.environ, "FAKE_DEVICES": "2"}
    done = subprocess.run([*command, "--steps", *STEPS], capture_output=True, text=True, env=environment)
    logs = "".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    found = json.loads((tmp_path / "summary.json").read_text())
    assert {name: outcome["state"] for name, outcome in found["steps"].items()} == dict.fromkeys(STEPS, "done")
    measured = {name: [goal for goal in found["goals"] if goal["step"] == name] for name in STEPS}
    assert len(measured["norm_rope"]) == 2 and all(goal["goal"] == "≤ 2 ×" for goal in measured["norm_rope"])
    assert {goal["what"] for goal in measured["streams"]} == {"ring", "twice", "merge", "periodic", "copy"}
    ways = [goal["what"].split(", ", 1)[1] for goal in measured["regions"] if "fwd:" in goal["what"]]
    assert ways[:3] == ["everything, of plain", "half, of plain", "half, its keys, of plain"] and "p11, of plain" in ways
    assert len(measured["sharded"]) == 3
    text = (tmp_path / "summary.md").read_text()
    assert all(f"## {name}" in text for name in STEPS)
