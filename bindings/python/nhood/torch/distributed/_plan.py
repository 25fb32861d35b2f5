"""What a sharded call depends on beside its tensors, and where it runs: the grid, its shards, the processes."""

from __future__ import annotations

import functools
import json
from typing import Any, NamedTuple, Optional

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ._axes import Shard, Window, shard
from ._exchange import Link


class Plan(NamedTuple):
    """Hashable, and a text for torch.compile, whose operators take no other objects."""

    axes: tuple[Window, ...]
    sizes: tuple[Optional[tuple[int, ...]], ...]
    """of the shards of each axis; None: not sharded"""
    groups: tuple[Optional[str], ...]
    """names of the process groups along each axis"""
    strategy: str
    scale: Optional[float] = None
    timeout: Optional[float] = None
    """seconds that a process waits for another one; None: as the process group says"""
    compare: bool = False
    """whether the operator has the processes compare their arguments"""

    @property
    def sharded(self) -> tuple[int, ...]:
        return tuple(axis for axis, sizes in enumerate(self.sizes) if sizes)

    def text(self) -> str:
        return _text(self)

    def shards(self, axis: int) -> tuple[Shard, ...]:
        """What each process along a sharded axis does."""
        return _shards(self, axis)

    # What follows is asked where the processes are.

    def link(self, axis: int) -> Link:
        return _link(self, axis)

    def own(self, axis: int) -> Shard:
        return self.shards(axis)[self.link(axis).index]


@functools.lru_cache(maxsize=1024)
def _text(plan: Plan) -> str:
    return json.dumps(plan)


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Plan:
    axes, sizes, groups, strategy, scale, timeout, compare = json.loads(text)
    return Plan(
        tuple(Window(*axis) for axis in axes),
        tuple(entry and tuple(entry) for entry in sizes),
        tuple(groups),
        strategy,
        scale,
        timeout,
        compare,
    )


@functools.lru_cache(maxsize=1024)
def _shards(plan: Plan, axis: int) -> tuple[Shard, ...]:
    sizes = plan.sizes[axis] or ()
    everything = plan.strategy == "gather"
    return tuple(shard(plan.axes[axis], sizes, index, everything) for index in range(len(sizes)))


def _link(plan: Plan, axis: int) -> Link:
    """Not cached: a process may leave a group and make another one of the same name."""
    group: Any = distributed_c10d._resolve_process_group(plan.groups[axis] or "")
    return Link(group, plan.shards(axis), dist.get_rank(group), plan.timeout)
