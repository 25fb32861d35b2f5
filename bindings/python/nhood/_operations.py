"""The operations' tensors, with shapes in letters: checks, output shapes and strides follow from this table.

    B batch   X axes of queries, Y axes of keys (one letter for all)   H query heads   K key/value heads
    D, V head dims of key and value   M additional tokens   W window slots   R one extent 2k-1 per axis, of the bias
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from . import _library as c
from ._layouts import Layout, counted, packed_strides

_MEANING = {
    "B": "the batch",
    "X": "the length of axis",
    "Y": "the length of the keys on axis",
    "H": "the number of query heads",
    "K": "the number of key/value heads",
    "D": "the head dim",
    "V": "the value head dim",
    "M": "the number of additional tokens",
    "W": "the number of window slots",
    "R": "2 * kernel_size - 1 of axis",
}


class Tensor(NamedTuple):
    slot: int
    name: str
    shape: str
    optional: bool = False

    def letters(self, rank: int) -> list[str]:
        """One letter per axis of the array; those that stand for all axes are numbered."""
        letters: list[str] = []
        for letter in self.shape:
            letters += [f"{letter}{axis}" for axis in range(rank)] if letter in "XYR" else [letter]
        return letters


@dataclass(frozen=True, eq=False)  # compared by identity: operations are part of every plan's key
class Operation:
    code: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @functools.cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.inputs)


_SOFTMAX_INPUTS = (
    Tensor(c.Q, "query", "BXHD"),
    Tensor(c.K, "key", "BYKD"),
    Tensor(c.V, "value", "BYKV"),
    Tensor(c.BIAS, "bias", "HR", optional=True),
    Tensor(c.EXTRA_K, "additional_keys", "BMKD", optional=True),
    Tensor(c.EXTRA_V, "additional_values", "BMKV", optional=True),
)
_ATTENTION = Tensor(c.A, "attn", "BXHW")
_OUT = Tensor(c.O, "out", "BXHV")
_LSE = Tensor(c.LSE, "lse", "BXH")
_D_OUT = Tensor(c.D_O, "d_out", "BXHV")
_D_VALUE = Tensor(c.D_V, "d_value", "BYKV")

FORWARD = Operation(c.OP_FWD, _SOFTMAX_INPUTS, (_OUT, _LSE))
BACKWARD = Operation(
    c.OP_BWD,
    (*_SOFTMAX_INPUTS, _OUT, _LSE, _D_OUT, Tensor(c.D_LSE, "d_lse", "BXH", optional=True)),
    (
        Tensor(c.D_Q, "d_query", "BXHD"),
        Tensor(c.D_K, "d_key", "BYKD"),
        _D_VALUE,
        Tensor(c.D_BIAS, "d_bias", "HR"),
        Tensor(c.D_EXTRA_K, "d_additional_keys", "BMKD"),
        Tensor(c.D_EXTRA_V, "d_additional_values", "BMKV"),
    ),
)
QK = Operation(c.OP_PN, (_SOFTMAX_INPUTS[0], _SOFTMAX_INPUTS[1], _SOFTMAX_INPUTS[3]), (_ATTENTION,))
AV = Operation(c.OP_NN, (_ATTENTION, _SOFTMAX_INPUTS[2]), (_OUT,))
IN = Operation(c.OP_IN, (_ATTENTION, _D_OUT), (_D_VALUE,))


def meaning(letter: str) -> str:
    """A letter in words."""
    return _MEANING[letter[0]] + (f" {letter[1:]}" if letter[1:] else "")


def bind(
    operation: Operation,
    layouts: Sequence[Optional[Layout]],
    rank: int,
    sizes: dict[str, int],
    own_keys: Collection[int] = (),
    may_be_none: Collection[str] = ("B", "M"),
) -> dict[str, int]:
    """The size each letter stands for, starting from those in `sizes`. ValueError if arrays disagree.

    own_keys: axes on which keys may lie elsewhere than queries. On others Y is X.
    may_be_none: the letters that may be 0."""
    sizes = dict(sizes)
    for tensor, layout in zip(operation.inputs, layouts):
        if layout is None:
            continue
        shape, letters = layout[0], tensor.letters(rank)
        letters = [
            f"X{letter[1:]}" if letter[0] == "Y" and int(letter[1:]) not in own_keys else letter for letter in letters
        ]
        if len(shape) != len(letters):
            raise ValueError(
                f"{tensor.name}.shape = {shape} has {counted(len(shape), 'axis', 'axes')}, not {len(letters)}: "
                f"[{', '.join(letters)}]"
            )
        for letter, size in zip(letters, shape):
            if size < 1 and letter not in may_be_none:
                raise ValueError(f"{tensor.name}.shape = {shape}: {meaning(letter)} is {size}")
            if sizes.setdefault(letter, size) != size:
                raise ValueError(
                    f"{tensor.name}.shape = {shape}: {meaning(letter)} is {size}, expected {sizes[letter]}"
                )
    return sizes


def dtype_of(operation: Operation, layouts: Sequence[Optional[Layout]]) -> int:
    """The operation's dtype: that of the first input. ValueError if another input does not go with it,
    TypeError if one that is needed is missing."""
    for tensor, layout in zip(operation.inputs, layouts):
        if layout is None and not tensor.optional:
            raise TypeError(f"{tensor.name} is None, not an array")
    dtype = next(layout[2] for layout in layouts if layout is not None)  # the first input is never optional
    for tensor, layout in zip(operation.inputs, layouts):
        expected = tensor_dtype(tensor, dtype)
        if layout is not None and layout[2] != expected:
            raise ValueError(
                f"{tensor.name} has dtype {c.DTYPE_NAMES[layout[2]]}, expected {c.DTYPE_NAMES[expected]} "
                f"as {operation.inputs[0].name} has {c.DTYPE_NAMES[dtype]}"
            )
    return dtype


def tensor_dtype(tensor: Tensor, dtype: int) -> int:
    """A tensor's dtype in an operation of dtype `dtype`: log-sum-exps are never in 16 bits."""
    if tensor.slot not in (c.LSE, c.D_LSE):
        return dtype
    return c.DTYPE_F64 if dtype == c.DTYPE_F64 else c.DTYPE_F32


def set_strides(strides: c.Strides, tensor: Tensor, layout: Layout, rank: int) -> None:
    """Hands an input's strides on. ValueError where the library cannot take the array as it lies."""
    shape, byte_strides, dtype = layout
    item_bytes = c.DTYPE_BYTES[dtype]
    if 0 in shape:  # no batch, or no additional tokens: never read
        return
    if tensor.slot == c.BIAS:
        packed = packed_strides(shape, item_bytes)
        if any(n > 1 and s != p for n, s, p in zip(shape, byte_strides, packed)):
            raise ValueError(f"{tensor.name} has strides {byte_strides} bytes: it must be contiguous")
        return
    # A stride of an axis of one entry, or of an axis the rank does not have, is never used. It is not left
    # at 0, because all zero would mean packed, which a broadcast view is not.
    strides.batch = strides.head = 1
    strides.axis[:] = (1, 1, 1)
    for letter, size, stride in zip(tensor.letters(rank), shape, byte_strides):
        if size <= 1:
            continue
        elements, rest = divmod(stride, item_bytes)
        if rest:
            raise ValueError(
                f"{tensor.name} has a stride of {stride} bytes, "
                f"not a multiple of its {item_bytes}-byte items"
            )
        if letter in ("D", "V", "W"):
            if elements != 1:
                raise ValueError(
                    f"{tensor.name} has a stride of {elements} items on its last axis: "
                    "that axis must be contiguous"
                )
        elif letter == "B":
            strides.batch = elements
        elif letter in ("H", "K"):
            strides.head = elements
        else:
            strides.axis[int(letter[1:] or 0)] = elements
    if not (strides.batch or strides.head or any(strides.axis)):
        raise ValueError(f"{tensor.name} has stride 0 on every axis: copy at least one of its axes")
