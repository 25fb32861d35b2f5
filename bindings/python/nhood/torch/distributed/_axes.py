"""One axis of a grid that is cut into shards: which keys the queries of each shard need beside its own, and who has them.
Integers alone; every process computes the same for all.

Tokens are counted along the grid. On a periodic axis the tokens before 0 and behind the last one are those of the turn before
and of the next: token t is the same as t - length.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..._windows import windows_of


class Window(NamedTuple):
    """An axis of the whole grid, as nhood.na1d describes it."""

    length: int
    kernel_size: int
    stride: int = 1
    dilation: int = 1
    is_causal: bool = False
    is_periodic: bool = False
    windows: str = ""
    """by table, as nhood/_windows.py writes them, of an axis that is not sharded; kernel_size is 1 there"""

    @property
    def mean_keys(self) -> float:
        """How many keys a query attends on average, where that is not causal."""
        table = windows_of(self.windows)
        return float(table[0].ranges[:, 1].mean()) if table and table[0] is not None else self.kernel_size

    def keys(self, token: int) -> tuple[int, int]:
        """First and last token that the query at `token` attends."""
        position, group = divmod(token, self.dilation)
        block = position // self.stride * self.stride
        last = (self.length - group - 1) // self.dilation
        if self.is_periodic:
            first = block + self.stride // 2 - self.kernel_size // 2
            return self._tokens(first, first + self.kernel_size - 1, group)
        if self.is_causal:
            leader = min(block + self.stride - 1, last)
            return self._tokens(max(leader - self.kernel_size + 1, 0), position, group)
        first = min(block + self.stride // 2, last) - self.kernel_size // 2
        first = max(min(first, last + 1 - self.kernel_size), 0)
        return self._tokens(first, first + self.kernel_size - 1, group)

    def _tokens(self, first: int, last: int, group: int) -> tuple[int, int]:
        return first * self.dilation + group, last * self.dilation + group

    def pairs(self, tokens: int) -> int:
        """How many keys the queries [0, tokens) of a causal axis attend together."""
        (queries, more_queries), (size, larger) = divmod(tokens, self.dilation), divmod(self.length, self.dilation)
        cuts = sorted((0, more_queries, larger, self.dilation))  # groups of tokens between two cuts are alike
        return sum(
            (end - begin) * self._pairs_of_group(queries + (begin < more_queries), size + (begin < larger))
            for begin, end in zip(cuts, cuts[1:])
        )

    def _pairs_of_group(self, queries: int, size: int) -> int:
        """The same of the first queries in a group of `size` tokens that are `dilation` apart: all keys up to each query, less those
        before its window. Of these, the queries of a whole block b have (b + 1) * stride - kernel_size each, if that is positive."""
        blocks, rest = divmod(queries, self.stride)
        none = min(self.kernel_size // self.stride, blocks)  # blocks whose windows begin at the first token
        hidden = self.stride * (blocks * (blocks + 1) - none * (none + 1)) // 2 - self.kernel_size * (blocks - none)
        hidden_from_rest = max(min((blocks + 1) * self.stride, size) - self.kernel_size, 0)
        return queries * (queries + 1) // 2 - self.stride * hidden - rest * hidden_from_rest

    def keys_of(self, begin: int, end: int) -> tuple[int, int]:
        """The least range [first, end) that has all keys of the queries [begin, end). Of a group of tokens that are `dilation`
        apart, the first query attends the first key, and the last query the last one."""
        groups = min(self.dilation, end - begin)
        first = min(self.keys(token)[0] for token in range(begin, begin + groups))
        last = max(self.keys(token)[1] for token in range(end - groups, end))
        return first, last + 1


class Segment(NamedTuple):
    """Tokens that one shard has, in one piece."""

    owner: int
    start: int
    """in the shard"""
    length: int
    token: int
    """the first of them, in the order of who needs them"""


class Halo(NamedTuple):
    """Keys [first, last) on one side of a shard, and the shard's queries [begin, end) among which are all that attend some of
    them."""

    begin: int
    end: int
    first: int
    last: int


class Shard(NamedTuple):
    """What a process does along an axis: all its queries attend its own keys, and those of a halo the halo's keys."""

    begin: int
    end: int
    halos: tuple[Halo, ...]
    needs: tuple[Segment, ...]
    """what the others have: all keys of the halos"""


def boundaries(sizes: Sequence[int]) -> tuple[int, ...]:
    """Where shards of these sizes begin, and where the last one ends."""
    found = [0]
    for size in sizes:
        found.append(found[-1] + size)
    return tuple(found)


def chunks(length: int, shards: int) -> tuple[int, ...]:
    """The sizes that torch.chunk makes. ValueError if there are fewer chunks than shards."""
    size = -(-length // shards)
    sizes = tuple(max(0, min(size, length - shard * size)) for shard in range(shards))
    if 0 in sizes:
        raise ValueError(
            f"an axis of {length} tokens makes {sizes.index(0)} chunks of {size}, not one for each of {shards} processes"
        )
    return sizes


@functools.lru_cache(maxsize=1024)
def balanced(window: Window, shards: int, multiple_of: int = 1) -> tuple[int, ...]:
    """Sizes with which every shard's queries attend about as many keys, all but the last multiples of `multiple_of`.
    ValueError if that leaves a shard without tokens."""
    ends = [window.length * i / shards for i in range(1, shards)]
    if window.is_causal:
        everything = window.pairs(window.length)
        shares = [everything * i // shards for i in range(1, shards)]
        ends = [_least(1, window.length, lambda tokens: window.pairs(tokens) >= share) for share in shares]
    bounds = [0, *(round(end / multiple_of) * multiple_of for end in ends), window.length]
    sizes = tuple(end - begin for begin, end in zip(bounds, bounds[1:]))
    if min(sizes) < 1:
        raise ValueError(f"an axis of {window.length} tokens in {shards} shards of multiples of {multiple_of}: {sizes}")
    return sizes


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least number of [low, high) from which on `holds` is true, `high` if there is none."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _first_within(window: Window, begin: int, end: int) -> int:
    """The first query from which on no key lies before `begin`."""
    found = begin
    for token in range(begin, min(begin + window.dilation, end)):
        group = range(token, end, window.dilation)
        # the first of the group with all keys from `begin` on
        first = _least(0, len(group), lambda i: window.keys(group[i])[0] >= begin)
        if first:
            found = max(found, group[first - 1] + 1)
    return found


def _last_within(window: Window, begin: int, end: int) -> int:
    """The query before which no key lies at `end` or behind."""
    found = end
    for token in range(end - 1, max(end - 1 - window.dilation, begin - 1), -1):
        group = range(token, begin - 1, -window.dilation)
        # back to the last of the group with all keys before `end`
        last = _least(0, len(group), lambda i: window.keys(group[i])[1] < end)
        if last:
            found = min(found, group[last - 1])
    return found


def segments(bounds: Sequence[int], first: int, last: int, periodic: bool) -> list[Segment]:
    """The tokens [first, last) by their owners, in order."""
    found, length, token = [], bounds[-1], first
    while token < last:
        at = token % length if periodic else token
        owner = max(i for i in range(len(bounds) - 1) if bounds[i] <= at)
        count = min(bounds[owner + 1] - at, last - token)
        found.append(Segment(owner, at - bounds[owner], count, token))
        token += count
    return found


@functools.lru_cache(maxsize=1024)
def shard(window: Window, sizes: tuple[int, ...], index: int, everything: bool = False) -> Shard:
    """What the process with shard `index` of an axis does; `everything`: with all keys of the axis (gather).

    Where a periodic axis comes to be needed as a whole, the halo behind the shard has all other keys."""
    bounds = boundaries(sizes)
    begin, end = bounds[index], bounds[index + 1]
    first, last = window.keys_of(begin, end)
    around = window.is_periodic and (everything or max(last, end) - min(first, begin) >= window.length)
    if around:
        first, last = begin, begin + window.length  # every token once
    elif everything:
        first, last = 0, window.length
    halos = [
        Halo(begin, _first_within(window, begin, end), first, begin),
        Halo(begin if around else _last_within(window, begin, end), end, end, last),
    ]
    needs = [s for halo in halos for s in segments(bounds, halo.first, halo.last, window.is_periodic)]
    attended = tuple(halo for halo in halos if halo.begin < halo.end and halo.first < halo.last)
    return Shard(begin, end, attended, tuple(needs))


SAMPLES = 64


@functools.lru_cache(maxsize=1024)
def outside(window: Window, part: Shard) -> float:
    """The share of the keys of a shard's queries that others have, of at most SAMPLES queries of each halo."""
    found = 0.0
    for halo in part.halos:
        step = max(1, (halo.end - halo.begin) // SAMPLES)
        queries = range(halo.begin, halo.end, step)
        keys = [window.keys(query) for query in queries]
        seen = sum(max(0, min(last + 1, halo.last) - max(first, halo.first)) for first, last in keys)
        found += seen / window.dilation / len(queries) * (halo.end - halo.begin)
    return min(1.0, found / window.kernel_size / (part.end - part.begin))
