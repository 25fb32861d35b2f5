"""The fused operator with its gradient; forward mode and second derivatives by way of the unfused ones."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import Function

from . import _ops
from ._unfused import Axes, OptionalTensor, attention_jvp, unfused_attention


def fused_attention(*arguments: Any) -> tuple[Tensor, OptionalTensor]:
    """As Attention.forward takes them. Forward mode is for eager calls: Dynamo takes no Function with a jvp."""
    return (Attention if torch.compiler.is_compiling() else AttentionForwardMode).apply(*arguments)


class Attention(Function):
    """out and lse; None for lse unless needed."""

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
        need_lse: bool,
    ) -> tuple[Tensor, OptionalTensor]:
        inputs = (query, key, value, bias, additional_keys, additional_values)
        out, *rest = _ops.na(*inputs, *axes, scale, clamp_window, need_lse)
        lse = rest[0] if need_lse else None
        ctx.save_for_backward(*inputs, out, lse)
        ctx.save_for_forward(*inputs)
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
        gradients = iter(AttentionBackward.apply(*saved, d_out, d_lse, *ctx.parameters, wanted))
        return (*(next(gradients) if want else None for want in wanted), None, None, None, None)


class AttentionForwardMode(Attention):
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
            leaves = [x if x is None else _own_variable(x) for x in (*inputs, d_out, d_lse)]
            outputs, d_outputs = unfused_attention(*leaves[:6], axes, scale, clamp_window), leaves[6:]
            if d_lse is None:
                outputs, d_outputs = outputs[:1], d_outputs[:1]
            asked = [leaf for leaf, want in zip(leaves, wanted) if want]
            first = torch.autograd.grad(outputs, asked, d_outputs, create_graph=True)
            present = [leaf for leaf in leaves if leaf is not None]
            second = iter(
                torch.autograd.grad(first, present, grads, create_graph=create_graph, allow_unused=True)
            )
        found = [None if leaf is None else next(second) for leaf in leaves]
        return (*found[:6], None, None, *found[6:], None, None, None, None)


def _own_variable(tensor: Tensor) -> Tensor:
    """Something to differentiate by, even where one tensor is several of the inputs."""
    return tensor.view_as(tensor) if tensor.requires_grad else tensor.detach().requires_grad_()
