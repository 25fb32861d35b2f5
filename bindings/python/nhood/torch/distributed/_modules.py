"""Layers and models on sharded grids: what looks beyond its own token asks the neighbours for it."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from ._axes import Segment, Shard, boundaries, segments
from ._exchange import Link, add_gradients, reduce_over, send_gradients, send_keys, take_keys
from ._functions import neighborhood_attention
from ._sharding import Sharding, dimensions, sizes_of


class _Around(Function):
    """A shard with the tokens that it needs of others before and behind it, along an axis of the tensor."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, axis: int, link: Link) -> Tensor:  # type: ignore[override]
        ctx.axis, ctx.link, ctx.length = axis, link, shard.shape[axis]
        came = take_keys(send_keys((shard,), axis, link).wait(), (shard,), axis, link)
        needs = link.shards[link.index].needs
        before = [came[s][0] for s in needs if s.token < 0]
        behind = [came[s][0] for s in needs if s.token >= 0]
        return torch.cat([*before, shard, *behind], dim=axis)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Optional[Tensor], ...]:  # type: ignore[override]
        axis, link = ctx.axis, ctx.link
        needs = link.shards[link.index].needs
        at = sum(s.length for s in needs if s.token < 0)
        own = gradient.narrow(axis, at, ctx.length).clone(memory_format=torch.contiguous_format)
        home, before, behind = {}, 0, at + ctx.length
        for segment in needs:
            begin = before if segment.token < 0 else behind
            home[segment] = [gradient.narrow(axis, begin, segment.length)]
            if segment.token < 0:
                before += segment.length
            else:
                behind += segment.length
        add_gradients(send_gradients(home, (own,), axis, link).wait(), (own,), axis, link)
        return own, None, None


def _relative(found: list[Segment], origin: int) -> tuple[Segment, ...]:
    return tuple(segment._replace(token=segment.token - origin) for segment in found)


def _convolve(conv: nn.Conv2d, images: Tensor, sharding: Sharding) -> Tensor:
    """Convolves shards [B, C, H, W]: the outputs whose first inputs, without padding, begin in the shard."""
    if isinstance(conv.padding, str) or conv.padding_mode != "zeros":
        raise ValueError(f"{conv}: sharded convolutions are padded with a number of zeros")
    pads: list[int] = []
    for i, dimension in enumerate(dimensions(sharding, 2)):
        reach, stride, padding = conv.dilation[i] * (conv.kernel_size[i] - 1) + 1, conv.stride[i], conv.padding[i]
        if dimension is None:
            pads = [padding, padding, *pads]
            continue
        group = sharding.mesh.get_group(dimension)
        sizes = sizes_of(sharding._replace(grid=None, sizes=None), i, images.shape[2 + i], group, images.device)
        bounds, index = boundaries(sizes), dist.get_rank(group)
        if any(size % stride for size in sizes[:-1]):
            raise ValueError(f"{conv}: its stride {stride} does not divide the lengths {sizes} of the shards")
        outputs = (bounds[-1] + 2 * padding - reach) // stride + 1

        def inputs(process: int) -> tuple[int, int]:
            last = outputs if process == len(sizes) - 1 else bounds[process + 1] // stride
            return bounds[process] // stride * stride - padding, (last - 1) * stride - padding + reach

        def shard(process: int) -> Shard:
            first, last = inputs(process)
            begin, end = bounds[process], bounds[process + 1]
            before = segments(bounds, max(first, 0), begin, False) if first < begin else []
            behind = segments(bounds, end, min(last, bounds[-1]), False) if last > end else []
            return Shard(begin, end, (), (*_relative(before, begin), *_relative(behind, begin)))

        link = Link(group, [shard(process) for process in range(len(sizes))], index, sharding.timeout)
        first, last = inputs(index)
        if not link.idle:
            images = _Around.apply(images, 2 + i, link)
        pads = [max(0, -first), max(0, last - bounds[-1]), *pads]
        surplus = images.shape[2 + i] + pads[0] + pads[1] - (last - first)
        if surplus > 0:
            images = images.narrow(2 + i, 0, images.shape[2 + i] - surplus)
    return F.conv2d(F.pad(images, pads), conv.weight, conv.bias, conv.stride, 0, conv.dilation, conv.groups)


class _Sum(Function):
    """Over all processes; its gradient is that of one of them, as all go on alike."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, links: list[Link]) -> Tensor:  # type: ignore[override]
        total = tensor.clone()
        reduce_over([total], links)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Optional[Tensor], ...]:  # type: ignore[override]
        return gradient, None


def _links(sharding: Sharding) -> list[Link]:
    """A link for each dimension along which the grid is sharded, for sums."""
    rank = len(sharding.sharded_axes)
    groups = [sharding.mesh.get_group(d) for d in dimensions(sharding, rank) if d is not None]
    return [Link(group, (), dist.get_rank(group), sharding.timeout) for group in groups]


def _pooled(classifier: Any, sharding: Sharding, images: Tensor) -> Tensor:
    """Classifier.forward_features: the mean over the tokens of all processes."""
    tokens = classifier.forward_tokens(images)
    count = tokens.new_tensor([tokens.shape[1] * tokens.shape[2]])
    links = _links(sharding)
    return _Sum.apply(tokens.sum(dim=(1, 2)), links) / _Sum.apply(count, links)


def _attend(layer: Any, sharding: Sharding) -> Callable[..., Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if layer.training and layer.attn_drop.p > 0:
            raise NotImplementedError(f"attn_drop = {layer.attn_drop.p}: attention weights of a sharded grid are not kept")
        return neighborhood_attention(
            query,
            key,
            value,
            layer.kernel_size,
            stride=layer.stride,
            dilation=layer.dilation,
            is_causal=layer.is_causal,
            is_periodic=getattr(layer, "is_periodic", False),
            scale=layer.scale,
            bias=layer.rpb,
            **sharding._asdict(),
        )

    return attend


def shard(module: nn.Module, sharding: Sharding) -> nn.Module:
    """Makes a layer or a model work on shards, in place: it is then called with each process' shard of its input. Returns it.

    module: NeighborhoodAttention1D, 2D or 3D, a classifier of nhood.models, or any module whose other layers work on each
        token alone, or are Conv2d of [B, C, H, W] with H and W as the two axes of the grid. A classifier pools over all
        processes and gives all of them its logits. Layers that pad or merge patches take shards whose lengths they divide.
    sharding: of the grid; its grid and sizes are left aside, as they change from level to level: processes ask each other.

    Gradients of parameters are those of the process' own tokens: sum them by reduce_gradients after backward.
    """
    sharding = sharding._replace(grid=None, sizes=None)
    rank = len(sharding.sharded_axes)
    for layer in module.modules():
        if hasattr(layer, "_attend") and hasattr(layer, "kernel_size"):
            if layer.rank != rank:
                raise ValueError(f"sharded_axes = {sharding.sharded_axes!r} has {rank} entries, {layer} has {layer.rank} axes")
            layer._attend = _attend(layer, sharding)
        elif isinstance(layer, nn.Conv2d) and rank == 2 and (layer.kernel_size != layer.stride or any(layer.padding)):
            layer.forward = types.MethodType(lambda conv, images: _convolve(conv, images, sharding), layer)
        elif hasattr(layer, "forward_features") and hasattr(layer, "patch_embed"):
            layer.forward_features = types.MethodType(lambda model, images: _pooled(model, sharding, images), layer)
    return module


def _partial_gradients(module: nn.Module) -> Iterator[Tensor]:
    """Not those of relative biases, which the attention has summed, nor of a classifier's head, which all processes have."""
    whole = {id(layer.rpb) for layer in module.modules() if getattr(layer, "rpb", None) is not None}
    for layer in module.modules():
        if hasattr(layer, "forward_features") and hasattr(layer, "head"):
            whole.update(id(parameter) for parameter in layer.head.parameters())
    for parameter in module.parameters():
        if parameter.grad is not None and id(parameter) not in whole:
            yield parameter.grad


def reduce_gradients(module: nn.Module, sharding: Sharding) -> None:
    """Sums the gradients of a sharded module's parameters over the processes that share a grid: call it between backward and the
    optimizer's step, in all of them."""
    reduce_over(_partial_gradients(module), _links(sharding))
