"""The fused functions of 0.17 for torch.compile; here the others compile, too."""

from ._v017 import na1d, na2d, na3d

__all__ = ["na1d", "na2d", "na3d"]
