"""Neighborhood attention for PyTorch: functions and layers on CPU and CUDA tensors.

    import torch, nhood.torch
    query, key, value = torch.rand(3, 1, 56, 56, 4, 32, requires_grad=True)
    out = nhood.torch.na2d(query, key, value, kernel_size=7)

The operators are registered with torch.library as torch.ops.nhood.*: torch.compile, autocast, checkpointing and
torch's FLOP counter know them.
"""

try:
    import torch as _torch
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ModuleNotFoundError("nhood.torch needs PyTorch: pip install 'nhood[torch]'", name="torch") from None

if not hasattr(_torch.library, "register_fake"):  # new in 2.4
    raise ImportError(f"nhood.torch needs torch 2.4 or later, this is {_torch.__version__}")

from .._windows import Windows
from ._dense import attention, merge_attentions
from ._functions import (
    na1d,
    na1d_av,
    na1d_qk,
    na2d,
    na2d_av,
    na2d_qk,
    na3d,
    na3d_av,
    na3d_qk,
    neighborhood_attention,
)
from ._norm_rope import norm_rope, rotary_tables
from ._streaming import StreamingNeighborhoodAttention
from ._varlen import neighborhood_attention_varlen, varlen_table
from .modules import NeighborhoodAttention1D, NeighborhoodAttention2D, NeighborhoodAttention3D

__all__ = [
    "NeighborhoodAttention1D",
    "NeighborhoodAttention2D",
    "NeighborhoodAttention3D",
    "StreamingNeighborhoodAttention",
    "Windows",
    "attention",
    "merge_attentions",
    "na1d",
    "na1d_av",
    "na1d_qk",
    "na2d",
    "na2d_av",
    "na2d_qk",
    "na3d",
    "na3d_av",
    "na3d_qk",
    "neighborhood_attention",
    "neighborhood_attention_varlen",
    "norm_rope",
    "rotary_tables",
    "varlen_table",
]
