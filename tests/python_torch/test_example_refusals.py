"""Examples that need more than torch: where they cannot run, they end at once with one sentence."""

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def run(*command, **environment):
    whole = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=whole, capture_output=True, text=True, timeout=300)


def test_sharded_video_is_started_by_torchrun():
    done = run("examples/sharded_video.py")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "sharded_video.py: its processes are started together, by torchrun: torchrun --nproc-per-node 2 examples/sharded_video.py"
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--axis HW", "--mesh 2 has not a number for each of --axis HW"),
        ("--axis HW --mesh 2x2", "with 2 (processes) as their product"),
        ("--axis Q", "--axis = 'Q' is not one or several of T, H and W"),
        ("--problem 30x48", "--problem and --window are frames x height x width"),
        ("--axis T --problem 1x9x9 --window 1x3x3", "1 tokens along T are too few for 2 processes"),
        ("--window 9x7x7", "the window along T, 9, is not in [1, 6]"),
    ],
)
def test_sharded_video_refuses(options, reason, monkeypatch, capsys):
    """Before the processes meet."""
    for rank, said in (("0", 1), ("1", 0)):
        monkeypatch.setattr(sys, "argv", ["sharded_video.py", *options.split()])
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "examples/sharded_video.py"), run_name="__main__")
        lines = capsys.readouterr().err.splitlines()
        assert ended.value.code == 2 and len(lines) == said and all(reason in line for line in lines), lines


def test_sharded_video_has_a_size_for_cpus():
    start = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d")
    done = run(*start, "--rdzv-endpoint", "localhost:0", "examples/sharded_video.py", "--check", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    where = "GPUs" if torch.cuda.device_count() >= 2 else "CPUs"
    assert f"2 processes on {where} " in done.stdout and "largest difference" in done.stdout
    assert "TFLOP" not in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("diffusers") is not None, reason="diffusers is here")
def test_video_decoder_names_what_is_missing():
    done = run("examples/video_decoder.py")
    assert done.returncode == 1
    assert done.stderr.startswith("video_decoder.py: No module named 'diffusers'. It needs torch, diffusers>=0.42.1, and nhood")
