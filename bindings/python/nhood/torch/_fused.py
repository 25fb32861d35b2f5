"""The fused operator with its gradient; forward mode and second derivatives by way of the unfused ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import Function

from . import _ops
from ._unfused import Axes, OptionalTensor, attention_jvp, forward_mode, unfused_attention


def fused_attention(
    inputs: Sequence[OptionalTensor], axes: Axes, scale: Optional[float], clamp_window: bool, need_lse: bool
) -> Sequence[Tensor]:
    """out and, if asked for or if there will be gradients, lse."""
    if forward_mode():
        return AttentionForwardMode.apply(*inputs, axes, scale, clamp_window)
    if torch.is_grad_enabled() and any([x.requires_grad for x in inputs if x is not None]):
        return Attention.apply(*inputs, axes, scale, clamp_window)
    return _ops.na(*inputs, *axes, scale, clamp_window, need_lse)


class Attention(Function):
    """out and lse"""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: OptionalTensor,
        additional_keys: OptionalTensor,
        additional_values: OptionalTensor,
        axes: Axes,
        scale: Optional[float],
        clamp_window: bool,
    ) -> tuple[Tensor, Tensor]:
        inputs = (query, key, value, bias, additional_keys, additional_values)
        out, lse = _ops.na(*inputs, *axes, scale, clamp_window, True)
        ctx.save_for_backward(*inputs, out, lse)
        ctx.set_materialize_grads(False)
        ctx.parameters = axes, scale, clamp_window
        return out, lse

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, d_out: OptionalTensor, d_lse: OptionalTensor
    ) -> tuple[OptionalTensor, ...]:
        saved = ctx.saved_tensors
        if d_out is None:
            d_out = torch.zeros_like(saved[6])
        wanted = ctx.needs_input_grad[:6]
        if torch.is_grad_enabled():  # the gradients are to be differentiated again
            found = AttentionBackward.apply(*saved, d_out, d_lse, *ctx.parameters, wanted)
        else:
            axes, scale, clamp_window = ctx.parameters
            found = _ops.na_backward(*saved, d_out, d_lse, *axes, scale, clamp_window, wanted)
        gradients = iter(found)
        return (*(next(gradients) if want else None for want in wanted), None, None, None)


class AttentionForwardMode(Attention):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        ctx.save_for_forward(*arguments[:6])
        return Attention.forward(ctx, *arguments)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor]:
        return attention_jvp(ctx.saved_tensors, tangents[:6], *ctx.parameters)


class AttentionBackward(Function):
    """One gradient per True in `wanted`, in the order of the first six inputs."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        *tensors, axes, scale, clamp_window, wanted = arguments
        ctx.save_for_backward(*tensors)
        ctx.parameters = axes, scale, clamp_window, wanted
        return tuple(_ops.na_backward(*tensors, *axes, scale, clamp_window, wanted))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        """Second derivatives: those of the unfused formulation. out and lse are functions of the other inputs
        there, so their own gradients are in those of the others."""
        axes, scale, clamp_window, wanted = ctx.parameters
        *inputs, _, _, d_out, d_lse = ctx.saved_tensors
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            leaves: list[Any] = [x if x is None else _own_variable(x) for x in (*inputs, d_out, d_lse)]
            query, key, value, bias, keys, values, *d_outputs = leaves
            outputs = unfused_attention(query, key, value, bias, keys, values, axes, scale, clamp_window)
            given = slice(1 if d_lse is None else 2)
            asked = [leaf for leaf, want in zip(leaves, wanted) if want]
            first = torch.autograd.grad(outputs[given], asked, d_outputs[given], create_graph=True)
            present = [leaf for leaf in leaves if leaf is not None]
            second = iter(
                torch.autograd.grad(first, present, grads, create_graph=create_graph, allow_unused=True)
            )
        found = [None if leaf is None else next(second) for leaf in leaves]
        return (*found[:6], None, None, *found[6:], None, None, None, None)


def _own_variable(tensor: Tensor) -> Tensor:
    """Something to differentiate by, even where one tensor is several of the inputs."""
    return tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_()
