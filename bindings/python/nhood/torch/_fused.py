"""The fused operator with its derivatives: the first by the backward operator, all others by the unfused operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from .. import _quick
from .._operations import FORWARD
from . import _ops
from ._transforms import Formula, register_formula
from ._unfused import Axes, OptionalTensor, Problem


def fused_attention(
    inputs: Sequence[OptionalTensor], axes: Axes, scale: Optional[float], clamp_window: bool, need_lse: bool
) -> Sequence[Tensor]:
    """out and, if asked for, lse."""
    return _ops.na(*of_operator(inputs, axes, scale, clamp_window, need_lse))


def of_operator(
    inputs: Sequence[OptionalTensor], axes: Axes, scale: Optional[float], clamp_window: bool, need_lse: bool
) -> tuple[Any, ...]:
    """The arguments in the operator's order."""
    return (*inputs, *axes[:4], scale, clamp_window, need_lse, *axes.last)


def remember_recorded(
    begun: _quick.Call,
    inputs: Sequence[OptionalTensor],
    axes: Axes,
    scale: Optional[float],
    clamp_window: bool,
    need_lse: bool,
) -> None:
    """That the call is fused_attention(..) of its own tensors, with gradients recorded past the dispatcher."""
    parameters = of_operator((), axes, scale, clamp_window, need_lse)
    names = FORWARD.input_names[: len(inputs)]
    execution = _quick.Execution(("na", begun.arguments[1]), with_lse(parameters), 1)
    _quick.remember_function(begun, Attention.apply, names, (parameters, _ops.compute_na, False), execution)


def with_lse(parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    """Those of the operator, asked for the log-sum-exps, too."""
    return (*parameters[:6], True, *parameters[7:])


_OF_QKV = (True, True, True, False, False, False)


@register_formula(_ops.library, "na", 6)
class Attention(Formula):
    """Returns out and lse. The latter is computed for the backward call where it is not asked for.

    apply also takes the results, with lse, in the place of what computes them."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        inputs, (parameters, results, from_dispatcher) = arguments[:6], arguments[6:]
        if type(results) is not tuple:  # what computes them
            results = tuple(results(*inputs, *with_lse(parameters)))
        ctx.save_for_backward(*inputs, *results)
        if from_dispatcher:
            ctx.save_for_forward(*inputs)
        ctx.set_materialize_grads(False)
        ctx.parameters = parameters
        return results if parameters[6] else results[:1]

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, d_out: OptionalTensor, d_lse: OptionalTensor = None
    ) -> tuple[OptionalTensor, ...]:
        saved, parameters = ctx.saved_tensors, ctx.parameters
        if d_out is None:
            if d_lse is None:
                return (None,) * 9
            d_out = torch.zeros_like(saved[6])
        wanted = ctx.needs_input_grad[:6]
        found = _ops.na_backward(*saved, d_out, d_lse, *parameters[:6], wanted, *parameters[7:])
        if wanted == _OF_QKV:
            return (*found, None, None, None, None, None, None)
        left = iter(found)
        return (*[next(left) if want else None for want in wanted], None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        problem = Problem.of(ctx.saved_tensors, ctx.parameters, 7)
        t_inputs = problem.wide(tangents[:6])
        results = problem.results_along(problem.along(t_inputs), t_inputs)
        return results if ctx.parameters[6] else results[:1]


@register_formula(_ops.library, "na_backward", 10)
class AttentionBackward(Formula):
    """The derivatives of one gradient per True in `wanted`, in the order of the first six inputs.

    out and lse are functions of the other inputs here, so what depends on them is in the derivatives by the others.
    Gradients are those of a scalar, the sum of out d_out and lse d_lse. So their derivatives along tangents are also what is
    to be handed back of gradients for them: second derivatives are symmetric. And derivatives by d_out and d_lse along
    tangents, in which gradients are linear, are the tangents of out and lse.
    """

    @staticmethod
    def backward(ctx: Any, *grads: OptionalTensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        tensors, parameters = ctx.saved_tensors, ctx.parameters
        problem = Problem.of(tensors, parameters, 7)
        given = iter(grads)
        t_inputs = problem.wide([next(given) if want else None for want in parameters[6]])
        along = problem.along(t_inputs)
        needed = ctx.needs_input_grad
        by_inputs = problem.gradients_along(along, t_inputs, problem.wide(tensors[8:]), (None, None), needed[:6])
        by_d_out, by_d_lse = problem.results_along(along, t_inputs)
        return (
            *by_inputs,
            None,
            None,
            by_d_out if needed[8] else None,
            by_d_lse if needed[9] else None,
            None,
            None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: OptionalTensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        tensors, parameters = ctx.saved_tensors, ctx.parameters
        problem = Problem.of(tensors, parameters, 7)
        t_inputs = problem.wide(tangents[:6])
        found = problem.gradients_along(
            problem.along(t_inputs),
            t_inputs,
            problem.wide(tensors[8:10]),
            problem.wide(tangents[8:10]),
            parameters[6],
        )
        return tuple([x for x, want in zip(found, parameters[6]) if want])
