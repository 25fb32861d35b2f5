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
    """Operations of one of the two products: each token's head dim times its window."""
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
    """Shapes of those that are tensors, in a traced graph."""
    return [value.type().sizes() for value in values if value.isCompleteTensor()]


def _window(inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    """Slots of the window of a traced call: an autograd Function, which has its axis parameters among what is no tensor;
    or, where no gradient is needed, the operator nhood::na itself."""
    node = outputs[0].node()
    if node.kind() == "prim::PythonOp":
        axes = next(constant for constant in node.scalar_args() if hasattr(constant, "kernel_size"))
        return math.prod(axes.kernel_size)
    names = [argument.name for argument in torch.ops.nhood.na.default._schema.arguments]
    kernel_size = inputs[names.index("kernel_size")].node()  # prim::ListConstruct
    return math.prod(extent.toIValue() for extent in kernel_size.inputs())


def _attention_macs(inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    query, _, value, *optional = _sizes(inputs)  # optional: a bias, and two tensors of additional tokens
    extra = optional[-1][1] if len(optional) >= 2 else 0
    return math.prod(query[:-1]) * (query[-1] + value[-1]) * (_window(inputs, outputs) + extra)


def _qk_macs(inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    query, (attn,) = _sizes(inputs)[0], _sizes(outputs)
    return math.prod(attn) * query[-1]


def _av_macs(inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    attn, value = _sizes(inputs)
    return math.prod(attn) * value[-1]


_HANDLES = {
    name: macs
    for macs, names in {
        _attention_macs: ("nhood::na", "prim::PythonOp.Attention", "prim::PythonOp.AttentionForwardMode"),
        _qk_macs: ("nhood::na_qk", "prim::PythonOp.QK", "prim::PythonOp.QKForwardMode"),
        _av_macs: ("nhood::na_av", "prim::PythonOp.AV", "prim::PythonOp.AVForwardMode"),
    }.items()
    for name in names
}


def add_natten_handle(flop_ctr: Any) -> Any:
    """Tells fvcore's FlopCountAnalysis the MACs of nhood's operations, and returns it."""
    return flop_ctr.set_op_handle(**_HANDLES)
