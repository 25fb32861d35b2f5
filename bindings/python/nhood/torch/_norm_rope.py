"""RMS norm and rotary positions of queries or keys, in one pass over memory, with its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import Function

from .. import _library as c
from .. import _norm_rope as of_library
from .. import _plans
from .._functions import PerAxis, number, per_axis
from .._memory import aligned_bytes
from . import _tensors
from ._dispatch import directly
from ._ops import _library
from ._transforms import once_each

Ints = Sequence[int]

_PARAMETERS = "str? norm, str pairs, float eps, float scale, SymInt[] offset"
_TABLES = "Tensor? table_0, Tensor? table_1, Tensor? table_2"
_library.define(f"norm_rope(Tensor x, Tensor? weight, {_TABLES}, {_PARAMETERS}) -> Tensor")
_library.define(
    f"norm_rope_backward(Tensor x, Tensor? weight, {_TABLES}, Tensor d_out, {_PARAMETERS}, bool[] wanted) -> Tensor[]"
)
"""The second returns one gradient per True in `wanted`, of x and weight."""


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What arithmetic is made in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _readable(name: str, tensor: Tensor) -> Tensor:
    readable = _tensors._readable(name, tensor.shape, tensor.stride(), tensor.dtype)
    return tensor if readable else tensor.contiguous()


def _readable_table(table: Optional[Tensor], dtype: torch.dtype) -> Optional[Tensor]:
    if table is None:
        return None
    table = table.to(dtype).contiguous()
    return table.clone() if table.data_ptr() % _plans.CUDA_ALIGNMENT else table


def _readable_weight(weight: Optional[Tensor], dtype: torch.dtype) -> Optional[Tensor]:
    if weight is None:
        return None
    return (weight if weight.dtype in (dtype, _wide(dtype)) else weight.to(_wide(dtype))).contiguous()


def _run(
    x: Tensor,
    weight: Optional[Tensor],
    tables: Sequence[Optional[Tensor]],
    d_out: Optional[Tensor],
    norm: Optional[str],
    pairs: str,
    eps: float,
    scale: float,
    offset: Ints,
    outputs: dict[str, Optional[Tensor]],
) -> None:
    """All tensors as the library reads them, and the results' memory."""
    names = ("weight", *(f"tables[{axis}]" for axis in range(len(tables))), "d_out")
    for name, tensor in zip(names, (weight, *tables, d_out)):
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device}, x on {x.device}")
    low_bits = 0
    for tensor in (x, d_out, outputs.get("y"), outputs.get("d_x")):
        low_bits |= 0 if tensor is None else tensor.data_ptr()
    request = of_library.Request(
        norm,
        pairs,
        eps,
        scale,
        tuple(0 if table is None else 2 * table.shape[1] for table in tables),
        tuple(offset),
        None if weight is None else _tensors._TO_DTYPE[weight.dtype],
        x.is_cuda and low_bits % _plans.CUDA_ALIGNMENT != 0,
    )
    ordinal = x.get_device()  # -1 for the CPU
    context = _plans.current_context()
    device = _plans.CPU if ordinal < 0 else context.cuda_device(ordinal)
    layouts = [_tensors._layout(t.shape, t.stride(), t.dtype) for t in (x, d_out) if t is not None]
    plan = of_library.find_plan(context, device, request, *layouts)
    addresses = {
        name: None if tensor is None else tensor.data_ptr()
        for name, tensor in (("x", x), ("weight", weight), ("d_y", d_out), *outputs.items())
    }
    addresses["table"] = [None if table is None else table.data_ptr() for table in tables]
    if ordinal < 0:
        memory = aligned_bytes(plan.workspace_bytes)
        plan.run(memory.ctypes.data, None, **addresses)
    else:
        workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=x.device)
        address = workspace.data_ptr() if plan.workspace_bytes else None
        plan.run(address, _tensors._current_stream(ordinal), **addresses)


def _norm_rope(
    x: Tensor,
    weight: Optional[Tensor],
    table_0: Optional[Tensor],
    table_1: Optional[Tensor],
    table_2: Optional[Tensor],
    *parameters: Any,
) -> Tensor:
    x = _readable("x", x)
    tables = [_readable_table(table, _wide(x.dtype)) for table in (table_0, table_1, table_2)][: x.dim() - 3]
    out = x.new_empty(x.shape)
    _run(x, _readable_weight(weight, x.dtype), tables, None, *parameters, {"y": out})
    return out


def _norm_rope_backward(
    x: Tensor,
    weight: Optional[Tensor],
    table_0: Optional[Tensor],
    table_1: Optional[Tensor],
    table_2: Optional[Tensor],
    d_out: Tensor,
    *parameters: Any,
) -> list[Tensor]:
    *parameters, wanted = parameters
    x, d_out = _readable("x", x), _readable("d_out", d_out)
    tables = [_readable_table(table, _wide(x.dtype)) for table in (table_0, table_1, table_2)][: x.dim() - 3]
    read = _readable_weight(weight, x.dtype)
    d_x = x.new_empty(x.shape) if wanted[0] else None
    d_weight = torch.empty_like(read) if wanted[1] else None
    _run(x, read, tables, d_out, *parameters, {"d_x": d_x, "d_weight": d_weight})
    found = [] if d_x is None else [d_x]
    return found if d_weight is None else [*found, d_weight.to(weight.dtype)]


def _fake_norm_rope(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _fake_norm_rope_backward(x: Tensor, weight: Optional[Tensor], *arguments: Any) -> list[Tensor]:
    wanted = arguments[-1]
    return [tensor.new_empty(tensor.shape) for tensor, want in zip((x, weight), wanted) if want]


def _register(name: str, implementation: Any, fake: Any, tensors: int) -> Any:
    for key in ("CPU", "CUDA"):
        _library.impl(name, implementation, key)
    torch.library.register_fake(f"nhood::{name}", fake, lib=_library)
    return directly(getattr(torch.ops.nhood, name).default, implementation, tensors)


_forward_operator = _register("norm_rope", _norm_rope, _fake_norm_rope, 5)
_backward_operator = _register("norm_rope_backward", _norm_rope_backward, _fake_norm_rope_backward, 6)


class NormRope(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(*arguments[:5])
        ctx.parameters = arguments[5:]
        return _forward_operator(*arguments)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Optional[Tensor], ...]:  # type: ignore[override]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise NotImplementedError("second derivatives of norm_rope: it has first ones alone")
        wanted = ctx.needs_input_grad[:2]
        found = iter(_backward_operator(*ctx.saved_tensors, d_out, *ctx.parameters, wanted))
        return (*(next(found) if want else None for want in wanted), *(None,) * 8)


def _table_of(table: Any, axis: int) -> Optional[Tensor]:
    if table is None:
        return None
    if not isinstance(table, Tensor):
        raise TypeError(f"tables[{axis}] is a {type(table).__name__}, not a torch.Tensor")
    return torch.view_as_real(table) if table.is_complex() else table


def norm_rope(
    x: Tensor,
    tables: Optional[Sequence[Optional[Tensor]]] = None,
    weight: Optional[Tensor] = None,
    *,
    norm: Optional[str] = "head",
    eps: float = 1e-6,
    scale: float = 1.0,
    pairs: str = "interleaved",
    offset: PerAxis = 0,
) -> Tensor:
    """RMS norm, scale and axial rotary positions of queries or keys in one pass over memory: reads x once, writes the result once.

        z = x * rsqrt(mean(x^2) + eps) * weight * scale
        out[a], out[b] = z[a] * cos - z[b] * sin, z[a] * sin + z[b] * cos       for each pair of channels (a, b)

    x: [B, X.., H, D] on 1 to 3 axes X.., D even and at most 1024; read as it lies if its last axis is contiguous, such as a part of
        a joined projection of query, key and value.
    tables: one per axis, or None for an axis that rotates nothing; None: none does. A table is [positions, pairs, 2], cosine and
        sine of each pair at each position, or complex [positions, pairs]; rotary_tables makes them. The first axis' pairs are
        the head's first, and so on; channels that are left are not rotated.
    weight: of the norm, [D], or [H * D] (or [H, D]) with norm = "token"; None: ones. Of any dtype.
    norm: what the mean of squares is over: "head", D channels; "token", all H * D, at most 16384; None: no norm.
    scale: a factor of the result.
    pairs: "interleaved": channels 2p and 2p + 1 are pair p; "halves": p and p + R/2, of R channels that are rotated.
    offset: position of the first token on each axis, of tiles of a larger grid.

    Arithmetic is float32 (float64 for float64), the result, of x's dtype and contiguous, is rounded once. Differentiable in x and
    weight, once; gradients of the weight are equal from run to run. Runs on CPU and CUDA tensors, is one operator to
    torch.compile, and may be captured into CUDA graphs.

    Raises ValueError for values, shapes and dtypes that are not legal, TypeError for arguments of other types, with a text
    that names the argument, its value and the limit.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}, not a torch.Tensor")
    if weight is not None and not isinstance(weight, Tensor):
        raise TypeError(f"weight is a {type(weight).__name__}, not a torch.Tensor")
    rank = x.dim() - 3
    given = [_table_of(table, axis) for axis, table in enumerate(of_library.tables_of(tables, rank))]
    starts = per_axis(offset, rank, "offset") if rank > 0 else ()
    of_library.check_tables(x.shape, [None if table is None else table.shape for table in given], starts)
    of_library.check_options(x.shape, norm, pairs, None if weight is None else weight.shape)
    tensors = (x, weight, *given, *(None,) * (3 - rank))
    parameters = (norm, pairs, number(eps, "eps"), number(scale, "scale"), starts)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight)):
        return NormRope.apply(*once_each(tensors), *parameters)
    return _forward_operator(*tensors, *parameters)


def rotary_tables(
    lengths: Sequence[int],
    dims: Sequence[int],
    base: float = 10000.0,
    *,
    device: Any = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Optional[Tensor], ...]:
    """Tables for norm_rope, of positions 0, 1, .. on each axis and the frequencies base^(-2 i / dim) of pair i.

    lengths: positions on each axis, at least 1. dims: channels of a head that each axis rotates, even; 0 makes a None.
    base: above 0. Each table is [length, dim / 2, 2], cosine and sine, of the floating-point `dtype` and on `device`.
    Frequencies are worked out in float64 and rounded to `dtype`, angles are of `dtype`.

    Raises ValueError for values that are not legal, TypeError for arguments of other types.
    """
    of_library.check_rotary(lengths, dims, base)
    if not dtype.is_floating_point:
        raise ValueError(f"dtype = {dtype} is not a floating-point type")
    return tuple(_rotary_table(length, dim, base, device, dtype) if dim else None for length, dim in zip(lengths, dims))


def _rotary_table(length: int, dim: int, base: float, device: Any, dtype: torch.dtype) -> Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim
    frequencies = (1.0 / base**exponents).to(dtype)
    angles = torch.arange(length, dtype=dtype, device=device)[:, None] * frequencies
    return torch.stack([angles.cos(), angles.sin()], dim=-1)
