"""The tile shapes that NATTEN's backends take, by rule where they follow one.

nhood chooses its own tiles. The lists are what programs loop over; a shape that is not in its backend's list
is refused, as NATTEN does.
"""

import itertools
import math
from typing import Any, Callable, Dict, List, Optional, Tuple

from torch import Tensor

from .types import KernelSchedule
from .utils import checks, device

COOPERATIVE, PINGPONG = KernelSchedule.WarpSpecializedCooperative, KernelSchedule.WarpSpecializedPingpong

Pair = Tuple[tuple, tuple]


def shapes(size: int, na_dim: int) -> List[tuple]:
    """All boxes of `size` tokens with extents that are powers of 2 from 2 on, the first axis longest first."""
    powers = [2**e for e in range(size.bit_length() - 1, 0, -1)]
    return [shape for shape in itertools.product(powers, repeat=na_dim) if math.prod(shape) == size]


def pairs(q_size: int, kv_size: int, na_dim: int) -> List[Pair]:
    return list(itertools.product(shapes(q_size, na_dim), shapes(kv_size, na_dim)))


def covering_pairs(q_size: int, kv_size: int, na_dim: int) -> List[Pair]:
    """Those pairs whose key/value tile is at least as long as the query tile on every axis."""
    return [(q, kv) for q, kv in pairs(q_size, kv_size, na_dim) if all(k >= n for n, k in zip(q, kv))]


_HOPPER_SMALL: Dict[int, List[Pair]] = {
    1: [((64,), (128,))],
    2: [((8, 8), (16, 8)), ((8, 8), (8, 16))],
    3: [((4, 4, 4), (4, 4, 8)), ((4, 4, 4), (2, 8, 8))],
}
_HOPPER_128: Dict[int, List[Pair]] = {
    1: [((128,), (128,))],
    2: [((16, 8), (16, 8))],
    3: [((4, 4, 8), (4, 4, 8)), ((2, 8, 8), (2, 8, 8))],
}
_HOPPER_256: Dict[int, List[Pair]] = {
    1: [((128,), (64,))],
    2: [((16, 8), (8, 8)), ((8, 16), (8, 8))],
    3: [((4, 4, 8), (4, 4, 4)), ((2, 8, 8), (4, 4, 4))],
}
_HOPPER_BACKWARD_LARGE: Dict[int, List[Pair]] = {
    1: [((128,), (128,))],
    2: [((16, 8), (16, 8)), ((16, 8), (8, 16))],
    3: [((4, 4, 8), (4, 4, 8)), ((4, 4, 8), (2, 8, 8))],
}
_HOPPER_BACKWARD_128: Dict[int, List[Pair]] = {
    1: [],
    2: [],
    3: [((2, 4, 8), (2, 8, 8)), ((1, 8, 8), (2, 8, 8))],
}

_BLACKWELL_FORWARD: Dict[int, List[Pair]] = {
    1: [((256,), (128,))],
    2: [((16, 16), (16, 8)), ((16, 16), (8, 16)), ((8, 32), (8, 16)), ((8, 32), (4, 32))],
    3: [
        ((8, 4, 8), (4, 4, 8)),
        ((8, 4, 8), (2, 8, 8)),
        ((2, 8, 16), (4, 4, 8)),
        ((2, 8, 16), (2, 8, 8)),
        ((4, 4, 16), (2, 4, 16)),
        ((2, 16, 8), (2, 8, 8)),
        ((4, 8, 8), (2, 8, 8)),
    ],
}
_BLACKWELL_BACKWARD: Dict[int, List[Pair]] = {
    1: [((128,), (128,))],
    2: list(itertools.product([(16, 8), (8, 16)], [(16, 8), (8, 16)])),
    3: [
        ((4, 4, 8), (4, 4, 8)),
        ((4, 4, 8), (2, 8, 8)),
        ((1, 8, 16), (4, 4, 8)),
        ((2, 8, 8), (4, 4, 8)),
        ((1, 8, 16), (2, 8, 8)),
        ((2, 4, 16), (2, 4, 16)),
        ((4, 2, 16), (2, 4, 16)),
        ((4, 4, 8), (2, 4, 16)),
        ((2, 8, 8), (2, 8, 8)),
    ],
}

FLEX_FORWARD_TILE_SHAPES: Dict[int, List[Pair]] = {
    1: [((64,), (64,))],
    2: [((8, 8), (8, 8)), ((4, 16), (4, 16)), ((4, 16), (8, 8))],
    3: [((4, 4, 4), (4, 4, 4)), ((2, 4, 8), (2, 4, 8)), ((2, 4, 8), (4, 4, 4))],
}


def na_dim_of(tensor: Tensor) -> int:
    if tensor.dim() not in (4, 5, 6):
        raise ValueError(f"input_tensor has rank {tensor.dim()}, expected 4, 5 or 6")
    return tensor.dim() - 3


def cutlass_forward(input_tensor: Tensor) -> List[Pair]:
    na_dim = na_dim_of(input_tensor)
    if not device.is_cuda(input_tensor.device):
        return []
    square = [(shape, shape) for shape in shapes(64, na_dim)]
    large = [] if device.get_device_cc(input_tensor.device) in (86, 89) else covering_pairs(64, 128, na_dim)
    return covering_pairs(32, 128, na_dim) + square + large


def cutlass_backward(input_tensor: Tensor) -> List[Pair]:
    na_dim = na_dim_of(input_tensor)
    if not device.is_cuda(input_tensor.device):
        return []
    capability = device.get_device_cc(input_tensor.device)
    half = input_tensor.element_size() == 2
    data_center = capability in (80, 90, 100, 103)  # they have shared memory for larger tiles
    small = pairs(64, 64, na_dim)
    if data_center and half and input_tensor.shape[-1] <= 128:
        return small + pairs(128, 128, na_dim)
    if data_center or (capability == 70 and half):
        return small + pairs(128, 64, na_dim)
    return small


def hopper_forward(input_tensor: Tensor) -> List[Tuple[Pair, KernelSchedule]]:
    na_dim, head_dim = na_dim_of(input_tensor), input_tensor.shape[-1]
    if device.get_device_cc(input_tensor.device) != 90:
        return []
    if head_dim in (32, 64):
        return [(tiles, KernelSchedule.NonPersistent) for tiles in _HOPPER_SMALL[na_dim]]
    if head_dim == 128:
        return list(itertools.product(_HOPPER_128[na_dim], (COOPERATIVE, PINGPONG)))
    return [(tiles, COOPERATIVE) for tiles in _HOPPER_256[na_dim]] if head_dim == 256 else []


def hopper_backward(input_tensor: Tensor) -> List[Pair]:
    na_dim, head_dim = na_dim_of(input_tensor), input_tensor.shape[-1]
    if device.get_device_cc(input_tensor.device) != 90 or head_dim not in (32, 64, 128):
        return []
    return _HOPPER_SMALL[na_dim] + (_HOPPER_BACKWARD_128 if head_dim == 128 else _HOPPER_BACKWARD_LARGE)[na_dim]


def blackwell_forward(input_tensor: Tensor) -> List[Pair]:
    na_dim = na_dim_of(input_tensor)
    return list(_BLACKWELL_FORWARD[na_dim]) if device.get_device_cc(input_tensor.device) in (100, 103) else []


def blackwell_backward(input_tensor: Tensor) -> List[Pair]:
    na_dim = na_dim_of(input_tensor)
    return list(_BLACKWELL_BACKWARD[na_dim]) if device.get_device_cc(input_tensor.device) in (100, 103) else []


def flex_forward(input_tensor: Tensor) -> List[Pair]:
    return list(FLEX_FORWARD_TILE_SHAPES[na_dim_of(input_tensor)])


def _sizes(configs: list) -> list:
    """1-D shape pairs as pairs of sizes; a schedule stays beside its pair."""
    if configs and isinstance(configs[0][1], KernelSchedule):
        return [((q[0], kv[0]), schedule) for (q, kv), schedule in configs]
    return [(q[0], kv[0]) for q, kv in configs]


def as_sizes(shape_pairs: Callable[[Tensor], list]) -> Callable[[Tensor], list]:
    """What attention takes, from what neighborhood attention on one axis takes."""

    def size_pairs(input_tensor: Tensor) -> list:
        if input_tensor.dim() != 4:
            raise ValueError(f"input_tensor has rank {input_tensor.dim()}, expected 4 for attention")
        return _sizes(shape_pairs(input_tensor))

    return size_pairs


def _no_tiles(input_tensor: Tensor) -> list:
    return []


_OF_FNA: Dict[str, Tuple[Callable[[Tensor], list], Callable[[Tensor], list]]] = {
    "cutlass": (cutlass_forward, cutlass_backward),
    "hopper": (hopper_forward, hopper_backward),
    "blackwell": (blackwell_forward, blackwell_backward),
    "flex": (flex_forward, _no_tiles),
}
OF_FAMILY = {(family, "fna"): queries for family, queries in _OF_FNA.items()}
OF_FAMILY.update({(family, "fmha"): (as_sizes(f), as_sizes(b)) for family, (f, b) in _OF_FNA.items()})
"""Forward and backward configurations for a tensor."""


def check_tiles(configs: list, q_tile: Any, kv_tile: Any, name: str) -> None:
    """ValueError unless neither tile is given, or both and as a pair of `configs`. Sizes are ints."""
    if q_tile is None and kv_tile is None:
        return
    if q_tile is None or kv_tile is None:
        raise ValueError(
            f"{name}: give both tiles or neither, got {q_tile} of queries and {kv_tile} of keys and values"
        )
    if not (isinstance(q_tile, int) and isinstance(kv_tile, int)):
        q_tile, kv_tile = checks.check_tile_shape(q_tile), checks.check_tile_shape(kv_tile)
    if (q_tile, kv_tile) not in configs:
        some = ", ".join(map(str, configs[:3])) or "none"
        raise ValueError(
            f"{name}: tiles {q_tile} and {kv_tile} are not among its {len(configs)} pairs ({some}, ..)"
        )


def check_scheduled_tiles(
    configs: list, q_tile: Any, kv_tile: Any, schedule: Optional[KernelSchedule], name: str
) -> None:
    """check_tiles for configs with a schedule beside each pair; without tiles, the first pair's is meant."""
    check_tiles([tiles for tiles, _ in configs], q_tile, kv_tile, name)
    if schedule is None:
        return
    wanted = configs[0][0] if q_tile is None else (_plain(q_tile), _plain(kv_tile))
    if (wanted, schedule) not in configs:
        raise ValueError(f"{name}: tiles {wanted[0]} and {wanted[1]} do not run with schedule {schedule.name}")


def _plain(tile: Any) -> Any:
    return tile if isinstance(tile, int) else tuple(tile)
