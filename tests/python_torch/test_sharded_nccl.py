"""Grids sharded over GPUs by NCCL, see sharded_worker.py. Cases for more processes than there are GPUs are skipped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import sharded_worker
import torch

GPUS = min(4, torch.cuda.device_count())
CREWS = max(1, min(16, (os.cpu_count() or 1) // max(1, GPUS)))
"""Nearly all that the cases take is compilation of kernels, and the start of processes."""
pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two CUDA devices")


@pytest.fixture(scope="module")
def results(tmp_path_factory: Any) -> list[dict[str, str]]:
    folder: Path = tmp_path_factory.mktemp("distributed")
    return sharded_worker.start(GPUS, folder, "cuda", CREWS)


@pytest.mark.parametrize("case", {**sharded_worker.CUDA_CASES, **sharded_worker.CASES})
def test_case(results: list[dict[str, str]], case: str) -> None:
    if not sharded_worker.verdict(results, case):
        pytest.skip(f"{GPUS} GPUs are {sharded_worker.TOO_FEW}")
