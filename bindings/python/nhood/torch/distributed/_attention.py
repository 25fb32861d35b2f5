"""The attention of one process' queries over a grid whose tokens many processes have, forward and backward.

Axes that are sharded are taken one after the other. Along each, all queries attend this process' keys while those of the halos
(_axes.py) travel; what the queries near a border get from those is merged with it by the log-sum-exps. Backward, where the
log-sum-exps of all keys are known, gradients of different keys have nothing to do with each other: those of the halos come
first and travel home while the others are computed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from .. import _ops
from .._transforms import Formula, register_formula
from ._agreement import agree, tensor_arguments
from ._axes import Halo, Segment, Shard, Window
from ._exchange import (
    Link,
    add_gradients,
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


def _own_place(plan: Plan, places: Places) -> _Place:
    """This process' shards."""
    begins = {axis: own.begin for axis, own, _ in places}
    offsets = tuple([begins.get(axis, 0) for axis in range(len(plan.axes))])
    return _Place(offsets, offsets)


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


def _region(plan: Plan, place: _Place) -> tuple[Any, ...]:
    """is_periodic, grid, query_offset, key_offset and the windows by table, where there are some."""
    lengths = tuple(axis.length for axis in plan.axes)
    query, key = (tuple(o % n for o, n in zip(offsets, lengths)) for offsets in place)
    windows = ",".join([axis.windows for axis in plan.axes])
    region = tuple(axis.is_periodic for axis in plan.axes), lengths, query, key
    return (*region, windows) if windows.strip(",") else region


def _na(plan: Plan, place: _Place, inputs: Sequence[OptionalTensor]) -> Sequence[Tensor]:
    """out and lse of the six inputs, which lie at `place`."""
    return _ops.na(*inputs, *_windows(plan), plan.scale, False, True, *_region(plan, place))


def _na_backward(
    plan: Plan, place: _Place, tensors: Sequence[OptionalTensor], wanted: Sequence[bool]
) -> Sequence[Tensor]:
    """The wanted gradients; tensors: the six inputs, out, lse, d_out, d_lse."""
    return _ops.na_backward(*tensors, *_windows(plan), plan.scale, False, wanted, *_region(plan, place))


def _along(tensor: Tensor, axis: int, begin: int, end: int) -> Tensor:
    """Tokens [begin, end) of an axis of the grid; tensors have the batch in front."""
    return tensor.narrow(1 + axis, begin, end - begin)


def _queries_of(halo: Halo, begin: int, axis: int, tensors: Iterable[OptionalTensor]) -> list[OptionalTensor]:
    """The parts of a shard's tensors, which begins at `begin`, that belong to a halo's queries."""
    return [None if t is None else _along(t, axis, halo.begin - begin, halo.end - begin) for t in tensors]


def _keys_of(halo: Halo, axis: int, came: dict[Segment, list[Tensor]]) -> list[Tensor]:
    """A halo's key and value; those of one process are not copied."""
    segments = sorted((s for s in came if halo.first <= s.token < halo.last), key=lambda segment: segment.token)
    parts = [came[segment] for segment in segments]
    return parts[0] if len(parts) == 1 else [torch.cat(tensors, 1 + axis) for tensors in zip(*parts)]


Path = tuple[Optional[Halo], ...]
"""of the keys at hand: per axis the halo that they are of, None for this process' own"""


Places = list[tuple[int, Shard, Link]]
"""per axis that is sharded: its number, this process' shard and the processes along it"""


def _places(plan: Plan) -> Places:
    """Found once a call: links are not cached."""
    links = [(axis, plan.link(axis)) for axis in plan.sharded]
    return [(axis, link.shards[link.index], link) for axis, link in links]


class _Forward:
    """One call: what is the same on all levels of axes."""

    def __init__(self, plan: Plan, rest: Sequence[OptionalTensor]) -> None:
        self.plan, self.rest = plan, rest
        self.places = _places(plan)
        self.kept: list[Tensor] = []
        """what came of each exchange, in the order of _exchanges"""

    def run(self, path: Path, place: _Place, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """out and lse of these keys and their halos along the axes that the path lacks."""
        if len(path) == len(self.places):
            out, lse = _na(self.plan, place, (query, key, value, *_rest_of(path, self.rest)))
            return out, lse
        axis, own, link = self.places[len(path)]
        if link.idle:
            return self.run((*path, None), place, query, key, value)
        travel = send_keys((key, value), 1 + axis, link)
        out, lse = self.run((*path, None), place, query, key, value)
        self.kept.append(travel.wait())
        came = take_keys(self.kept[-1], (key, value), 1 + axis, link)
        for halo in own.halos:
            part, out_part, lse_part = _queries_of(halo, own.begin, axis, (query, out, lse))
            at = place.at(axis, halo.begin, halo.first)
            more = self.run((*path, halo), at, part, *_keys_of(halo, axis, came))  # type: ignore[arg-type]
            _merge(out_part, lse_part, *more)  # type: ignore[arg-type]
        return out, lse


def _rest_of(path: Path, rest: Sequence[OptionalTensor]) -> Sequence[OptionalTensor]:
    """The bias, and the additional keys and values, which are attended once: with this process' own keys."""
    return rest if not any(path) else (rest[0], None, None)


def _merge(out: Tensor, lse: Tensor, other_out: Tensor, other_lse: Tensor) -> None:
    """Adds to out [B, X.., H, D] and lse [B, X.., H] what the same queries get from other keys: merge_attentions in place, whose
    other_out may be overwritten. Shares are of lse's type: rounded to 16 bits those near 1 would lose the small ones, whose
    outputs, of few keys, are large.

    A row with a log-sum-exp of -infinity on one side is that of the other side, whatever stands in it: NaN, if it has keys and
    all their logits are -infinity. With -infinity on both sides it is the mean of both."""
    if out.is_cuda and out.dtype != torch.float64:
        with torch.cuda.device_of(out):  # Triton launches on the current device
            fused = _fused_merge()
            if fused:
                fused(out, lse, other_out, other_lse)
                return
    ahead = (other_lse - lse).masked_fill_(other_lse == lse, 0)  # of two infinities, too
    out.masked_fill_((ahead == torch.inf).unsqueeze(-1), 0)
    other_out.masked_fill_((ahead == -torch.inf).unsqueeze(-1), 0)
    share, rest = torch.sigmoid(ahead), torch.sigmoid(-ahead)
    out.mul_(rest.unsqueeze(-1)).addcmul_(other_out, share.unsqueeze(-1))
    torch.logaddexp(lse, other_lse, out=lse)


@functools.lru_cache(maxsize=None)
def _fused_merge() -> Optional[Callable[[Tensor, Tensor, Tensor, Tensor], None]]:
    """_merge in one launch, or None where Triton, or what it compiles with, is missing; tried once, on the current device."""
    try:
        from ._merge_kernel import merge

        ones = torch.ones(3, 1, 1, device="cuda")
        merge(ones[:1], ones[:1, :, 0], ones[1:2], ones[1:2, :, 0])
    except Exception as error:  # whatever Triton raises where it finds no compiler
        warnings.warn(f"results are merged by thirteen launches instead of one, as Triton is missing or fails: {error}", stacklevel=3)
        return None
    return merge


def _empty_results(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return out, query.new_empty(query.shape[:-1], dtype=dtype)


def _exchanges(places: Places, path: Path = ()) -> Iterator[Path]:
    """The keys whose halos travel, in the order in which forward comes to have those."""
    if len(path) == len(places):
        return
    _, own, link = places[len(path)]
    yield from _exchanges(places, (*path, None))
    if not link.idle:
        yield path
    for halo in own.halos:
        yield from _exchanges(places, (*path, halo))


class _Backward:
    """The gradients of one call; those of what all processes have are added up in `shared`."""

    def __init__(
        self, plan: Plan, rest: Sequence[OptionalTensor], kept: Sequence[Tensor], wanted: Sequence[bool]
    ) -> None:
        self.plan, self.rest, self.wanted = plan, rest, wanted
        self.places = _places(plan)
        self.kept = dict(zip(_exchanges(self.places), kept))
        self.shared: list[OptionalTensor] = [None, None, None]

    def run(
        self, path: Path, place: _Place, key: Tensor, value: Tensor, of_queries: Sequence[OptionalTensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value; of_queries: query, out, lse, d_out, d_lse."""
        if len(path) == len(self.places):
            return self._leaf(path, place, key, value, of_queries)
        axis, own, link = self.places[len(path)]
        if link.idle:
            return self.run((*path, None), place, key, value, of_queries)
        came = take_keys(self.kept[path], (key, value), 1 + axis, link)
        d_queries: list[Tensor] = []
        """of the halos' queries"""
        home: dict[Segment, list[Tensor]] = {}
        for halo in own.halos:
            part = _queries_of(halo, own.begin, axis, of_queries)
            at = place.at(axis, halo.begin, halo.first)
            d_part, *d_keys = self.run((*path, halo), at, *_keys_of(halo, axis, came), part)
            d_queries.append(d_part)
            for segment in own.needs:
                if halo.first <= segment.token < halo.last:
                    begin = segment.token - halo.first
                    home[segment] = [_along(d, axis, begin, begin + segment.length) for d in d_keys]
        travel = send_gradients(home, (key, value), 1 + axis, link)
        d_query, d_key, d_value = self.run((*path, None), place, key, value, of_queries)
        for halo, d_part in zip(own.halos, d_queries):
            _along(d_query, axis, halo.begin - own.begin, halo.end - own.begin).add_(d_part)
        add_gradients(travel.wait(), (d_key, d_value), 1 + axis, link)
        return d_query, d_key, d_value

    def _leaf(
        self, path: Path, place: _Place, key: Tensor, value: Tensor, of_queries: Sequence[OptionalTensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        query, out, lse, d_out, d_lse = of_queries
        rest = _rest_of(path, self.rest)
        wanted = [True, True, True, *(want and t is not None for want, t in zip(self.wanted[3:], rest))]
        found = _na_backward(self.plan, place, (query, key, value, *rest, out, lse, d_out, d_lse), wanted)
        shared = iter(found[3:])
        for i, want in enumerate(wanted[3:]):
            if want:
                gradient, before = _at_least_f32(next(shared)), self.shared[i]
                self.shared[i] = gradient if before is None else before + gradient
        return found[0], found[1], found[2]


def _at_least_f32(tensor: Tensor) -> Tensor:
    """For sums over pieces and processes."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


# Strategies: each is (out, lse, whatever its backward is to be handed again), and the gradients of the first six inputs.


def _halo_forward(plan: Plan, inputs: Sequence[OptionalTensor]) -> list[Tensor]:
    query, key, value, *rest = inputs
    call = _Forward(plan, rest)
    place = _own_place(plan, call.places)
    out, lse = call.run((), place, query, key, value)  # type: ignore[arg-type]
    return [out, lse, *call.kept]


def _halo_backward(
    plan: Plan, inputs: Sequence[OptionalTensor], results: Sequence[OptionalTensor], wanted: Sequence[bool]
) -> list[OptionalTensor]:
    """results: out, lse, what was kept, d_out and d_lse."""
    query, key, value, *rest = inputs
    out, lse, *kept, d_out, d_lse = results
    call = _Backward(plan, rest, kept, wanted)  # type: ignore[arg-type]
    place = _own_place(plan, call.places)
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


def _compare(plan: Plan, inputs: Sequence[OptionalTensor], *more: tuple[str, Any]) -> None:
    """ValueError, in all processes, if a call differs between them."""
    arguments = (
        *zip(("grid", *Window._fields[1:]), zip(*plan.axes)),
        ("sizes", plan.sizes),
        *tensor_arguments(inputs, plan.scale, plan.sizes),
        ("strategy", plan.strategy),
        *more,
    )
    groups = [plan.link(axis).group for axis in plan.sharded]
    agree(groups, arguments, inputs[0].device, plan.timeout)  # type: ignore[union-attr]


def _sharded_na(*arguments: Any) -> list[Tensor]:
    """out, lse, and what backward is to be handed again."""
    *inputs, text = arguments
    plan = parse(text)
    if plan.compare:
        _compare(plan, inputs)
    return (_heads_forward if plan.strategy == "heads" else _halo_forward)(plan, inputs)


def _sharded_na_backward(*arguments: Any) -> list[Tensor]:
    """One gradient per True in `wanted`, in the order of the inputs."""
    inputs, (text, results, d_out, d_lse, wanted) = arguments[:6], arguments[6:]
    plan = parse(text)
    more = [(f"the gradient of {name}", want) for name, want in zip(("bias", "additional_keys", "additional_values"), wanted[3:])]
    if plan.strategy == "heads":  # elsewhere nothing of it travels
        more.append(("the gradient by lse", d_lse is not None))
    _compare(plan, inputs, *more)
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
    return [out, lse, *(key.new_empty(_came_of(plan, path, key, value)) for path in _exchanges(_places(plan)))]


def _came_of(plan: Plan, path: Path, key: Tensor, value: Tensor) -> int:
    """How many numbers come of an exchange."""
    axis = plan.sharded[len(path)]
    tokens = sum(segment.length for segment in plan.own(axis).needs)
    count = (key.numel() + value.numel()) // key.shape[1 + axis] * tokens
    for other, halo in zip(plan.sharded, path):
        if halo:
            count = count // key.shape[1 + other] * (halo.last - halo.first)
    return count


def _of_heads(plan: Plan, tensor: Tensor, count: int) -> Tensor:
    own = tensor.shape[1:-2]
    lengths = [axis.length if sizes else length for axis, sizes, length in zip(plan.axes, plan.sizes, own)]
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


def _refuse_mapping(*_: Any) -> Any:
    raise NotImplementedError("sharded attention under torch.vmap: its exchanges are those of one call")


for _name in ("sharded_na", "sharded_na_backward"):
    for _key in ("FuncTorchBatched", "Batched"):
        _library.impl(_name, _refuse_mapping, _key)


@register_formula(_library, "sharded_na", 6)
class ShardedAttention(Formula):
    """The derivatives of out and lse. What else there is of results is for the backward operator, whose own derivatives are not known."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        *inputs, parameters, execute, _ = arguments
        results = tuple(execute(*inputs, *parameters))
        ctx.save_for_backward(*inputs, *results)
        ctx.mark_non_differentiable(*results[2:])
        ctx.set_materialize_grads(False)
        ctx.parameters = parameters
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: OptionalTensor) -> tuple[OptionalTensor, ...]:  # type: ignore[override]
        inputs, results = ctx.saved_tensors[:6], ctx.saved_tensors[6:]
        d_out, d_lse = grads[:2]
        if d_out is None:
            d_out = torch.zeros_like(results[0])
        wanted = ctx.needs_input_grad[:6]
        found = iter(torch.ops.nhood.sharded_na_backward(*inputs, *ctx.parameters, results, d_out, d_lse, wanted))
        return (*[next(found) if want else None for want in wanted], None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: OptionalTensor) -> Any:  # type: ignore[override]
        raise NotImplementedError("forward-mode differentiation of sharded attention")


def sharded_attention(inputs: Sequence[OptionalTensor], text: str) -> tuple[Tensor, Tensor]:
    """out and lse of this process' queries, by the text of a plan."""
    results = torch.ops.nhood.sharded_na(*inputs, text)
    return results[0], results[1]
