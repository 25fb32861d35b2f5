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


def merged(*sides: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """out, lse, other_out and other_lse as sums of weights, in f64."""
    out, lse, other_out, other_lse = (side.double() for side in sides)
    top = torch.maximum(lse, other_lse).clamp(min=-1e300)
    weights = torch.stack([torch.exp(lse - top), torch.exp(other_lse - top)])
    total = weights.sum(0)
    shares = (weights / total.clamp(min=1e-300))[..., None]
    parts = torch.stack([out, other_out]).where(shares > 0, 0)
    return (shares * parts).sum(0), top + torch.log(total)


def check(shape: tuple[int, ...], axis: int, begin: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
    from nhood.torch.distributed import _attention, _merge_kernel  # not above: they import Triton, which `start` can do without

    of_lse = torch.float64 if dtype == torch.float64 else torch.float32
    out, lse = torch.randn(shape, dtype=dtype, device=device), 3 * torch.randn(shape[:-1], dtype=of_lse, device=device)
    part, lse_part = (tensor.narrow(axis, begin, length) for tensor in (out, lse))
    more, more_lse = torch.randn_like(part).contiguous(), 3 * torch.randn_like(lse_part).contiguous()
    # queries that see none of the keys of one side, whose outputs are then not to be looked at, and of both
    for rows, rows_lse, step in ((more, more_lse, 3), (part, lse_part, 5)):
        empty = torch.arange(lse_part.numel(), device=device).view(lse_part.shape) % step == 0
        rows.masked_fill_(empty[..., None], float("nan"))
        rows_lse.masked_fill_(empty, -float("inf"))
    neither = lse_part == more_lse
    assert neither.any() or not neither.numel()
    for rows in (part, more):
        rows.masked_fill_(neither[..., None], 0)
    lse_part[..., -1] += 200  # shares that are 1 and 0 in f32
    more_lse[..., 0] += 200
    expected, expected_lse = out.to(torch.float64, copy=True), lse.to(torch.float64, copy=True)
    expected.narrow(axis, begin, length)[:], expected_lse.narrow(axis, begin, length)[:] = merged(part, lse_part, more, more_lse)
    merges = [_attention._merge]
    if device.type == "cpu" and dtype != torch.float64:  # torch's own round 16-bit sums twice
        merges = [_merge_kernel.merge] + merges * (dtype == torch.float32)
    for merge in merges:
        got, got_lse = out.clone(), lse.clone()
        merge(*(tensor.narrow(axis, begin, length) for tensor in (got, got_lse)), more.clone(), more_lse)
        torch.testing.assert_close(got, expected.to(dtype))
        torch.testing.assert_close(got_lse, expected_lse.to(lse.dtype))


def main() -> None:
    device = torch.device(sys.argv[1])
    if device.type == "cuda":
        warnings.filterwarnings("error", message="results are merged by thirteen launches")
        device = torch.device("cuda", torch.cuda.device_count() - 1)
    torch.manual_seed(1)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for shape, *part in SLICES:
            check(shape, *part, dtype, device)


if __name__ == "__main__":
    main()
