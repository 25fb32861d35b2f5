"""Measures the cases of bench/models.py, in this process or in several.

Getting ready takes longer than running where a way is compiled for every shape. So each case of a wave gets a process of its
own; all get ready at once, and when the last one is, their clocks run one after the other.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import torch
from attention_ways import WAYS
from model_cases import Case, measure

_alone: Any = None  # of a worker: the lock and the barrier of its wave
_ready: Any = None


def set_precision(tf32: bool) -> None:
    torch.set_float32_matmul_precision("high" if tf32 else "highest")


def _begin(alone: Any, ready: Any, tf32: bool) -> None:
    global _alone, _ready
    _alone, _ready = alone, ready
    set_precision(tf32)


def _measure(case: Case, ways: list[str], *options: Any) -> Case:
    try:
        return measure(case, [WAYS[name] for name in ways], *options, _alone, _ready.wait)
    except BaseException:
        _ready.abort()  # nobody waits for this one
        raise


def measure_all(cases: list[Case], jobs: int, tf32: bool, ways: list[str], *options: Any) -> Iterator[Case]:
    """options: turns, seconds, device. Yields the cases as they are done."""
    if jobs == 1:
        set_precision(tf32)
        for case in cases:
            yield measure(case, [WAYS[name] for name in ways], *options, contextlib.nullcontext(), lambda: None)
        return
    context = multiprocessing.get_context("spawn")
    for first in range(0, len(cases), jobs):
        wave = cases[first : first + jobs]
        shared = context.Lock(), context.Barrier(len(wave)), tf32
        with ProcessPoolExecutor(len(wave), context, _begin, shared) as pool:
            for done in as_completed([pool.submit(_measure, case, ways, *options) for case in wave]):
                yield done.result()
