"""What programs reach of NATTEN's compiled library."""

import torch
from torch import Tensor

# NATTEN has its CUDA backends where its library was built; here they are nhood's, there with any CUDA device.
HAS_LIBNATTEN = torch.cuda.is_available()


def compute_delta(out: Tensor, d_out: Tensor, delta: Tensor) -> None:
    """delta = sum over the last axis of out * d_out, in place, in delta's type."""
    if out.shape != d_out.shape or delta.shape != out.shape[:-1]:
        raise ValueError(
            f"out {tuple(out.shape)} and d_out {tuple(d_out.shape)} must have one shape, delta "
            f"{tuple(delta.shape)} that shape less its last axis"
        )
    delta.copy_((out.to(delta.dtype) * d_out.to(delta.dtype)).sum(dim=-1))


__all__ = ["HAS_LIBNATTEN", "compute_delta"]
