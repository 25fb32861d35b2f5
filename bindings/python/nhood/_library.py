"""The C library: where it is, its structs and functions (see nhood.h), its errors as exceptions."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, c_char, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any, Callable, Optional

ABI_MAJOR = 0

OP_FWD, OP_BWD, OP_PN, OP_NN, OP_IN = 1, 2, 3, 4, 5
DTYPE_F64, DTYPE_F32, DTYPE_F16, DTYPE_BF16 = 1, 2, 3, 4
FLAG_CLAMP_WINDOW, FLAG_DETERMINISTIC, FLAG_ALLOW_TF32, FLAG_ZERO_FILL, FLAG_UNALIGNED = 1, 2, 4, 8, 16
EFFORT_ESTIMATE, EFFORT_MEASURE = 0, 1
CACHE_MISS = -6
ANY_DEVICE = -1
DEVICE_CPU, DEVICE_CUDA = 0, 1
(Q, K, V, O, LSE, A, BIAS, EXTRA_K, EXTRA_V) = range(9)
(D_O, D_LSE, D_Q, D_K, D_V, D_BIAS, D_EXTRA_K, D_EXTRA_V) = range(9, 17)
TENSOR_SLOTS = 24
MOST_MEMBERS = 65536
WINDOWS_FORMULA, WINDOWS_TABLE, WINDOWS_RESAMPLED, WINDOWS_CUT, WINDOWS_BLOCKS = range(5)

DTYPE_NAMES = {
    DTYPE_F64: "float64",
    DTYPE_F32: "float32",
    DTYPE_F16: "float16",
    DTYPE_BF16: "bfloat16",
}
DTYPE_BYTES = {DTYPE_F64: 8, DTYPE_F32: 4, DTYPE_F16: 2, DTYPE_BF16: 2}


class Axis(ctypes.Structure):
    _fields_ = [
        ("length", c_int64),
        ("window", c_int64),
        ("stride", c_int64),
        ("dilation", c_int64),
        ("causal", c_int32),
        ("periodic", c_int32),
    ]


class Strides(ctypes.Structure):
    _fields_ = [("batch", c_int64), ("axis", c_int64 * 3), ("head", c_int64)]


class Region(ctypes.Structure):
    _fields_ = [
        ("query_offset", c_int64),
        ("query_length", c_int64),
        ("key_offset", c_int64),
        ("key_length", c_int64),
    ]


class Windows(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        ("reserved", c_int32),
        ("keys", c_int64),
        ("window", c_int64),
        ("shift", c_int64),
        ("padding", c_int64),
        ("range", c_void_p),
    ]


class Problem(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("op", c_int32),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("flags", c_uint32),
        ("axis", Axis * 3),
        ("batch", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("dim_v", c_int64),
        ("extra_tokens", c_int64),
        ("scale", c_double),
        ("has_bias", c_int32),
        ("reserved", c_int32),
        ("strides", Strides * TENSOR_SLOTS),
        ("region", Region * 3),
        ("windows", Windows * 3),
    ]


class PlanOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("solver", c_char_p),
        ("effort", c_int32),
        ("reserved", c_int32),
        ("budget_s", c_double),
    ]


class NormRopeProblem(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("op", c_int32),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("norm", c_int32),
        ("pairs", c_int32),
        ("has_weight", c_int32),
        ("weight_dtype", c_int32),
        ("flags", c_uint32),
        ("batch", c_int64),
        ("length", c_int64 * 3),
        ("heads", c_int64),
        ("dim", c_int64),
        ("rotated", c_int64 * 3),
        ("offset", c_int64 * 3),
        ("eps", c_double),
        ("scale", c_double),
        ("x", Strides),
        ("y", Strides),
        ("d_y", Strides),
        ("d_x", Strides),
    ]


class NormRopeIo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", c_void_p),
        ("weight", c_void_p),
        ("table", c_void_p * 3),
        ("y", c_void_p),
        ("d_y", c_void_p),
        ("d_x", c_void_p),
        ("d_weight", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("stream", c_void_p),
    ]


class Io(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p * TENSOR_SLOTS),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("stream", c_void_p),
    ]


class GroupIo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("count", c_int64),
        ("member", c_void_p),
        ("data", c_void_p * TENSOR_SLOTS),
        ("query_tokens", c_int64),
        ("key_tokens", c_int64),
        ("query_offset", c_void_p),
        ("key_offset", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("stream", c_void_p),
        ("lengths", c_void_p),
        ("length_bytes", c_int64),
    ]


class Bound(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("members", c_int64), ("tokens", c_int64)]


class ContextOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("threads", c_int32),
        ("line_info", c_int32),
        ("isa", c_char_p),
        ("cache", c_char_p),
        ("nvrtc", c_char_p),
        ("user", c_void_p),
        ("allocate", c_void_p),
        ("release", c_void_p),
        ("log", c_void_p),
        ("parallel_for", c_void_p),
        ("describe", c_char_p),
        ("bundle", c_char_p),
        ("interrupted", c_void_p),
    ]


class DeviceInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int32),
        ("ordinal", c_int32),
        ("workers", c_int32),
        ("reserved", c_int32),
        ("name", c_char * 16),
        ("description", c_char * 128),
    ]


class Ceilings(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("flops_per_s", c_double), ("bytes_per_s", c_double)]


_PROTOTYPES = {
    "nhood_last_error": (c_char_p, []),
    "nhood_version": (c_char_p, []),
    "nhood_context_create": (c_int32, [POINTER(ContextOptions), POINTER(c_void_p)]),
    "nhood_context_destroy": (None, [c_void_p]),
    "nhood_context_notes": (c_char_p, [c_void_p]),
    "nhood_context_threads": (c_char_p, [c_void_p]),
    "nhood_context_limit_threads": (c_int32, [c_void_p, c_int32]),
    "nhood_device_count": (c_int32, [c_void_p]),
    "nhood_device_query": (c_int32, [c_void_p, c_int32, POINTER(DeviceInfo)]),
    "nhood_device_measure": (c_int32, [c_void_p, c_int32, c_int32, POINTER(Ceilings)]),
    "nhood_problem_init_sized": (None, [POINTER(Problem), c_size_t, c_int32, c_int32, c_int32]),
    "nhood_problem_parse_sized": (c_int32, [c_char_p, c_void_p, c_size_t]),
    "nhood_problem_format": (c_int32, [POINTER(Problem), c_void_p, c_size_t, c_void_p]),
    "nhood_problem_elements": (c_int32, [POINTER(Problem), c_int32, c_void_p]),
    "nhood_problem_cost": (c_int32, [POINTER(Problem), c_void_p, c_void_p]),
    "nhood_windows_ranges": (c_int32, [POINTER(Windows), c_int64, c_void_p]),
    "nhood_windows_inverse": (c_int32, [c_void_p, c_int64, c_int64, c_void_p]),
    "nhood_window": (c_int32, [POINTER(Axis), c_int64, POINTER(c_int64), POINTER(c_int64)]),
    "nhood_plan_create": (
        c_int32,
        [c_void_p, c_int32, POINTER(Problem), POINTER(PlanOptions), POINTER(c_void_p)],
    ),
    "nhood_plan_create_group": (
        c_int32,
        [c_void_p, c_int32, c_void_p, c_int64, POINTER(PlanOptions), POINTER(c_void_p)],
    ),
    "nhood_plan_create_bounded": (
        c_int32,
        [c_void_p, c_int32, POINTER(Problem), POINTER(Bound), POINTER(PlanOptions), POINTER(c_void_p)],
    ),
    "nhood_plan_execute_group": (c_int32, [c_void_p, POINTER(GroupIo)]),
    "nhood_plan_retain": (None, [c_void_p]),
    "nhood_plan_release": (None, [c_void_p]),
    "nhood_plan_workspace_bytes": (c_size_t, [c_void_p]),
    "nhood_plan_description": (c_char_p, [c_void_p]),
    "nhood_norm_rope_problem_init_sized": (None, [POINTER(NormRopeProblem), c_size_t, c_int32, c_int32, c_int32]),
    "nhood_norm_rope_plan_create": (c_int32, [c_void_p, c_int32, POINTER(NormRopeProblem), POINTER(c_void_p)]),
    "nhood_norm_rope_plan_destroy": (None, [c_void_p]),
    "nhood_norm_rope_workspace_bytes": (c_size_t, [c_void_p]),
    "nhood_norm_rope_execute": (c_int32, [c_void_p, POINTER(NormRopeIo)]),
    "nhood_solver_name": (c_char_p, [c_int32, c_void_p]),
    "nhood_plan_execute": (c_int32, [c_void_p, c_void_p]),
    "nhood_wisdom_export": (c_int32, [c_void_p, c_void_p, c_size_t, c_void_p]),
    "nhood_wisdom_import": (c_int32, [c_void_p, c_char_p, c_void_p]),
    "nhood_wisdom_save": (c_int32, [c_void_p, c_char_p, c_int32]),
    "nhood_wisdom_forget": (c_int32, [c_void_p, c_int32, c_void_p, c_void_p]),
}


_WINDOWS = os.name == "nt"
_FILE = "nhood.dll" if _WINDOWS else "libnhood.so"


def _candidates() -> list[Path]:
    given = os.environ.get("NHOOD_LIBRARY")
    if given:
        return [Path(given)]
    package = Path(__file__).resolve().parent
    places = [package / _FILE]
    if len(package.parents) > 2 and (package.parents[2] / "include" / "nhood.h").exists():
        places.append(package.parents[2] / "build" / _FILE)  # a source tree
    if not _WINDOWS:
        places.append(Path(sys.prefix, "lib", f"libnhood.so.{ABI_MAJOR}"))  # conda's
    return places


class _DlInfo(ctypes.Structure):
    _fields_ = [("file", c_char_p), ("base", c_void_p), ("symbol", c_char_p), ("address", c_void_p)]


def _file_of(loaded: ctypes.CDLL) -> Path:
    info = _DlInfo()
    address = ctypes.cast(loaded.nhood_version, c_void_p)
    ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
    return Path(info.file.decode())


def _open() -> tuple[Path, ctypes.CDLL]:
    """The first of the candidates that is there, or else the one that the distribution installed."""
    places = _candidates()
    path = next((place.resolve() for place in places if place.exists()), None)
    if path is not None:
        try:
            return path, ctypes.CDLL(str(path))
        except OSError as error:
            raise ImportError(f"{path} cannot be used: {error}") from error
    if not os.environ.get("NHOOD_LIBRARY") and not _WINDOWS:
        try:
            loaded = ctypes.CDLL(f"libnhood.so.{ABI_MAJOR}")
            return _file_of(loaded), loaded
        except OSError:
            pass
    tried = ", ".join(map(str, places))
    raise ImportError(f"{_FILE} is not at {tried}; build it, install the wheel, or set NHOOD_LIBRARY to its path")


def _load() -> tuple[Path, ctypes.CDLL]:
    path, loaded = _open()
    try:
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise ImportError(f"{path} cannot be used: {error}") from error
    version = loaded.nhood_version().decode()
    if int(version.split(".")[0]) != ABI_MAJOR:
        raise ImportError(f"{path} is nhood {version}; this package needs {ABI_MAJOR}.x")
    return path, loaded


path, lib = _load()


def compiled(name: str) -> Path:
    """Another file that was compiled for this package, which need not be there: beside the library, or in the package where a
    distribution has installed the library elsewhere."""
    beside = path.with_name(name)
    return beside if beside.exists() else Path(__file__).resolve().with_name(name)


def text(raw: bytes) -> str:
    """Text of the library, which may quote a part of what it was given and end within a character of it."""
    return raw.decode(errors="replace")


def as_bytes(name: str, given: str) -> bytes:
    """Text for the library. TypeError for what is no text, ValueError for a NUL, at which C would end it."""
    if not isinstance(given, str):
        raise TypeError(f"{name} = {given!r} is not a str")
    if "\0" in given:
        raise ValueError(f"{name} = {_shortened(given)} has a NUL character at index {given.index(chr(0))}")
    return given.encode(errors="surrogatepass")


def paths_as_bytes(name: str, given: Any) -> bytes:
    """One path, or a sequence of them, as the library lists them. TypeError, ValueError."""
    if isinstance(given, (str, os.PathLike)):
        given = [given] if os.fspath(given) else []
    try:
        paths = [os.fsdecode(path) for path in given]
    except TypeError:
        raise TypeError(f"{name} = {given!r} is neither a path nor a sequence of paths") from None
    for path in paths:
        if not path or os.pathsep in path or "\0" in path:
            raise ValueError(f"{name} has the path {path!r}, which is empty or has a {os.pathsep!r} or a NUL character")
    return os.fsencode(os.pathsep.join(paths))


def _shortened(given: str, most: int = 80) -> str:
    return repr(given if len(given) <= most else given[:most] + "..")


def last_error() -> str:
    return text(lib.nhood_last_error())


INTERRUPTED = -8
REFUSALS = (-1, -2)
_EXCEPTIONS = {-1: ValueError, -2: NotImplementedError, -3: MemoryError}

taken_exception: Callable[[], Optional[BaseException]] = lambda: None
"""What a signal's handler raised within a call that was interrupted; the module nhood_quick knows."""


def error(status: int, message: str) -> BaseException:
    """What a status other than OK means."""
    if status == INTERRUPTED:
        return taken_exception() or KeyboardInterrupt()
    return _EXCEPTIONS.get(status, RuntimeError)(message)


def check(status: int) -> None:
    """Raises what a status other than OK means, with the library's text."""
    if status:
        raise error(status, last_error())
