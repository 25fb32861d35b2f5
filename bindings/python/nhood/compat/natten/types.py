"""The types that NATTEN's signatures name."""

from enum import Enum
from typing import Tuple, Union

from torch import Tensor

NoneType = type(None)

Dimension1DType = Tuple[int]
Dimension2DType = Tuple[int, int]
Dimension3DType = Tuple[int, int, int]
DimensionType = Union[Dimension1DType, Dimension2DType, Dimension3DType]

CausalArg1DType = Tuple[bool]
CausalArg2DType = Tuple[bool, bool]
CausalArg3DType = Tuple[bool, bool, bool]
CausalArgType = Union[CausalArg1DType, CausalArg2DType, CausalArg3DType]

# ..OrDed: one value for all axes, or one per axis.
Dimension1DTypeOrDed = Union[int, Dimension1DType]
Dimension2DTypeOrDed = Union[int, Dimension2DType]
Dimension3DTypeOrDed = Union[int, Dimension3DType]
DimensionTypeOrDed = Union[int, DimensionType]
CausalArg1DTypeOrDed = Union[bool, CausalArg1DType]
CausalArg2DTypeOrDed = Union[bool, CausalArg2DType]
CausalArg3DTypeOrDed = Union[bool, CausalArg3DType]
CausalArgTypeOrDed = Union[bool, CausalArgType]


class KernelSchedule(Enum):
    """How a Hopper kernel is scheduled; arguments take the member or its short name (SCHEDULE_NAMES)."""

    NonPersistent = 0
    WarpSpecializedCooperative = 1
    WarpSpecializedPingpong = 2


SCHEDULE_NAMES = {
    "non": KernelSchedule.NonPersistent,
    "coop": KernelSchedule.WarpSpecializedCooperative,
    "pp": KernelSchedule.WarpSpecializedPingpong,
}

# Tile configurations: query tile and key/value tile, a shape each for neighborhood attention ("fna") and a
# size each for attention ("fmha"); Hopper's forward ones have a schedule beside them.
QKTileShapeType = Union[
    Tuple[Dimension1DType, Dimension1DType],
    Tuple[Dimension2DType, Dimension2DType],
    Tuple[Dimension3DType, Dimension3DType],
]
FmhaForwardConfigType = Tuple[int, int]

CutlassFnaForwardConfigType = QKTileShapeType
CutlassFnaBackwardConfigType = QKTileShapeType
CutlassBlackwellFnaForwardConfigType = QKTileShapeType
CutlassBlackwellFnaBackwardConfigType = QKTileShapeType
CutlassHopperFnaForwardConfigType = Tuple[QKTileShapeType, KernelSchedule]
CutlassHopperFnaBackwardConfigType = QKTileShapeType
FlexFnaForwardConfigType = QKTileShapeType

CutlassFmhaForwardConfigType = FmhaForwardConfigType
CutlassFmhaBackwardConfigType = FmhaForwardConfigType
CutlassBlackwellFmhaForwardConfigType = FmhaForwardConfigType
CutlassBlackwellFmhaBackwardConfigType = FmhaForwardConfigType
CutlassHopperFmhaForwardConfigType = Tuple[FmhaForwardConfigType, KernelSchedule]
CutlassHopperFmhaBackwardConfigType = FmhaForwardConfigType
FlexFmhaForwardConfigType = FmhaForwardConfigType

# Up to 0.17; the backward had the splits of keys and values and a choice of torch's reduction, too.
FnaTileShapeType = QKTileShapeType
FnaForwardConfigType = QKTileShapeType
FnaBackwardConfigType = Tuple[DimensionType, DimensionType, DimensionType, bool]
ListOrNestedTensor = Union[list, Tensor]
