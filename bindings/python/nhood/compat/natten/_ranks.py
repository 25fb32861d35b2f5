"""One function for every rank, published under each rank's name."""

import functools
import inspect
from typing import Any, Callable


def renamed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`function` under another name, with its own signature."""

    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    named.__name__ = named.__qualname__ = name
    return named


def of_rank(function: Callable[..., Any], na_dim: int, name: str) -> Callable[..., Any]:
    """`function` with its first argument, na_dim, filled in."""

    @functools.wraps(function)
    def published(*args: Any, **kwargs: Any) -> Any:
        return function(na_dim, *args, **kwargs)

    published.__name__ = published.__qualname__ = name
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    published.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return published
