"""The fused operator with its gradient; forward mode and second derivatives by way of the unfused ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.autograd import Function

from .. import _operations
from . import _ops
from ._transforms import once_each, transformable, transformed
from ._unfused import Axes, OptionalTensor, attention_jvp, unfused_attention


def fused_attention(
    inputs: Sequence[OptionalTensor], axes: Axes, scale: Optional[float], clamp_window: bool, need_lse: bool
) -> Sequence[Tensor]:
    """out and, if asked for or if there will be gradients, lse."""
    if transformed():
        return AttentionTransformable.apply(*inputs, axes, scale, clamp_window)
    if torch.is_grad_enabled() and any([x.requires_grad for x in inputs if x is not None]):
        return Attention.apply(*once_each(inputs), axes, scale, clamp_window)
    return _ops.na(*of_operator(inputs, axes, scale, clamp_window, need_lse))


def of_operator(
    inputs: Sequence[OptionalTensor], axes: Axes, scale: Optional[float], clamp_window: bool, need_lse: bool
) -> tuple[Any, ...]:
    """The arguments in the operator's order."""
    return (*inputs, *axes[:4], scale, clamp_window, need_lse, *axes.place)


class Attention(Function):
    """out and lse"""

    @staticmethod
    def compute(*arguments: Any) -> tuple[Tensor, Tensor]:
        *inputs, axes, scale, clamp_window = arguments
        out, lse = _ops.na(*of_operator(inputs, axes, scale, clamp_window, True))
        return out, lse

    @staticmethod
    def keep(ctx: Any, arguments: tuple[Any, ...], results: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*arguments[:6], *results)
        ctx.set_materialize_grads(False)
        ctx.parameters = arguments[6:]

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        results = Attention.compute(*arguments)
        Attention.keep(ctx, arguments, results)
        return results

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, d_out: OptionalTensor, d_lse: OptionalTensor
    ) -> tuple[OptionalTensor, ...]:
        saved = ctx.saved_tensors
        if d_out is None:
            d_out = torch.zeros_like(saved[6])
        wanted = ctx.needs_input_grad[:6]
        arguments = (*saved, d_out, d_lse, *ctx.parameters, wanted)
        if transformed():
            found = AttentionBackwardTransformable.apply(*arguments)
        elif torch.is_grad_enabled():  # the gradients are to be differentiated again
            found = AttentionBackward.apply(*arguments)
        else:
            found = AttentionBackward.compute(*arguments)
        gradients = iter(found)
        return (*(next(gradients) if want else None for want in wanted), None, None, None)

    @staticmethod
    def push_forward(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
        return attention_jvp(ctx.saved_tensors[:6], tangents[:6], *ctx.parameters)


class AttentionBackward(Function):
    """One gradient per True in `wanted`, in the order of the first six inputs.

    Its own derivatives are those of the unfused formulation. out and lse are functions of the other inputs there, so
    what depends on them is in the derivatives by the others.
    """

    @staticmethod
    def compute(*arguments: Any) -> tuple[Tensor, ...]:
        *tensors, axes, scale, clamp_window, wanted = arguments
        return tuple(_ops.na_backward(*tensors, *axes[:4], scale, clamp_window, wanted, *axes.place))

    @staticmethod
    def keep(ctx: Any, arguments: tuple[Any, ...], gradients: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*arguments[:10])
        ctx.parameters = arguments[10:]

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        gradients = AttentionBackward.compute(*arguments)
        AttentionBackward.keep(ctx, arguments, gradients)
        return gradients

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        tensors = ctx.saved_tensors
        given = _given(tensors)
        _, pull_back = torch.func.vjp(_unfused_backward(given, *ctx.parameters), *[tensors[i] for i in given])
        found = dict(zip(given, pull_back(grads)))
        return (*map(found.get, range(10)), None, None, None, None)

    @staticmethod
    def push_forward(ctx: Any, *tangents: OptionalTensor) -> tuple[Tensor, ...]:
        tensors = ctx.saved_tensors
        given = _given(tensors)
        at = tuple(tensors[i] for i in given)
        along = tuple(torch.zeros_like(x) if t is None else t for x, t in zip(at, [tangents[i] for i in given]))
        gradients, pull_back = torch.func.vjp(_unfused_backward(given, *ctx.parameters), *at)
        # Levels of forward mode do not nest. But pulling back is linear, and what pulls that back pushes forward.
        _, push_forward = torch.func.vjp(pull_back, tuple(map(torch.zeros_like, gradients)))
        return push_forward(along)[0]


def _given(tensors: Sequence[OptionalTensor]) -> list[int]:
    """Which of a backward call's tensors are there, without out and lse."""
    return [i for i, tensor in enumerate(tensors) if tensor is not None and i not in (6, 7)]


def _unfused_backward(
    given: list[int], axes: Axes, scale: Optional[float], clamp_window: bool, wanted: Sequence[bool]
) -> Callable[..., tuple[Tensor, ...]]:
    """The gradients as a function of the given tensors."""

    def gradients(*present: Tensor) -> tuple[Tensor, ...]:
        tensors = dict(zip(given, present))
        asked = [i for i, want in enumerate(wanted) if want]
        has_d_lse = 9 in tensors

        def attend(*chosen: Tensor) -> Any:
            inputs = {**tensors, **dict(zip(asked, chosen))}
            out, lse = unfused_attention(*map(inputs.get, range(6)), axes, scale, clamp_window)
            return (out, lse) if has_d_lse else out

        _, pull_back = torch.func.vjp(attend, *[tensors[i] for i in asked])
        return pull_back((tensors[8], tensors[9]) if has_d_lse else tensors[8])

    return gradients


AttentionTransformable = transformable(Attention, _operations.FORWARD)
AttentionBackwardTransformable = transformable(AttentionBackward, _operations.BACKWARD)
