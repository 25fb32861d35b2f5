"""Wall-clock times of calls, on CPUs and CUDA devices."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

LEAST_SECONDS = 0.02  # as many calls are timed together as take this long


def synchronize() -> None:
    """Waits for the current CUDA device, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(call: Callable[[], Any], repeats: int = 1) -> float:
    """Seconds of one call, the mean of `repeats` that are queued one after the other."""
    synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize()
    return (time.perf_counter() - start) / repeats


def medians_in_turn(calls: dict[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """Milliseconds of one call of each, to four digits: the median of `turns` in which all are timed one after the other, each as
    often as LEAST_SECONDS hold it. The first call of each does not count."""
    repeats = {}
    for name, call in calls.items():
        call()
        repeats[name] = math.ceil(LEAST_SECONDS / seconds_of(call))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            times[name].append(1e3 * seconds_of(call, repeats[name]))
    return {name: float(f"{statistics.median(values):.4g}") for name, values in times.items()}


@contextlib.contextmanager
def plans_of_groups_timed() -> Iterator[Callable[[Callable[[], Any]], tuple[Any, float, float]]]:
    """Gives a function that makes a call, with nothing queued before it, and returns its result, the seconds that it takes on the host, and
    those of them in which plans of groups are made in C."""
    from nhood import _groups, _quick

    ways, planned = (_groups._create, _quick.group_plan), 0.0

    def timed(create: Callable[..., Any]) -> Callable[..., Any]:
        def timed_create(*given: Any) -> Any:
            nonlocal planned
            start = time.perf_counter()
            made = create(*given)
            planned += time.perf_counter() - start
            return made

        return timed_create

    def on_host(call: Callable[[], Any]) -> tuple[Any, float, float]:
        nonlocal planned
        synchronize()
        planned, start = 0.0, time.perf_counter()
        result = call()
        return result, time.perf_counter() - start, planned

    _groups._create, _quick.group_plan = map(timed, ways)
    try:
        yield on_host
    finally:
        _groups._create, _quick.group_plan = ways
