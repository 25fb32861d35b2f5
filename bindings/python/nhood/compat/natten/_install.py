"""Puts this package where `import natten` finds it."""

import sys
from typing import Optional

from . import _eras

_PACKAGE = sys.modules[__name__.rpartition(".")[0]]


def install(version: Optional[str] = None) -> None:
    """From now on, `import natten` in this process gives nhood under NATTEN's names.

    version: of NATTEN, where programs of different versions call the same name differently; "0.17.5" for
        instance has na2d(query, key, value, kernel_size, dilation). Default: the environment variable
        NHOOD_NATTEN_VERSION, else the latest.

    Call it before anything imports NATTEN: RuntimeError if that has happened. Calling it again changes the
    version, for what is imported afterwards.
    """
    present = sys.modules.get("natten")
    if present not in (None, _PACKAGE):
        raise RuntimeError(f"natten is imported already, from {getattr(present, '__file__', 'somewhere')}")
    _eras.select(version or _eras.from_environment(), _PACKAGE)
    prefix = _PACKAGE.__name__ + "."
    for name, module in list(sys.modules.items()):
        if name.startswith(prefix):
            sys.modules["natten." + name[len(prefix) :]] = module
    sys.modules["natten"] = _PACKAGE
