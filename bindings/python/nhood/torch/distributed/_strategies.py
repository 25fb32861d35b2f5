"""Which way of putting queries and keys together is likely the fastest, from what travels and what is computed meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Optional

from ._axes import outside
from ._plan import Plan

NAMES = ("halo", "heads", "gather")


class Link(NamedTuple):
    """What a strategy's time is worked out with."""

    bytes_per_s: float
    """that a process sends, and receives, at the same time"""
    latency_s: float
    """of one collective"""
    flops_per_s: float
    """of one process' attention"""


LINKS = {
    # NVLink of one host, H200s: neighbours swap halos both ways at 280 to 310 GB/s per GPU, 80 us at least; attention of
    # 16-bit tensors at some 400 TFLOP/s (docs/performance.md).
    "cuda": Link(280e9, 80e-6, 400e12),
    # Processes on one CPU host: memory and a few cores.
    "cpu": Link(2e9, 500e-6, 50e9),
}


class Choice(NamedTuple):
    """A strategy, and what is expected of a forward pass by it."""

    strategy: str
    seconds: float
    """of the slowest process; infinite if it cannot be taken"""
    sent_bytes: float
    """by the process that receives most"""
    reason: str


class Sizes(NamedTuple):
    """The extents of the tensors, without the axes of the grid."""

    batch: int
    heads: int
    kv_heads: int
    dim: int
    dim_v: int
    element_bytes: int


def choices(plan: Plan, sizes: Sizes, link: Link) -> list[Choice]:
    """All strategies, the best first. Every process finds the same."""
    found = [
        _by_keys(plan._replace(strategy="halo"), sizes, link),
        _by_heads(plan._replace(strategy="heads"), sizes, link),
        _by_keys(plan._replace(strategy="gather"), sizes, link),
    ]
    return sorted(found, key=lambda choice: choice.seconds)  # of equals the first


def _by_keys(plan: Plan, sizes: Sizes, link: Link) -> Choice:
    """halo, or gather. Axis after axis: the keys that came along one travel along the next with the own ones."""
    tokens = [max(counts) if counts else axis.length for axis, counts in zip(plan.axes, plan.sizes)]
    per_token = sizes.batch * sizes.kv_heads * (sizes.dim + sizes.dim_v) * sizes.element_bytes
    extents, sent, within, collectives, launches = list(tokens), 0.0, 1.0, 0, 1
    for axis in plan.sharded:
        shards = plan.shards(axis)
        needs = max(sum(segment.length for segment in shard.needs) for shard in shards)
        collectives += needs > 0
        sent += math.prod(extents) / extents[axis] * needs * per_token
        extents[axis] += needs
        within *= 1 - max(outside(plan.axes[axis], shard) for shard in shards)
        launches *= 1 + max(len(shard.halos) for shard in shards)
    work = _work(plan, sizes, tokens) / link.flops_per_s
    travel = sent / link.bytes_per_s + collectives * link.latency_s
    seconds = max(travel, work * within) + work * (1 - within)
    share = f"{100 * within:.0f} % of the work is done while they travel, in {launches} launches"
    what = "all keys" if plan.strategy == "gather" else "keys around each shard"
    return Choice(plan.strategy, seconds, sent, f"{what}, {sent / 1e6:.3g} MB; {share}")


def _by_heads(plan: Plan, sizes: Sizes, link: Link) -> Choice:
    processes = math.prod(len(counts) for counts in plan.sizes if counts)
    if sizes.heads % processes or sizes.kv_heads % processes:
        heads = f"{sizes.heads} query heads and {sizes.kv_heads} key heads"
        return Choice("heads", math.inf, 0, f"{processes} processes do not divide {heads}")
    tokens = [max(counts) if counts else axis.length for axis, counts in zip(plan.axes, plan.sizes)]
    channels = (sizes.heads + sizes.kv_heads) * (sizes.dim + sizes.dim_v)
    sent = math.prod(tokens) * sizes.batch * channels * sizes.element_bytes * (1 - 1 / processes)
    travel = sent / link.bytes_per_s + 3 * len(plan.sharded) * link.latency_s
    seconds = travel + _work(plan, sizes, tokens) / link.flops_per_s
    return Choice("heads", seconds, sent, f"heads for tokens, {sent / 1e6:.3g} MB, before and after the computation")


def _work(plan: Plan, sizes: Sizes, tokens: Sequence[int]) -> float:
    window = math.prod(axis.mean_keys for axis in plan.axes)
    return 2.0 * sizes.batch * sizes.heads * math.prod(tokens) * window * (sizes.dim + sizes.dim_v)


def chosen(plan: Plan, sizes: Sizes, strategy: str, link: Link) -> str:
    """The strategy to take. ValueError for one that is not known or cannot be taken."""
    if strategy != "auto" and strategy not in NAMES:
        raise ValueError(f"strategy = {strategy!r} is not one of auto, {', '.join(NAMES)}")
    found: Optional[Choice] = None
    for choice in choices(plan, sizes, link):
        if strategy in ("auto", choice.strategy):
            found = choice
            break
    assert found is not None
    if math.isinf(found.seconds):
        raise ValueError(f"strategy = {strategy!r}: {found.reason}")
    return found.strategy
