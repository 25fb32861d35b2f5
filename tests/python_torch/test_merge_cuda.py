"""The launch that merges two results of a sharded grid, see merge_worker.py; test_sharded.py has it in Triton's interpreter."""

import merge_worker
import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_merge() -> None:
    pytest.importorskip("triton")
    merge_worker.start("cuda")
