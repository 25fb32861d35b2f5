"""Arithmetic on one value per axis."""

from ..types import CausalArgType, DimensionType


def ceil_div_int(x: int, y: int) -> int:
    return -(-x // y)


def ceil_div_tuple(X: tuple, Y: tuple) -> tuple:
    return _map(ceil_div_int, X, Y)


def mul_tuple(X: tuple, Y: tuple) -> tuple:
    return _map(int.__mul__, X, Y)


def sub_tuple(X: tuple, Y: tuple) -> tuple:
    return _map(int.__sub__, X, Y)


def create_dim_from_int(na_dim: int, value: int) -> DimensionType:
    return (value,) * na_dim  # type: ignore[return-value]


def create_causal_arg_from_bool(na_dim: int, value: bool) -> CausalArgType:
    return (value,) * na_dim  # type: ignore[return-value]


def _map(function, X: tuple, Y: tuple) -> tuple:
    if len(X) != len(Y):
        raise ValueError(f"{X} and {Y} differ in length")
    return tuple([function(x, y) for x, y in zip(X, Y)])
