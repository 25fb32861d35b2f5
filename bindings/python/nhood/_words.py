"""Errors in the words of the caller: the library's texts name fields of nhood.h, which here become the arguments that they
were filled from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional

from . import _library as c
from ._layouts import Layout
from ._operations import AV, BACKWARD, FORWARD, IN, QK, Operation, meaning

if TYPE_CHECKING:
    from ._plans import Request

_OF_AXES = {
    "window": ("kernel_size", "window"),
    "stride": ("stride", "stride"),
    "dilation": ("dilation", "dilation"),
    "causal": ("is_causal", "causal"),
    "periodic": ("is_periodic", "periodic"),
}
"""fields of an axis, with the argument and the field of a request"""

_LETTERS = {"batch": "B", "heads": "H", "kv_heads": "K", "dim": "D", "dim_v": "V", "extra_tokens": "M"}
"""fields that shapes tell"""

_SHORT_NAMES = ("q", "k", "v", "o", "lse", "a", "bias", "extra_k", "extra_v", "d_o", "d_lse")
"""of the tensors, by slot; those of results are never in an error"""

_INPUT_NAMES = {
    _SHORT_NAMES[tensor.slot]: tensor.name for operation in (FORWARD, BACKWARD, QK, AV, IN) for tensor in operation.inputs
}

_FIELD = re.compile(r"(?:axis\[(?P<axis>\d)\]|problem)\.(?P<field>\w+) = (?P<value>\S+?)(?=[:,]? |$)")
_TENSOR = re.compile(r"(?:io\.data|strides)\[(\w+)\] = ")


def wrong_type(name: str, value: Any, wanted: str) -> TypeError:
    """That an argument is not what a function takes, with the package that takes it, if there is one."""
    kind = type(value)
    kind_name = f"{kind.__module__}.{kind.__qualname__}".replace("builtins.", "")
    return TypeError(f"{name} is a {kind_name}{_whose(kind) or f', not {wanted}'}")


def _whose(kind: type) -> str:
    bases = [(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__]
    if any(package in ("jax", "jaxlib") for package, _ in bases):
        traced = kind.__name__.endswith("Tracer")
        return ", a value that JAX traces: only nhood.jax takes it" if traced else ": nhood.jax takes it"
    if ("torch", "Proxy") in bases:
        return ", a value that torch.fx traces: only nhood.torch takes it"
    return ": nhood.torch takes it" if ("torch", "Tensor") in bases else ""


def is_traced(value: Any) -> bool:
    """Whether it is a value that JAX or torch.fx have not computed yet."""
    return "traces" in _whose(type(value))


def not_of_type(name: str, value: Any, wanted: str) -> TypeError:
    """That an argument is no number or flag."""
    traced = ", but a traced value: it is to be a part of the program, static in jax.jit" * is_traced(value)
    return TypeError(f"{name} = {value!r} is not {wanted}{traced}")


def check_call(status: int) -> None:
    """As _library.check, after an execute: its texts name tensors only."""
    if status:
        raise c.error(status, _of_tensors(c.last_error()))


def of_lengths(text: str) -> str:
    """The text about lengths that an execute has read."""
    text = re.sub(r"io\.query_tokens = (\d+)", r"the \1 tokens of query", text)
    return _of_tensors(text.replace(": lengths[", ": layouts["))


def _of_tensors(text: str) -> str:
    """io.data[q] = 0x7f01 is not aligned ..: query is at 0x7f01, which is not aligned .."""
    found = _TENSOR.match(text)
    if not found or found[1] not in _INPUT_NAMES:
        return text.replace("io.d_y", "d_out").replace("io.", "")
    name, rest = _INPUT_NAMES[found[1]], text[found.end() :]
    if text.startswith("strides"):
        return f"{name} has a stride of {rest.replace('reaches', 'items, which reaches')}"
    return f"{name} is at {rest.replace(' is not', ', which is not', 1)}"


def of_problem(text: str, request: Request, layouts: Sequence[Optional[Layout]]) -> str:
    """The text about a problem that was filled from a request on arrays of these layouts."""
    found = _FIELD.search(text)
    if not found:
        return _of_tensors(text)
    field, value, axis = found["field"], found["value"], int(found["axis"] or 0)
    before, after = text[: found.start()], text[found.end() :]
    return before + _field(field, value, request, layouts) + _sentence(after, axis)


def of_member(text: str) -> str:
    """The text about a member of a group, with its index: all of its fields are arguments of the same names, or shapes'."""
    found = _FIELD.search(text)
    if not found:
        return _of_tensors(text)
    name = _OF_AXES.get(found["field"], (found["field"],))[0]
    before, after = text[: found.start()], text[found.end() :]
    return f"{before}{name} = {found['value']}" + _sentence(after, int(found["axis"] or 0))


def _field(field: str, value: str, request: Request, layouts: Sequence[Optional[Layout]]) -> str:
    if field in _OF_AXES:
        name, of_request = _OF_AXES[field]
        return _per_axis(name, getattr(request, of_request), value)
    if field == "length":
        region = request.region
        return _per_axis("grid", region.grid if region else None, value) if region and region.grid else f"length = {value}"
    if field == "kv_heads" and request.kv_heads is not None:
        return f"kv_heads = {value}"
    letter = _LETTERS.get(field)
    for tensor, layout in zip(request.operation.inputs, layouts):
        if letter and layout and letter in tensor.shape:
            return f"{tensor.name}.shape = {layout[0]}: {meaning(letter)}, {value},"
    return f"{field} = {value}"


def _per_axis(name: str, given: Optional[Sequence[Any]], value: str) -> str:
    if given and name.startswith("is_"):  # operators of torch have ints for them
        given = [bool(entry) for entry in given]
    if not given or len(set(given)) == 1:
        return f"{name} = {given[0] if given else value}"
    whole = f"{name} = {tuple(given)}"
    return whole if isinstance(given[0], bool) else f"{whole}: {value}"


def _sentence(rest: str, axis: int) -> str:
    """What follows a field, with the other fields that it names."""
    rest = re.sub(r"\blength (\d+) of a periodic axis", rf"the \1 tokens of axis {axis}, which is periodic", rest)
    rest = re.sub(
        r"\blength / dilation (\d+) of a periodic axis", rf"the \1 tokens of a dilation group of axis {axis}, which is periodic", rest
    )
    rest = re.sub(r"\blength (\d+)", rf"the \1 tokens of axis {axis}", rest)
    rest = re.sub(r"\bwindow (\d+)", rf"kernel_size \1 of axis {axis}", rest)
    rest = rest.replace("the 1 tokens", "the 1 token")
    return re.sub(r"\bheads (\d+)", r"the number of query heads, \1", rest)


def of_norm_rope(text: str, shape: Sequence[int]) -> str:
    """The text about a problem of norm_rope, filled from an x of this shape."""
    text = re.sub(r"problem\.length\[(\d)\] = (\d+)", rf"x.shape = {tuple(shape)}: the length of axis \1, \2,", text)
    found = _FIELD.search(text)
    if found and found["field"] in ("batch", "heads", "dim"):
        what, rest = meaning(_LETTERS[found["field"]]).replace("query heads", "heads"), text[found.end() :]
        return f"x.shape = {tuple(shape)}: {what}, {found['value']},{rest}"
    return text.replace("problem.d_y: ", "d_out has ").replace("problem.x: ", "x has ").replace("problem.", "")


def of_options(text: str) -> str:
    """The text about options of a context or a plan, which are arguments of the same names."""
    return text.replace("options.", "")


def heads_first(
    error: ValueError,
    request: Request,
    layouts: Sequence[Optional[Layout]],
    check: Callable[[Request, Sequence[Optional[Layout]]], Any],
) -> ValueError:
    """The error, with a word on arrays whose heads come before the grid if `check` takes them once these are behind it."""
    operation = request.operation
    moved = [layout and _moved(operation, i, layout, len(request.window)) for i, layout in enumerate(layouts)]
    all_of_them = [i for i, layout in enumerate(layouts) if moved[i] != layout]
    for ones in (all_of_them, *([i] for i in all_of_them)) if all_of_them else ():
        try:
            check(request, [moved[i] if i in ones else layout for i, layout in enumerate(layouts)])
        except (ValueError, TypeError, NotImplementedError):
            continue
        axes = ", ".join(["B", "H", *(f"X{i}" for i in range(len(request.window))), "D"])
        name, others = operation.inputs[ones[0]].name, ", and so in the other arrays" if len(ones) > 1 else ""
        return type(error)(f"{error}; if {name} is [{axes}], with the heads before the grid, move its axis 1 to -2{others}")
    return error


def _moved(operation: Operation, number: int, layout: Layout, rank: int) -> Layout:
    letters = operation.inputs[number].letters(rank)
    at = next((i for i, letter in enumerate(letters) if letter in ("H", "K")), 0)
    shape, strides, dtype = layout
    if at < 2 or len(shape) != len(letters):
        return layout

    def move(entries: tuple[int, ...]) -> tuple[int, ...]:
        return (entries[0], *entries[2 : at + 1], entries[1], *entries[at + 1 :])

    return move(shape), move(strides), dtype
