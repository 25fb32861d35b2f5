"""The benchmark, cut short."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from dense import Case

BENCH = Path(__file__).resolve().parents[2] / "bench" / "cpu" / "jax_calls.py"


SPEC = importlib.util.spec_from_file_location("jax_calls", BENCH)
jax_calls = importlib.util.module_from_spec(SPEC)
sys.modules["jax_calls"] = jax_calls
SPEC.loader.exec_module(jax_calls)


def test_speed():
    problems = ("b1h2d8:9x8:w3x5", "b64h8d64:64x64:w33x33")
    command = [sys.executable, BENCH, "--part", "speed", "--turns", "1", "--most-tflop", "0.01", "--problems", *problems]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    _, forward, backward, too_much = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert all(float(cell) > 0 for line in (forward, backward) for cell in line.split("|")[3:-1])
    assert "not tried: 0.585 TFLOP" in too_much


def test_ways_agree():
    """What is compared computes the same."""
    case = Case((9, 8), (3, 5), batch=2, heads=2, dim=8)
    arrays = [jnp.asarray(array) for array in case.arrays(np.dtype(np.float64)).values()]
    problem = jax_calls.parse("b2h2d8:9x8:w3x5")
    results = [np.asarray(make(problem)(*arrays)) for make in jax_calls.WAYS.values()]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-6, atol=1e-6)
