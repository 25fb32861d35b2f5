"""Compiles what the cases of bench/models.py need in several processes, each attention once.

The process that measures then finds it in the caches on disk: nhood's kernels, and what torch makes of FlexAttention.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import torch
from attention_ways import WAYS
from model_cases import Attention, Case, attempt, attentions_in, run_once

Task = tuple[str, Attention, Case]
"""the name of a way, what it shall attend to, and a case that asks for it"""


def set_precision(tf32: bool) -> None:
    torch.set_float32_matmul_precision("high" if tf32 else "highest")


def tasks_of(cases: list[Case], ways: list[str]) -> Iterator[Task]:
    """Those that take longest first; and of attentions that differ in their heads alone, all but one last: most kernels
    serve any number of heads."""
    found: dict[tuple, Task] = {}
    for case in cases:
        for attention in attentions_in(case.model, case.bias):
            for name in ways:
                found[name, attention, case.dtype, case.training, case.batch] = name, attention, case
    seen: dict[tuple, int] = {}

    def rank(task: Task) -> tuple[bool, int]:
        name, attention, case = task
        height, width, _, dim = attention.shape
        alike = height, width, dim, attention.kernel_size, attention.dilation, attention.bias_shape is None
        key = name, alike, case.dtype, case.training
        seen[key] = seen.get(key, -1) + 1
        return name != "flex", seen[key]

    return iter(sorted(found.values(), key=rank))


def compile_attention(task: Task, device: str) -> None:
    """Errors are left to the process that measures: it will meet them, too."""
    name, attention, case = task
    attempt(case, WAYS[name], lambda: run_once(WAYS[name], attention, case, device))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the memory is everyone's


def compile_ahead(cases: list[Case], ways: list[str], jobs: int, tf32: bool, device: str) -> None:
    tasks = list(tasks_of(cases, [name for name in ways if WAYS[name].compiled]))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, set_precision, (tf32,)) as pool:
        for done in [pool.submit(compile_attention, task, device) for task in tasks]:
            done.result()
