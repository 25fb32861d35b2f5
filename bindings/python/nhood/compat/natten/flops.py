"""FLOPs and MACs of neighborhood attention, and of models with it. Softmax and bias do not count; causal windows
count as full ones."""

import math
from typing import Any, List, Sequence, Tuple, Union

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


def _sizes(values: Sequence[Any]) -> List[List[int]]:
    return [value.type().sizes() for value in values]


def _window(outputs: Sequence[Any]) -> int:
    """Of a traced autograd Function of nhood: its axis parameters are among what is no tensor."""
    constants = outputs[0].node().scalar_args()
    axes = next(constant for constant in constants if hasattr(constant, "kernel_size"))
    return checks.get_num_na_weights(axes.kernel_size)


def _attention_macs(inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    query, _, value, *optional = _sizes(inputs)  # optional: a bias, and two tensors of additional tokens
    extra = optional[-1][1] if len(optional) >= 2 else 0
    return math.prod(query[:-1]) * (query[-1] + value[-1]) * (_window(outputs) + extra)


def _qk_macs(inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    return math.prod(_sizes(inputs)[0]) * _window(outputs)


def _av_macs(inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    attn, value = _sizes(inputs)
    return math.prod(attn) * value[-1]


def add_natten_handle(flop_ctr: Any) -> Any:
    """Tells fvcore's FlopCountAnalysis the MACs of nhood's operations, and returns it."""
    macs = {"Attention": _attention_macs, "QK": _qk_macs, "AV": _av_macs}
    handles = {
        f"prim::PythonOp.{name}{mode}": count for name, count in macs.items() for mode in ("", "ForwardMode")
    }
    return flop_ctr.set_op_handle(**handles)
