"""The compiled library's name up to 0.17."""

from ._libnatten import compute_delta

__all__ = ["compute_delta"]
