"""Measuring which solver and tiles are fastest here, and wisdom: what is remembered of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import warnings
from collections.abc import Iterator
from typing import Optional

from . import _library as c
from . import _log
from ._functions import number
from ._plans import Context, PlanOwner, clear_cache, current_context, plan_options


def tune(*problems: str, device: str = "cpu", budget: float = 1.0) -> list[str]:
    """Times the candidates of problems that are not known yet, and remembers, also for other processes and later
    ones. Returns a line per problem, and per different member of a group: what plans will use, how long it takes, and by how
    many samples.

    problems: texts, "fwd:f32:b1h4d32:56x56:w7x7"; `nhood --help` and nhood.h explain them. That of a group is a head with
        members behind it, "fwd:f32:b1h4d32; 14x14:w7x7; 20x30:w7x7:d2x2"; a member with a batch or heads of its own begins
        with them.
    device: a name in devices().
    budget: seconds per problem, more or less; 0: until every candidate has been timed well.
    """
    context = current_context()
    options = plan_options(context.solver, c.EFFORT_MEASURE, _seconds(budget))
    where = _device_number(context, device)
    parsed = [problem for text in problems for problem in _parse_all(text)]
    try:
        return [_plan_line(context, where, problem, options) for problem in parsed]
    finally:  # what was measured before an error or an interrupt is kept
        clear_cache()
        _save(context)


@contextlib.contextmanager
def tuning(budget: float = 1.0) -> Iterator[None]:
    """Within it, the first call of every kind, in any thread, measures before it computes:

        with nhood.tuning():
            model(image)

    budget: seconds per kind of call, as for tune; the samples or sets of heads of one call share it. What was learned is
    remembered as by tune. Where blocks overlap, in one thread or in several, the budget of the one that began last counts.
    """
    context = current_context()
    options = plan_options(context.solver, c.EFFORT_MEASURE, _seconds(budget))
    try:
        context.measuring.append(options)
        clear_cache()
        yield
    finally:
        if options in context.measuring:  # not where an interrupt came first
            context.measuring.remove(options)
        _save(context)


def export_wisdom() -> str:
    """Everything known, as text: give all processes of a job the same, and they make the same plans."""
    handle = current_context().handle
    text, length = ctypes.create_string_buffer(1), ctypes.c_size_t()
    while c.lib.nhood_wisdom_export(handle, text, len(text), ctypes.byref(length)):
        if length.value < len(text):
            raise MemoryError(c.last_error())
        text = ctypes.create_string_buffer(length.value + 1)
    return c.text(text.value)


def import_wisdom(text: str) -> int:
    """Adds exported text to what is known; returns the number of lines that were well formed."""
    accepted = ctypes.c_int64()
    c.check(
        c.lib.nhood_wisdom_import(current_context().handle, c.as_bytes("text", text), ctypes.byref(accepted))
    )
    _log.hand_on()
    clear_cache()
    return accepted.value


def forget_wisdom(problem: Optional[str] = None) -> int:
    """Drops what this process knows of a problem, or of each member of a group, on any device, None: everything; returns how
    many lines. Files stay as they are."""
    handle, forgotten, total = current_context().handle, ctypes.c_int64(), 0
    for parsed in [None] if problem is None else map(ctypes.byref, _parse_all(problem)):
        c.check(c.lib.nhood_wisdom_forget(handle, c.ANY_DEVICE, parsed, ctypes.byref(forgotten)))
        total += forgotten.value
    clear_cache()
    return total


def _seconds(budget: float) -> float:
    seconds = number(budget, "budget")
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"budget = {budget!r} is not in [0, infinity) seconds")
    return seconds


def _device_number(context: Context, name: str) -> int:
    names = [c.text(info.name) for info in context.devices()]
    if name not in names:
        raise ValueError(f"device = {name!r} is not one of {', '.join(names)}")
    return names.index(name)


_GROUP_HEAD = re.compile(r"[^:;]*:[^:;]*(:[^:;]*)?")


def _parse_all(text: str) -> list[c.Problem]:
    """The problem of a text, or the different members of a group's."""
    if not isinstance(text, str) or ";" not in text:
        return [_parse(text)]
    head, *members = [part.strip() for part in text.split(";")]
    if not _GROUP_HEAD.fullmatch(head):
        raise ValueError(f"{text}: the head of a group is <op>:<dtype>:b<B>h<H>[k<Hkv>]d<D>[v<Dv>], before the first ';'")
    dtype_end = ":".join(head.split(":")[:2])
    whole = [f"{head if member[:1].isdigit() else dtype_end}:{member}" for member in members]
    found = []
    for i, member in enumerate(whole):
        try:
            found.append(_parse(member))
        except ValueError as error:
            raise ValueError(f"{text}: member {i}: {error}") from None
    return [problem for i, problem in enumerate(found) if whole[i] not in whole[:i]]


def _parse(text: str) -> c.Problem:
    problem = c.Problem()
    c.check(c.lib.nhood_problem_parse_sized(c.as_bytes("problem", text), ctypes.byref(problem), ctypes.sizeof(problem)))
    return problem


def _plan_line(context: Context, device: int, problem: c.Problem, options: c.PlanOptions) -> str:
    plan = PlanOwner()
    status = c.lib.nhood_plan_create(context.handle, device, problem, options, ctypes.byref(plan.handle))
    _log.hand_on()
    c.check(status)
    return c.text(c.lib.nhood_plan_description(plan.handle))


def _save(context: Context) -> None:
    """Into the cache folder, unless there is to be none. What cannot be kept is no reason to lose results, or the exception of
    who called."""
    status = c.lib.nhood_wisdom_save(context.handle, None, 0)
    _log.hand_on()
    if status and os.environ.get("NHOOD_CACHE") != "":
        what = "measured times are known to this process alone, as they could not be saved"
        warnings.warn(f"{what}: {c.last_error()}", RuntimeWarning, stacklevel=3)
