"""Windows of an axis that are no formula: a range of keys for every query coordinate (nhood_windows of nhood.h).

Plans, caches and operators of torch know the windows of all axes by one text (`text_of`): "", or an entry for each axis between
commas, which is empty where the windows are a formula's. It says how many queries there are and what the library's problem text
says, and a table has its numbers behind "#": steps between the beginnings and between the ends of ranges, compressed, in base64; or,
behind "~", runs of equal ones, each with its length in front, if these are fewer numbers.
"""

from __future__ import annotations

import base64
import functools
import re
import weakref
import zlib
from collections.abc import Sequence
from operator import index
from typing import Any, NoReturn, Optional, Union

import numpy as np

from . import _library as c

_LETTER = {c.WINDOWS_TABLE: "t", c.WINDOWS_RESAMPLED: "r", c.WINDOWS_CUT: "z", c.WINDOWS_BLOCKS: "b"}
_OF_KEYS = (c.WINDOWS_TABLE, c.WINDOWS_RESAMPLED)
"""kinds that name their number of keys; others have as many keys as queries"""
_TEXT = re.compile(r"(\d+)(?:([tr])(\d+)(?:w(\d+))?|z(\d+)|b(\d+)\+(\d+))(?:v(\d+))?(?:([#~])([A-Za-z0-9+/]+=*))?")
_RANGE = re.compile(r"\{first (-?\d+), count (-?\d+)\}")
_FIELD = re.compile(r"windows\.(?:kind = \d+: the axis' )?(\w+) =? ?")

Pairs = Any
"""an integer array [L, 2], or a sequence of L pairs"""


class Windows:
    """The windows of one axis, as a range of keys for every query coordinate: an entry of `kernel_size`.

    Queries and keys of such an axis lie on two grids, with `queries` and `keys` coordinates, any two lengths. Query i attends the
    keys first .. first + count - 1 of row i of the table; neither first nor first + count ever decreases with i.

    table: [queries, 2], the pairs (first, count): integers with 0 <= first, 0 <= count, first + count <= keys.
    keys: how many there are, at least 1.

    Windows.resampled, Windows.cut and Windows.blocks make frequent ones, and `valid` leaves out padding. A Windows never changes;
    two are equal if their keys and ranges are, and can be hashed, copied and pickled.

    Raises ValueError for a table that is not legal, with the coordinate and both values; TypeError for what is not integers.
    """

    queries: int
    """coordinates of queries"""
    keys: int
    """coordinates of keys"""
    ranges: np.ndarray
    """int32 [queries, 2]: first and count of every query, read-only"""
    most: int
    """the most keys of a query, at least 1: how many slots the axis has in `attn`"""

    def __init__(self, table: Pairs, keys: int) -> None:
        pairs = _pairs(table)
        self._fill(c.WINDOWS_TABLE, len(pairs), _integer(keys, "keys"), 0, 0, None, pairs)

    @classmethod
    def resampled(cls, queries: int, keys: int, size: int) -> Windows:
        """Queries on a finer or coarser grid than keys, which cover the same extent: the `size` keys around the one nearest to a
        query, shifted at borders. 1 <= size <= keys.

        first = clamp((2i + 1) * keys // (2 * queries) - size // 2, 0, keys - size)."""
        return cls._made(c.WINDOWS_RESAMPLED, queries, keys, size)

    @classmethod
    def cut(cls, length: int, size: int) -> Windows:
        """Windows that shrink at borders, as those of a convolution with padding: the keys i - size // 2 .. i - size // 2 + size - 1
        that there are. 1 <= size."""
        return cls._made(c.WINDOWS_CUT, length, length, size)

    @classmethod
    def blocks(cls, length: int, size: int, shift: int = 0) -> Windows:
        """Blocks, as Swin's: query i attends the keys j of its own block, (j + shift) // size == (i + shift) // size. Those at
        the ends may be smaller. 1 <= size, 0 <= shift < size."""
        return cls._made(c.WINDOWS_BLOCKS, length, length, size, _integer(shift, "shift"))

    def valid(self, n: int) -> Windows:
        """The same, but for the keys from n on, which are padding. 0 <= n <= keys."""
        n = _integer(n, "n")
        kept = min(n, self._valid) if n <= self.keys else n  # which the library refuses
        return _new(self._kind, self.queries, self.keys, self._size, self._shift, kept, self._table)

    @property
    def is_table(self) -> bool:
        """Whether its ranges are the caller's own, in no text of the library's."""
        return self._table is not None

    @property
    def inverse(self) -> np.ndarray:
        """int32 [keys, 2]: first and count of the queries that attend each key, read-only."""
        made = np.empty((self.keys, 2), np.int32)
        c.check(c.lib.nhood_windows_inverse(self.ranges.ctypes.data, self.queries, self.keys, made.ctypes.data))
        made.setflags(write=False)
        return made

    _kind: int
    _size: int
    _shift: int
    _valid: int
    _table: Optional[np.ndarray]
    _text: str
    """what it is made of: torch.compile reads it, and so can wait for no property to compute it"""

    @classmethod
    def _made(cls, kind: int, queries: int, keys: int, size: int, shift: int = 0) -> Windows:
        name = "queries" if kind == c.WINDOWS_RESAMPLED else "length"
        return _new(kind, _integer(queries, name), _integer(keys, "keys"), _integer(size, "size"), shift, None, None)

    def _fill(
        self,
        kind: int,
        queries: int,
        keys: int,
        size: int,
        shift: int,
        valid: Optional[int],
        table: Optional[np.ndarray],
    ) -> None:
        valid = keys if valid is None else valid
        own = self.__dict__
        own.update(queries=queries, keys=keys, _kind=kind, _size=size, _shift=shift, _valid=valid, _table=table)
        if queries < 1 or queries >= 2**31:  # before memory is allocated for them; the library says the same
            ranges = np.empty((1, 2), np.int32)
        elif table is not None and valid == keys:  # the library writes what it reads
            ranges = table
        else:
            ranges = np.empty((queries, 2), np.int32)
        status = c.lib.nhood_windows_ranges(self.borrowed(), queries, ranges.ctypes.data)
        if status:
            raise c.error(status, self._words(c.last_error()))
        ranges.setflags(write=False)
        own.update(ranges=ranges, most=max(1, int(np.ascontiguousarray(ranges[:, 1]).max())))
        own["_text"] = self._written()
        _live.setdefault(self._text, self)

    def borrowed(self) -> c.Windows:
        """The library's struct, which borrows the table."""
        table = None if self._table is None else self._table.ctypes.data
        padding = self.keys - self._valid
        return c.Windows(self._kind, 0, self.keys, self._size, self._shift, padding, table)

    def record(self) -> list[np.ndarray]:
        """As words of 64 bits, in two parts: fields (nhood/_groups.py names them), and the ranges of a table."""
        fields = (self._kind, self.queries, self.keys, self._size, self._shift, self._valid)
        ranges = np.empty(0, np.int64) if self._table is None else self._table.view(np.int64).ravel()
        return [np.array(fields, np.int64), ranges]

    def _words(self, text: str) -> str:
        """The library's text about it in words of the caller."""
        text = _RANGE.sub(r"(\1, \2)", text).replace("windows.range[", "table[")
        found = _FIELD.match(text)
        if not found:
            return text
        field, rest = found[1], text[found.end() :]
        own_keys = self._kind in _OF_KEYS
        names = {"window": "size", "length": "queries" if own_keys else "length", "keys": "keys" if own_keys else "length"}
        if field == "padding":
            return f"n = {self._valid} {rest.partition(' ')[2]}"
        return f"{names.get(field, field)} = {rest}"

    def _written(self) -> str:
        at = f"{self.queries}{_LETTER[self._kind]}"
        if self._kind == c.WINDOWS_RESAMPLED:
            at += f"{self.keys}w{self._size}"
        elif self._kind == c.WINDOWS_TABLE:
            at += f"{self.keys}"
        else:
            at += f"{self._size}" + f"+{self._shift}" * (self._kind == c.WINDOWS_BLOCKS)
        at += f"v{self._valid}" * (self._valid < self.keys)
        if self._table is None:
            return at
        steps = np.empty((self.queries, 2), "<i4")
        for side, ends in enumerate((self._table[:, 0], self._table[:, 0] + self._table[:, 1])):
            steps[0, side] = ends[0]
            np.subtract(ends[1:], ends[:-1], out=steps[1:, side])
        both = steps.view(np.int64).ravel()
        starts = np.flatnonzero(np.concatenate([[True], both[1:] != both[:-1]]))
        runs = len(starts) * 3 < self.queries * 2
        if runs:
            lengths = np.diff(starts, append=self.queries).astype("<i4")
            steps = np.concatenate([lengths[:, None], steps[starts]], axis=1)
        return f"{at}{'~' if runs else '#'}{base64.b64encode(zlib.compress(steps.tobytes(), 1)).decode()}"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Windows):
            return NotImplemented
        return self.keys == other.keys and np.array_equal(self.ranges, other.ranges)

    def __hash__(self) -> int:
        if "_hash" not in self.__dict__:
            self.__dict__["_hash"] = hash((self.keys, self.ranges.tobytes()))
        return self.__dict__["_hash"]

    def __repr__(self) -> str:
        if self._kind == c.WINDOWS_TABLE:
            least, most = int(self.ranges[:, 1].min()), int(self.ranges[:, 1].max())
            counts = f"{least}" if least == most else f"{least} to {most}"
            rows = "1 range" if self.queries == 1 else f"{self.queries} ranges"
            made = f"Windows(<{rows} of {counts} keys>, keys={self.keys})"
        elif self._kind == c.WINDOWS_RESAMPLED:
            made = f"Windows.resampled(queries={self.queries}, keys={self.keys}, size={self._size})"
        elif self._kind == c.WINDOWS_CUT:
            made = f"Windows.cut(length={self.queries}, size={self._size})"
        else:
            made = f"Windows.blocks(length={self.queries}, size={self._size}, shift={self._shift})"
        return made + f".valid({self._valid})" * (self._valid < self.keys)

    def __reduce__(self) -> tuple[Any, ...]:
        return _read, (self._text,)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{name}: a Windows cannot be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: a Windows cannot be changed")


KernelSize = Union[int, Windows, Sequence[Union[int, Windows]]]


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        raise TypeError(f"{name} = {value!r} is not an integer")
    try:
        value = index(value)
    except TypeError:
        raise TypeError(f"{name} = {value!r} is not an integer") from None
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} = {value} does not fit 64 bits")
    return value


def _pairs(table: Pairs) -> np.ndarray:
    """Contiguous int32 [L, 2], a copy that nobody else has."""
    given = np.asarray(table)
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"table has entries of {given.dtype}, not integers")
    if given.ndim != 2 or given.shape[1] != 2:
        raise ValueError(f"table.shape = {given.shape}, expected [queries, 2]: first and count of each")
    pairs = np.array(given, np.int32, order="C")
    if given.dtype != np.int32 and not np.array_equal(pairs, given):
        i = int(np.flatnonzero((pairs != given).any(axis=1))[0])
        raise ValueError(f"table[{i}] = ({given[i, 0]}, {given[i, 1]}) does not fit 32 bits")
    return pairs


_live: weakref.WeakValueDictionary[str, Windows] = weakref.WeakValueDictionary()
"""by text: what a plan is made of need not be read from it again"""


def _new(*fields: Any) -> Windows:
    made = object.__new__(Windows)
    made._fill(*fields)
    return made


@functools.lru_cache(maxsize=128)
def of_record(record: bytes) -> Windows:
    """From the words of `Windows.record`."""
    words = np.frombuffer(record, np.int64)
    kind, *fields = words[:6].tolist()
    return _new(kind, *fields, words[6:].view(np.int32).reshape(-1, 2) if kind == c.WINDOWS_TABLE else None)


def _read(text: str) -> Windows:
    """The windows of one entry of a text."""
    found = _TEXT.fullmatch(text)
    if not found:
        raise _not_a_text(text)
    queries, letter, keys, of_resampled, of_cut, of_blocks, shift, valid, how, numbers = found.groups()
    size = of_resampled or of_cut or of_blocks
    if (letter == "t") != (numbers is not None) or (letter == "r") != (of_resampled is not None):
        raise _not_a_text(text)
    kind = {"t": c.WINDOWS_TABLE, "r": c.WINDOWS_RESAMPLED}.get(letter)
    if kind is None:
        kind = c.WINDOWS_CUT if of_cut else c.WINDOWS_BLOCKS
    table = _numbers(text, int(queries), how, numbers) if numbers else None
    kept = None if valid is None else int(valid)
    return _new(kind, int(queries), int(keys or queries), int(size or 0), int(shift or 0), kept, table)


def _numbers(text: str, queries: int, how: str, numbers: str) -> np.ndarray:
    unpack = zlib.decompressobj()
    columns = 3 if how == "~" else 2
    try:
        steps = unpack.decompress(base64.b64decode(numbers), 8 * queries + 1)
    except (ValueError, zlib.error):
        raise _not_a_text(text) from None
    if not steps or len(steps) % (4 * columns) or len(steps) > 8 * queries:
        raise _not_a_text(text)
    rows = np.frombuffer(steps, "<i4").reshape(-1, columns)
    lengths = rows[:, 0].astype(np.int64) if columns == 3 else np.ones(len(rows), np.int64)
    if (lengths < 1).any() or lengths.sum() != queries:
        raise _not_a_text(text)
    rows = np.repeat(rows[:, -2:], lengths, axis=0) if columns == 3 else rows
    ends = rows.cumsum(axis=0, dtype=np.int64)
    return _pairs(np.stack([ends[:, 0], ends[:, 1] - ends[:, 0]], axis=1))


def _not_a_text(text: str) -> ValueError:
    return ValueError(f"windows = {text[:80]!r} is no text of a Windows")


def text_of(kernel_size: Sequence[Any]) -> str:
    """The text of the windows of all axes, "" if none has a Windows."""
    entries = [entry._text if isinstance(entry, Windows) else "" for entry in kernel_size]
    return ",".join(entries) if any(entries) else ""


@functools.lru_cache(maxsize=128)
def windows_of(text: str) -> tuple[Optional[Windows], ...]:
    """The windows of all axes of a text, None for those of a formula; () for no text."""
    return tuple([_live.get(entry) or _read(entry) if entry else None for entry in text.split(",")]) if text else ()
