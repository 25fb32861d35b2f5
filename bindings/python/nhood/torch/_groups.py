"""Groups as operators of torch: samples of different sizes in packed tensors, and windows by sets of heads.

The members of packed tensors are the rows of a table (nhood/_groups.py), a tensor of int64 on the CPU. So graphs do not depend on
lengths, nor on how many samples there are. Derivatives beyond the first, and those of forward mode, are those of each member by
itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import register_flop_formula

from .. import _groups, _quick
from .. import _library as c
from .._groups import Asked, HeadSets, parted
from .._operations import BACKWARD, FORWARD
from .._windows import text_of
from ._dispatch import directly
from ._fused import AttentionBackward
from ._ops import library
from ._tensors import Launch, compute_group, example_layouts
from ._transforms import Formula, one_by_one, register_formula, register_mapping
from ._unfused import OptionalTensor, Problem

_SETS = (
    "int sets, int[] kernel_size, int[] stride, int[] dilation, int[] is_causal, int[] is_periodic, "
    "str windows, float? scale, bool clamp_window"
)
_SCHEMAS = {
    "na_varlen": "(Tensor query, Tensor key, Tensor value, Tensor table, float? scale, bool whole, bool need_lse) "
    "-> Tensor[]",
    "na_varlen_backward": "(Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, Tensor d_out, "
    "Tensor? d_lse, Tensor table, float? scale, bool whole, bool[] wanted) -> Tensor[]",
    "na_sets": f"(Tensor query, Tensor key, Tensor value, Tensor? bias, {_SETS}, bool need_lse) -> Tensor[]",
    "na_sets_backward": "(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor out, Tensor lse, Tensor d_out, "
    f"Tensor? d_lse, {_SETS}, bool[] wanted) -> Tensor[]",
    "sequence_table": "(Tensor starts_q, Tensor starts_kv, bool is_causal) -> Tensor",
    "varlen_windows": "(Tensor lengths, str windows) -> (Tensor, Tensor)",
}
"""The results are those of na and na_backward. whole: the members are all of the tokens; else tokens between and beyond them have
out 0, log-sum-exp -infinity and gradients 0. bias: the tables of all sets, flat, one after the other."""


# ---- what is asked for ----


def _forward(scale: Optional[float], need_lse: bool, flags: int = 0) -> Asked:
    return Asked(FORWARD, scale, flags, (True, need_lse))


def _backward(scale: Optional[float], wanted: Sequence[bool], flags: int = 0) -> Asked:
    bias = len(wanted) > 3 and wanted[3]
    return Asked(BACKWARD, scale, flags, (*wanted[:3], bias, False, False))


def _sets_of(parameters: Sequence[Any]) -> tuple[HeadSets, Optional[float], int]:
    sets, window, stride, dilation, causal, periodic, windows, scale, clamp_window = parameters[:9]
    axes = (tuple(window), tuple(stride), tuple(dilation), tuple(map(bool, causal)))
    periodic = tuple(map(bool, periodic)) or (False,) * len(axes[0])
    return HeadSets(sets, *axes, periodic, windows), scale, c.FLAG_CLAMP_WINDOW if clamp_window else 0


def of_any_number(table: Tensor) -> Tensor:
    """The table of samples or sequences, marked for torch.compile: another number of them compiles nothing anew."""
    if not torch.compiler.is_compiling() and not isinstance(table, FakeTensor):
        torch._dynamo.maybe_mark_dynamic(table, 0)
    return table


def _numbers(table: Tensor) -> np.ndarray:
    if table.device.type != "cpu" or table.dtype != torch.int64 or table.dim() != 2:
        raise ValueError(f"table is {table.dtype} of {table.dim()} axes on {table.device}, expected torch.int64 of 2 on the CPU")
    return table.detach().numpy() if table.is_contiguous() else table.detach().contiguous().numpy()


# ---- implementations ----


def _packed(asked: Asked, tensors: Sequence[OptionalTensor], table: Tensor, whole: bool) -> tuple[Launch, Sequence[OptionalTensor]]:
    read = _quick.group_bytes(table)
    if read is None:
        numbers = _numbers(table)
        read = numbers.tobytes(), numbers.shape[1]
    _groups.rank_of(read[1])
    return Launch(asked, _groups.PackedMembers(*read, whole)), tensors


_TENSORS_OF = {
    "na_varlen": ("query", "key", "value", "table"),
    "na_varlen_backward": ("query", "key", "value", "out", "lse", "d_out", "d_lse", "table"),
    "na_sets": ("query", "key", "value", "bias"),
    "na_sets_backward": ("query", "key", "value", "bias", "out", "lse", "d_out", "d_lse"),
}


def ask_na_varlen(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, scale: Optional[float], whole: bool, need_lse: bool
) -> tuple[Launch, Sequence[OptionalTensor]]:
    return _packed(_forward(scale, need_lse), (query, key, value, None, None, None), table, whole)


def compute_na_varlen(*arguments: Any) -> list[Tensor]:
    query, key, value, table, _, whole, need_lse = arguments
    if query.numel() == 0 or key.numel() == 0:
        return _nothing(query, value, table, whole, need_lse)
    return compute_group("na_varlen", _TENSORS_OF["na_varlen"], ask_na_varlen, arguments)


def _nothing(query: Tensor, value: Tensor, table: Tensor, whole: bool, need_lse: bool) -> list[Tensor]:
    """Returns the results of tensors without tokens."""
    if whole and (query.shape[1] or len(table) and _tokens_of(table)):
        raise ValueError(f"layouts have {_tokens_of(table)} tokens, query has {query.shape[1]}")
    out, *lse = _fake_na_varlen(query, value, value, table, None, whole, need_lse)
    return [out.zero_(), *[x.fill_(-torch.inf) for x in lse]]


def _tokens_of(table: Tensor) -> int:
    axes = _groups.split_rows(_numbers(table))[0][:, _groups.FIRSTS :: len(_groups.AXIS)]
    return int(axes.prod(axis=1).sum())


def _ask_na_varlen_backward(*arguments: Any) -> tuple[Launch, Sequence[OptionalTensor]]:
    query, key, value, out, lse, d_out, d_lse, table, scale, whole, wanted = arguments
    tensors = (query, key, value, None, None, None, out, lse, d_out, d_lse)
    return _packed(_backward(scale, wanted), tensors, table, whole)


def _na_varlen_backward(*arguments: Any) -> list[Tensor]:
    inputs, wanted = arguments[:3], arguments[-1]
    if inputs[0].numel() == 0 or inputs[1].numel() == 0:
        return [torch.zeros_like(x) for x, want in zip(inputs, wanted) if want]
    return compute_group("na_varlen_backward", _TENSORS_OF["na_varlen_backward"], _ask_na_varlen_backward, arguments)


def ask_na_sets(*arguments: Any) -> tuple[Launch, Sequence[OptionalTensor]]:
    sets, scale, flags = _sets_of(arguments[4:])
    return Launch(_forward(scale, arguments[-1], flags), sets), (*arguments[:4], None, None)


def _ask_na_sets_backward(*arguments: Any) -> tuple[Launch, Sequence[OptionalTensor]]:
    sets, scale, flags = _sets_of(arguments[8:])
    return Launch(_backward(scale, arguments[-1], flags), sets), (*arguments[:4], None, None, *arguments[4:8])


def compute_na_sets(*arguments: Any) -> list[Tensor]:
    return compute_group("na_sets", _TENSORS_OF["na_sets"], ask_na_sets, arguments)


def _na_sets_backward(*arguments: Any) -> list[Tensor]:
    return compute_group("na_sets_backward", _TENSORS_OF["na_sets_backward"], _ask_na_sets_backward, arguments)


def _sequence_table(starts_q: Tensor, starts_kv: Tensor, is_causal: bool) -> Tensor:
    """Reads the device, which waits for it. Sequences without queries or without keys are members without tokens, and so is one more
    at the end: of one sequence there are two members then, as torch.compile takes sizes of 1 for constants."""
    starts = np.stack([starts_q.cpu().numpy(), starts_kv.cpu().numpy()]).astype(np.int64)
    first, lengths = starts.T, np.diff(starts, append=starts[:, -1:]).T
    longest = lengths.max(axis=1)
    table = np.ones((len(lengths), _groups.row_words(1)), np.int64)
    table[:, :2] = first
    length, window, stride, dilation, causal, query_length, key_length, windows = range(2, table.shape[1])
    for column in (length, window):
        table[:, column] = longest
    table[:, causal] = is_causal
    table[:, [query_length, key_length]] = np.where(lengths == longest[:, None], 0, lengths)
    table[:, windows] = 0
    table[(lengths < 1).any(axis=1), 2:] = (0, 1, 1, 1, 0, 0, 0, 0)
    return torch.from_numpy(table)


def _varlen_windows(lengths: Tensor, windows: str) -> tuple[Tensor, Tensor]:
    """What a table has of windows by table: two words for each axis of each sample, and rows of data."""
    rows = _groups.data_rows(windows, _groups.row_words(lengths.shape[1]))
    return torch.from_numpy(_groups.windows_words(lengths.numpy(), windows)), torch.from_numpy(rows)


# ---- fakes ----


def _results(query: Tensor, value: Tensor, need_lse: bool) -> list[Tensor]:
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return [out, query.new_empty(query.shape[:-1], dtype=lse_dtype)] if need_lse else [out]


def _check_varlen(asked: Asked, tensors: Sequence[OptionalTensor], table: Tensor, whole: bool) -> None:
    layouts = example_layouts(asked.operation, tensors)
    if layouts is None or isinstance(table, FakeTensor) or table.device.type != "cpu":
        return
    first = tensors[0]
    if first is not None and first.numel():
        _groups.check_packed(asked, _numbers(table), layouts, whole)


def _fake_na_varlen(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, scale: Optional[float], whole: bool, need_lse: bool
) -> list[Tensor]:
    return _results(query, value, need_lse)


def _checked_na_varlen(*arguments: Any) -> list[Tensor]:
    query, key, value, table, scale, whole, need_lse = arguments
    _check_varlen(_forward(scale, need_lse), (query, key, value, None, None, None), table, whole)
    return _fake_na_varlen(*arguments)


def _fake_gradients(*arguments: Any) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor, want in zip(arguments, arguments[-1]) if want]


def _fake_na_sets(*arguments: Any) -> list[Tensor]:
    sets, scale, flags = _sets_of(arguments[4:])
    asked = _forward(scale, arguments[-1], flags)
    layouts = example_layouts(FORWARD, (*arguments[:4], None, None))
    if layouts is not None:
        _groups.check_heads(asked, sets, layouts)
    return _results(arguments[0], arguments[2], arguments[-1])


def _fake_sequence_table(starts_q: Tensor, starts_kv: Tensor, is_causal: bool) -> Tensor:
    return starts_q.new_empty((starts_q.shape[0], _groups.row_words(1)), dtype=torch.int64, device="cpu")


def _fake_varlen_windows(lengths: Tensor, windows: str) -> tuple[Tensor, Tensor]:
    words = _groups.row_words(int(lengths.shape[1]))
    return lengths.new_empty((*lengths.shape, 2)), lengths.new_empty((len(_groups.data_rows(windows, words)), words))


# ---- FLOPs ----


def _varlen_flops(query: Tensor, key: Tensor, value: Tensor, table: Tensor, factor: float) -> int:
    if isinstance(table, FakeTensor):
        raise ValueError("the FLOPs of samples of different sizes follow from their table, which has no values here")
    members = _groups.read_table(_numbers(table), (query.shape[1], key.shape[1]), False)
    axes = members.axes
    window = np.where(axes[:, :, 6] == 0, axes[:, :, 1], np.minimum(axes[:, :, 1], axes[:, :, 6])).astype(np.float64)
    for i, axis in zip(*np.nonzero(axes[:, :, 7])):  # how many keys a query has on average
        window[i, axis] = members.windows[axes[i, axis, 7]].ranges[:, 1].mean()
    window = window.prod(axis=1)
    pairs = (members.tokens[0] * window * (members.tokens[1] > 0)).sum()
    return round(2 * factor * pairs * query.shape[2] * (query.shape[3] + value.shape[3]))


def _sets_flops(arguments: Sequence[Any], parameters: Sequence[Any], factor: float) -> int:
    query, key, value = arguments[:3]
    sets, _, flags = _sets_of(parameters)
    heads = [own * (query.shape[-2] // key.shape[-2]) for own in parted(key.shape[-2], sets.count)]
    lengths = query.shape[1:-2]
    window = np.array(sets.window).reshape(sets.count, -1)
    if flags & c.FLAG_CLAMP_WINDOW:
        dilation = np.array(sets.dilation).reshape(sets.count, -1)
        window = np.maximum(1, np.minimum(window, np.array(lengths) // dilation))
    tables = sets.tables
    if tables:  # how many keys a query has on average
        means = [k if table is None else table.ranges[:, 1].mean() for k, table in zip(window.ravel(), tables)]
        window = np.array(means).reshape(window.shape)
    keys = sum(own * float(of.prod()) for own, of in zip(heads, window))
    return int(2 * factor * query.shape[0] * math.prod(lengths) * keys * (query.shape[-1] + value.shape[-1]))


# ---- registration ----


def register_operator(
    name: str, schema: str, tensors: int, implementation: Callable[..., Any], fake: Callable[..., Any]
) -> Callable[..., Any]:
    """Defines an operator; what to call it by."""
    library.define(name + schema)
    for key in ("CPU", "CUDA"):
        library.impl(name, implementation, key)
    torch.library.register_fake(f"nhood::{name}", fake, lib=library)
    register_mapping(library, name, tensors, one_by_one)
    return directly(name, getattr(torch.ops.nhood, name).default, implementation, tensors)


na_varlen = register_operator("na_varlen", _SCHEMAS["na_varlen"], 4, compute_na_varlen, _checked_na_varlen)
na_varlen_backward = register_operator("na_varlen_backward", _SCHEMAS["na_varlen_backward"], 8, _na_varlen_backward, _fake_gradients)
na_sets = register_operator("na_sets", _SCHEMAS["na_sets"], 4, compute_na_sets, _fake_na_sets)
na_sets_backward = register_operator("na_sets_backward", _SCHEMAS["na_sets_backward"], 8, _na_sets_backward, _fake_gradients)
for _name, _implementation, _fake in (
    ("sequence_table", _sequence_table, _fake_sequence_table),
    ("varlen_windows", _varlen_windows, _fake_varlen_windows),
):
    library.define(_name + _SCHEMAS[_name])
    library.impl(_name, _implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"nhood::{_name}", _fake, lib=library)
sequence_table = torch.ops.nhood.sequence_table.default
varlen_windows = torch.ops.nhood.varlen_windows.default


@register_flop_formula(torch.ops.nhood.na_varlen, get_raw=True)
def _flops_of_varlen(*arguments: Any, **_: Any) -> int:
    return _varlen_flops(*arguments[:4], 1.0)


@register_flop_formula(torch.ops.nhood.na_varlen_backward, get_raw=True)
def _flops_of_varlen_backward(*arguments: Any, **_: Any) -> int:
    return _varlen_flops(*arguments[:3], arguments[7], 2.5)


@register_flop_formula(torch.ops.nhood.na_sets, get_raw=True)
def _flops_of_sets(*arguments: Any, **_: Any) -> int:
    return _sets_flops(arguments, arguments[4:], 1.0)


@register_flop_formula(torch.ops.nhood.na_sets_backward, get_raw=True)
def _flops_of_sets_backward(*arguments: Any, **_: Any) -> int:
    return _sets_flops(arguments, arguments[8:], 2.5)


# ---- members by themselves, for derivatives beyond the first and those of forward mode ----


class _Member(NamedTuple):
    parameters: tuple[Any, ...]
    """of `na`, without need_lse"""
    place: tuple[Any, ...]
    cut: Callable[[OptionalTensor, str], Any]
    """the member's part of a tensor, by its letter: q for those of queries, k of keys, b for the bias"""


def _packed_members(table: Tensor, scale: Optional[float]) -> Iterator[tuple[_Member, tuple[int, int]]]:
    """Each member with tokens, and the first of its queries and of its keys."""
    rank = _groups.rank_of(table.shape[1])
    rows, found = _groups.table_windows(np.array(table.tolist(), np.int64).reshape(-1, table.shape[1]))
    for row in rows.tolist():
        axes = [row[_groups.FIRSTS + i * len(_groups.AXIS) :][: len(_groups.AXIS)] for i in range(rank)]
        length, window, stride, dilation, causal, query_length, key_length, places = zip(*axes)
        extents = [[own or whole for own, whole in zip(of, length)] for of in (query_length, key_length)]
        if 0 in extents[0] or 0 in extents[1]:
            continue
        (q, k), (q_count, k_count) = row[:2], map(math.prod, extents)
        of_boxes = any(query_length) or any([keys and not place for keys, place in zip(key_length, places)])
        zeros = (0,) * rank
        place: tuple[Any, ...] = ((), length, zeros, zeros) if of_boxes else ()
        if any(places):
            place = (*(place or ((),) * 4), text_of([found.get(at) for at in places]))

        def cut(x: OptionalTensor, letter: str, q: int = q, k: int = k, q_count: int = q_count, k_count: int = k_count,
                extents: Any = extents) -> Any:
            if x is None:
                return None
            first, count = (k, k_count) if letter == "k" else (q, q_count)
            return x[:, first : first + count].unflatten(1, extents[letter == "k"])

        yield _Member((window, stride, dilation, causal, scale, False), place, cut), (q, k)


def _joined(parts: Sequence[tuple[int, Tensor]], total: int, channels: Sequence[int]) -> Tensor:
    """Members' tensors [1, X.., *channels], each with its first token, as one [1, total, *channels], with zeros between and beyond
    them."""
    pieces: list[Tensor] = []
    at = 0
    for first, part in parts:
        if first > at:
            pieces.append(part.new_zeros((1, first - at, *channels)))
        pieces.append(part.reshape(1, -1, *channels))
        at = first + pieces[-1].shape[1]
    if at < total:
        pieces.append(parts[0][1].new_zeros((1, total - at, *channels)))
    return torch.cat(pieces, dim=1)


class _Kind(NamedTuple):
    """How a group's tensors are taken apart and put together."""

    members: list[_Member]
    join: Callable[[str, list[Any], Any], Any]
    """(letter, one tensor per member, and one as long as the whole) -> the whole"""


def _of_packed(table: Tensor, scale: Optional[float]) -> _Kind:
    pairs, rank = list(_packed_members(table, scale)), _groups.rank_of(table.shape[1])

    def join(letter: str, parts: list[Any], like: Tensor) -> Any:
        firsts = [first[letter == "k"] for _, first in pairs]
        return _joined(list(zip(firsts, parts)), like.shape[1], parts[0].shape[1 + rank :])

    return _Kind([member for member, _ in pairs], join)


def _of_sets(sets: HeadSets, scale: Optional[float], clamp: bool, query: Tensor, key: Tensor) -> _Kind:
    rank = len(sets.window) // sets.count
    kv_heads = parted(key.shape[-2], sets.count)
    share = query.shape[-2] // key.shape[-2]
    shapes = _groups.bias_shapes(sets, query.shape[1:-2], [own * share for own in kv_heads], clamp)
    ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
    members = []
    for i, own in enumerate(kv_heads):
        axes = tuple(values[i * rank : (i + 1) * rank] for values in sets[1:5])
        periodic = sets.periodic[i * rank : (i + 1) * rank]
        windows = ",".join(sets.windows.split(",")[i * rank : (i + 1) * rank]) if sets.windows else ""
        windows = windows if windows.strip(",") else ""
        place: tuple[Any, ...] = (periodic, (), (), (), windows) if any(periodic) or windows else ()
        first = sum(kv_heads[:i])

        def cut(x: OptionalTensor, letter: str, i: int = i, first: int = first, own: int = own) -> Any:
            if x is None:
                return None
            if letter == "b":
                return x[ends[i] - math.prod(shapes[i]) : ends[i]].view(shapes[i])
            step = 1 if letter == "k" else share
            return x.narrow(rank + 1, first * step, own * step)

        members.append(_Member((*axes, scale, clamp), place, cut))

    def join(letter: str, parts: list[Any], like: Any) -> Any:
        if letter == "b":
            return torch.cat([part.reshape(-1) for part in parts])
        return torch.cat(parts, dim=rank + 1)

    return _Kind(members, join)


_LETTERS = "qkkb"


def _jvp(
    kind: _Kind, inputs: Sequence[Any], tangents: Sequence[Any], need_lse: bool
) -> tuple[Tensor, ...]:
    query, value = inputs[0], inputs[2]
    found = []
    for member in kind.members:
        own = [member.cut(x, letter) for x, letter in zip(inputs, _LETTERS)]
        own_tangents = [member.cut(x, letter) for x, letter in zip(tangents, _LETTERS)]
        pad = [None] * (6 - len(own))
        problem = Problem.of([*own, *pad], (*member.parameters, False, *member.place), 7)
        wide = problem.wide([*own_tangents, *pad])
        found.append(problem.results_along(problem.along(wide), wide))
    if not found:
        return tuple([x.zero_() for x in _results(query, value, need_lse)])
    return tuple([kind.join("q", list(parts), query) for parts in zip(*found)][: 1 + need_lse])


def _second(
    kind: _Kind, saved: Sequence[Any], wanted: Sequence[bool], given: Sequence[Any], needed: Sequence[bool]
) -> list[Any]:
    """What is handed back of gradients `given` for the gradients: for each of the tensors in `saved`, the group's inputs, then out,
    lse, d_out and d_lse."""
    inputs = len(saved) - 4
    letters = _LETTERS[:inputs] + "qqqq"
    grads = iter(given)
    by_input = [next(grads) if want else None for want in wanted]
    pad, not_wanted = [None] * (6 - inputs), [False] * (6 - inputs)
    found: list[list[Any]] = []
    for member in kind.members:
        own = [member.cut(x, letter) for x, letter in zip(saved, letters)]
        own_grads = [member.cut(x, letter) for x, letter in zip(by_input, _LETTERS)]
        context = SimpleNamespace(
            saved_tensors=(*own[:inputs], *pad, *own[inputs:]),
            parameters=(*member.parameters, (*wanted, *not_wanted), *member.place),
            needs_input_grad=(*needed[:inputs], *not_wanted, *needed[inputs:]),
        )
        results = AttentionBackward.backward(context, *[x for x, want in zip(own_grads, wanted) if want])
        found.append([*results[:inputs], *results[6:10]])

    def joined(i: int) -> Any:
        if not needed[i] or saved[i] is None:
            return None
        if not found:
            return torch.zeros_like(saved[i])
        return None if found[0][i] is None else kind.join(letters[i], [of[i] for of in found], saved[i])

    return [joined(i) for i in range(len(saved))]


def _second_jvp(
    kind: _Kind, saved: Sequence[Any], wanted: Sequence[bool], tangents: Sequence[Any]
) -> tuple[Tensor, ...]:
    inputs = len(saved) - 4
    letters = _LETTERS[:inputs] + "qqqq"
    pad, not_wanted = [None] * (6 - inputs), [False] * (6 - inputs)
    which = [i for i, want in enumerate(wanted) if want]
    found: list[Sequence[Any]] = []
    for member in kind.members:
        own = [member.cut(x, letter) for x, letter in zip(saved, letters)]
        own_tangents = [member.cut(x, letter) for x, letter in zip(tangents, letters)]
        context = SimpleNamespace(
            saved_tensors=(*own[:inputs], *pad, *own[inputs:]),
            parameters=(*member.parameters, (*wanted, *not_wanted), *member.place),
        )
        found.append(AttentionBackward.jvp(context, *own_tangents[:inputs], *pad, *own_tangents[inputs:]))
    if not found:
        return tuple([torch.zeros_like(saved[i]) for i in which])
    return tuple([kind.join(_LETTERS[i], [of[at] for of in found], saved[i]) for at, i in enumerate(which)])


# ---- formulas ----


class _Fused(Formula):
    """The derivatives of out and lse, which is computed for the backward call where it is not asked for. need_lse is the last parameter.

    apply also takes the results, with lse, in the place of what computes them."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        *inputs, parameters, results, from_dispatcher = arguments
        if type(results) is not tuple:  # what computes them
            results = tuple(results(*inputs, *parameters[:-1], True))
        ctx.save_for_backward(*inputs, *results)
        if from_dispatcher:
            ctx.save_for_forward(*inputs)
        ctx.set_materialize_grads(False)
        ctx.parameters = parameters
        return results if parameters[-1] else results[:1]


def _given(ctx: Any, d_out: OptionalTensor, d_lse: OptionalTensor) -> Any:
    return torch.zeros_like(ctx.saved_tensors[4]) if d_out is None and d_lse is not None else d_out


@register_formula(library, "na_varlen", 4)
class Varlen(_Fused):
    @staticmethod
    def backward(ctx: Any, d_out: OptionalTensor, d_lse: OptionalTensor = None) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        d_out = _given(ctx, d_out, d_lse)
        if d_out is None:
            return (None,) * 7
        query, key, value, table, out, lse = ctx.saved_tensors
        scale, whole, _ = ctx.parameters
        wanted = ctx.needs_input_grad[:3]
        found = iter(na_varlen_backward(query, key, value, out, lse, d_out, d_lse, table, scale, whole, wanted))
        return (*[next(found) if want else None for want in wanted], None, None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        *inputs, table = ctx.saved_tensors[:4]
        return _jvp(_of_packed(table, ctx.parameters[0]), inputs, tangents[:3], ctx.parameters[-1])


@register_formula(library, "na_varlen_backward", 8)
class VarlenBackward(Formula):
    @staticmethod
    def backward(ctx: Any, *grads: OptionalTensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        *saved, table = ctx.saved_tensors
        scale, _, wanted = ctx.parameters
        found = _second(_of_packed(table, scale), saved, wanted, grads, ctx.needs_input_grad)
        return (*found, None, None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: OptionalTensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        *saved, table = ctx.saved_tensors
        scale, _, wanted = ctx.parameters
        return _second_jvp(_of_packed(table, scale), saved, wanted, tangents[:7])


def _kind_of_sets(parameters: Sequence[Any], query: Tensor, key: Tensor) -> _Kind:
    sets, scale, flags = _sets_of(parameters)
    return _of_sets(sets, scale, bool(flags), query, key)


@register_formula(library, "na_sets", 4)
class Sets(_Fused):
    @staticmethod
    def backward(ctx: Any, d_out: OptionalTensor, d_lse: OptionalTensor = None) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        d_out = _given(ctx, d_out, d_lse)
        if d_out is None:
            return (None,) * 7
        *inputs, out, lse = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:4]
        found = iter(na_sets_backward(*inputs, out, lse, d_out, d_lse, *ctx.parameters[:-1], wanted))
        return (*[next(found) if want else None for want in wanted], None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        inputs = ctx.saved_tensors[:4]
        return _jvp(_kind_of_sets(ctx.parameters, *inputs[:2]), inputs, tangents[:4], ctx.parameters[-1])


@register_formula(library, "na_sets_backward", 8)
class SetsBackward(Formula):
    @staticmethod
    def backward(ctx: Any, *grads: OptionalTensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        saved = ctx.saved_tensors
        kind = _kind_of_sets(ctx.parameters, *saved[:2])
        found = _second(kind, saved, ctx.parameters[-1], grads, ctx.needs_input_grad)
        return (*found, None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: OptionalTensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        saved = ctx.saved_tensors
        kind = _kind_of_sets(ctx.parameters, *saved[:2])
        return _second_jvp(kind, saved, ctx.parameters[-1], tangents[:8])


def packed_layout_check(asked: Asked, table: np.ndarray, tensors: Sequence[OptionalTensor]) -> None:
    """Raises what a call would of tensors without memory."""
    layouts = example_layouts(asked.operation, tensors)
    if layouts is not None:
        _groups.check_packed(asked, table, layouts, True)
