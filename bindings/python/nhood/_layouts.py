"""How an array lies in memory: (shape, strides in bytes, dtype), hashable, so that it can be part of a plan's key."""

from __future__ import annotations

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
