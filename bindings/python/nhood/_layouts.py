"""How an array lies in memory: (shape, strides in bytes, dtype), hashable, so that it can be part of a plan's key."""

from __future__ import annotations

from typing import Optional

from ._library import DTYPE_NAMES

Layout = tuple[tuple[int, ...], tuple[int, ...], int]


def packed_strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """The strides of a C-contiguous array, in bytes."""
    strides = []
    for size in reversed(shape):
        strides.append(item_bytes)
        item_bytes *= size
    return tuple(reversed(strides))


def wrong_dtype(name: str, dtype: object) -> ValueError:
    return ValueError(f"{name} has dtype {dtype}: not one of {', '.join(DTYPE_NAMES.values())}")


def counted(number: int, one: str, many: Optional[str] = None) -> str:
    """1 entry, 2 entries."""
    return f"{number} {one if number == 1 else many or one + 's'}"
