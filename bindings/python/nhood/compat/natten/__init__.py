"""NATTEN's programming interface, computed by nhood.

    import nhood.compat.natten
    nhood.compat.natten.install()  # before what imports natten
    from natten import na2d, NeighborhoodAttention2D

or the wheel that bindings/natten makes, which brings this package under the name natten. The names of all NATTEN
versions from 0.14 on are here; docs/migrating-from-natten.md lists them and says what differs.
"""

import sys

import nhood.torch as _  # noqa: F401, says what to install where there is no PyTorch
from . import _eras, backends, context, functional, libnatten, modules, token_permute, types, utils, varlen
from ._environment import HAS_LIBNATTEN
from ._install import install
from .backends.configs import *  # noqa: F403
from .backends.configs import __all__ as _config_names
from .context import *  # noqa: F403
from .context import __all__ as _context_names
from .functional import attention, merge_attentions

_eras.alias_layer_modules(sys.modules[__name__])
_eras.select(_eras.from_environment(), sys.modules[__name__])

__all__ = [
    "HAS_LIBNATTEN",
    "__version__",
    "attention",
    "backends",
    "context",
    "functional",
    "install",
    "libnatten",
    "merge_attentions",
    "modules",
    "token_permute",
    "types",
    "utils",
    "varlen",
    *_eras.SELECTED_NAMES,
    *[name for name in _config_names if name.startswith("get_")],
    *_context_names,
]
