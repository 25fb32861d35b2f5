"""Functions under torch.func's transforms and forward-mode differentiation.

Those want a Function whose forward is free of ctx. Calling one takes 11 µs more, and Dynamo takes none that has a jvp.
So it is a twin, made here, that is called under a transform, and only there.

A Function with a twin is written as compute(*arguments) -> results, keep(ctx, arguments, results), backward and, what
becomes the twin's jvp, push_forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from .._operations import BACKWARD, Operation

_open_transform = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)


def transformed() -> bool:
    """Whether a transform of torch.func or a level of forward-mode differentiation is open."""
    forward_mode = forward_ad._current_level >= 0
    if torch.compiler.is_compiling():
        if forward_mode:  # Dynamo would leave the tangents out, and say nothing
            raise NotImplementedError("forward-mode differentiation of neighborhood attention cannot be compiled")
        return False  # the operators' own rules are enough
    return forward_mode or _open_transform() is not None


def once_each(tensors: Sequence[Optional[Tensor]]) -> Sequence[Optional[Tensor]]:
    """A Function's inputs as Dynamo takes them: no tensor twice."""
    if not torch.compiler.is_compiling():
        return tensors
    taken: list[Optional[Tensor]] = []
    for tensor in tensors:
        again = tensor is not None and any([tensor is other for other in taken])
        taken.append(tensor.view_as(tensor) if again else tensor)
    return taken


def transformable(function: Any, operation: Operation) -> type[Function]:
    """The twin of a Function whose first arguments are the inputs of `operation`."""

    def setup_context(ctx: Any, arguments: tuple[Any, ...], results: Any) -> None:
        function.keep(ctx, arguments, results)
        ctx.save_for_forward(*arguments[: len(operation.inputs)])

    class Transformable(function):
        forward = staticmethod(function.compute)
        jvp = staticmethod(function.push_forward)

    Transformable.setup_context = staticmethod(setup_context)
    Transformable.vmap = staticmethod(vmap_rule(Transformable.apply, operation))
    return Transformable


def vmap_rule(call: Callable[..., Any], operation: Operation) -> Callable[..., tuple[Any, Any]]:
    """How torch.vmap calls `call`, whose first arguments are the inputs of `operation`.

    The mapped axis becomes part of the batch. A bias has none: with one, it becomes part of the heads.
    """

    def rule(info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
        inputs = operation.inputs
        tensors = arguments[: len(inputs)]
        with_bias = any(x is not None and of.name == "bias" for x, of in zip(tensors, inputs))
        joined = "HK" if with_bias else "B"
        rank = tensors[0].dim() - len(inputs[0].shape) + 1 - (in_dims[0] is not None)

        def place(shape: str) -> int:
            """The number of the axis that the mapped one joins."""
            head = shape.index(next(letter for letter in shape if letter in joined))
            return head + (rank - 1) * any(letter in "XYR" for letter in shape[:head])

        def join(x: Optional[Tensor], dim: Optional[int], shape: str) -> Optional[Tensor]:
            if x is None:
                return None
            at = place(shape)
            if dim is None:
                x = x.unsqueeze(at).expand(*x.shape[:at], info.batch_size, *x.shape[at:])
            else:
                x = x.movedim(dim, at)
            return x.flatten(at, at + 1)

        folded = [join(x, dim, of.shape) for x, dim, of in zip(tensors, in_dims, inputs)]
        results = call(*folded, *arguments[len(inputs) :])
        outputs = operation.outputs
        if operation is BACKWARD:
            parameters = arguments[len(inputs) :]  # of a Function, with all axes in one, or of an operator
            wanted = parameters[3 if len(parameters) == 4 else 6]
            outputs = tuple(of for of, want in zip(outputs, wanted) if want)
        places = [place(of.shape) for of in outputs]
        if isinstance(results, Tensor):
            return results.unflatten(places[0], (info.batch_size, -1)), places[0]
        split = [x.unflatten(at, (info.batch_size, -1)) for x, at in zip(results, places)]
        return type(results)(split), type(results)(places[: len(split)])

    return rule
