"""Which NATTEN is stood in for, where versions disagree about the arguments of one name.

Names that only one era has are always there; a table for each older era says what else it needs replaced.
"""

import os
import sys
from types import ModuleType
from typing import Dict, Tuple

from . import _v015, _v017, context, functional, modules, utils, version

VERSION_VARIABLE = "NHOOD_NATTEN_VERSION"

_FUSED = ("na1d", "na2d", "na3d")
_LAYERS = ("NeighborhoodAttention1D", "NeighborhoodAttention2D", "NeighborhoodAttention3D")
_DEPTH_APART = ("na3d_qk", "na3d_av")
_CHECKS = ("check_all_args",)

Names = Dict[str, object]


def _of(module: ModuleType, names: Tuple[str, ...]) -> Names:
    return {name: getattr(module, name) for name in names}


# From which version on, and which objects the names then stand for. The first is today's.
_ERAS: Tuple[Tuple[Tuple[int, int], Names], ...] = (
    ((0, 20), {**_of(functional, _FUSED + _DEPTH_APART), **_of(modules, _LAYERS), **_of(utils, _CHECKS)}),
    ((0, 17), {**_of(_v017, _FUSED + _LAYERS + _CHECKS), **_of(functional, _DEPTH_APART)}),
    ((0, 14), {**_of(_v017, _FUSED + _CHECKS), **_of(_v015, _DEPTH_APART + _LAYERS)}),
)
SELECTED_NAMES = _FUSED + _LAYERS
"""Those that natten itself has."""
DEFAULT_VERSION = version.__version__


def _parse(text: str) -> Tuple[int, int]:
    try:
        major, minor = (int(part) for part in text.split(".")[:2])
    except ValueError:
        raise ValueError(f"version = {text!r}, expected one like {DEFAULT_VERSION!r}") from None
    return major, minor


def select(wanted: str, package: ModuleType) -> None:
    """Makes `package`, this one, follow NATTEN `wanted`."""
    number = _parse(wanted)
    names = next((names for first, names in _ERAS if number >= first), None)
    if names is None:
        raise ValueError(f"version = {wanted!r}, expected 0.14 or later")
    homes = {**dict.fromkeys(_LAYERS, modules), **dict.fromkeys(_CHECKS, utils)}
    for name, thing in names.items():
        setattr(homes.get(name, functional), name, thing)
        if name in SELECTED_NAMES:
            setattr(package, name, thing)
    context.follow(number)
    version.__version__ = wanted
    setattr(package, "__version__", wanted)


def from_environment() -> str:
    return os.environ.get(VERSION_VARIABLE) or DEFAULT_VERSION


def alias_layer_modules(package: ModuleType) -> None:
    """Up to 0.17, layers were in natten.na1d .. or natten.natten1d ..; the former are functions' names today, so
    that they are modules for `import` and functions as attributes."""
    for rank in (1, 2, 3):
        sys.modules[f"{package.__name__}.na{rank}d"] = modules
        sys.modules[f"{package.__name__}.natten{rank}d"] = modules
        setattr(package, f"natten{rank}d", modules)
