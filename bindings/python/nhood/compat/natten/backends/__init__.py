"""NATTEN's backends. Their names choose nothing here: nhood computes, and refuses what the named one would."""

import sys

from .._choice import (
    choose_backend,
    choose_fmha_backend,
    get_compatible_backends,
    get_compatible_fmha_backends,
)
from . import configs, named, reference
from .configs import *  # noqa: F403
from .configs import __all__ as _config_names
from .named import *  # noqa: F403
from .named import __all__ as _named

# NATTEN has a module for each backend's functions.
for _module in ("fna", "hopper_fna", "blackwell_fna", "flex", "fmha", "hopper_fmha", "blackwell_fmha"):
    sys.modules[f"{__name__}.{_module}"] = globals()[_module] = named

__all__ = [
    "choose_backend",
    "choose_fmha_backend",
    "configs",
    "get_compatible_backends",
    "get_compatible_fmha_backends",
    "named",
    "reference",
    *_config_names,
    *_named,
]
