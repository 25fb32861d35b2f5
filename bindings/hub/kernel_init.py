"""A kernel as Hugging Face's `kernels` loads it: a module of nhood, from this folder unless nhood is installed.

An installed nhood comes first since torch takes operators of one name only once in a process."""

import importlib as _importlib
import importlib.util as _util
import json as _json
import platform as _platform
import sys as _sys
from pathlib import Path as _Path

_folder = _Path(__file__).resolve().parent
_target = _json.loads((_folder / "target.json").read_text())


def _find() -> None:
    if _util.find_spec("nhood") is not None:
        return
    machine = f"{_platform.system()}-{_platform.machine()}"
    if machine != _target["machine"]:
        raise ImportError(f"this kernel is for {_target['machine']}, not {machine}: pip install nhood instead")
    _sys.path.append(str(_folder))


_find()
_module = _importlib.import_module(_target["module"])
__all__ = list(_module.__all__)


def __getattr__(name: str) -> object:
    return getattr(_module, name)


def __dir__() -> list:
    return dir(_module)
