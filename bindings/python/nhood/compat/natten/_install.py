"""Puts this package where `import natten` and importlib.metadata find it."""

import sys
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from pathlib import Path
from typing import Iterator, Optional, Union

from . import _eras

_PACKAGE = sys.modules[__name__.rpartition(".")[0]]


class _Natten(Distribution):
    """An installed NATTEN: programs ask for its version before they import it."""

    def read_text(self, filename: str) -> Optional[str]:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: natten\nVersion: {_eras.version.__version__}\n"

    def locate_file(self, path: Union[str, "PathLike[str]"]) -> Path:
        return Path(__file__).parent / path


class _Finder(DistributionFinder):
    def find_spec(self, *_: object) -> None:
        return None

    def find_distributions(
        self, context: DistributionFinder.Context = DistributionFinder.Context()
    ) -> Iterator[Distribution]:
        if context.name in (None, "natten"):
            yield _Natten()


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
    if present is not None:
        return
    prefix = _PACKAGE.__name__ + "."
    for name, module in list(sys.modules.items()):
        if name.startswith(prefix):
            sys.modules["natten." + name[len(prefix) :]] = module
    sys.modules["natten"] = _PACKAGE
    sys.meta_path.append(_Finder())  # after those that find what pip installed
