"""Samples of different sizes, packed token after token: one call for all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, Optional, Union, overload

import numpy as np

from . import _groups
from ._bounded import Bounded
from ._calls import run_group
from ._functions import Array, FlagPerAxis, PerAxis, flag, flag_per_axis, number, per_axis
from ._groups import Asked, layouts_table
from ._operations import BACKWARD, FORWARD
from ._windows import KernelSize, Windows, text_of

Layouts = Sequence[Sequence[int]]
ByAxis = tuple[tuple[int, ...], ...]


def _of_samples(name: str, one: Any, many: Any, rank: int, count: int, default: Any = None) -> ByAxis:
    """What is given for all samples, or for each of them: one entry for all, or one for each."""
    if many is None:
        if one is None:
            one = default
        if one is None:
            raise ValueError(f"{name} = None and {name}s = None: give one of them")
        return (per_axis(one, rank, name),)
    if one is not None:
        raise ValueError(f"{name} = {one} and {name}s: give one of them")
    if len(many) != count:
        raise ValueError(f"{name}s has {len(many)} entries, layouts {count}")
    if _are_plain(many) and all([len(entry) == rank for entry in many]):
        return tuple(map(tuple, many))
    return tuple([per_axis(entry, rank, f"{name}s[{i}]") for i, entry in enumerate(many)])


def _are_plain(many: Any) -> bool:
    """Whether all entries are lists or tuples of int and nothing else, which needs no look at each."""
    return {*map(type, many)} <= {list, tuple} and {*map(type, chain.from_iterable(many))} <= {int}


def _parted(kernel_size: Any, rank: int) -> tuple[Any, list[str]]:
    """A kernel_size with 1 for each Windows, and their texts by axis, [] if there is none."""
    entries = (kernel_size,) * rank if isinstance(kernel_size, Windows) else kernel_size
    if isinstance(entries, (list, tuple)) and any([isinstance(entry, Windows) for entry in entries]):
        sizes = [1 if isinstance(entry, Windows) else entry for entry in entries]
        return sizes, text_of(entries).split(",")
    return kernel_size, []


def part_windows(one: Any, many: Any, rank: int) -> tuple[Any, Any, str]:
    """kernel_size and kernel_sizes with 1 for each Windows, and the text of those: for each axis, of all samples or of each."""
    one, texts = _parted(one, rank)
    if isinstance(many, (list, tuple)) and not _are_plain(many):
        pairs = [_parted(entry, rank) for entry in many]
        many = [sizes for sizes, _ in pairs]
        texts += [text for _, of_axes in pairs for text in of_axes or [""] * rank]
    return one, many, ",".join(texts) if any(texts) else ""


def read_layouts(layouts: Layouts, rank: Optional[int] = None) -> ByAxis:
    """Tuples of integers, all of one length, which is `rank` if that is given."""
    if _are_plain(layouts):
        axes, least = {*map(len, layouts)}, min(chain.from_iterable(layouts), default=-1)
        if len(axes) == 1 and axes <= ({1, 2, 3} if rank is None else {rank}) and least >= 0:
            return tuple(map(tuple, layouts))
    read = tuple([tuple([int(length) for length in layout]) for layout in layouts])
    for i, layout in enumerate(read):
        rank = len(layout) if rank is None else rank
        if len(layout) != rank or rank not in (1, 2, 3):
            raise ValueError(f"layouts[{i}] = {layout} has {len(layout)} axes, expected {rank if rank in (1, 2, 3) else '1, 2 or 3'}")
        if min(layout) < 0:
            raise ValueError(f"layouts[{i}] = {layout}: {min(layout)} is less than 0")
    return read


def table_of(
    layouts: Layouts,
    kernel_size: Optional[KernelSize],
    kernel_sizes: Optional[Sequence[KernelSize]],
    stride: Optional[PerAxis],
    strides: Optional[Sequence[PerAxis]],
    dilation: Optional[PerAxis],
    dilations: Optional[Sequence[PerAxis]],
    is_causal: FlagPerAxis,
) -> np.ndarray:
    read = read_layouts(layouts)
    rank, count = len(read[0]) if read else 1, len(read)
    causal = (False,) if not read else flag_per_axis(is_causal, rank, "is_causal")
    if not read:
        return layouts_table(1, (), (), (), (), causal)
    kernel_size, kernel_sizes, tables = part_windows(kernel_size, kernel_sizes, rank)
    return layouts_table(
        rank,
        read,
        _of_samples("kernel_size", kernel_size, kernel_sizes, rank, count),
        _of_samples("stride", stride, strides, rank, count, 1),
        _of_samples("dilation", dilation, dilations, rank, count, 1),
        causal,
        tables,
    )


def within_bound(
    bound: Sequence[int], array: str, is_array: bool, of_samples: tuple[Any, ...], is_causal: FlagPerAxis, table: Any = None
) -> Bounded:
    """What all samples share whose lengths are an array of the framework's, in words such as "a tensor on cuda:0". of_samples:
    kernel_size, kernel_sizes, stride, strides, dilation, dilations."""
    kernel_size, kernel_sizes, stride, strides, dilation, dilations = of_samples
    if not is_array or any([given is not None for given in (table, kernel_sizes, strides, dilations)]):
        raise ValueError(f"bound = {bound}: it goes with layouts, {array}, and with one kernel_size, stride and dilation")
    if isinstance(bound, str) or not isinstance(bound, Sequence):
        raise TypeError(f"bound = {bound} is not a sequence of the longest axes, such as (64, 64)")
    rank = len(bound)
    if rank not in (1, 2, 3):
        raise ValueError(f"bound = {bound} has {rank} axes, expected 1, 2 or 3")
    if kernel_size is None:
        raise ValueError("kernel_size = None: with a bound it is that of all samples")
    given = dict(bound=bound, kernel_size=kernel_size, stride=stride, dilation=dilation)
    of_axes = [per_axis(1 if value is None else value, rank, name) for name, value in given.items()]
    return Bounded(*of_axes, flag_per_axis(is_causal, rank, "is_causal"))


def _run(asked: Asked, table: np.ndarray, arrays: tuple[Optional[Array], ...]) -> list[Any]:
    words, data = table.shape[1], table.tobytes()
    return run_group(asked, arrays, lambda *where: _groups.packed_plan(*where[:2], asked, data, words, where[2], True))


@overload
def neighborhood_attention_varlen(
    query: Array,
    key: Array,
    value: Array,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Layouts,
    kernel_sizes: Optional[Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Optional[Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Optional[Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    return_lse: Literal[False] = False,
) -> Array: ...


@overload
def neighborhood_attention_varlen(
    query: Array,
    key: Array,
    value: Array,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Layouts,
    kernel_sizes: Optional[Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Optional[Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Optional[Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    return_lse: Literal[True],
) -> tuple[Array, Array]: ...


@overload
def neighborhood_attention_varlen(
    query: Array,
    key: Array,
    value: Array,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Layouts,
    kernel_sizes: Optional[Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Optional[Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Optional[Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    return_lse: bool,
) -> Union[Array, tuple[Array, Array]]: ...


def neighborhood_attention_varlen(
    query: Array,
    key: Array,
    value: Array,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Layouts,
    kernel_sizes: Optional[Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Optional[Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Optional[Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    return_lse: bool = False,
) -> Any:
    """Neighborhood attention of samples of different sizes, packed token after token: one call for all of them.

    query: [1, tokens, H, D].  key: [1, tokens, Hkv, D].  value: [1, tokens, Hkv, Dv]; Hkv divides H.
    layouts: the lengths of the axes of each sample, such as [(14, 14), (20, 30)]; all have 1, 2 or 3 axes. Their tokens
        follow each other in this order, the last axis fastest, and are all there are. Samples may have none.
    kernel_size, stride, dilation: of all samples, one value for all axes or one per axis; stride and dilation are 1 by default.
    kernel_sizes, strides, dilations: of each sample, instead. A kernel_size of either kind may have nhood.Windows, with as many
        queries as the layout has on their axis; a sample has their number of keys there, of which key and value hold as many.
    is_causal: one value for all axes, or one per axis.
    scale: any finite number; None: D ** -0.5.

    Returns out [1, tokens, H, Dv]; with return_lse, out and the log-sum-exp of the logits [1, tokens, H].

    Raises what na1d does. An illegal sample is named by its index, with axis, value and limit.
    """
    table = table_of(layouts, kernel_size, kernel_sizes, stride, strides, dilation, dilations, is_causal)
    wanted = (True, flag(return_lse, "return_lse"))
    asked = Asked(FORWARD, None if scale is None else number(scale, "scale"), 0, wanted)
    results = _run(asked, table, (query, key, value, None, None, None))
    return tuple(results) if return_lse else results[0]


def neighborhood_attention_varlen_backward(
    d_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    lse: Array,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Layouts,
    kernel_sizes: Optional[Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Optional[Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Optional[Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    d_lse: Optional[Array] = None,
) -> tuple[Any, Any, Any]:
    """Gradients of neighborhood_attention_varlen, from the gradient d_out of its result.

    query .. scale: as in the forward call. out, lse: its results. d_lse: the gradient of the log-sum-exp; None: zero.

    Returns (d_query, d_key, d_value), each in the shape of what it is the gradient of.
    """
    table = table_of(layouts, kernel_size, kernel_sizes, stride, strides, dilation, dilations, is_causal)
    asked = Asked(BACKWARD, None if scale is None else number(scale, "scale"), 0, (True, True, True, False, False, False))
    results = _run(asked, table, (query, key, value, None, None, None, out, lse, d_out, d_lse))
    return results[0], results[1], results[2]
