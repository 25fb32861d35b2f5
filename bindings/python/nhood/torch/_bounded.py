"""Samples of different sizes whose lengths are a tensor on the device, within a bound: no work of the host depends on them.

Derivatives beyond the first, and those of forward mode, are those of each sample by itself, for which the lengths are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import register_flop_formula

from .. import _bounded, _plans
from .._bounded import Bounded, Lengths
from .._groups import Asked, layouts_table
from .._operations import BACKWARD, FORWARD
from ._groups import (
    _backward,
    _fake_gradients,
    _forward,
    _Fused,
    _given,
    _jvp,
    _Kind,
    _of_packed,
    _results,
    _second,
    _second_jvp,
    _varlen_flops,
    register_operator,
)
from ._ops import library
from ._tensors import example_layouts, run_bounded
from ._transforms import Formula, register_formula
from ._unfused import OptionalTensor

_BOUND = "int[] bound, int[] kernel_size, int[] stride, int[] dilation, int[] is_causal, float? scale"
_SCHEMAS = {
    "na_bounded": f"(Tensor query, Tensor key, Tensor value, Tensor lengths, {_BOUND}, bool need_lse) -> Tensor[]",
    "na_bounded_backward": "(Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, Tensor d_out, Tensor? d_lse, "
    f"Tensor lengths, {_BOUND}, bool[] wanted) -> Tensor[]",
}
"""lengths: [samples, axes]. The results are those of na_varlen and na_varlen_backward, with tokens of no sample."""


def _of(parameters: Sequence[Any]) -> tuple[Bounded, Optional[float]]:
    bound, window, stride, dilation, causal, scale = parameters[:6]
    if not len(bound) == len(window) == len(stride) == len(dilation) == len(causal):
        raise ValueError(f"bound = {tuple(bound)} has {len(bound)} axes, kernel_size has {len(window)}")
    return Bounded(tuple(bound), tuple(window), tuple(stride), tuple(dilation), tuple(map(bool, causal))), scale


def check_lengths(lengths: Tensor, of: Bounded, query: Tensor) -> None:
    rank = len(of.longest)
    if lengths.dim() != 2 or lengths.dtype not in (torch.int32, torch.int64) or lengths.shape[1] != rank:
        raise ValueError(
            f"layouts is {lengths.dtype} of shape {tuple(lengths.shape)}, expected torch.int32 or int64 of [samples, {rank}]"
        )
    if lengths.device != query.device:
        raise ValueError(f"layouts is on {lengths.device}, query on {query.device}: with a bound it is read there")


def _run(asked: Asked, tensors: Sequence[OptionalTensor], lengths: Tensor, of: Bounded) -> list[Tensor]:
    first = tensors[0]
    assert first is not None
    check_lengths(lengths, of, first)
    own = lengths.contiguous()
    array = Lengths(own.data_ptr(), own.shape[0], own.element_size())

    def find(context: _plans.Context, device: int, flags: int, layouts: Any) -> _bounded.BoundedPlan:
        return _bounded.bounded_plan(context, device, asked._replace(flags=flags), of, array.count, layouts)

    return run_bounded(asked.operation, find, tensors, array)


def _na_bounded(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, *parameters: Any) -> list[Tensor]:
    of, scale = _of(parameters)
    if query.shape[1] == 0:
        check_lengths(lengths, of, query)
        return _results(query, value, parameters[-1])
    return _run(_forward(scale, parameters[-1]), (query, key, value, None, None, None), lengths, of)


def _na_bounded_backward(*arguments: Any) -> list[Tensor]:
    query, key, value, out, lse, d_out, d_lse, lengths = arguments[:8]
    of, scale = _of(arguments[8:])
    if query.shape[1] == 0:
        return [torch.zeros_like(x) for x, want in zip((query, key, value), arguments[-1]) if want]
    tensors = (query, key, value, None, None, None, out, lse, d_out, d_lse)
    return _run(_backward(scale, arguments[-1]), tensors, lengths, of)


def _fake_na_bounded(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, *parameters: Any) -> list[Tensor]:
    of, scale = _of(parameters)
    check_lengths(lengths, of, query)
    layouts = example_layouts(FORWARD, (query, key, value, None, None, None))
    if layouts is not None and layouts[0] is not None and layouts[0][0][1]:
        _bounded.check(_forward(scale, parameters[-1]), of, layouts)
    return _results(query, value, parameters[-1])


def _table(lengths: Tensor, parameters: Sequence[Any]) -> tuple[Tensor, Optional[float]]:
    """The samples as na_varlen has them; waits for the device."""
    of, scale = _of(parameters)
    rows = tuple(tuple(row) for row in lengths.tolist())
    table = layouts_table(len(of.longest), rows, (of.window,), (of.stride,), (of.dilation,), of.causal)
    return torch.from_numpy(table.copy()), scale


def _kind(lengths: Tensor, parameters: Sequence[Any]) -> _Kind:
    return _of_packed(*_table(lengths, parameters))


na_bounded = register_operator("na_bounded", _SCHEMAS["na_bounded"], 4, _na_bounded, _fake_na_bounded)
na_bounded_backward = register_operator("na_bounded_backward", _SCHEMAS["na_bounded_backward"], 8, _na_bounded_backward, _fake_gradients)


def _flops(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, parameters: Sequence[Any], factor: float) -> int:
    if isinstance(lengths, FakeTensor):
        raise ValueError("the FLOPs of samples of different sizes follow from layouts, which has no values here")
    return _varlen_flops(query, key, value, _table(lengths, parameters)[0], factor)


@register_flop_formula(torch.ops.nhood.na_bounded, get_raw=True)
def _flops_of_bounded(*arguments: Any, **_: Any) -> int:
    return _flops(*arguments[:4], arguments[4:], 1.0)


@register_flop_formula(torch.ops.nhood.na_bounded_backward, get_raw=True)
def _flops_of_bounded_backward(*arguments: Any, **_: Any) -> int:
    return _flops(*arguments[:3], arguments[7], arguments[8:], 2.5)


@register_formula(library, "na_bounded", 4)
class BoundedAttention(_Fused):
    @staticmethod
    def backward(ctx: Any, d_out: OptionalTensor, d_lse: OptionalTensor = None) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        d_out = _given(ctx, d_out, d_lse)
        if d_out is None:
            return (None,) * 7
        query, key, value, lengths, out, lse = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        found = iter(na_bounded_backward(query, key, value, out, lse, d_out, d_lse, lengths, *ctx.parameters[:-1], wanted))
        return (*[next(found) if want else None for want in wanted], None, None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        *inputs, lengths = ctx.saved_tensors[:4]
        return _jvp(_kind(lengths, ctx.parameters), inputs, tangents[:3], ctx.parameters[-1])


@register_formula(library, "na_bounded_backward", 8)
class BoundedBackward(Formula):
    @staticmethod
    def backward(ctx: Any, *grads: OptionalTensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        *saved, lengths = ctx.saved_tensors
        found = _second(_kind(lengths, ctx.parameters), saved, ctx.parameters[-1], grads, ctx.needs_input_grad)
        return (*found, None, None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: OptionalTensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        *saved, lengths = ctx.saved_tensors
        return _second_jvp(_kind(lengths, ctx.parameters), saved, ctx.parameters[-1], tangents[:7])
