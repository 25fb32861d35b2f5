"""What the library runs on, and how it is told to."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import NamedTuple, Optional, Union

from . import _library as c
from ._functions import integer
from ._plans import Context, current_context, set_context


class Device(NamedTuple):
    """A device of the library; number 0 is always the CPU."""

    name: str
    """"cpu", "cuda:0" .."""
    kind: str
    """"cpu" or "cuda\""""
    ordinal: int
    workers: int
    """CPU threads in use, or streaming multiprocessors"""
    description: str
    """model, features, instruction set in use"""


class Ceilings(NamedTuple):
    """What a device can reach at most."""

    flops_per_s: float
    bytes_per_s: float


def version() -> str:
    """The version of the C library in use, "major.minor.patch"."""
    return c.text(c.lib.nhood_version())


Path = Union[str, "os.PathLike[str]"]


def configure(
    threads: int = 0,
    isa: Optional[str] = None,
    solver: Optional[str] = None,
    bundle: Union[Path, Sequence[Path], None] = None,
) -> None:
    """Sets how later calls run, in all threads; calls that are running end as they began.

    threads: CPU threads of one call, the calling one included, up to 1024; 0: $NHOOD_THREADS, else the least
        of the CPUs that this process may run on, its cgroup's quota and $OMP_NUM_THREADS.
    isa: highest CPU instruction set to use: "generic", "avx2", "avx512" or "amx" (Linux), on aarch64 "neon", "sve256" or "sve512";
        None: $NHOOD_ISA, else the best there is.
    solver: hold all plans to one solver, for tests and measurements; None: the library chooses.

    bundle: a file that `nhood bundle` wrote, or several, to take CUDA kernels from before the cache folder and the
        compiler; "" for none; None: $NHOOD_BUNDLE.

    Raises ValueError (a file that is not there or no bundle, too) or TypeError, and then changes nothing.
    """
    set_context(Context(integer(threads, "threads"), isa, solver, bundle))


def devices() -> list[Device]:
    """The devices the library sees. A call runs on the one that has its arrays."""
    kinds = {c.DEVICE_CPU: "cpu", c.DEVICE_CUDA: "cuda"}
    return [
        Device(c.text(info.name), kinds[info.kind], info.ordinal, info.workers, c.text(info.description))
        for info in current_context().devices()
    ]


def threads() -> int:
    """CPU threads that one call uses."""
    return devices()[0].workers


def notes() -> str:
    """One line on what was looked for beyond the CPU, and what to install where something is missing."""
    return c.text(c.lib.nhood_context_notes(current_context().handle))


def measure(dtype: str = "float32") -> Ceilings:
    """Measures what the CPU threads in use reach at most, in some tens of milliseconds.

    dtype: "float32" or "float64", the arithmetic of the multiply-adds, each counted as 2 operations.
    """
    numbers = {name: number for number, name in c.DTYPE_NAMES.items()}
    if dtype not in numbers:
        raise ValueError(f"dtype = {dtype!r} is not one of {', '.join(numbers)}")
    ceilings = c.Ceilings(struct_size=ctypes.sizeof(c.Ceilings))
    c.check(c.lib.nhood_device_measure(current_context().handle, 0, numbers[dtype], ceilings))
    return Ceilings(ceilings.flops_per_s, ceilings.bytes_per_s)
