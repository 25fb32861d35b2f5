"""What XLA calls: the handlers of nhood_xla.so (native/xla.c), registered on the CPU and on CUDA devices, and the plans that they
ask for."""

from __future__ import annotations

import contextlib
import ctypes
import os
from ctypes import POINTER, addressof, c_char, c_char_p, c_int32, c_size_t, c_void_p, cast
from typing import Any

import jax

from .. import _cuda
from .. import _library as c
from .. import _plans, _words
from . import _members

NAME = "nhood"
WORKSPACE_ALIGNMENT = 64
"""bytes; the handlers begin at such an address of the workspace's buffer, which is larger by that"""

_FILE = "nhood_xla.dll" if os.name == "nt" else "nhood_xla.so"
# The stages of its handlers by platform, with the platform's name as XLA registers handlers: not as JAX lowers for it.
_PLATFORMS = (("cpu", "cpu", ("instantiate", "execute")), ("cuda", "CUDA", ("instantiate", "initialize", "execute")))

_Find = ctypes.CFUNCTYPE(c_void_p, c_char_p, c_int32, POINTER(c_char), c_size_t)
_Reword = ctypes.CFUNCTYPE(None, c_char_p, POINTER(c_char), c_size_t)


class _Functions(ctypes.Structure):
    _fields_ = [
        (name, c_void_p) for name in ("execute", "execute_group", "release", "workspace_bytes", "last_error", "parse", "elements")
    ] + [("find", _Find), ("reword", _Reword)]


def _device(ordinal: int) -> int:
    """The library's number of a CUDA device; -1: of the CPU."""
    return _plans.CPU if ordinal < 0 else _plans.current_context().cuda_device(ordinal)


def plan_of(problem: bytes, ordinal: int) -> tuple[Any, int]:
    """Its owner and the bytes of its workspace."""
    with _cuda.on_device(ordinal) if ordinal >= 0 else contextlib.nullcontext():
        return _plans.find_plan_of_text(_plans.current_context(), _device(ordinal), problem)


def group_plan_of(text: bytes, ordinal: int) -> Any:
    """The GroupPlan of a group, or the BoundedPlan of samples within a bound (_members.py); ordinal as of plan_of."""
    with _cuda.on_device(ordinal) if ordinal >= 0 else contextlib.nullcontext():
        return _members.plan_of_text(_plans.current_context(), _device(ordinal), text)


@_Find
def _find(problem: bytes, ordinal: int, error: Any, error_bytes: int) -> Any:
    try:
        owner, *_ = (group_plan_of if problem.startswith(b"{") else plan_of)(problem, ordinal)
        c.lib.nhood_plan_retain(owner.handle)
        return owner.handle.value
    except BaseException as raised:  # nothing passes through C
        _write(f"{type(raised).__name__}: {raised}", error, error_bytes)
        return None


def _write(text: str, to: Any, most_bytes: int) -> None:
    encoded = text.encode(errors="replace")[: most_bytes - 1]
    ctypes.memmove(to, encoded + b"\0", len(encoded) + 1)


@_Reword
def _reword(text: bytes, to: Any, most_bytes: int) -> None:
    """The library's text about lengths in the words of the caller."""
    _write(_words.of_lengths(text.decode(errors="replace")), to, most_bytes)


def _load() -> ctypes.CDLL:
    path = c.compiled(_FILE)
    if not path.exists():
        raise ImportError(f"nhood.jax needs {_FILE}, which is neither beside {c.path} nor at {path}: packages and built source trees have it")
    return ctypes.CDLL(str(path))


_handlers = _load()
_functions = _Functions(
    *[
        cast(getattr(c.lib, f"nhood_{name}"), c_void_p).value
        for name in (
            "plan_execute",
            "plan_execute_group",
            "plan_release",
            "plan_workspace_bytes",
            "last_error",
            "problem_parse_sized",
            "problem_elements",
        )
    ],
    _find,
    _reword,
)


def _capsule_of(name: str) -> Any:
    """Returns a capsule of the address of a variable."""
    return jax.ffi.pycapsule(c_void_p(addressof(c_char.in_dll(_handlers, name))))


def _register() -> None:
    _handlers.nhood_xla_start.restype = None
    _handlers.nhood_xla_start(ctypes.byref(_functions))
    for platform, registered, stages in _PLATFORMS:
        kind = {
            "type_id": _capsule_of(f"nhood_xla_{platform}_type"),
            "type_info": _capsule_of("nhood_xla_type_info"),
        }
        jax.ffi.register_ffi_type(f"{NAME}.call_site", kind, platform=registered)
        handlers = {stage: jax.ffi.pycapsule(getattr(_handlers, f"nhood_xla_{platform}_{stage}")) for stage in stages}
        jax.ffi.register_ffi_target(NAME, handlers, platform=registered)


_register()
