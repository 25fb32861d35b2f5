"""RMS norm and rotary positions of queries or keys, in one pass over memory, with its derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .. import _norm_rope as of_library
from .. import _plans
from .._functions import PerAxis, number, per_axis
from .._layouts import packed_strides
from .._memory import aligned_bytes
from . import _tensors
from ._dispatch import directly
from ._functions import check_tensor
from ._ops import library
from ._transforms import Dims, Formula, Mapped, one_by_one, register_formula, register_mapping

OptionalTensor = Optional[Tensor]
Ints = Sequence[int]

_PARAMETERS = "str? norm, str pairs, float eps, float scale, SymInt[] offset"
_TABLES = "Tensor? table_0, Tensor? table_1, Tensor? table_2"
library.define(f"norm_rope(Tensor x, Tensor? weight, {_TABLES}, {_PARAMETERS}) -> Tensor")
library.define(
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
    if table.dtype is not dtype or not table.is_contiguous():
        table = table.to(dtype).contiguous()
    return table.clone() if table.data_ptr() % _plans.CUDA_ALIGNMENT else table


def _readable_weight(weight: Optional[Tensor], dtype: torch.dtype) -> Optional[Tensor]:
    if weight is None:
        return None
    return (weight if weight.dtype in (dtype, _wide(dtype)) else weight.to(_wide(dtype))).contiguous()


def _check_devices(x: Tensor, weight: OptionalTensor, tables: Sequence[OptionalTensor], d_out: OptionalTensor) -> None:
    device = x.device
    for i, tensor in enumerate((weight, d_out, *tables)):
        if tensor is not None and tensor.device != device:
            name = ("weight", "d_out")[i] if i < 2 else f"tables[{i - 2}]"
            raise ValueError(f"{name} is on {tensor.device}, x on {device}")


def _check_d_out(d_out: OptionalTensor, x: Tensor) -> None:
    if d_out is not None and (d_out.shape != x.shape or d_out.dtype != x.dtype):
        raise ValueError(f"d_out has shape {tuple(d_out.shape)} and dtype {d_out.dtype}, x {tuple(x.shape)} and {x.dtype}")


def _request(
    norm: Optional[str],
    pairs: str,
    eps: float,
    scale: float,
    pairs_of: Ints,
    offset: Ints,
    weight_dtype: Optional[torch.dtype],
    unaligned: bool,
) -> of_library.Request:
    """pairs_of: how many the table of each axis rotates."""
    return of_library.Request(
        norm,
        pairs,
        eps,
        scale,
        tuple([2 * count for count in pairs_of]),
        tuple(offset),
        None if weight_dtype is None else _tensors._TO_DTYPE[weight_dtype],
        unaligned,
    )


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
    _check_devices(x, weight, tables, d_out)
    _check_d_out(d_out, x)
    low_bits = 0
    for tensor in (x, d_out, outputs.get("y"), outputs.get("d_x")):
        low_bits |= 0 if tensor is None else tensor.data_ptr()
    unaligned = x.is_cuda and low_bits % _plans.CUDA_ALIGNMENT != 0
    pairs_of = [0 if table is None else table.shape[1] for table in tables]
    request = _request(norm, pairs, eps, scale, pairs_of, offset, None if weight is None else weight.dtype, unaligned)
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
        memory = aligned_bytes(plan.workspace_bytes) if plan.workspace_bytes else None
        plan.run(None if memory is None else memory.ctypes.data, None, **addresses)
    else:
        size = plan.workspace_bytes
        workspace = torch.empty(size, dtype=torch.uint8, device=x.device) if size else None
        address = None if workspace is None else workspace.data_ptr()
        plan.run(address, _tensors._current_stream(ordinal), **addresses)


def _weight_dtype(weight: OptionalTensor, dtype: torch.dtype) -> Optional[torch.dtype]:
    """As the library takes it beside x of that dtype."""
    if weight is None:
        return None
    return weight.dtype if weight.dtype in (dtype, _wide(dtype)) else _wide(dtype)


def _check(x: Tensor, weight: OptionalTensor, tables: Sequence[OptionalTensor], d_out: OptionalTensor, *parameters: Any) -> None:
    """Raises what executing the operator would, of tensors without memory: by a plan, which is quickly made. Of an extent that is
    a symbol the example's is checked, where there is one."""
    rank = x.dim() - 3
    _check_devices(x, weight, tables[: max(rank, 0)], d_out)
    norm, pairs, eps, scale, offset = parameters
    packed = []
    for name, tensor in (("x", x), ("d_out", d_out)):
        if tensor is not None:
            shape = _tensors._example(tensor.shape)
            if shape is None:
                return
            strides = packed_strides(shape, 1)
            _tensors._readable(name, torch.Size(shape), strides, tensor.dtype)
            packed.append(_tensors._layout(shape, strides, tensor.dtype))
    shapes = [table if table is None else _tensors._example(table.shape) for table in tables[:rank]]
    starts = _tensors._example(offset)
    weights = None if weight is None else _tensors._example(weight.shape)
    if starts is None or any(shape is None and table is not None for shape, table in zip(shapes, tables)):
        return
    if weight is not None and weights is None:
        return
    of_library.check_tables(packed[0][0], shapes, starts)
    of_library.check_options(packed[0][0], norm, pairs, weights)
    _check_d_out(d_out, x)
    pairs_of = [0 if shape is None else shape[1] for shape in shapes]
    request = _request(norm, pairs, eps, scale, pairs_of, starts, _weight_dtype(weight, x.dtype), False)
    of_library.find_plan(_plans.current_context(), _plans.CPU, request, *packed)


def _norm_rope(*arguments: Any) -> Tensor:
    x, weight, *tables = arguments[:5]
    parameters = arguments[5:]
    x = _readable("x", x)
    read = [_readable_table(table, _wide(x.dtype)) for table in tables[: x.dim() - 3]]
    out = x.new_empty(x.shape)
    _run(x, _readable_weight(weight, x.dtype), read, None, *parameters, {"y": out})
    return out


def _norm_rope_backward(*arguments: Any) -> list[Tensor]:
    x, weight, *tables, d_out = arguments[:6]
    *parameters, wanted = arguments[6:]
    x, d_out = _readable("x", x), _readable("d_out", d_out)
    read = [_readable_table(table, _wide(x.dtype)) for table in tables[: x.dim() - 3]]
    of_weight = _readable_weight(weight, x.dtype)
    d_x = x.new_empty(x.shape) if wanted[0] else None
    d_weight = torch.empty_like(of_weight) if wanted[1] else None
    _run(x, of_weight, read, d_out, *parameters, {"d_x": d_x, "d_weight": d_weight})
    found = [] if d_x is None else [d_x]
    return found if d_weight is None else [*found, d_weight.to(weight.dtype)]


def _fake_norm_rope(x: Tensor, weight: OptionalTensor, *arguments: Any) -> Tensor:
    _check(x, weight, arguments[:3], None, *arguments[3:])
    return x.new_empty(x.shape)


def _fake_norm_rope_backward(x: Tensor, weight: OptionalTensor, *arguments: Any) -> list[Tensor]:
    *parameters, wanted = arguments[4:]
    _check(x, weight, arguments[:3], arguments[3], *parameters)
    return [tensor.new_empty(tensor.shape) for tensor, want in zip((x, weight), wanted) if want]


def _map(operator: Any, size: int, dims: Dims, tensors: Sequence[OptionalTensor], parameters: Sequence[Any]) -> Mapped:
    """The mapped axis joins the batch, if only tensors and results have it that have a batch."""
    batched = (0, 5)
    others = any(dim is not None for i, dim in enumerate(dims) if i not in batched)
    if others or len(tensors) > 5 and parameters[-1][1]:
        return one_by_one(operator, size, dims, tensors, parameters)
    joined = list(tensors)
    for i in batched[: 1 + (len(tensors) > 5)]:
        x, dim = joined[i], dims[i]
        assert x is not None  # neither is optional
        joined[i] = (x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)
    results = operator(*joined, *parameters)
    given = [results] if isinstance(results, Tensor) else results
    return [x.unflatten(0, (size, x.shape[0] // size)) for x in given], [0] * len(given)


def _register(name: str, implementation: Any, fake: Any, tensors: int) -> Any:
    for key in ("CPU", "CUDA"):
        library.impl(name, implementation, key)
    torch.library.register_fake(f"nhood::{name}", fake, lib=library)
    register_mapping(library, name, tensors, _map)
    return directly(name, getattr(torch.ops.nhood, name).default, implementation, tensors)


_forward_operator = _register("norm_rope", _norm_rope, _fake_norm_rope, 5)
_backward_operator = _register("norm_rope_backward", _norm_rope_backward, _fake_norm_rope_backward, 6)


def _sum(a: Any, b: Any) -> Any:
    """None stands for zeros."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _times(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a * b


class _Rotation(NamedTuple):
    """What turns pairs of channels, by numbers that are linear in the tables: [X.., 1, pairs]."""

    cos: Tensor
    sin: Tensor


class _Problem(NamedTuple):
    """norm_rope in torch's own operations, in the dtype of arithmetic: what derivatives beyond the first are made of.

    x, and what is named after it, is [B, X.., H, D]; n = x r is the normed one, r its factor, z = n weight scale what is rotated.
    None stands for zeros."""

    x: Tensor
    weight: OptionalTensor
    tables: Sequence[OptionalTensor]
    norm: Optional[str]
    pairs: str
    eps: float
    scale: float
    offset: Ints
    shape: Sequence[int]
    """of the weight, as given"""

    @classmethod
    def of(cls, tensors: Sequence[OptionalTensor], parameters: Sequence[Any]) -> _Problem:
        x, weight, *tables = tensors[:5]
        assert x is not None
        wide = _wide(x.dtype)
        norm = parameters[0]
        return cls(
            x.to(wide),
            None if weight is None else weight.to(wide).reshape(x.shape[-1:] if norm == "head" else x.shape[-2:]),
            [table if table is None else table.to(wide) for table in tables],
            *parameters[:5],
            () if weight is None else weight.shape,
        )

    def wide(self, tensors: Sequence[OptionalTensor]) -> tuple[Any, Any, list[Any]]:
        """Tangents of x, weight and tables."""
        x, weight, *tables = [t if t is None else t.to(self.x.dtype) for t in tensors[:5]]
        if weight is not None and self.weight is not None:
            weight = weight.reshape(self.weight.shape)
        return x, weight, tables

    def mean(self, values: Tensor) -> Tensor:
        return values.mean((-1,) if self.norm == "head" else (-2, -1), keepdim=True)

    def rotation(self, tables: Sequence[OptionalTensor], rest: float) -> Optional[_Rotation]:
        """rest: the cosine where an axis has pairs, but no table here."""
        if all(table is None for table in self.tables) or all(table is None for table in tables):
            return None
        lengths = self.x.shape[1:-2]
        parts = []
        for axis, (own, table) in enumerate(zip(self.tables, tables)):
            if own is None:
                continue
            if table is None:
                cos = torch.full_like(own.select(-1, 0), rest)
                part = torch.stack([cos, torch.zeros_like(cos)], dim=-1)
            else:
                part = table
            part = part.narrow(0, self.offset[axis], lengths[axis])
            shape = [1] * len(lengths)
            shape[axis] = lengths[axis]
            parts.append(part.reshape(*shape, *part.shape[1:]).expand(*lengths, *part.shape[1:]))
        cos, sin = torch.cat(parts, dim=-2).unsqueeze(-3).unbind(-1)
        return _Rotation(cos, sin)

    def split(self, z: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The first and second channels of `count` pairs, and the channels that are in none."""
        turned, rest = z.narrow(-1, 0, 2 * count), z.narrow(-1, 2 * count, z.shape[-1] - 2 * count)
        if self.pairs == "halves":
            return turned.narrow(-1, 0, count), turned.narrow(-1, count, count), rest
        pairs = turned.reshape(*turned.shape[:-1], count, 2)
        return pairs.select(-1, 0), pairs.select(-1, 1), rest

    def turn(self, z: OptionalTensor, by: Optional[_Rotation], back: bool, whole: bool) -> Any:
        """Rotates; back: by the transposed. Channels in no pair stay as they are, or, if not whole, become 0."""
        if z is None:
            return None
        if by is None:
            return z if whole else None
        a, b, rest = self.split(z, by.cos.shape[-1])
        sin = -by.sin if back else by.sin
        first, second = a * by.cos - b * sin, a * sin + b * by.cos
        if self.pairs == "halves":
            turned = torch.cat([first, second], dim=-1)
        else:
            turned = torch.stack([first, second], dim=-1).reshape(*a.shape[:-1], 2 * a.shape[-1])
        return torch.cat([turned, rest if whole else torch.zeros_like(rest)], dim=-1)

    def table_gradients(self, z: OptionalTensor, d_out: OptionalTensor) -> list[Any]:
        """Returns the gradients of the tables that are there, from what they rotate and the gradient of what comes of it."""
        if z is None or d_out is None:
            return [None] * len(self.tables)
        lengths = self.x.shape[1:-2]
        count = sum(table.shape[1] for table in self.tables if table is not None)
        a, b, _ = self.split(z, count)
        d_a, d_b, _ = self.split(d_out, count)
        by_pair = torch.stack([d_a * a + d_b * b, d_b * a - d_a * b], dim=-1).sum((0, -3))
        found: list[Any] = []
        first = 0
        for axis, table in enumerate(self.tables):
            if table is None:
                found.append(None)
                continue
            last = first + table.shape[1]
            others = [other for other in range(len(lengths)) if other != axis]
            part = by_pair.narrow(-2, first, last - first)
            part = part.sum(others) if others else part
            behind = table.shape[0] - self.offset[axis] - lengths[axis]
            found.append(torch.nn.functional.pad(part, (0, 0, 0, 0, self.offset[axis], behind)))
            first = last
        return found

    def normed(self, t_x: OptionalTensor) -> tuple[Any, Tensor, Any, Any]:
        """r and n, and their tangents."""
        if self.norm is None:
            return None, self.x, None, t_x
        r = torch.rsqrt(self.mean(self.x * self.x) + self.eps)
        n = self.x * r
        if t_x is None:
            return r, n, None, None
        t_r = -r * r * r * self.mean(self.x * t_x)
        return r, n, t_r, t_x * r + self.x * t_r

    def weighted(self, n: Any, weight: OptionalTensor) -> Any:
        """Times scale and, if there is a norm's, the weight."""
        if n is None:
            return None
        return n * self.scale if weight is None else n * (weight * self.scale)

    def weighted_along(self, n: Any, t_n: Any, t_weight: OptionalTensor) -> Any:
        total = self.weighted(t_n, self.weight)
        return _sum(total, None if t_weight is None else n * (t_weight * self.scale))

    def along(self, tangents: Sequence[OptionalTensor]) -> Any:
        """The result's tangent, None for zeros."""
        t_x, t_weight, t_tables = self.wide(tangents)
        _, n, _, t_n = self.normed(t_x)
        turned = self.turn(self.weighted_along(n, t_n, t_weight), self.rotation(self.tables, 1), False, True)
        by_tables = self.turn(self.weighted(n, self.weight), self.rotation(t_tables, 0), False, False)
        return _sum(turned, by_tables)

    def gradients_along(
        self, tangents: Sequence[OptionalTensor], d_out: Tensor, t_d_out: OptionalTensor
    ) -> tuple[OptionalTensor, OptionalTensor, list[OptionalTensor]]:
        """The tangents of the gradients of x, weight and tables."""
        t_x, t_weight, t_tables = self.wide(tangents)
        r, n, t_r, t_n = self.normed(t_x)
        rotation = self.rotation(self.tables, 1)
        d_z = self.turn(d_out, rotation, True, True)
        t_d_z = _sum(
            self.turn(t_d_out, rotation, True, True), self.turn(d_out, self.rotation(t_tables, 0), True, False)
        )
        z, t_z = self.weighted(n, self.weight), self.weighted_along(n, t_n, t_weight)
        t_d_tables = [
            _sum(by_z, by_d)
            for by_z, by_d in zip(self.table_gradients(t_z, d_out), self.table_gradients(z, t_d_out))
        ]
        t_d_weight = None
        if self.weight is not None:
            products = _sum(_times(t_n, d_z), _times(n, t_d_z))
            if products is not None:
                axes = tuple(range(products.dim() - self.weight.dim()))
                t_d_weight = (self.scale * products.sum(axes)).reshape(self.shape)
        d_n, t_d_n = self.weighted(d_z, self.weight), self.weighted_along(d_z, t_d_z, t_weight)
        if self.norm is None:
            return t_d_n, t_d_weight, t_d_tables
        mean = self.mean(n * d_n)
        products = _sum(_times(t_n, d_n), _times(n, t_d_n))
        if products is None:
            return None, t_d_weight, t_d_tables
        t_d_x = None if t_d_n is None else r * t_d_n
        t_d_x = _sum(t_d_x, -r * n * self.mean(products))
        if t_r is not None:
            t_d_x = t_d_x + t_r * (d_n - n * mean) - r * t_n * mean
        return t_d_x, t_d_weight, t_d_tables


@register_formula(library, "norm_rope", 5)
class NormRope(Formula):
    @staticmethod
    def backward(ctx: Any, d_out: OptionalTensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad
        if d_out is None:
            return (None,) * 8
        found = iter(())
        if needed[0] or needed[1]:
            found = iter(_backward_operator(*tensors, d_out, *ctx.parameters, needed[:2]))
        of_tables: list[Any] = [None] * 3
        if any(needed[2:5]):
            problem = _Problem.of(tensors, ctx.parameters)
            z = problem.weighted(problem.normed(None)[1], problem.weight)
            of_tables = problem.table_gradients(z, d_out.to(z.dtype))
        return (
            *[next(found) if want else None for want in needed[:2]],
            *[x.to(of.dtype) if want else None for x, of, want in zip(of_tables, tensors[2:5], needed[2:5])],
            None,
            None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # type: ignore[override]
        x = ctx.saved_tensors[0]
        return _Problem.of(ctx.saved_tensors, ctx.parameters).along(tangents[:5]).to(x.dtype)


@register_formula(library, "norm_rope_backward", 6)
class NormRopeBackward(Formula):
    """The derivatives of one gradient per True in `wanted`. Second derivatives are symmetric, as those of attention: see _fused.py."""

    @staticmethod
    def backward(ctx: Any, *grads: OptionalTensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad
        *parameters, wanted = ctx.parameters
        given = iter(grads)
        along = [next(given) if want else None for want in wanted] + [None] * 3
        problem = _Problem.of(tensors, parameters)
        d_out = tensors[5]
        if all(x is None for x in along):
            return (None,) * 9
        of_x, of_weight, of_tables = problem.gradients_along(along, d_out.to(problem.x.dtype), None)
        found = [of_x, of_weight, *of_tables, problem.along(along) if needed[5] else None]
        return (
            *[x.to(of.dtype) if want and x is not None else None for x, of, want in zip(found, tensors, needed)],
            None,
            None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        tensors = ctx.saved_tensors
        *parameters, wanted = ctx.parameters
        problem = _Problem.of(tensors, parameters)
        wide = problem.x.dtype
        t_d_out = None if tangents[5] is None else tangents[5].to(wide)
        found = problem.gradients_along(tangents[:5], tensors[5].to(wide), t_d_out)
        return tuple(
            [
                torch.zeros_like(of) if x is None else x.to(of.dtype)
                for x, of, want in zip(found, tensors, wanted)
                if want
            ]
        )


def _table_of(table: Any, axis: int) -> Optional[Tensor]:
    if table is None:
        return None
    check_tensor(f"tables[{axis}]", table)
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

    Arithmetic is float32 (float64 for float64), the result, of x's dtype and contiguous, is rounded once. Differentiable in x,
    weight and tables, in reverse and forward mode and more than once; gradients of the weight are equal from run to run. Runs on
    CPU and CUDA tensors, is one operator to torch.compile, and may be captured into CUDA graphs.

    Raises ValueError for values, shapes and dtypes that are not legal, TypeError for arguments of other types, with a text
    that names the argument, its value and the limit.
    """
    if not isinstance(x, Tensor):
        if has_torch_function((x,)):  # of torch.fx, for one
            named = dict(norm=norm, eps=eps, scale=scale, pairs=pairs, offset=offset)
            return handle_torch_function(norm_rope, (x,), x, tables, weight, **named)
    check_tensor("x", x)
    if weight is not None:
        check_tensor("weight", weight)
    rank = x.dim() - 3
    given = [_table_of(table, axis) for axis, table in enumerate(of_library.tables_of(tables, rank))]
    starts = per_axis(offset, rank, "offset") if rank > 0 else ()
    of_library.check_tables(x.shape, [None if table is None else table.shape for table in given], starts)
    of_library.check_options(x.shape, norm, pairs, None if weight is None else weight.shape)
    tensors = (x, weight, *given, *(None,) * (3 - rank))
    return _forward_operator(*tensors, norm, pairs, number(eps, "eps"), number(scale, "scale"), starts)


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
