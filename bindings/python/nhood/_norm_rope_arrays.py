"""RMS norm and rotary positions of arrays in CPU memory, in one pass, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from . import _device_arrays
from . import _library as c
from ._arrays import EXPORTED, find_kind, kinds, refuse_tangent
from ._functions import Array, PerAxis, number, per_axis
from ._layouts import Layout, packed_strides
from ._memory import aligned_bytes
from ._norm_rope import Request, check_options, check_rotary, check_tables, find_plan, tables_of
from ._plans import CPU, current_context


class _Read(NamedTuple):
    address: int
    layout: Layout
    owner: Any
    """keeps exported memory alive"""


def _read(array: Array, name: str) -> _Read:
    kind = kinds.get(type(array)) or find_kind(array, name)
    if kind is EXPORTED and _device_arrays.ordinal_of(array) is not None:
        raise NotImplementedError(f"{name} is on a CUDA device: nhood.torch.norm_rope takes tensors there")
    return _Read(*kind.read(array, name))


def _read_strided(array: Array, name: str) -> _Read:
    """ValueError for a view that the library's strides cannot describe."""
    read = _read(array, name)
    shape, strides, dtype = read.layout
    if 0 in shape:  # numpy's strides mean nothing then; the library names the length, if it is not that of the batch
        return read
    item_bytes = c.DTYPE_BYTES[dtype]
    if shape and shape[-1] > 1 and strides[-1] != item_bytes:
        raise ValueError(f"{name} has a stride of {strides[-1]} bytes on its last axis: that axis must be contiguous")
    if any(stride % item_bytes for stride in strides):
        raise ValueError(f"{name} has strides {strides} bytes, not multiples of its {item_bytes}-byte items")
    if not any(strides[:-1]) and any(length > 1 for length in shape[:-1]):
        raise ValueError(f"{name} has strides of 0 on every axis but the last: copy it")
    return read


def _read_weight(weight: Optional[Array], dtype: int, wide: int) -> Optional[_Read]:
    if weight is None:
        return None
    read = _read(weight, "weight")
    shape, strides, given = read.layout
    if given not in (dtype, wide):
        names = " or ".join(dict.fromkeys((c.DTYPE_NAMES[dtype], c.DTYPE_NAMES[wide])))
        raise ValueError(f"weight has dtype {c.DTYPE_NAMES[given]}: not {names}")
    if any(n > 1 and s != p for n, s, p in zip(shape, strides, packed_strides(shape, c.DTYPE_BYTES[given]))):
        raise ValueError(f"weight has strides {strides} bytes: it must be contiguous")
    return read


def _readable_table(table: Optional[Array], axis: int, dtype: np.dtype) -> Optional[np.ndarray]:
    if table is None:
        return None
    refuse_tangent(table, f"tables[{axis}]")
    try:
        array = np.asarray(table)
        if np.iscomplexobj(array):
            array = np.stack([array.real, array.imag], axis=-1)
        return np.ascontiguousarray(array, dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise type(error)(f"tables[{axis}] is no array of numbers: {error}") from None


def _run(
    x: Array,
    d_out: Optional[Array],
    tables: Optional[Sequence[Optional[Array]]],
    weight: Optional[Array],
    norm: Optional[str],
    eps: float,
    scale: float,
    pairs: str,
    offset: PerAxis,
) -> list[Array]:
    """Without d_out the result of norm_rope; with it the gradient of x and, if there is a weight, that of the weight."""
    read = _read_strided(x, "x")
    shape, _, dtype = read.layout
    rank = len(shape) - 3
    starts = per_axis(offset, rank, "offset") if rank > 0 else ()
    wide = c.DTYPE_F64 if dtype == c.DTYPE_F64 else c.DTYPE_F32
    numpy_wide = np.dtype(c.DTYPE_NAMES[wide])
    given = [_readable_table(table, axis, numpy_wide) for axis, table in enumerate(tables_of(tables, rank))]
    rotated = check_tables(shape, [None if table is None else table.shape for table in given], starts)
    of_weight = _read_weight(weight, dtype, wide)
    check_options(shape, norm, pairs, of_weight and of_weight.layout[0])
    of_d_out = None if d_out is None else _read_strided(d_out, "d_out")
    if of_d_out and of_d_out.layout[::2] != (shape, dtype):
        found = of_d_out.layout
        raise ValueError(
            f"d_out has shape {found[0]} and dtype {c.DTYPE_NAMES[found[2]]}, x {shape} and {c.DTYPE_NAMES[dtype]}"
        )
    weight_dtype = of_weight and of_weight.layout[2]
    request = Request(norm, pairs, number(eps, "eps"), number(scale, "scale"), rotated, starts, weight_dtype, False)
    inputs = {"x": read, "weight": of_weight, "d_y": of_d_out}
    addresses: dict[str, Any] = {name: tensor and tensor.address for name, tensor in inputs.items()}
    addresses["table"] = [None if table is None else table.ctypes.data for table in given]
    kind, results = kinds[type(x)], []
    outputs = {"y": read} if of_d_out is None else {"d_x": read, "d_weight": of_weight}
    for name, like in outputs.items():
        if like:
            result, addresses[name] = kind.empty(like.layout[0], like.layout[2])
            results.append(result)
    layouts = [tensor.layout for tensor in (read, of_d_out) if tensor]
    plan = find_plan(current_context(), CPU, request, *layouts)
    workspace = aligned_bytes(plan.workspace_bytes)
    plan.run(workspace.ctypes.data, None, **addresses)
    return [kind.wrap(result, x) for result in results] if kind.wrap else results


def norm_rope(
    x: Array,
    tables: Optional[Sequence[Optional[Array]]] = None,
    weight: Optional[Array] = None,
    *,
    norm: Optional[str] = "head",
    eps: float = 1e-6,
    scale: float = 1.0,
    pairs: str = "interleaved",
    offset: PerAxis = 0,
) -> Array:
    """RMS norm, scale and axial rotary positions of queries or keys in one pass over memory, on the CPU.

        z = x * rsqrt(mean(x^2) + eps) * weight * scale
        out[a], out[b] = z[a] * cos - z[b] * sin, z[a] * sin + z[b] * cos       for each pair of channels (a, b)

    x: [B, X.., H, D] on 1 to 3 axes X.., D even and at most 1024; read as it lies, its last axis contiguous, such as a part of a
        joined projection of query, key and value.
    tables: one per axis, or None for an axis that rotates nothing; None: none does. A table is [positions, pairs, 2], cosine and
        sine of each pair at each position, or complex [positions, pairs]; rotary_tables makes them. The first axis' pairs are
        the head's first, and so on; channels that are left are not rotated.
    weight: of the norm, [D], or [H * D] (or [H, D]) with norm = "token"; None: ones. Of x's dtype or float32 (float64 for float64),
        contiguous.
    norm: what the mean of squares is over: "head", D channels; "token", all H * D, at most 16384; None: no norm.
    scale: a factor of the result.
    pairs: "interleaved": channels 2p and 2p + 1 are pair p; "halves": p and p + R/2, of R channels that are rotated.
    offset: position of the first token on each axis, of tiles of a larger grid.

    Arithmetic is float32 (float64 for float64), the result, of x's dtype, shape and kind and contiguous, is rounded once. Arrays are
    numpy's, torch's on the CPU, or export memory of the CPU through DLPack; tables are what numpy.asarray takes.

    Raises ValueError for values, shapes, dtypes and layouts that are not legal, TypeError for arguments of other types, with a text
    that names the argument, its value and the limit; NotImplementedError for arrays on a CUDA device.
    """
    return _run(x, None, tables, weight, norm, eps, scale, pairs, offset)[0]


def norm_rope_backward(
    d_out: Array,
    x: Array,
    tables: Optional[Sequence[Optional[Array]]] = None,
    weight: Optional[Array] = None,
    *,
    norm: Optional[str] = "head",
    eps: float = 1e-6,
    scale: float = 1.0,
    pairs: str = "interleaved",
    offset: PerAxis = 0,
) -> Any:
    """Gradients of norm_rope: that of x alone, or, with a weight, those of x and of the weight.

    d_out: the gradient of its result, of x's shape and dtype, its last axis contiguous. The rest: as given to norm_rope. The
    gradient of x has its shape and dtype and is contiguous; that of the weight has the weight's, and is equal from run to run.

    Raises what norm_rope does.
    """
    results = _run(x, d_out, tables, weight, norm, eps, scale, pairs, offset)
    return results[0] if len(results) == 1 else tuple(results)


def rotary_tables(
    lengths: Sequence[int], dims: Sequence[int], base: float = 10000.0, *, dtype: Any = np.float32
) -> tuple[Optional[np.ndarray], ...]:
    """Tables for norm_rope, of positions 0, 1, .. on each axis and the frequencies base^(-2 i / dim) of pair i.

    lengths: positions on each axis, at least 1. dims: channels of a head that each axis rotates, even; 0 makes a None.
    base: above 0. Each table is [length, dim / 2, 2], cosine and sine, of the floating-point `dtype`.
    Frequencies are worked out in float64 and rounded to `dtype`, angles are of `dtype`.

    Raises ValueError for values that are not legal, TypeError for arguments of other types.
    """
    check_rotary(lengths, dims, base)
    if np.dtype(dtype).kind != "f":
        raise ValueError(f"dtype = {np.dtype(dtype)} is not a floating-point type")
    return tuple(_rotary_table(length, dim, base, dtype) if dim else None for length, dim in zip(lengths, dims))


def _rotary_table(length: int, dim: int, base: float, dtype: Any) -> np.ndarray:
    frequencies = (1.0 / base ** (np.arange(0, dim, 2, dtype=np.float64) / dim)).astype(dtype)
    angles = np.arange(length, dtype=dtype)[:, None] * frequencies
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)
