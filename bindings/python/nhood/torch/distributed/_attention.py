"""The attention of one process' queries over a grid whose tokens many processes have, forward and backward.

Axes that are sharded are taken one after the other. Along each, queries are computed in the pieces of _axes.py: first those
that need no other process' keys, while the keys for the others travel; backward first those others, so that gradients are on
their way home while the rest is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.autograd import Function

from .. import _ops
from .._transforms import once_each, transformed
from ._axes import Piece, Segment
from ._exchange import (
    add_gradients,
    copy,
    heads_for_tokens,
    reduce_over,
    send_gradients,
    send_keys,
    take_keys,
    tokens_for_heads,
)
from ._plan import Plan, parse

OptionalTensor = Optional[Tensor]


class _Place(NamedTuple):
    """Where in the grid the tensors at hand begin."""

    query: tuple[int, ...]
    key: tuple[int, ...]

    def at(self, axis: int, query: int, key: int) -> _Place:
        def replaced(offsets: tuple[int, ...], value: int) -> tuple[int, ...]:
            return (*offsets[:axis], value, *offsets[axis + 1 :])

        return _Place(replaced(self.query, query), replaced(self.key, key))


def _whole(plan: Plan) -> _Place:
    """Tensors that cover the grid."""
    return _Place((0,) * len(plan.axes), (0,) * len(plan.axes))


def _windows(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """kernel_size, stride, dilation and is_causal."""
    axes = plan.axes
    return (
        tuple(axis.kernel_size for axis in axes),
        tuple(axis.stride for axis in axes),
        tuple(axis.dilation for axis in axes),
        tuple(axis.is_causal for axis in axes),
    )


def _region(plan: Plan, place: _Place) -> tuple[tuple[int, ...], ...]:
    """is_periodic, grid, query_offset and key_offset."""
    lengths = tuple(axis.length for axis in plan.axes)
    query, key = (tuple(o % n for o, n in zip(offsets, lengths)) for offsets in place)
    return tuple(axis.is_periodic for axis in plan.axes), lengths, query, key


def _na(
    plan: Plan, place: _Place, inputs: Sequence[OptionalTensor], into: Sequence[OptionalTensor] = ()
) -> Sequence[Tensor]:
    """out and lse of the six inputs, which lie at `place`."""
    return _ops.na_into(into, *inputs, *_windows(plan), plan.scale, False, True, *_region(plan, place))


def _na_backward(
    plan: Plan,
    place: _Place,
    tensors: Sequence[OptionalTensor],
    wanted: Sequence[bool],
    d_query: OptionalTensor = None,
) -> Sequence[Tensor]:
    """The wanted gradients, the first into d_query if it is given; tensors: the six inputs, out, lse, d_out, d_lse."""
    region = _region(plan, place)
    return _ops.na_backward_into((d_query,), *tensors, *_windows(plan), plan.scale, False, wanted, *region)


def _along(tensor: Tensor, axis: int, begin: int, end: int) -> Tensor:
    """Tokens [begin, end) of an axis of the grid; tensors have the batch in front."""
    return tensor.narrow(1 + axis, begin, end - begin)


class _Tokens(NamedTuple):
    """Tokens of a piece's keys that lie side by side in one tensor: of a segment, or (None) of this process."""

    segment: Optional[Segment]
    begin: int
    end: int
    """in that tensor"""


def _tokens_of(plan: Plan, axis: int, piece: Piece) -> list[_Tokens]:
    """What a piece's keys are put together from, in order."""
    own = plan.own(axis)
    sources = [(segment.token, segment.token + segment.length, segment) for segment in own.needs]
    sources.append((own.begin, own.end, None))  # type: ignore[arg-type]
    found = []
    for first, last, segment in sorted(sources, key=lambda source: source[0]):
        begin, end = max(first, piece.first), min(last, piece.last)
        if begin < end:
            found.append(_Tokens(segment, begin - first, end - first))
    return found


class _Forward:
    """One call: what is the same on all levels of axes."""

    def __init__(self, plan: Plan, rest: Sequence[OptionalTensor]) -> None:
        self.plan, self.rest = plan, rest
        self.kept: list[Tensor] = []
        """keys and values that were put together, in the order of _paths"""

    def run(
        self,
        axes: Sequence[int],
        place: _Place,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: OptionalTensor,
        lse: OptionalTensor,
    ) -> tuple[Tensor, Tensor]:
        """Into out and lse if they are given."""
        if not axes:
            found = _na(self.plan, place, (query, key, value, *self.rest), (out, lse))
            return found[0], found[1]
        axis, *others = axes
        own, link = self.plan.own(axis), self.plan.link(axis)
        if out is None and len(own.pieces) > 1:
            out, lse = _empty_results(query, value)
        travel = None if link.idle else send_keys((key, value), 1 + axis, link)
        came: dict[Segment, list[Tensor]] = {}
        results = None
        for piece in own.pieces:
            keys = (key, value)
            if not piece.own:
                if travel is not None:
                    came, travel = take_keys(travel.wait(), (key, value), 1 + axis, link), None
                keys = self._together(axis, piece, (key, value), came)
                self.kept += keys
            begin, end = piece.begin - own.begin, piece.end - own.begin
            results = self.run(
                others,
                place.at(axis, piece.begin, own.begin if piece.own else piece.first),
                _along(query, axis, begin, end),
                *keys,
                None if out is None else _along(out, axis, begin, end),
                None if lse is None else _along(lse, axis, begin, end),
            )
        if travel is not None:  # this process needs nothing, others need its keys
            travel.wait()
        return (out, lse) if out is not None and lse is not None else results  # type: ignore[return-value]

    def _together(
        self, axis: int, piece: Piece, own: tuple[Tensor, Tensor], came: dict[Segment, list[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        parts = [
            [_along(own[i] if s is None else came[s][i], axis, begin, end) for i in range(2)]
            for s, begin, end in _tokens_of(self.plan, axis, piece)
        ]
        found = []
        for i, tensor in enumerate(own):
            shape = list(tensor.shape)
            shape[1 + axis] = piece.last - piece.first
            found.append(tensor.new_empty(shape))
            begin = 0
            for part in parts:
                copy(_along(found[i], axis, begin, begin + part[i].shape[1 + axis]), part[i])
                begin += part[i].shape[1 + axis]
        return found[0], found[1]


def _empty_results(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return out, query.new_empty(query.shape[:-1], dtype=dtype)


Path = tuple[Piece, ...]


def _paths(plan: Plan, axes: Sequence[int], path: Path = ()) -> Iterator[Path]:
    """The pieces of pieces whose keys are put together, in the order in which forward does so."""
    for piece in plan.own(axes[0]).pieces if axes else ():
        if not piece.own:
            yield (*path, piece)
        yield from _paths(plan, axes[1:], (*path, piece))


class _Backward:
    """The gradients of one call; those of what all processes have are added up in `shared`."""

    def __init__(
        self, plan: Plan, rest: Sequence[OptionalTensor], kept: Sequence[Tensor], wanted: Sequence[bool]
    ) -> None:
        self.plan, self.rest, self.wanted = plan, rest, wanted
        self.kept = dict(zip(_paths(plan, plan.sharded), zip(kept[::2], kept[1::2])))
        self.shared: list[OptionalTensor] = [None, None, None]

    def run(
        self,
        path: Path,
        place: _Place,
        key: Tensor,
        value: Tensor,
        of_queries: Sequence[OptionalTensor],
        d_query: OptionalTensor = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query (into d_query if it is given), key and value; of_queries: query, out, lse, d_out, d_lse."""
        axes = self.plan.sharded[len(path) :]
        if not axes:
            return self._leaf(place, key, value, of_queries, d_query)
        axis = axes[0]
        own, link = self.plan.own(axis), self.plan.link(axis)
        query = of_queries[0]
        assert query is not None
        if d_query is None and len(own.pieces) > 1:
            d_query = torch.empty_like(query, memory_format=torch.contiguous_format)
        d_own: list[Tensor] = []
        """of key and value as they lie here"""
        aside: list[tuple[_Tokens, list[Tensor]]] = []
        home: dict[Segment, list[Tensor]] = {}
        travel = None
        for piece in sorted(own.pieces, key=lambda piece: piece.own):
            if piece.own and not link.idle:
                travel = send_gradients(home, (key, value), 1 + axis, link)
            keys = (key, value) if piece.own else self.kept[(*path, piece)]
            begin, end = piece.begin - own.begin, piece.end - own.begin
            found = self.run(
                (*path, piece),
                place.at(axis, piece.begin, own.begin if piece.own else piece.first),
                *keys,
                [None if t is None else _along(t, axis, begin, end) for t in of_queries],
                None if d_query is None else _along(d_query, axis, begin, end),
            )
            if d_query is None:
                d_query = found[0]
            if piece.own:
                d_own = list(found[1:])
            else:
                self._apart(axis, piece, found[1:], aside, home)
        if not link.idle and travel is None:
            travel = send_gradients(home, (key, value), 1 + axis, link)
        if not d_own:
            d_own = [torch.zeros_like(key), torch.zeros_like(value)]
        for tokens, gradients in aside:
            for target, gradient in zip(d_own, gradients):
                _along(target, axis, tokens.begin, tokens.end).add_(gradient)
        if travel is not None:
            add_gradients(travel.wait(), d_own, 1 + axis, link)
        assert d_query is not None
        return d_query, d_own[0], d_own[1]

    def _leaf(
        self,
        place: _Place,
        key: Tensor,
        value: Tensor,
        of_queries: Sequence[OptionalTensor],
        d_query: OptionalTensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        query, out, lse, d_out, d_lse = of_queries
        wanted = [True, True, True, *self.wanted[3:]]
        tensors = (query, key, value, *self.rest, out, lse, d_out, d_lse)
        found = _na_backward(self.plan, place, tensors, wanted, d_query)
        shared = iter(found[3:])
        for i, want in enumerate(self.wanted[3:]):
            if want:
                gradient, before = _at_least_f32(next(shared)), self.shared[i]
                self.shared[i] = gradient if before is None else before + gradient
        return found[0], found[1], found[2]

    def _apart(
        self,
        axis: int,
        piece: Piece,
        gradients: Sequence[Tensor],
        aside: list[tuple[_Tokens, list[Tensor]]],
        home: dict[Segment, list[Tensor]],
    ) -> None:
        """The gradients of a piece's keys, by who has the keys."""
        at = 0
        for tokens in _tokens_of(self.plan, axis, piece):
            count = tokens.end - tokens.begin
            parts = [_along(gradient, axis, at, at + count) for gradient in gradients]
            at += count
            if tokens.segment is None:
                aside.append((tokens, parts))
                continue
            if tokens.segment not in home and tokens.end - tokens.begin == tokens.segment.length:
                home[tokens.segment] = parts
                continue
            if tokens.segment not in home:
                shapes = [(*p.shape[: 1 + axis], tokens.segment.length, *p.shape[2 + axis :]) for p in parts]
                home[tokens.segment] = [p.new_zeros(shape) for p, shape in zip(parts, shapes)]
            for target, part in zip(home[tokens.segment], parts):
                _along(target, axis, tokens.begin, tokens.end).add_(part)


def _at_least_f32(tensor: Tensor) -> Tensor:
    """For sums over pieces and processes."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


# Strategies: each is (out, lse, whatever its backward is to be handed again), and the gradients of the first six inputs.


def _halo_forward(plan: Plan, inputs: Sequence[OptionalTensor]) -> list[Tensor]:
    query, key, value, *rest = inputs
    call = _Forward(plan, rest)
    place = _Place(plan.offsets, plan.offsets)
    out, lse = call.run(plan.sharded, place, query, key, value, None, None)  # type: ignore[arg-type]
    return [out, lse, *call.kept]


def _halo_backward(
    plan: Plan, inputs: Sequence[OptionalTensor], results: Sequence[OptionalTensor], wanted: Sequence[bool]
) -> list[OptionalTensor]:
    """results: out, lse, what was kept, d_out and d_lse."""
    query, key, value, *rest = inputs
    out, lse, *kept, d_out, d_lse = results
    call = _Backward(plan, rest, kept, wanted)  # type: ignore[arg-type]
    place = _Place(plan.offsets, plan.offsets)
    gradients = call.run((), place, key, value, [query, out, lse, d_out, d_lse])  # type: ignore[arg-type]
    return [*gradients, *call.shared]


def _shares(plan: Plan) -> tuple[int, int]:
    """By heads: this process' share and how many there are."""
    index, count = 0, 1
    for axis in plan.sharded:
        link = plan.link(axis)
        index, count = index * len(link.shards) + link.index, count * len(link.shards)
    return index, count


def _to_heads(plan: Plan, tensors: Sequence[Tensor]) -> list[Tensor]:
    for axis in plan.sharded:
        tensors = heads_for_tokens(tensors, 1 + axis, plan.sizes[axis] or (), plan.link(axis))
    return list(tensors)


def _to_tokens(plan: Plan, tensors: Sequence[Tensor]) -> list[Tensor]:
    for axis in reversed(plan.sharded):
        tensors = tokens_for_heads(tensors, 1 + axis, plan.sizes[axis] or (), plan.link(axis))
    return list(tensors)


def _rest_of_heads(plan: Plan, rest: Sequence[OptionalTensor]) -> list[OptionalTensor]:
    """bias and additional keys and values of this process' share of the heads."""
    index, count = _shares(plan)
    found: list[OptionalTensor] = []
    for tensor, axis in zip(rest, (0, 2, 2)):
        found.append(None if tensor is None else tensor.chunk(count, dim=axis)[index].contiguous())
    return found


def _heads_forward(plan: Plan, inputs: Sequence[OptionalTensor]) -> list[Tensor]:
    query, key, value, *rest = inputs
    moved = _to_heads(plan, [query, key, value])  # type: ignore[list-item]
    place = _whole(plan)
    out, lse = _na(plan, place, (*moved, *_rest_of_heads(plan, rest)))
    (own_out,) = _to_tokens(plan, [out])
    (own_lse,) = _to_tokens(plan, [lse.unsqueeze(-1)])
    return [own_out, own_lse.squeeze(-1), *moved, out, lse]


def _heads_backward(
    plan: Plan, inputs: Sequence[OptionalTensor], results: Sequence[OptionalTensor], wanted: Sequence[bool]
) -> list[OptionalTensor]:
    _, _, query, key, value, out, lse, own_d_out, own_d_lse = results
    rest = inputs[3:]
    (d_out,) = _to_heads(plan, [own_d_out])  # type: ignore[list-item]
    d_lse = None if own_d_lse is None else _to_heads(plan, [own_d_lse.unsqueeze(-1)])[0].squeeze(-1)
    place = _whole(plan)
    all_wanted = [True, True, True, *wanted[3:]]
    tensors = (query, key, value, *_rest_of_heads(plan, rest), out, lse, d_out, d_lse)
    found = _na_backward(plan, place, tensors, all_wanted)
    gradients: list[OptionalTensor] = [*_to_tokens(plan, found[:3])]
    shared = iter(found[3:])
    index, count = _shares(plan)
    for tensor, axis, want in zip(rest, (0, 2, 2), wanted[3:]):
        if not want or tensor is None:
            gradients.append(None)
            continue
        whole = _at_least_f32(torch.zeros_like(tensor))
        whole.chunk(count, dim=axis)[index].copy_(next(shared))
        gradients.append(whole)
    return gradients


# Operators, for torch.compile: what they do is not traced.

_library = torch.library.Library("nhood", "FRAGMENT")
_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? additional_keys, Tensor? additional_values, str plan"
)
_library.define(f"sharded_na({_INPUTS}) -> Tensor[]")
_library.define(
    f"sharded_na_backward({_INPUTS}, Tensor[] results, Tensor d_out, Tensor? d_lse, bool[] wanted) -> Tensor[]"
)


def _sharded_na(*arguments: Any) -> list[Tensor]:
    """out, lse, and what backward is to be handed again."""
    *inputs, text = arguments
    plan = parse(text)
    return (_heads_forward if plan.strategy == "heads" else _halo_forward)(plan, inputs)


def _sharded_na_backward(*arguments: Any) -> list[Tensor]:
    """One gradient per True in `wanted`, in the order of the inputs."""
    inputs, (text, results, d_out, d_lse, wanted) = arguments[:6], arguments[6:]
    plan = parse(text)
    backward = _heads_backward if plan.strategy == "heads" else _halo_backward
    found = backward(plan, inputs, [*results, d_out, d_lse], wanted)
    shared = [gradient for gradient in found[3:] if gradient is not None]
    reduce_over(shared, [plan.link(axis) for axis in plan.sharded])
    typed = [g if g is None else g.to(x.dtype) for g, x in zip(found, inputs)]
    return [gradient for gradient, want in zip(typed, wanted) if want and gradient is not None]


def _fake_sharded_na(*arguments: Any) -> list[Tensor]:
    *inputs, text = arguments
    query, key, value = inputs[:3]
    plan = parse(text)
    out, lse = _empty_results(query, value)
    if plan.strategy == "heads":
        _, count = _shares(plan)
        moved = [_of_heads(plan, tensor, count) for tensor in (query, key, value)]
        return [out, lse, *moved, *_empty_results(moved[0], moved[2])]
    kept = []
    for path in _paths(plan, plan.sharded):
        for tensor in (key, value):
            shape = list(tensor.shape)
            for axis, piece in zip(plan.sharded, path):
                if not piece.own:
                    shape[1 + axis] = piece.last - piece.first
            kept.append(tensor.new_empty(shape))
    return [out, lse, *kept]


def _of_heads(plan: Plan, tensor: Tensor, count: int) -> Tensor:
    lengths = [axis.length for axis in plan.axes]
    return tensor.new_empty((tensor.shape[0], *lengths, tensor.shape[-2] // count, tensor.shape[-1]))


def _fake_sharded_na_backward(*arguments: Any) -> list[Tensor]:
    wanted = arguments[-1]
    return [tensor.new_empty(tensor.shape) for tensor, want in zip(arguments, wanted) if want]


for _name, _function, _fake in (
    ("sharded_na", _sharded_na, _fake_sharded_na),
    ("sharded_na_backward", _sharded_na_backward, _fake_sharded_na_backward),
):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"nhood::{_name}", _fake, lib=_library)


class ShardedAttention(Function):
    """out and lse"""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        *inputs, text = arguments
        results = torch.ops.nhood.sharded_na(*inputs, text)
        ctx.save_for_backward(*inputs, *results)
        ctx.set_materialize_grads(False)
        ctx.text = text
        return results[0], results[1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, d_out: OptionalTensor, d_lse: OptionalTensor
    ) -> tuple[OptionalTensor, ...]:
        inputs, results = ctx.saved_tensors[:6], ctx.saved_tensors[6:]
        if d_out is None:
            d_out = torch.zeros_like(results[0])
        wanted = ctx.needs_input_grad[:6]
        found = iter(torch.ops.nhood.sharded_na_backward(*inputs, ctx.text, results, d_out, d_lse, wanted))
        return (*(next(found) if want else None for want in wanted), None)


def sharded_attention(inputs: Sequence[OptionalTensor], text: str) -> tuple[Tensor, Tensor]:
    """out and lse of this process' queries, by the text of a plan."""
    if transformed():
        raise NotImplementedError("sharded attention under torch.func's transforms or in forward mode")
    if torch.is_grad_enabled() and any([x.requires_grad for x in inputs if x is not None]):
        return ShardedAttention.apply(*once_each(inputs), text)
    results = torch.ops.nhood.sharded_na(*inputs, text)
    return results[0], results[1]
