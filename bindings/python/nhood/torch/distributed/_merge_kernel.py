"""_merge of _attention.py on CUDA devices, in one pass over memory, by Triton, which comes with torch there."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

ROWS = 16
"""of out, a head of a token each, that a block takes"""


@triton.jit(do_not_specialize=["run", "step", "blocks"])
def _merge_rows(
    out, lse, other_out, other_lse, run, step, blocks, DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    """Rows lie in runs, whose beginnings are `step` rows apart in out and lse and follow each other in the others."""
    block = tl.program_id(0)
    index = (block // blocks).to(tl.int64)
    row = block % blocks * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = row < run
    mine, theirs = index * step + row, index * run + row
    a, b = tl.load(lse + mine, mask=inside, other=0.0), tl.load(other_lse + theirs, mask=inside, other=0.0)
    both = inside[:, None] & (column < DIM)[None, :]
    here = out + (mine[:, None] * DIM + column[None, :])
    kept = tl.load(here, mask=both, other=0.0).to(tl.float32) / (1.0 + tl.exp(b - a))[:, None]
    added = tl.load(other_out + (theirs[:, None] * DIM + column[None, :]), mask=both, other=0.0).to(tl.float32)
    tl.store(here, (kept + added / (1.0 + tl.exp(a - b))[:, None]).to(out.dtype.element_ty), mask=both)
    tl.store(lse + mine, tl.maximum(a, b) + tl.log(1.0 + tl.exp(-tl.abs(a - b))), mask=inside)


def merge(out: Tensor, lse: Tensor, other_out: Tensor, other_lse: Tensor) -> None:
    """out and lse: slices of contiguous tensors along one axis; the others are contiguous."""
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
