"""_merge of _attention.py on CUDA devices, in one pass over memory, by Triton, which comes with torch there."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

ROWS = 16
"""Rows of out (one head of one token each) per block."""


@triton.jit(do_not_specialize=["run", "step", "blocks"])
def _merge_rows(
    out, lse, other_out, other_lse, run, step, blocks, DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    """Rows lie in runs of `run` rows: in out and lse a run begins `step` rows behind the one before, in the others right behind its
    end. `blocks` blocks take a run, DIM is the length of a row, WIDTH the power of two from it on."""
    block = tl.program_id(0)
    index = (block // blocks).to(tl.int64)
    row = block % blocks * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = row < run
    mine, theirs = index * step + row, index * run + row
    a, b = tl.load(lse + mine, mask=inside, other=0.0), tl.load(other_lse + theirs, mask=inside, other=0.0)
    ahead = tl.where(a == b, 0.0, b - a)  # of two infinities, too
    both = inside[:, None] & (column < DIM)[None, :]
    here = out + (mine[:, None] * DIM + column[None, :])
    # A row that has no key in one of the results is not read from it: infinity times its share of 0 would be NaN.
    kept = tl.load(here, mask=both & (ahead != float("inf"))[:, None], other=0.0).to(tl.float32)
    there = other_out + (theirs[:, None] * DIM + column[None, :])
    added = tl.load(there, mask=both & (ahead != float("-inf"))[:, None], other=0.0).to(tl.float32)
    merged = kept / (1.0 + tl.exp(ahead))[:, None] + added / (1.0 + tl.exp(-ahead))[:, None]
    tl.store(here, merged.to(out.dtype.element_ty), mask=both)
    tl.store(lse + mine, tl.maximum(a, b) + tl.log(1.0 + tl.exp(-tl.abs(ahead))), mask=inside)


def merge(out: Tensor, lse: Tensor, other_out: Tensor, other_lse: Tensor) -> None:
    """_merge of tensors on the current device: out [B, X.., H, D] of f32, f16 or bf16 and lse [B, X.., H] of f32, slices of
    contiguous tensors along one axis; the others are of their shapes and types and contiguous."""
    if out.numel() == 0:
        return
    dim = out.shape[-1]
    axis, run = out.dim() - 2, 1
    while axis >= 0 and out.stride(axis) == run * dim:
        run *= out.shape[axis]
        axis -= 1
    step = out.stride(axis) // dim if axis >= 0 else run
    blocks = triton.cdiv(run, ROWS)
    grid = (blocks * (out.numel() // (run * dim)),)
    _merge_rows[grid](
        out, lse, other_out, other_lse, run, step, blocks, DIM=dim, WIDTH=triton.next_power_of_2(dim), ROWS=ROWS
    )
