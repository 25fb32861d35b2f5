"""The problems that the tests of results share, and how far results may be from the f64 ones."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
from dense import Case

DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

# Unit roundoff of storage. The rest of a limit is a small multiple for the roundings that add up: inputs are
# rounded before the f64 results are computed, so what is left is arithmetic (f32 for 16-bit storage), weights
# rounded to storage, and the rounding of the result.
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

CASES = [
    Case((9,), (3,)),
    Case((17,), (4,), batch=2, heads=3, dim=5, dim_v=7),
    Case((31,), (6,), stride=(4,), dilation=(3,), heads=2, dim=16),
    Case((23,), (8,), stride=(4,), causal=(True,), heads=2, dim=16, extra=3),
    Case((40,), (40,), heads=2, dim=33),
    Case((7, 7), (3, 3), dim=32),
    Case((9, 11), (5, 4), stride=(1, 3), heads=4, kv_heads=2, dim=16, dim_v=24),
    Case((12, 10), (3, 5), dilation=(4, 2), batch=2, heads=2, bias=True, scale=0.3),
    Case((8, 13), (7, 7), heads=2, dim=32, bias=True, extra=2),
    Case((10, 9), (1, 9), causal=(False, True), heads=3, kv_heads=1, scale=-1.5),
    Case((14, 6), (7, 6), stride=(7, 6), heads=2, dim=64),
    Case((4, 5, 6), (3, 3, 3), heads=2, dim=16),
    Case((6, 7, 5), (3, 2, 5), stride=(2, 1, 5), dilation=(2, 3, 1), batch=2, dim=12, dim_v=4),
    Case((5, 6, 7), (3, 4, 2), causal=(True, False, True), heads=2, kv_heads=1, extra=1),
    Case((5, 4, 6), (3, 3, 4), heads=2, bias=True, extra=5, scale=0.0),
]

# Periodic axes, and queries and keys that cover a part of the grid.
PARTS = [
    Case((12,), (5,), periodic=(True,), heads=2),
    Case((24, 7), (4, 3), stride=(2, 1), dilation=(3, 2), periodic=(True, False), heads=2, kv_heads=1, bias=True),
    Case((4, 6, 5), (3, 5, 2), periodic=(False, True, True), dim=12, dim_v=4, extra=1),
    Case((9,), (5,), stride=(3,), dilation=(2,), grid=(31,), query_offset=(17,), key_offset=(4,), key_shape=(20,)),
    Case((3, 4), (5, 5), grid=(12, 10), query_offset=(9, 2), key_shape=(12, 10), batch=2, heads=2, bias=True),
    Case(  # without a key for the first queries
        (6, 5), (3, 3), grid=(9, 8), query_offset=(0, 3), key_offset=(4, 2), key_shape=(5, 4), heads=4, kv_heads=2
    ),
    Case(
        (2, 6, 5),
        (4, 3, 5),
        grid=(11, 6, 5),
        query_offset=(7, 0, 0),
        key_offset=(4, 0, 0),
        key_shape=(5, 6, 5),
        causal=(True, False, False),
    ),
    Case(  # boxes that wrap, and a causal axis
        (4, 7),
        (3, 4),
        stride=(2, 2),
        grid=(9, 12),
        query_offset=(5, 8),
        key_offset=(1, 10),
        key_shape=(7, 9),
        causal=(True, False),
        periodic=(False, True),
        heads=2,
        extra=2,
    ),
    Case(
        (5, 4),
        (3, 3),
        periodic=(True, True),
        grid=(6, 6),
        query_offset=(4, 1),
        key_offset=(5, 4),
        key_shape=(3, 6),
        bias=True,
    ),
]


def random_case(seed: int) -> Case:
    """Any legal problem of a few hundred tokens."""
    random = np.random.default_rng(seed)
    rank = int(random.integers(1, 4))
    axes = []
    for _ in range(rank):
        length = int(random.integers(1, (200, 20, 9)[rank - 1]))
        dilation = int(random.integers(1, min(length, 4) + 1))
        window = int(random.integers(1, length // dilation + 1))
        axes.append((length, window, int(random.integers(1, window + 1)), dilation, bool(random.random() < 0.25)))
    shape, window, stride, dilation, causal = zip(*axes)
    kv_heads = int(random.integers(1, 3))
    return Case(
        shape,
        window,
        stride,
        dilation,
        causal,
        batch=int(random.integers(1, 3)),
        heads=kv_heads * int(random.integers(1, 3)),
        kv_heads=kv_heads,
        dim=int(random.integers(1, 40)),
        dim_v=int(random.integers(1, 40)),
        bias=not any(causal) and bool(random.random() < 0.5),
        extra=int(random.integers(0, 4)),
    )


def random_part(seed: int) -> Case:
    """Any legal problem of a part of a grid, on axes of which some may be periodic."""
    random = np.random.default_rng(seed + 10_000)
    case = random_case(seed)
    lengths, periodic, boxes = [], [], []
    for length, stride, dilation, causal in zip(case.shape, case.stride, case.dilation, case.causal):
        wraps = not causal and bool(random.random() < 0.5)
        length = -(-length // (stride * dilation)) * stride * dilation if wraps else length
        box = []
        for _ in ("query", "key"):
            offset = int(random.integers(0, length))
            box += [offset, int(random.integers(1, (length if wraps else length - offset) + 1))]
        lengths.append(length)
        periodic.append(wraps)
        boxes.append(box)
    query_offset, shape, key_offset, key_shape = zip(*boxes)
    return replace(
        case,
        shape=shape,
        grid=tuple(lengths),
        periodic=tuple(periodic),
        query_offset=query_offset,
        key_offset=key_offset,
        key_shape=key_shape,
    )


def assert_near(got: np.ndarray, expected: np.ndarray, roundings: float, dtype: str, scale: float = 0) -> None:
    """Every element within `roundings` roundoffs of the largest magnitude (or of `scale`, if larger)."""
    assert got.shape == expected.shape
    finite = np.isfinite(expected)
    limit = roundings * ROUNDOFF[dtype] * max(scale, float(np.abs(expected[finite]).max(initial=0)))
    np.testing.assert_array_equal(got[~finite].astype(np.float64), expected[~finite])
    error = np.abs(np.where(finite, got.astype(np.float64), 0) - np.where(finite, expected, 0))
    worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    assert error[worst] <= limit, f"{got[worst]} at {worst}, expected {expected[worst]}, limit {limit:.2g}"
