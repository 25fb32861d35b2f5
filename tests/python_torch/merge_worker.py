"""Compares the launch that merges two results of a sharded grid with torch's own operations: `merge_worker.py cpu`, in Triton's
interpreter, or `merge_worker.py cuda`, on the last device, which is not the current one where there are two."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import torch

SLICES = (  # shape of out, the axis that is cut, and which part of it
    ((2, 5, 7, 3, 24), 2, 4, 3),
    ((1, 40, 4, 32), 1, 30, 10),
    ((2, 9, 1, 3, 16), 1, 2, 5),
    ((3, 4, 2, 80), 1, 1, 1),
    ((2, 6, 5, 1), 1, 0, 6),
    ((1, 2, 3, 4, 2, 8), 3, 1, 2),
    ((2, 6, 3, 16), 1, 2, 0),
    ((0, 6, 3, 16), 1, 2, 3),
)


def start(device: str, **environment: str) -> None:
    """Runs this program, and fails with what it says if it does."""
    command, variables = [sys.executable, __file__, device], {**os.environ, **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check(shape: tuple[int, ...], axis: int, begin: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
    from nhood.torch.distributed import _attention, _merge_kernel  # not above: they import Triton, which `start` can do without

    out, lse = torch.randn(shape, dtype=dtype, device=device), 3 * torch.randn(shape[:-1], device=device)
    part, lse_part = (tensor.narrow(axis, begin, length) for tensor in (out, lse))
    more, more_lse = torch.randn(part.shape, dtype=dtype, device=device), 3 * torch.randn(lse_part.shape, device=device)
    more.view(-1, shape[-1])[::3] = 0  # queries that see none of these keys
    more_lse.view(-1)[::3] = -float("inf")
    lse_part[..., -1] += 200  # shares that are 1 and 0 in f32
    more_lse[..., 0] += 200
    expected, expected_lse = out.double(), lse.double()
    expected_parts = (tensor.narrow(axis, begin, length) for tensor in (expected, expected_lse))
    _attention._merge(*expected_parts, more.double(), more_lse.double())  # f64 has torch's own operations
    merge = _attention._merge if device.type == "cuda" else _merge_kernel.merge
    merge(part, lse_part, more, more_lse)
    torch.testing.assert_close(out, expected.to(dtype))
    torch.testing.assert_close(lse, expected_lse.float())


def main() -> None:
    device = torch.device(sys.argv[1])
    if device.type == "cuda":
        warnings.filterwarnings("error", message="results are merged by seven launches")
        device = torch.device("cuda", torch.cuda.device_count() - 1)
    torch.manual_seed(1)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for shape, *part in SLICES:
            check(shape, *part, dtype, device)


if __name__ == "__main__":
    main()
