"""The models of the neighborhood attention papers, on nhood.torch. Needs torch.

    model = nhood.models.create("dinat_mini", num_classes=10)

NAT, DiNAT, DiNAT_s, their isotropic variants and StyleNAT's generator, by the names and with the state-dict
names of the original repositories, whose checkpoints they load.
"""

from __future__ import annotations

from typing import Any

from .. import torch as _  # noqa: F401, says what to install where there is no PyTorch

from torch import nn

from .classifiers import NAT, Classifier, DiNATs, GlobalAttention2D, IsotropicClassifier
from .configurations import CONFIGURATIONS
from .stylenat import Generator, HydraNeighborhoodAttention2D

__all__ = [
    "Classifier",
    "DiNATs",
    "Generator",
    "GlobalAttention2D",
    "HydraNeighborhoodAttention2D",
    "IsotropicClassifier",
    "NAT",
    "create",
    "names",
]


def names() -> list[str]:
    """The configurations that `create` knows."""
    return list(CONFIGURATIONS)


def create(name: str, **overrides: Any) -> nn.Module:
    """A model by the name of its configuration, with initial weights; overrides are of its class's arguments.

    Raises ValueError for a name that is none.
    """
    if name not in CONFIGURATIONS:
        raise ValueError(f"name = {name!r} is not one of {', '.join(CONFIGURATIONS)}")
    model, arguments = CONFIGURATIONS[name]
    return model(**{**arguments, **overrides})
