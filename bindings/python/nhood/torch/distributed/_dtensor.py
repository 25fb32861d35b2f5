"""DTensors in, DTensors out: the shards are the local tensors."""

from __future__ import annotations

from typing import Any, Callable, Optional

from torch import Tensor

try:
    from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
except ImportError:  # torch 2.4
    from torch.distributed._tensor import DTensor, Partial, Placement, Replicate, Shard

from ..._layouts import packed_strides


def _axes_of(query: DTensor) -> list[Optional[int]]:
    """The dimension of the mesh along which each axis of the grid is sharded."""
    rank = query.dim() - 3
    found: list[Optional[int]] = [None] * rank
    for dimension, placement in enumerate(query.placements):
        if isinstance(placement, Replicate):
            continue
        if not isinstance(placement, Shard) or placement.dim == query.dim() - 1:
            raise ValueError(f"query.placements = {query.placements}: only shards of batch, grid or heads")
        axis = placement.dim - 1
        if not 0 <= axis < rank:
            continue  # batch or heads: nothing travels
        if found[axis] is not None:
            raise ValueError(f"query.placements = {query.placements}: an axis is sharded twice")
        found[axis] = dimension
    return found


def _local(name: str, tensor: Optional[Tensor], query: DTensor) -> Optional[Tensor]:
    """The shard of key or value, which must lie as query does."""
    if not isinstance(tensor, DTensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, query a DTensor")
    if tensor.device_mesh != query.device_mesh or tuple(tensor.placements) != tuple(query.placements):
        raise ValueError(f"{name}.placements = {tensor.placements}, those of query are {query.placements}")
    return tensor.to_local()


def _replicated(name: str, tensor: Optional[Tensor], query: DTensor) -> Optional[Tensor]:
    if tensor is None or not isinstance(tensor, DTensor):
        return tensor
    if any(not isinstance(placement, Replicate) for placement in tensor.placements):
        raise ValueError(f"{name}.placements = {tensor.placements}: every process needs all of it")
    if any(isinstance(p, Shard) and p.dim == query.dim() - 2 for p in query.placements):
        raise ValueError(f"{name} with heads that are sharded: give each process the {name} of its heads, as a tensor")
    of_batch = [isinstance(placement, Shard) and placement.dim == 0 for placement in query.placements]
    return tensor.to_local(grad_placements=[Partial() if partial else Replicate() for partial in of_batch])


def of_dtensors(
    function: Callable[..., Any],
    query: DTensor,
    key: Tensor,
    value: Tensor,
    kernel_size: Any,
    extras: tuple[Optional[Tensor], ...],
    named: dict[str, Any],
) -> Any:
    """`function`, on the local tensors."""
    names = ("bias", "additional_keys", "additional_values")
    found = function(
        query.to_local(),
        _local("key", key, query),
        _local("value", value, query),
        kernel_size,
        mesh=query.device_mesh,
        sharded_axes=_axes_of(query),
        grid=tuple(query.shape[1:-2]),
        **{name: _replicated(name, extra, query) for name, extra in zip(names, extras)},
        **named,
    )

    def whole(local: Tensor, *last: int) -> DTensor:
        shape = (*query.shape[:-1], *last)
        placements: tuple[Placement, ...] = tuple(query.placements)
        return DTensor.from_local(
            local, query.device_mesh, placements, run_check=False, shape=shape, stride=packed_strides(shape, 1)
        )

    if isinstance(found, tuple):
        return whole(found[0], value.shape[-1]), whole(found[1])
    return whole(found, value.shape[-1])
