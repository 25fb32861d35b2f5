"""bench/gpu/study_cuda.py: which plans take part. With a GPU, pretended or not, also what comes of a small study."""

import math
import sys
from multiprocessing import Lock
from pathlib import Path

import pytest
import torch
from nhood import _library as c
from nhood import _plans

pytest.importorskip("torch.nn.attention.flex_attention")  # a peer in it
sys.path[:0] = map(str, (Path(__file__).parents[2] / "bench").iterdir())
import study_cuda  # noqa: E402
from peers import Contender, race  # noqa: E402

TEXT = "fwd:f16:b1h1d32:64:w7"
GPUS = _plans.current_context().cuda_devices


class FakePlan:
    chosen = "cuda.small"

    def __init__(self, device, text, solver, tune_s):
        if solver in ("cuda.joint90", "cuda.split90", "cuda.split80"):
            raise NotImplementedError("no solver takes it: only the backward pass")
        self.solver = solver or self.chosen


@pytest.mark.parametrize(
    "chosen, expected",
    [
        ("cuda.small", ["cuda.small"]),
        ("cuda.naive", ["cuda.fused90", "cuda.small", "cuda.short90", "cuda.short", "cuda.fused80"]),
    ],
)
def test_fused_is_a_fused_solver_even_where_another_is_chosen(monkeypatch, chosen, expected):
    monkeypatch.setattr(study_cuda, "Plan", FakePlan)
    monkeypatch.setattr(FakePlan, "chosen", chosen)
    study = object.__new__(study_cuda.CudaStudy)
    study.number, study.tune_s = 1, 0
    assert [plan.solver for plan in study.plans(TEXT, "fused")] == expected
    assert [plan.solver for plan in study.plans(TEXT, "naive")] == ["cuda.naive"]
    assert study.plans(TEXT, "split90") == {"absent": "no solver takes it: only the backward pass"}


class CallsThatTell:
    """A clock of calls that return what they take."""

    def time(self, call):
        return call()


def test_a_turn_is_a_few_calls_even_where_the_first_one_waits():
    short, long = iter([0.5, 9.0, 0.5, 0.6, 0.7, 9.0]), iter([30.0, 20.0, 20.0])
    contenders = [Contender("short", lambda: next(short)), Contender("long", lambda: next(long))]
    race(contenders, CallsThatTell(), 1, full_ms=2, most_calls=5)
    assert [each.turns for each in contenders] == [[pytest.approx(0.65)], [20.0]]
    assert [next(short), next(long)] == [9.0, 20.0]


@pytest.mark.skipif(not GPUS, reason="needs a CUDA device, or tests/emulator in its place")
def test_a_small_study():
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")  # the emulator computes in host memory
    study = study_cuda.CudaStudy(device, GPUS[0], turns=3)
    texts = (TEXT, TEXT.replace("fwd", "bwd"))
    asked = [(text, name) for text in texts for name in ("fused", "naive", "gemm", "dense flash", "dense cuDNN")]
    found = {(text, name): result for text, name, result in study.measure(asked)}
    assert found.keys() == set(asked)
    for (text, name), result in found.items():
        assert ("median_ns" in result) != ("absent" in result)
        if "median_ns" in result:
            assert min(result["turns_ns"]) == round(result["median_ns"])
        if not name.startswith("dense"):
            solver = result["solver"].removeprefix("cuda.")
            assert solver == name or name == "fused" and solver in study_cuda.FUSED
            assert result["median_ns"] > 0 and result["flops_per_s"] > 0 and result["bytes_per_s"] > 0
    assert "median_ns" in found[TEXT, "dense flash"]
    study = study_cuda.CudaStudy(device, GPUS[0], dense_gflop=1e-9, alone=Lock())
    (one,) = study.measure([(TEXT, "dense flash")])
    assert one == (TEXT, "dense flash", {"absent": "above 1e-09 GFLOP"})


@pytest.mark.skipif(not GPUS, reason="needs a CUDA device, or tests/emulator in its place")
@pytest.mark.parametrize("problem", ["f32:b2h2d32:9x11:w3x5", "f32:b1h3d16:40:w7:d3"])
def test_gemm_is_attention_by_operators(problem):
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    study = study_cuda.CudaStudy(device, GPUS[0])
    plans = {(op, name): study.plans(f"{op}:{problem}", name)[0] for op in ("fwd", "bwd") for name in ("naive", "gemm")}
    assert all(plan.solver == f"cuda.{name}" for (_, name), plan in plans.items())
    workspace = max(plan.workspace_bytes for plan in plans.values())
    memory = study_cuda.Memory(study_cuda.Problem.parse(f"fwd:{problem}"), workspace, device)
    found = {}
    for name in ("naive", "gemm"):
        for op in ("fwd", "bwd"):
            plans[op, name].call(memory)()
        found[name] = [memory.tensors[slot].clone() for slot in (c.O, c.D_Q, c.D_K, c.D_V)]
        for slot in (c.O, c.D_Q, c.D_K, c.D_V):
            memory.tensors[slot].fill_(math.nan)
    for naive, gemm in zip(found["naive"], found["gemm"]):
        torch.testing.assert_close(gemm, naive, rtol=1e-4, atol=1e-4)


class NoStudy:
    """In a worker: results of what it was asked, forward by nhood and backward by torch."""

    def __init__(self, *options):
        self.options = options

    def measure(self, asked):
        for text, name in asked:
            yield text, name, {"median_ns": 1, **({"bytes_per_s": 2} if text.startswith("fwd:") else {})}


def begin(*options):
    study_cuda._study = NoStudy(*options)


def test_workers_measure_everything_once(monkeypatch):
    monkeypatch.setattr(study_cuda, "_begin", begin)
    monkeypatch.setattr(study_cuda, "number_of", lambda device: 0)
    monkeypatch.setattr(study_cuda, "measure_ceilings", lambda device: {"f16": {"peak_flops_per_s": 3}})
    workers = study_cuda.Workers(2, "cuda:0", 1, math.inf, 0)
    asked = [(f"{op}:f16:b{batch}h1d32:64:w7", "fused") for batch in range(1, 6) for op in ("fwd", "bwd")]
    found = list(workers.measure(asked))
    assert sorted((text, name) for text, name, _ in found) == sorted(asked)
    for text, _, result in found:
        assert result.get("peak_flops_per_s") == (3 if text.startswith("fwd:") else None)
    stopped = workers.measure(asked)
    next(stopped)
    stopped.close()
    assert len(list(workers.measure(asked[:2]))) == 2
    workers.close()
