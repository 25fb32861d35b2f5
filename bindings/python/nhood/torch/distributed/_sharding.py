"""How a grid is sharded over the processes of a mesh, as users say it, and the lengths of the shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..._functions import PerAxis, per_axis
from ._axes import chunks
from ._exchange import arrival
from ._strategies import Link

MeshAxis = Union[str, int, None]


class Sharding(NamedTuple):
    """How the axes of a grid are sharded over the processes of a mesh.

    mesh: the processes.
    sharded_axes: per axis of the grid the dimension of the mesh, by name or number, along which it is sharded, or None. No
        dimension twice.
    grid: lengths of the whole grid, cut as torch.chunk cuts them. None: what all processes together have, for which they ask
        each other on every call.
    sizes: per axis of the grid the lengths of its shards, where they are not those of torch.chunk; None where it is not sharded.
    strategy: halo (keys and values of neighbours travel), heads (each process computes some of the heads for the whole grid),
        gather (all keys and values to all), or auto: what takes the least time by the link's numbers (explain).
    timeout: seconds to wait for another process before a RuntimeError; None: as the process group says.
    link: what auto rests on; None: numbers of H200s of one host, on a CPU of its processes.
    """

    mesh: DeviceMesh
    sharded_axes: Sequence[MeshAxis]
    grid: Optional[PerAxis] = None
    sizes: Optional[Sequence[Optional[Sequence[int]]]] = None
    strategy: str = "auto"
    timeout: Optional[float] = None
    link: Optional[Link] = None


def _mesh_dimension(mesh: DeviceMesh, given: MeshAxis, axis: int) -> int:
    names = mesh.mesh_dim_names or ()
    if isinstance(given, str):
        if given not in names:
            raise ValueError(f"sharded_axes[{axis}] = {given!r} is not a dimension of the mesh: {names}")
        return names.index(given)
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given < mesh.ndim:
        raise ValueError(f"sharded_axes[{axis}] = {given!r} is not a dimension of a mesh of {mesh.ndim}")
    return given


def dimensions(sharding: Sharding, rank: int) -> list[Optional[int]]:
    """The dimension of the mesh along which each axis of the grid is sharded, or None."""
    axes = sharding.sharded_axes
    if isinstance(axes, str) or len(axes) != rank:
        raise ValueError(f"sharded_axes = {axes!r} has not one entry for each of {rank} axes")
    found = [None if a is None else _mesh_dimension(sharding.mesh, a, i) for i, a in enumerate(axes)]
    taken = [dimension for dimension in found if dimension is not None]
    if len(set(taken)) < len(taken):
        raise ValueError(f"sharded_axes = {axes!r}: two axes of the grid along one dimension of the mesh")
    return found


def _asked_sizes(length: int, group: Any, device: torch.device, timeout: Optional[float]) -> tuple[int, ...]:
    """The lengths that the processes of a group have."""
    mine = torch.tensor([length], device=device)
    theirs = [torch.zeros_like(mine) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(theirs, mine, group=group, async_op=True)
    arrival(work, timeout)()
    return tuple(int(size) for size in theirs)


def sizes_of(sharding: Sharding, axis: int, length: int, group: Any, device: torch.device) -> tuple[int, ...]:
    """The lengths of the shards of an axis, of which this process has `length` tokens."""
    count, index = dist.get_world_size(group), dist.get_rank(group)
    given = sharding.sizes[axis] if sharding.sizes is not None else None
    if given is not None:
        found = tuple(given)
        if len(found) != count or min(found) < 1:
            raise ValueError(f"sizes[{axis}] = {found} are not the lengths of {count} shards")
    elif sharding.grid is not None:
        found = chunks(per_axis(sharding.grid, len(sharding.sharded_axes), "grid")[axis], count)
    else:
        found = _asked_sizes(length, group, device, sharding.timeout)
    if found[index] != length:
        raise ValueError(f"query has {length} tokens on axis {axis}, its shard {index} of {found} has {found[index]}")
    return found
