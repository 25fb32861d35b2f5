"""How operators are differentiated and mapped: by kernels of theirs for torch's keys Autograd, FuncTorchBatched and Batched.

The formulas belong to the operators, so whatever holds only operators has their derivatives as well: graphs that were exported,
cut into stages or decomposed. Reverse and forward mode, torch.func's transforms and vmap, in any order and compiled too, all
come by the dispatcher to these kernels, with one level of transforms at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from .._operations import BACKWARD, Operation

OptionalTensor = Optional[Tensor]


class Formula(_SingleLevelFunction):
    """The derivatives of an operator: a subclass has backward and jvp, which find its tensors in ctx.saved_tensors and its other
    arguments in ctx.parameters.

    apply(*tensors, parameters, execute, from_dispatcher). Functions of one level are what torch's own transforms are made of;
    calling one does less than calling a torch.autograd.Function."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:  # type: ignore[override]
        *tensors, parameters, execute, from_dispatcher = arguments
        ctx.save_for_backward(*tensors)
        if from_dispatcher:
            ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.parameters = parameters
        results = execute(*tensors, *parameters)
        return tuple(results) if isinstance(results, list) else results


formulas: dict[str, type[Formula]] = {}
"""by the names of operators"""


def register_formula(library: torch.library.Library, name: str, tensors: int) -> Callable[[type[Formula]], type[Formula]]:
    """Makes the decorated class the formula of the operator `name`, whose first arguments are `tensors` tensors."""
    operator = getattr(torch.ops.nhood, name).default

    def register(formula: type[Formula]) -> type[Formula]:
        def kernel(keyset: Any, *arguments: Any) -> Any:
            below = keyset & torch._C._after_autograd_keyset
            # Functions switch both modes off. The transforms around this one, which come next, are to find them as they were.
            recording, forward = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()

            def execute(*arguments: Any) -> Any:
                with torch.set_grad_enabled(recording), forward_ad._set_fwd_grad_enabled(forward):
                    with torch._C._AutoDispatchBelowAutograd():
                        return operator.redispatch(below, *arguments)

            with enable_single_level_autograd_function():
                results = formula.apply(*arguments[:tensors], arguments[tensors:], execute, True)
            return list(results) if isinstance(results, tuple) else results

        library.impl(name, kernel, "Autograd", with_keyset=True)
        formulas[name] = formula
        return formula

    return register


Mapped = tuple[list[Tensor], list[int]]
"""the results of a call that stands for many, and the axes of the many in them"""
Dims = Sequence[Optional[int]]
Rule = Callable[[Any, int, Dims, Sequence[OptionalTensor], Sequence[Any]], Mapped]
"""(operator, number of calls, their axis in each tensor, tensors, other arguments) -> Mapped"""


def register_mapping(library: torch.library.Library, name: str, tensors: int, rule: Rule) -> None:
    """How torch.vmap, and the one inside of torch.autograd that is_grads_batched and vectorize ask for, call an operator."""
    operator = getattr(torch.ops.nhood, name).default
    single = isinstance(operator._schema.returns[0].type, torch.TensorType)
    batched = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)

    def of_functorch(*arguments: Any) -> Any:
        interpreter = retrieve_current_functorch_interpreter()
        level = interpreter.level()
        unwrapped, dims = _unwrapped_of_functorch(arguments[:tensors], level)
        with torch._C._ExcludeDispatchKeyGuard(batched):
            if all([dim is None for dim in dims]):
                return operator(*arguments)
            results, places = rule(operator, interpreter.batch_size(), dims, unwrapped, arguments[tensors:])
        wrapped = [_functorch._add_batch_dim(x, at, level) for x, at in zip(results, places)]
        return wrapped[0] if single else wrapped

    def of_autograd(*arguments: Any) -> Any:
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        unwrapped, dims = _unwrapped_of_autograd(arguments[:tensors], level)
        while all([dim is None for dim in dims]):  # some level has one: that is what this key says
            level -= 1
            unwrapped, dims = _unwrapped_of_autograd(arguments[:tensors], level)
        size = next(x.shape[0] for x, dim in zip(unwrapped, dims) if x is not None and dim == 0)
        results, places = rule(operator, size, dims, unwrapped, arguments[tensors:])
        wrapped = [torch._add_batch_dim(x, at, level) for x, at in zip(results, places)]  # type: ignore[attr-defined]
        return wrapped[0] if single else wrapped

    library.impl(name, of_functorch, "FuncTorchBatched")
    library.impl(name, of_autograd, "Batched")


def _unwrapped_of_functorch(tensors: Sequence[OptionalTensor], level: int) -> tuple[list[OptionalTensor], Dims]:
    pairs = [(None, None) if x is None else _functorch._unwrap_batched(x, level) for x in tensors]
    return [x for x, _ in pairs], [dim for _, dim in pairs]


def _unwrapped_of_autograd(tensors: Sequence[OptionalTensor], level: int) -> tuple[list[OptionalTensor], Dims]:
    """The first axis is the mapped one then."""
    unwrapped: list[OptionalTensor] = []
    dims: list[Optional[int]] = []
    for x in tensors:
        # A tensor that is not mapped on this level would get an axis of so many entries: 0, which no mapped one has.
        mapped = None if x is None else torch._remove_batch_dim(x, level, 0, 0)  # type: ignore[attr-defined]
        is_mapped = mapped is not None and mapped.shape[0] > 0
        unwrapped.append(mapped if is_mapped else x)
        dims.append(0 if is_mapped else None)
    return unwrapped, dims


def folding(operation: Operation) -> Rule:
    """The rule of operators whose tensors are the inputs and outputs of `operation`, by one call.

    The mapped axis becomes part of the batch. A bias has none: with one, it becomes part of the heads.
    """

    def rule(
        operator: Any, size: int, dims: Dims, tensors: Sequence[OptionalTensor], parameters: Sequence[Any]
    ) -> Mapped:
        inputs = operation.inputs
        first = tensors[0]
        assert first is not None  # no operation's first input is optional
        with_bias = any(x is not None and of.name == "bias" for x, of in zip(tensors, inputs))
        joined = "HK" if with_bias else "B"
        rank = first.dim() - len(inputs[0].shape) + 1 - (dims[0] is not None)

        def place(shape: str) -> int:
            """The number of the axis that the mapped one joins."""
            head = shape.index(next(letter for letter in shape if letter in joined))
            return head + (rank - 1) * any(letter in "XYR" for letter in shape[:head])

        def join(x: OptionalTensor, dim: Optional[int], shape: str) -> OptionalTensor:
            if x is None:
                return None
            at = place(shape)
            if dim is None:
                x = x.unsqueeze(at).expand(*x.shape[:at], size, *x.shape[at:])
            else:
                x = x.movedim(dim, at)
            return x.flatten(at, at + 1)

        folded = [join(x, dim, of.shape) for x, dim, of in zip(tensors, dims, inputs)]
        results = operator(*folded, *parameters)
        outputs = operation.outputs
        if operation is BACKWARD:
            outputs = tuple(of for of, want in zip(outputs, parameters[6]) if want)
        given = [results] if isinstance(results, Tensor) else results
        places = [place(of.shape) for of in outputs[: len(given)]]
        return [x.unflatten(at, (size, x.shape[at] // size)) for x, at in zip(given, places)], places

    return rule


def one_by_one(
    operator: Any, size: int, dims: Dims, tensors: Sequence[OptionalTensor], parameters: Sequence[Any]
) -> Mapped:
    """The rule of operators that have to be called so many times."""
    calls = []
    for i in range(size):
        results = operator(
            *[x if x is None or dim is None else x.select(dim, i) for x, dim in zip(tensors, dims)], *parameters
        )
        calls.append([results] if isinstance(results, Tensor) else results)
    stacked = [torch.stack(parts) for parts in zip(*calls)]
    return stacked, [0] * len(stacked)
