"""Attention over the union of disjoint sets of keys, from the results over each of them."""

from typing import List, Tuple

from torch import Tensor

import nhood.torch


def merge_attentions(
    outputs: List[Tensor], lse_tensors: List[Tensor], torch_compile: bool = True, use_autograd_fix: bool = True
) -> Tuple[Tensor, Tensor]:
    """outputs: two or more, each [B, N, H, Dv].  lse_tensors: each [B, N, H].

    Gradients go through outputs and log-sum-exps as they are, so nothing is to be fixed: use_autograd_fix, and
    torch_compile, change nothing.
    """
    if len(outputs) < 2:
        raise ValueError(f"{len(outputs)} outputs: two or more are merged")
    if len(outputs) != len(lse_tensors):
        raise ValueError(f"{len(outputs)} outputs and {len(lse_tensors)} log-sum-exps")
    shape = outputs[0].shape
    for i, (out, lse) in enumerate(zip(outputs, lse_tensors)):
        if out.dim() != 4 or out.shape != shape:
            raise ValueError(f"output {i} is {tuple(out.shape)}, expected rank 4 and the shape of the first")
        if lse.shape != shape[:3]:
            raise ValueError(f"log-sum-exp {i} is {tuple(lse.shape)}, expected {tuple(shape[:3])}")
        if out.requires_grad and not outputs[0].requires_grad:
            raise ValueError(f"output {i} requires a gradient, the first does not")
    return nhood.torch.merge_attentions(outputs, lse_tensors)


__all__ = ["merge_attentions"]
