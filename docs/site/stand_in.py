"""Something in the place of torch and JAX, so that the packages can be imported for their docstrings and signatures alone:
PyTorch has gigabytes, and neither depends on what it does."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


FRAMEWORKS = ("torch", "jax", "jaxlib")
PRIVATE_MODULES = ("_C", "_functorch")
MISSING = ("_dispatch_tls_local_include_set",)  # without it nhood.torch leaves torch's dispatcher alone


class Anything:
    """In the place of functions and other objects. As a decorator it changes nothing."""

    def __init__(self, name: str = "") -> None:
        self.__name = name

    def __repr__(self) -> str:
        return self.__name

    def __call__(self, *args: Any, **named: Any) -> Any:
        if len(args) == 1 and not named and isinstance(args[0], (types.FunctionType, type)):
            return args[0]
        return Anything()

    def __getitem__(self, _: Any) -> "Anything":
        return Anything()

    def __setitem__(self, *_: Any) -> None:
        pass

    def __iter__(self) -> Any:
        return iter(())

    def __enter__(self) -> "Anything":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return standing(name, self.__name)


class Kind(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Standing(metaclass=Kind):
    """In the place of classes, which others derive from."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __init_subclass__(cls, **_: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return Anything()

    def __class_getitem__(cls, _: Any) -> type:
        return cls


def is_class(name: str) -> bool:
    """Names of classes begin with a capital letter."""
    return not name.startswith("__") and name.lstrip("_")[:1].isupper()


def standing(name: str, module: str) -> Any:
    return type(name, (Standing,), {"__module__": module}) if is_class(name) else Anything(f"{module}.{name}")


class Module(types.ModuleType):
    __path__: list = []
    __version__ = "2.4"

    def __getattr__(self, name: str) -> Any:
        if name in PRIVATE_MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        if name.startswith("__") or name in MISSING:
            raise AttributeError(name)
        found = standing(name, self.__name__)
        setattr(self, name, found)
        return found


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return importlib.machinery.ModuleSpec(name, self) if name.split(".")[0] in FRAMEWORKS else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Module:
        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    sys.meta_path.insert(0, Finder())
