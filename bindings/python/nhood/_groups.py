"""Groups of problems: many members in the same arrays, in one plan and one call.

The members of packed arrays, [1, tokens, heads, channels], are the rows of a table of int64: the first token of the member's
queries and of its keys, then for each axis what AXIS names. Members without tokens have a length of 0.

Behind the members there may be rows that begin with -1. What else they hold is, row after row, the table's data: a record for each
Windows, of what RECORD names and, of a table, its ranges, a word for first and count of each query.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from . import _library as c
from . import _quick, _words
from ._layouts import Layout, packed_strides
from ._operations import FORWARD, Operation, Tensor, bind, dtype_of, tensor_dtype
from ._plans import Context, Outputs, PlanOwner, cached_groups, current_options, give_back, int_in, take_scratch
from ._windows import Windows, of_record, windows_of

AXIS = ("length", "window", "stride", "dilation", "causal", "query_length", "key_length", "windows")
"""What a row has for each axis. query_length and key_length are 0 where queries and keys cover all of it, as boxes at its beginning otherwise.
windows is 0 where these are by formula, and else the number of the first word of their record in the table's data, counted from 1:
key_length then is the number of keys."""
FIRSTS = 2
_EMPTY = (1, 1, 1, 1, 0, 0, 0, 0)
"""an axis of a member without tokens, as the library is asked about it"""
RECORD = ("kind", "queries", "keys", "size", "shift", "valid")

_PROBLEM = np.dtype(c.Problem)
_PROBLEM_WORDS = ctypes.sizeof(c.Problem) // 8
_IO_WORDS = ctypes.sizeof(c.Io) // 8
_IO_DATA = c.Io.data.offset // 8


def row_words(rank: int) -> int:
    return FIRSTS + len(AXIS) * rank


def rank_of(words: int) -> int:
    """The rank of a table whose rows have so many words."""
    rank, rest = divmod(words - FIRSTS, len(AXIS))
    if rest or rank not in (1, 2, 3):
        raise ValueError(f"table has rows of {words} words, not of {', '.join(str(row_words(r)) for r in (1, 2, 3))}")
    return rank


class Asked(NamedTuple):
    """What is asked for beside arrays and members."""

    operation: Operation
    scale: Optional[float]
    flags: int
    wanted: tuple[bool, ...]
    """per output"""


class GroupPlan(NamedTuple):
    owner: PlanOwner
    workspace_bytes: int
    count: int
    outputs: Outputs
    slots: tuple[int, ...]
    """of the inputs, then of the outputs that are there"""
    offsets: bytes
    """where members begin: int64 in bytes, [member, slot]"""
    whole: tuple[bool, bool]
    """whether every token of queries, and of keys, is one of a member"""

    @property
    def handle(self) -> ctypes.c_void_p:
        assert self.owner.handle is not None  # of one whose making was interrupted, which no plan has
        return self.owner.handle

    @property
    def offset_array(self) -> np.ndarray:
        return np.frombuffer(self.offsets, np.int64).reshape(self.count, len(self.slots))

    def comes_again(self) -> bool:
        """Whether it was asked before, which is worth remembering: batches of new sizes may come without end."""
        before, self.owner.called = self.owner.called, True
        return before


# ---- problems ----


def blank_problem(asked: Asked, dtype: int, rank: int) -> c.Problem:
    """What is asked, on axes and heads that are to be filled in."""
    problem = c.Problem()
    c.lib.nhood_problem_init_sized(problem, ctypes.sizeof(problem), asked.operation.code, dtype, rank)
    problem.flags = asked.flags
    if asked.scale is not None:
        if asked.scale != asked.scale:  # to the library, NaN means the default
            raise ValueError("scale = nan is not finite")
        problem.scale = asked.scale
    return problem


def _blank(asked: Asked, dtype: int, rank: int, count: int) -> np.ndarray:
    return np.frombuffer(bytearray(bytes(blank_problem(asked, dtype, rank)) * count), _PROBLEM)


def _words_of(problems: np.ndarray) -> np.ndarray:
    """The same memory as words, [member, word]: many fields of all members are then set by one assignment, where numpy takes some
    microseconds for each field."""
    return problems.view(np.int64).reshape(len(problems), _PROBLEM_WORDS)


@functools.lru_cache(maxsize=None)
def _axis_columns(rank: int) -> np.ndarray:
    """The words of length, window, stride and dilation of each axis."""
    first, size = c.Problem.axis.offset // 8, ctypes.sizeof(c.Axis) // 8
    return np.array([first + size * axis + i for axis in range(rank) for i in range(4)], np.intp)


@functools.lru_cache(maxsize=256)
def _stride_columns(slots: tuple[int, ...], rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The words of the strides of batch and axes of each slot, and of its head."""
    first, size = c.Problem.strides.offset // 8, ctypes.sizeof(c.Strides) // 8
    strided = [first + size * slot + i for slot in slots for i in range(1 + rank)]
    heads = [first + size * slot + c.Strides.head.offset // 8 for slot in slots]
    return np.array(strided, np.intp), np.array(heads, np.intp)


def _fill_axes(problems: np.ndarray, axes: np.ndarray) -> None:
    """axes: [member, axis, len(AXIS)]"""
    rank = axes.shape[1]
    _words_of(problems)[:, _axis_columns(rank)] = axes[:, :, :4].reshape(len(axes), 4 * rank)
    if axes[:, :, 4].any():
        problems["axis"]["causal"][:, :rank] = axes[:, :, 4]
    if axes[:, :, 5:].any():
        problems["region"]["query_length"][:, :rank] = axes[:, :, 5]
        problems["region"]["key_length"][:, :rank] = np.where(axes[:, :, 7] == 0, axes[:, :, 6], 0)


def _fill_windows(problems: np.ndarray, axes: np.ndarray, windows: dict[int, Windows]) -> None:
    """They are to be kept as long as the problems, which borrow their tables."""
    for i, axis in zip(*np.nonzero(axes[:, :, 7])):
        of_axis = windows[int(axes[i, axis, 7])].borrowed()
        problems["windows"][i, axis] = np.frombuffer(bytes(of_axis), problems["windows"].dtype)[0]


def check_problems(problems: np.ndarray) -> None:
    """Raises what making a plan would of members that are not legal."""
    for i in range(len(problems)):
        problem = c.Problem.from_address(problems.ctypes.data + i * problems.itemsize)
        if c.lib.nhood_problem_cost(problem, None, None):
            raise ValueError(_words.of_member(f"member {i}: {c.last_error()}"))


def _create(context: Context, device: int, problems: np.ndarray) -> tuple[PlanOwner, int]:
    owner = PlanOwner()
    options = current_options(context)
    status = c.lib.nhood_plan_create_group(
        context.handle, device, problems.ctypes.data, len(problems), options, ctypes.byref(owner.handle)
    )
    if status:
        raise c.error(status, _words.of_options(_words.of_member(c.last_error())))
    return owner, c.lib.nhood_plan_workspace_bytes(owner.handle)


# ---- windows in tables ----


@functools.lru_cache(maxsize=128)
def _records(text: str) -> tuple[dict[str, int], np.ndarray]:
    """Returns where the record of each of a text's Windows begins, counted from 1, and the records in a row."""
    places: dict[str, int] = {}
    words: list[np.ndarray] = []
    at = 1
    for entry, of_axis in zip(text.split(","), windows_of(text)):
        if of_axis is None or entry in places:
            continue
        places[entry] = at
        words += of_axis.record()
        at += sum([len(part) for part in words[-2:]])
    return places, np.concatenate(words)


def data_rows(text: str, words: int) -> np.ndarray:
    """The rows of so many words that hold the records."""
    _, data = _records(text)
    rows = np.full((-(-len(data) // (words - 1)), words), -1, np.int64)
    padding = np.zeros(rows[:, 1:].size - len(data), np.int64)
    rows[:, 1:] = np.concatenate([data, padding]).reshape(-1, words - 1)
    return rows


def windows_words(lengths: np.ndarray, text: str) -> np.ndarray:
    """The words key_length and windows of the axes of samples, [samples, axes, 2]. text: an entry for each axis of each sample, or
    for each axis of all."""
    entries, (places, data) = text.split(","), _records(text)
    pairs = np.zeros((len(entries), 2), np.int64)
    for i, entry in enumerate(entries):
        if entry:
            pairs[i] = data[places[entry] - 1 + RECORD.index("keys")], places[entry]
    count, rank = lengths.shape
    if len(entries) not in (rank, count * rank):
        raise ValueError(f"windows = {text[:80]!r} has {len(entries)} entries, not {count} times {rank}")
    own = np.broadcast_to(pairs.reshape(-1, rank, 2), (count, rank, 2))
    return np.where((lengths == 0).any(axis=1)[:, None, None], 0, own)  # samples without tokens have no keys, either


def split_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The members' rows, and those of data."""
    members = int((table[:, 0] >= 0).sum())
    return table[:members], table[members:]


def axes_of(rows: np.ndarray) -> np.ndarray:
    """[member, axis, len(AXIS)]"""
    return rows[:, FIRSTS:].reshape(len(rows), rank_of(rows.shape[1]), len(AXIS))


def extents_of(axes: np.ndarray, side: int) -> np.ndarray:
    """Returns the extent of each member along each axis, for queries (side 0) or keys (1)."""
    if not axes[:, :, 5 + side].any():
        return axes[:, :, 0]
    return np.where(axes[:, :, 5 + side] == 0, axes[:, :, 0], axes[:, :, 5 + side])


def _table_windows(axes: np.ndarray, data: np.ndarray) -> dict[int, Windows]:
    """The Windows in a table by where they begin. ValueError for those that do not fit their axis."""
    found: dict[int, Windows] = {}
    for i, axis in zip(*np.nonzero(axes[:, :, 7])):
        length, *steps, query_length, keys, place = axes[i, axis].tolist()
        record = data[place - 1 : place - 1 + len(RECORD)].tolist() if place > 0 else []
        count = record[1] if record and record[0] == c.WINDOWS_TABLE else 0
        ranges = data[place - 1 + len(RECORD) :][: max(count, 0)]
        if len(record) < len(RECORD) or len(ranges) != count or query_length or keys != record[2]:
            raise ValueError(f"member {i}: the table has no record of the windows of axis {axis} at word {place} of its data")
        if place not in found:
            found[place] = of_record(np.concatenate([record, ranges]).astype(np.int64).tobytes())
        if length != record[1]:
            raise ValueError(f"member {i}: kernel_size[{axis}] = {found[place]} has {record[1]} queries, axis {axis} has {length}")
        for name, value, usual in zip(("window", "stride", "dilation", "is_causal"), steps, (1, 1, 1, 0)):
            if value != usual:
                value, usual = (bool(value), False) if name == "is_causal" else (value, usual)
                raise ValueError(f"member {i}: {name}[{axis}] = {value}: it must be {usual} where kernel_size[{axis}] = {found[place]}")
    return found


# ---- members in packed arrays ----


def _tokens(name: str, given: str, extents: np.ndarray, first: np.ndarray, total: int, whole: bool) -> np.ndarray:
    """Returns the tokens of each member. ValueError if members overlap, reach beyond the arrays or, if they are to be `whole`, leave gaps."""
    exact = extents.astype(np.float64).prod(axis=1)  # which does not overflow
    if (extents < 0).any() or exact.sum() > 2.0**62:
        raise ValueError(f"{given} {exact.sum():.0f} tokens, {name} has {total}")
    tokens = extents.prod(axis=1)
    if whole and tokens.sum() != total:
        raise ValueError(f"{given} {tokens.sum()} tokens, {name} has {total}")
    ends = first + tokens
    wrong = np.flatnonzero((first < np.concatenate([[0], ends[:-1]])) | (ends > total))
    if len(wrong):
        i = int(wrong[0])
        raise ValueError(
            f"member {i} has the tokens {first[i]} .. {ends[i]} of {name}: they overlap those before it, or reach beyond {total}"
        )
    return tokens


class Members(NamedTuple):
    """A table, read and checked."""

    axes: np.ndarray
    first: tuple[np.ndarray, np.ndarray]
    tokens: tuple[np.ndarray, np.ndarray]
    batch: np.ndarray
    """equal samples that follow each other, which are one member"""
    windows: dict[int, Windows]
    """by the axes' word"""


def read_table(table: np.ndarray, totals: tuple[int, int], whole: bool) -> Members:
    rows, axes, windows = _read_axes(table)
    first, one = (rows[:, 0], rows[:, 1]), np.ones(len(axes), np.int64)
    queries = _tokens("query", "layouts have", extents_of(axes, 0), first[0], totals[0], whole)
    if totals[0] == totals[1] and not axes[:, :, 5:].any() and (first[0] == first[1]).all():
        return Members(axes, first, (queries, queries), one, windows)  # keys are where queries are
    given = "layouts and windows have" if windows else "layouts have"
    keys = _tokens("key", given, extents_of(axes, 1), first[1], totals[1], whole)
    return Members(axes, first, (queries, keys), one, windows)


def table_windows(table: np.ndarray) -> tuple[np.ndarray, dict[int, Windows]]:
    """The members' rows, and their windows by table, by the axes' word."""
    rows, _, windows = _read_axes(table)
    return rows, windows


def _read_axes(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[int, Windows]]:
    """The members' rows, their axes [member, axis, len(AXIS)], a copy, and the windows."""
    rows, data = split_rows(table)
    axes = axes_of(rows).copy()
    return rows, axes, _table_windows(axes, np.ascontiguousarray(data[:, 1:]).ravel())


def _joined(members: Members) -> Members:
    """With equal samples that follow each other as entries of one batch, which are one launch."""
    same = (members.axes[1:] == members.axes[:-1]).all(axis=(1, 2))
    for first, tokens in zip(members.first, members.tokens):
        same &= first[1:] == first[:-1] + tokens[:-1]
    if not same.any():
        return members
    kept = np.flatnonzero(np.concatenate([[True], ~same])[: len(members.axes)])
    batch = np.diff(np.append(kept, len(members.axes)))
    pairs = [tuple(of[kept] for of in pair) for pair in (members.first, members.tokens)]
    return Members(members.axes[kept], *pairs, batch, members.windows)


def _problems_of(asked: Asked, dtype: int, sizes: dict[str, int], members: Members) -> np.ndarray:
    axes = members.axes
    blank = blank_problem(asked, dtype, axes.shape[1])
    blank.heads, blank.kv_heads, blank.dim, blank.dim_v = sizes["H"], sizes["K"], sizes["D"], sizes["V"]
    problems = np.frombuffer(bytearray(bytes(blank) * len(axes)), _PROBLEM)
    batch, empty = members.batch, (members.tokens[0] == 0) | (members.tokens[1] == 0)
    if empty.any():
        axes, batch = axes.copy(), np.where(empty, 0, batch)
        axes[empty] = _EMPTY
    _fill_axes(problems, axes)
    if members.windows:
        _fill_windows(problems, axes, members.windows)
    problems["batch"] = batch
    return problems


def _sizes(operation: Operation, layouts: Sequence[Optional[Layout]]) -> dict[str, int]:
    return bind(operation, layouts, 1, {"B": 1}, own_keys=(0,), may_be_none=("X0", "Y0"))


def _outputs(asked: Asked, dtype: int, sizes: dict[str, int], rank: int) -> Outputs:
    return tuple(
        (tuple(sizes[letter] for letter in tensor.letters(rank)), tensor_dtype(tensor, dtype)) if wanted else None
        for tensor, wanted in zip(asked.operation.outputs, asked.wanted)
    )


def _present(
    asked: Asked, layouts: Sequence[Optional[Layout]], outputs: Outputs
) -> list[tuple[Tensor, Layout]]:
    """The inputs, then the outputs, that are there. Outputs are packed."""
    inputs = [(of, layout) for of, layout in zip(asked.operation.inputs, layouts) if layout is not None]
    made = [
        (of, (output[0], packed_strides(output[0], c.DTYPE_BYTES[output[1]]), output[1]))
        for of, output in zip(asked.operation.outputs, outputs)
        if output is not None
    ]
    return inputs + made


def _steps(tensor: Tensor, layout: Layout, last: bool) -> list[int]:
    """Strides of an array in elements, but for its last axis if that has to be contiguous. ValueError if it is not."""
    shape, byte_strides, dtype = layout
    size = c.DTYPE_BYTES[dtype]
    if 0 in shape:  # numpy's are 0
        byte_strides = packed_strides(shape, size)
    if any(stride % size for extent, stride in zip(shape, byte_strides) if extent > 1):
        raise ValueError(f"{tensor.name} has strides {byte_strides} bytes, not multiples of its {size}-byte items")
    if last and shape[-1] > 1 and byte_strides[-1] != size:
        raise ValueError(
            f"{tensor.name} has a stride of {byte_strides[-1] // size} items on its last axis: that axis must be contiguous"
        )
    return [stride // size for stride in byte_strides]


def _lie_packed(problems: np.ndarray, present: Sequence[tuple[Tensor, Layout]], members: Members) -> np.ndarray:
    """Sets the members' strides in packed arrays, and returns their offsets in bytes, [member, array]."""
    words, (count, rank) = _words_of(problems), members.axes.shape[:2]
    offsets = np.empty((count, len(present)), np.int64)
    for side in (0, 1):
        places = [i for i, (of, _) in enumerate(present) if ("Y" in of.shape) == side]
        steps = [_steps(of, layout, of.shape[-1] in "DV") for of, layout in (present[i] for i in places)]
        extents = extents_of(members.axes, side)
        tokens = np.ones((count, 1 + rank), np.int64)  # of a batch entry, and of a step along each axis
        for axis in reversed(range(rank)):
            tokens[:, axis] = tokens[:, axis + 1] * extents[:, axis]
        strides = tokens[:, None, :] * np.array([own[1] for own in steps], np.int64)[:, None]
        batch = strides[:, :, 0]
        batch[batch == 0] = 1  # all zero would mean packed
        strided, heads = _stride_columns(tuple([present[i][0].slot for i in places]), rank)
        words[:, strided] = strides.reshape(count, len(strided))
        words[:, heads] = [own[2] for own in steps]
        bytes_of = [own[1] * c.DTYPE_BYTES[present[i][1][2]] for i, own in zip(places, steps)]
        offsets[:, places] = members.first[side][:, None] * np.array(bytes_of, np.int64)
    return offsets


def _totals(sizes: dict[str, int]) -> tuple[int, int]:
    return sizes["X0"], sizes["Y0"]


def check_table(table: np.ndarray) -> None:
    """ValueError for members that are not legal, whatever arrays they are of."""
    _, axes, windows = _read_axes(table)
    axes[(axes[:, :, 0] == 0).any(axis=1)] = _EMPTY
    problems = _blank(Asked(FORWARD, None, 0, (True, False)), c.DTYPE_F32, axes.shape[1], len(axes))
    _fill_axes(problems, axes)
    _fill_windows(problems, axes, windows)
    check_problems(problems)


def check_packed(asked: Asked, table: np.ndarray, layouts: Sequence[Optional[Layout]], whole: bool) -> None:
    """Raises what packed_plan would, but for want of a solver."""
    dtype, sizes = dtype_of(asked.operation, layouts), _sizes(asked.operation, layouts)
    check_problems(_problems_of(asked, dtype, sizes, read_table(table, _totals(sizes), whole)))


@cached_groups
def packed_plan(
    context: Context,
    device: int,
    asked: Asked,
    table: bytes,
    words: int,
    layouts: tuple[Optional[Layout], ...],
    whole: bool,
) -> GroupPlan:
    """The plan of the members in a table, whose rows have so many words, on packed arrays of these layouts."""
    dtype, sizes = dtype_of(asked.operation, layouts), _sizes(asked.operation, layouts)
    members = read_table(np.frombuffer(table, np.int64).reshape(-1, words), _totals(sizes), whole)
    samples = members
    members = _joined(samples)
    if len(members.axes) < len(samples.axes):  # else members have the index of their sample
        check_problems(_problems_of(asked, dtype, sizes, samples))
    problems = _problems_of(asked, dtype, sizes, members)
    outputs = _outputs(asked, dtype, sizes, 1)
    present = _present(asked, layouts, outputs)
    offsets = _lie_packed(problems, present, members)
    attended = members.batch * ((members.tokens[0] > 0) & (members.tokens[1] > 0))
    return GroupPlan(
        *_create(context, device, problems),
        len(problems),
        outputs,
        tuple([of.slot for of, _ in present]),
        offsets.tobytes(),
        tuple(int((of * attended).sum()) == total for of, total in zip(members.tokens, _totals(sizes))),  # type: ignore[arg-type]
    )


class PackedMembers(NamedTuple):
    """The members of packed arrays: a table, as bytes, the words of its rows, and whether they are all of the tokens."""

    table: bytes
    words: int
    whole: bool


class PackedKind(NamedTuple):
    """What packed arrays decide about the problems of their members, whatever the number of tokens."""

    blank: bytes
    """a problem, but for axes, batch and strides"""
    tensors: tuple[tuple[int, int, int, int, int], ...]
    """of the inputs, then of the outputs that are there: slot, 0 for queries or 1 for keys, bytes of an element, stride of tokens and
    of heads"""
    outputs: tuple[Optional[tuple[int, tuple[int, ...], int]], ...]
    """queries or keys, the axes behind the tokens, dtype"""


Behind = tuple[tuple[int, ...], tuple[int, ...], int]
"""of a packed array [1, tokens, ..]: the axes behind the tokens, the strides from that of tokens on, in elements, and the dtype"""


def packed_kind(asked: Asked, rank: int, arrays: Sequence[Optional[Behind]]) -> Optional[PackedKind]:
    """None for arrays that packed_plan refuses, or that have to be copied."""
    operation = asked.operation
    sizes: dict[str, int] = {}
    dtype = next(given[2] for given in arrays if given is not None)
    exact = c.DTYPE_F64 if dtype == c.DTYPE_F64 else c.DTYPE_F32
    tensors = []
    for of, given in zip(operation.inputs, arrays):
        if given is None:
            if not of.optional:
                return None
            continue
        extents, strides, own = given
        letters, last = of.shape[2:], of.shape[-1] in "DV"
        if len(extents) != len(letters) or own != (dtype if last else exact) or of.slot == c.BIAS:
            return None
        if any([sizes.setdefault(letter, extent) != extent or extent < 1 for letter, extent in zip(letters, extents)]):
            return None
        if extents[-1] > 1 and strides[-1] != 1 or not any(strides[:-1]):
            return None
        tensors.append((of.slot, int(of.shape[1] == "Y"), c.DTYPE_BYTES[own], strides[0], strides[1]))
    outputs: list[Optional[tuple[int, tuple[int, ...], int]]] = []
    for of, wanted in zip(operation.outputs, asked.wanted):
        if not wanted:
            outputs.append(None)
            continue
        if any([letter not in sizes for letter in of.shape[2:]]):
            return None
        extents = tuple([sizes[letter] for letter in of.shape[2:]])
        side, own = int(of.shape[1] == "Y"), tensor_dtype(of, dtype)
        outputs.append((side, extents, own))
        tensors.append((of.slot, side, c.DTYPE_BYTES[own], math.prod(extents), math.prod(extents[1:])))
    blank = blank_problem(asked, dtype, rank)
    blank.heads, blank.kv_heads, blank.dim, blank.dim_v = sizes["H"], sizes["K"], sizes["D"], sizes["V"]
    return PackedKind(bytes(blank), tuple(tensors), tuple(outputs))


def plan_quickly(context: Context, device: int, kind: PackedKind, members: PackedMembers, tokens: tuple[int, int]) -> Optional[GroupPlan]:
    """packed_plan by the module nhood_quick; None without it, and for what that leaves to packed_plan: windows by table, and whatever
    is wrong. tokens: of queries and of keys."""
    owner, options = PlanOwner(), current_options(context)
    assert context.handle is not None and owner.handle is not None
    where = context.handle.value, device, ctypes.addressof(options), ctypes.addressof(owner.handle)
    made = _quick.group_plan(kind.blank, members.table, members.words, kind.tensors, *tokens, members.whole, *where)
    if made is None:
        return None
    status, offsets, count, workspace_bytes, *whole = made
    if status in c.REFUSALS:
        return None
    if status:
        raise c.error(status, _words.of_options(c.last_error()))
    outputs = tuple([of and ((1, tokens[of[0]], *of[1]), of[2]) for of in kind.outputs])
    return GroupPlan(owner, workspace_bytes, count, outputs, tuple([of[0] for of in kind.tensors]), offsets, tuple(whole))


# ---- sets of heads ----


class HeadSets(NamedTuple):
    """Windows by sets of heads: of each set and axis, in one tuple, set by set."""

    count: int
    window: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    causal: tuple[bool, ...]
    periodic: tuple[bool, ...]
    windows: str = ""
    """as _windows.py writes them"""

    @property
    def tables(self) -> tuple[Optional[Windows], ...]:
        """The windows of each axis of each set, None where they are by formula; () if all are."""
        return windows_of(self.windows)


def parted(heads: int, sets: int) -> list[int]:
    """How many heads each set has: the last ones have one more where they do not part evenly."""
    return [heads // sets + (i >= sets - heads % sets) for i in range(sets)]


def _by_axis(sets: HeadSets, values: Sequence[Any]) -> np.ndarray:
    return np.array(values, np.int64).reshape(sets.count, -1)


def bias_shapes(sets: HeadSets, lengths: Sequence[int], heads: Sequence[int], clamp: bool) -> list[tuple[int, ...]]:
    """Returns the shape of each set's table: its heads, and 2k - 1 for each axis."""
    rank, shapes = len(sets.window) // sets.count, []
    for i, own in enumerate(heads):
        axes = range(i * rank, (i + 1) * rank)
        window = [sets.window[at] for at in axes]
        if clamp:
            dilation = [max(sets.dilation[at], 1) for at in axes]
            window = [max(1, min(k, length // d)) for k, length, d in zip(window, lengths, dilation)]
        shapes.append((int(own), *[2 * k - 1 for k in window]))
    return shapes


def _head_problems(
    asked: Asked, sets: HeadSets, layouts: Sequence[Optional[Layout]]
) -> tuple[np.ndarray, int, dict[str, int], list[int]]:
    """The sets' problems, their dtype, the sizes of the arrays, and the key/value heads of each set."""
    operation, rank = asked.operation, len(sets.window) // sets.count
    dtype = dtype_of(operation, layouts)
    without_bias = [None if of.slot == c.BIAS else layout for of, layout in zip(operation.inputs, layouts)]
    tables = sets.tables
    own_keys = [axis for axis in range(rank) if any(tables[axis::rank])]
    sizes = bind(operation, without_bias, rank, {}, own_keys)
    for axis in range(rank):
        sizes.setdefault(f"Y{axis}", sizes[f"X{axis}"])
    _check_tables(sets, sizes, layouts, operation)
    if sizes["K"] < sets.count:
        raise ValueError(f"kernel_size, stride and dilation are of {sets.count} sets of heads, there are {sizes['K']} key/value heads")
    if sizes["H"] % sizes["K"]:
        raise ValueError(f"the number of query heads {sizes['H']} is not a multiple of the {sizes['K']} key/value heads")
    kv_heads = parted(sizes["K"], sets.count)
    problems = _blank(asked, dtype, rank, sets.count)
    for i, table in enumerate(tables):
        if table is not None:
            problems["windows"][i // rank, i % rank] = np.frombuffer(bytes(table.borrowed()), problems["windows"].dtype)[0]
    for name, values in zip(("window", "stride", "dilation", "causal", "periodic"), sets[1:6]):
        for value in values:
            int_in(int(value), "kernel_size" if name == "window" else name, 63)
        problems["axis"][name][:, :rank] = _by_axis(sets, values)
    problems["axis"]["length"][:, :rank] = [sizes[f"X{axis}"] for axis in range(rank)]
    problems["batch"] = sizes["B"]
    problems["kv_heads"] = kv_heads
    problems["heads"] = np.array(kv_heads) * (sizes["H"] // sizes["K"])
    problems["dim"], problems["dim_v"] = sizes["D"], sizes["V"]
    return problems, dtype, sizes, kv_heads


def _check_tables(
    sets: HeadSets, sizes: dict[str, int], layouts: Sequence[Optional[Layout]], operation: Operation
) -> None:
    """ValueError if arrays do not have as many queries and keys as each set's windows of an axis."""
    rank, tables = len(sets.window) // sets.count, sets.tables
    if not tables:
        return
    if len(tables) != rank * sets.count:
        raise ValueError(f"windows = {sets.windows[:80]!r} has {len(tables)} entries, not {rank * sets.count}")
    if any(of.slot == c.BIAS and layout is not None for of, layout in zip(operation.inputs, layouts)):
        raise ValueError("bias with a Windows in kernel_size: a relative bias needs windows by formula on all axes")
    for i, table in enumerate(tables):
        place, axis = divmod(i, rank)
        queries, keys = sizes[f"X{axis}"], sizes[f"Y{axis}"]
        if table is None and queries == keys or table is not None and (table.queries, table.keys) == (queries, keys):
            continue
        own = f"kernel_size[{place}][{axis}] = {sets.window[i] if table is None else table}"
        raise ValueError(f"{own} does not fit {queries} queries and {keys} keys on axis {axis}")


def _fill_bias(
    asked: Asked, sets: HeadSets, problems: np.ndarray, sizes: dict[str, int], layouts: Sequence[Optional[Layout]]
) -> np.ndarray:
    """Says whether there is a bias, all tables in one array; returns the first entry of each set's, and the number of all."""
    rank = len(sets.window) // sets.count
    shapes = bias_shapes(
        sets, [sizes[f"X{a}"] for a in range(rank)], problems["heads"], bool(asked.flags & c.FLAG_CLAMP_WINDOW)
    )
    entries = np.cumsum([0, *[math.prod(shape) for shape in shapes]])
    for of, layout in zip(asked.operation.inputs, layouts):
        if of.slot == c.BIAS and layout is not None:
            problems["has_bias"] = 1
            if layout[0] != (entries[-1],):
                raise ValueError(f"bias.shape = {layout[0]}, expected ({entries[-1]},): all sets' tables in one")
    return entries


def check_heads(asked: Asked, sets: HeadSets, layouts: Sequence[Optional[Layout]]) -> None:
    """Raises what heads_plan would, but for want of a solver."""
    problems, _, sizes, _ = _head_problems(asked, sets, layouts)
    check_problems(problems)
    _fill_bias(asked, sets, problems, sizes, layouts)
    check_problems(problems)


def _lie_by_heads(problems: np.ndarray, tensor: Tensor, layout: Layout, kv_heads: Sequence[int]) -> np.ndarray:
    """Sets the strides of each set's heads in an array of all heads, and returns their offsets in bytes."""
    steps = _steps(tensor, layout, tensor.shape[-1] in "DV")
    heads = np.array(kv_heads) if "K" in tensor.shape else problems["heads"]
    head = tensor.letters(layout_rank(tensor, layout)).index("K" if "K" in tensor.shape else "H")
    strides = problems["strides"]
    for axis in range(head - 1):
        strides["axis"][:, tensor.slot, axis] = steps[1 + axis]
    strides["head"][:, tensor.slot], strides["batch"][:, tensor.slot] = steps[head], steps[0]
    return (np.cumsum(heads) - heads) * steps[head] * c.DTYPE_BYTES[layout[2]]


def layout_rank(tensor: Tensor, layout: Layout) -> int:
    return len(layout[0]) - len(tensor.shape) + 1


@cached_groups
def heads_plan(
    context: Context, device: int, asked: Asked, sets: HeadSets, layouts: tuple[Optional[Layout], ...]
) -> GroupPlan:
    """The plan of sets of heads on arrays of all heads; a bias and its gradient have all sets' tables in one array."""
    problems, dtype, sizes, kv_heads = _head_problems(asked, sets, layouts)
    check_problems(problems)
    entries = _fill_bias(asked, sets, problems, sizes, layouts)
    rank = len(sets.window) // sets.count
    outputs = tuple(
        None if not wanted else ((int(entries[-1]),), dtype) if of.slot == c.D_BIAS
        else (tuple(sizes[letter] for letter in of.letters(rank)), tensor_dtype(of, dtype))
        for of, wanted in zip(asked.operation.outputs, asked.wanted)
    )
    present = _present(asked, layouts, outputs)
    offsets = [
        entries[:-1] * c.DTYPE_BYTES[dtype] if of.slot in (c.BIAS, c.D_BIAS) else _lie_by_heads(problems, of, layout, kv_heads)
        for of, layout in present
    ]
    slots = tuple([of.slot for of, _ in present])
    owner, workspace_bytes = _create(context, device, problems)
    return GroupPlan(owner, workspace_bytes, sets.count, outputs, slots, np.stack(offsets, axis=1).tobytes(), (True, True))


AnyMembers = Union[PackedMembers, HeadSets]


def plan_of(
    context: Context, device: int, asked: Asked, members: AnyMembers, layouts: tuple[Optional[Layout], ...]
) -> GroupPlan:
    if isinstance(members, PackedMembers):
        return packed_plan(context, device, asked, members.table, members.words, layouts, members.whole)
    return heads_plan(context, device, asked, members, layouts)


# ---- executing ----


@functools.lru_cache(maxsize=256)
def _places(slots: tuple[int, ...]) -> np.ndarray:
    """The words of an io that are the pointers of these slots."""
    return np.array(slots, np.intp) + _IO_DATA


def _group_io(plan: GroupPlan, addresses: Sequence[int]) -> tuple[c.GroupIo, np.ndarray]:
    """The io struct, and the members' in it, which are to be kept as long."""
    members = np.zeros((plan.count, _IO_WORDS), np.int64)
    members[:, 0] = ctypes.sizeof(c.Io)
    members[:, _places(plan.slots)] = plan.offset_array + np.array(addresses, np.int64)
    io = c.GroupIo(struct_size=ctypes.sizeof(c.GroupIo), count=plan.count, member=members.ctypes.data)
    return io, members


def execute(plan: GroupPlan, addresses: Sequence[int]) -> None:
    """Runs a plan on the CPU, in a workspace from the pool. The addresses are those of the arrays that are there."""
    io, members = _group_io(plan, addresses)
    scratch = take_scratch()
    try:
        if scratch.io.workspace_bytes < plan.workspace_bytes:
            scratch.reserve(plan.workspace_bytes)
        io.workspace, io.workspace_bytes = scratch.io.workspace, scratch.io.workspace_bytes
        status = c.lib.nhood_plan_execute_group(plan.owner.handle, ctypes.byref(io))
    finally:
        give_back(scratch)
    _words.check_call(status)
    del members


def enqueue(plan: GroupPlan, addresses: Sequence[int], workspace: Optional[int], stream: int) -> None:
    """Enqueues a plan of a CUDA device."""
    io, members = _group_io(plan, addresses)
    io.workspace, io.workspace_bytes, io.stream = workspace, plan.workspace_bytes, stream
    _words.check_call(c.lib.nhood_plan_execute_group(plan.owner.handle, ctypes.byref(io)))
    del members


# ---- tables from layouts ----

_NAMES = ("layouts", "kernel_size", "stride", "dilation", "is_causal")


@functools.lru_cache(maxsize=512)
def layouts_table(
    rank: int,
    layouts: tuple[tuple[int, ...], ...],
    windows: tuple[tuple[int, ...], ...],
    strides: tuple[tuple[int, ...], ...],
    dilations: tuple[tuple[int, ...], ...],
    causal: tuple[bool, ...],
    tables: str = "",
) -> np.ndarray:
    """The table of samples of these layouts, packed one after the other; window, stride and dilation of each, or of all. tables: the
    Windows of each axis of each, or of all, as _windows.py writes them."""
    count = len(layouts)
    table = np.zeros((count, row_words(rank)), np.int64)
    axes = table[:, FIRSTS:].reshape(count, rank, len(AXIS))
    for i, (name, values) in enumerate(zip(_NAMES, (layouts, windows, strides, dilations, (causal,)))):
        try:
            column = np.array(values, np.int64)
        except OverflowError:
            for value in (value for row in values for value in row):
                int_in(int(value), name, 63)
            raise
        if count:
            axes[:, :, i] = column
    if tables:
        axes[:, :, 6:] = windows_words(axes[:, :, 0], tables)
    for side in (0, 1):
        tokens = extents_of(axes, side).prod(axis=1)
        table[:, side] = np.cumsum(tokens) - tokens
    if tables:
        table = np.concatenate([table, data_rows(tables, table.shape[1])])
    table.setflags(write=False)
    return table
