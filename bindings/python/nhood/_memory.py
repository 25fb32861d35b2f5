"""Memory from the beginning of a cache line on: numpy's large arrays begin 16 bytes into one."""

from __future__ import annotations

import numpy as np

_LINE = 64


def aligned_bytes(size: int) -> np.ndarray:
    memory = np.empty(size + _LINE - 1, np.uint8)
    start = -memory.ctypes.data % _LINE
    return memory[start : start + size]
