"""Compiles what the cases of bench/gpu/models.py need in several processes, each attention once.

The process that measures then finds it in the caches on disk: nhood's kernels, and what torch makes of FlexAttention.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import torch
from attention_ways import WAYS
from model_cases import Attention, Case, attempt, attentions_in, run_once

Task = tuple[str, Attention, Case]
"""the name of a way, what it shall attend to, and a case that asks for it"""


def set_precision(tf32: bool) -> None:
    torch.set_float32_matmul_precision("high" if tf32 else "highest")


def tasks_of(cases: list[Case], ways: list[str]) -> list[Task]:
    """Each attention once for each way, dtype and pass. Those that differ from one before in the number of heads alone come
    last, as they hardly need kernels of their own."""
    tasks: dict[tuple, Task] = {}
    for name in sorted(ways, key=lambda name: name != "flex"):  # it takes longest
        for case in cases:
            for attention in attentions_in(case.model, case.bias):
                tasks.setdefault((name, attention, case.dtype, case.training), (name, attention, case))
    before: Counter[tuple] = Counter()

    def count_alike(task: Task) -> int:
        name, attention, case = task
        height, width, _, dim = attention.shape
        alike = name, (height, width, dim), attention.kernel_size, attention.dilation, case.bias, case.dtype, case.training
        before[alike] += 1
        return before[alike]

    return sorted(tasks.values(), key=lambda task: count_alike(task) > 1)


def compile_attention(task: Task, device: str) -> None:
    """Errors are left to the process that measures: it will meet them, too."""
    name, attention, case = task
    attempt(case, WAYS[name], lambda: run_once(WAYS[name], attention, case, device))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the memory is everyone's


def compile_ahead(cases: list[Case], ways: list[str], jobs: int, tf32: bool, device: str) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])  # imported once for all
    with ProcessPoolExecutor(jobs, context, set_precision, (tf32,)) as pool:
        tasks = tasks_of(cases, [name for name in ways if WAYS[name].compiled])
        for done in [pool.submit(compile_attention, task, device) for task in tasks]:
            done.result()
