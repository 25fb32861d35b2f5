"""FLOPs and MACs of neighborhood attention, and of models with it. Softmax and bias do not count; causal windows
count as full ones."""

import math
from typing import Any, Sequence, Tuple, Union

import torch
from torch.utils.flop_counter import FlopCounterMode

from .utils import checks

Shape = Union[torch.Size, Sequence[int]]


def _product_flops(
    shape: Shape,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    is_causal: Sequence[bool],
    is_heads_last: bool,
    return_macs: bool,
) -> int:
    """Of one of the two products: each token's head dim times its window."""
    if len(shape) not in (4, 5, 6):
        raise ValueError(f"shape = {tuple(shape)} has rank {len(shape)}, expected 4, 5 or 6")
    na_dim = len(shape) - 3
    kernel_size, _, _, _ = checks.check_all_args(na_dim, kernel_size, 1, dilation, is_causal)
    macs = math.prod(shape) * checks.get_num_na_weights(kernel_size)  # in either order of the axes
    return macs if return_macs else 2 * macs


def na_qk_flop_count(
    q_shape: Shape,
    k_shape: Shape,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    is_causal: Sequence[bool],
    is_heads_last: bool,
    return_macs: bool = False,
) -> int:
    assert tuple(q_shape) == tuple(k_shape), f"q_shape = {q_shape} and k_shape = {k_shape} differ"
    return _product_flops(q_shape, kernel_size, dilation, is_causal, is_heads_last, return_macs)


def na_av_flop_count(
    a_shape: Shape,
    v_shape: Shape,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    is_causal: Sequence[bool],
    is_heads_last: bool,
    return_macs: bool = False,
) -> int:
    return _product_flops(v_shape, kernel_size, dilation, is_causal, is_heads_last, return_macs)


def fna_flop_count(
    q_shape: Shape,
    k_shape: Shape,
    v_shape: Shape,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    is_causal: Sequence[bool],
    is_heads_last: bool,
    return_macs: bool = False,
) -> int:
    assert tuple(q_shape) == tuple(k_shape) == tuple(v_shape), f"shapes differ: {q_shape}, {k_shape}, {v_shape}"
    return 2 * _product_flops(q_shape, kernel_size, dilation, is_causal, is_heads_last, return_macs)


def get_flops(model: torch.nn.Module, input: Any, disable_warnings: bool = False) -> int:
    """MACs of model(input), as NATTEN's function of this name counts; input may be a tuple of arguments. Counted
    by torch while the model runs."""
    arguments: Tuple[Any, ...] = input if isinstance(input, tuple) else (input,)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*arguments)
    return counter.get_total_flops() // 2


def add_natten_handle(flop_ctr: Any) -> Any:
    """For fvcore, which traces models with torch.jit. The tracer does not know nhood's operators."""
    raise NotImplementedError(
        "fvcore cannot trace nhood's operators: call get_flops, or use torch's FlopCounterMode"
    )
