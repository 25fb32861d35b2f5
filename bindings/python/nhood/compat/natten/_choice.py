"""The backends' names: what a program may ask for, and NATTEN's answer to it. nhood computes in any case."""

from typing import Any, List, NamedTuple, Optional, Sequence

from torch import Tensor

from . import _tiles
from ._requirements import BLACKWELL, CUTLASS, HOPPER, Tensors, can_run_flex_attention, refusal
from .types import KernelSchedule
from .utils import checks

# In the order in which NATTEN prefers them. "reference" takes everything and has no tiles.
FNA_BACKENDS = ("blackwell-fna", "hopper-fna", "cutlass-fna", "flex-fna", "reference")
FMHA_BACKENDS = ("blackwell-fmha", "hopper-fmha", "cutlass-fmha", "flex-fmha")

_KERNELS = {"blackwell": BLACKWELL, "hopper": HOPPER, "cutlass": CUTLASS}


class Call(NamedTuple):
    """What backends differ in beside the tensors."""

    is_causal: bool = False
    is_varlen: bool = False
    torch_compile: bool = False


class Tuning(NamedTuple):
    """What a call says of how to compute."""

    q_tile: Any = None
    kv_tile: Any = None
    backward_q_tile: Any = None
    backward_kv_tile: Any = None
    schedule: Optional[KernelSchedule] = None


def _runs(name: str, tensors: Tensors, call: Call, strict: bool) -> bool:
    family, kind = name.split("-")
    if family == "flex":
        return can_run_flex_attention(
            *tensors, call.torch_compile, is_causal=call.is_causal, is_varlen=call.is_varlen, raise_error=strict
        )
    return checks.raise_or_log(refusal(_KERNELS[family], kind, tensors), strict)


def _compatible(names: Sequence[str], tensors: Tensors, call: Call) -> List[str]:
    return [name for name in names if name != "reference" and _runs(name, tensors, call, strict=False)]


def _first(names: List[str]) -> str:
    if not names:
        raise NotImplementedError("no backend of NATTEN takes these tensors; NATTEN_LOG_LEVEL=DEBUG says why")
    return names[0]


def get_compatible_backends(query: Tensor, key: Tensor, value: Tensor, torch_compile: bool) -> List[str]:
    return _compatible(FNA_BACKENDS, (query, key, value), Call(torch_compile=torch_compile))


def get_compatible_fmha_backends(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, is_varlen: bool, torch_compile: bool
) -> List[str]:
    return _compatible(FMHA_BACKENDS, (query, key, value), Call(is_causal, is_varlen, torch_compile))


def choose_backend(query: Tensor, key: Tensor, value: Tensor, torch_compile: bool) -> str:
    return _first(get_compatible_backends(query, key, value, torch_compile))


def choose_fmha_backend(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, is_varlen: bool, torch_compile: bool
) -> str:
    return _first(get_compatible_fmha_backends(query, key, value, is_causal, is_varlen, torch_compile))


def _check_tiles(name: str, tensors: Tensors, tuning: Tuning) -> None:
    """Against the lists of the backend `name`, for the wider of query and value."""
    query, _, value = tensors
    widest = query if value.shape[-1] <= query.shape[-1] else value
    family, kind = name.split("-")
    forward_configs, backward_configs = [configs(widest) for configs in _tiles.OF_FAMILY[family, kind]]
    forward, backward = tuning[:2], tuning[2:4]
    if family == "hopper":
        _tiles.check_scheduled_tiles(forward_configs, *forward, tuning.schedule, name)
    else:
        _tiles.check_tiles(forward_configs, *forward, name)
    if family != "flex":  # which ignores them
        _tiles.check_tiles(backward_configs, *backward, f"the backward of {name}")


def check(
    name: Optional[str], names: Sequence[str], tensors: Tensors, call: Call = Call(), tuning: Tuning = Tuning()
) -> None:
    """Refuses what NATTEN's backend `name` refuses. Without a name anything goes that nhood takes; tiles are
    then checked against the backend that NATTEN would choose, if it has one."""
    if name is None:
        if tuning == Tuning():
            return
        compatible = _compatible(names, tensors, call)
        if not compatible:
            return
        name = compatible[0]
    elif name not in names:
        raise NotImplementedError(f"backend = {name!r}, expected one of {names}")
    elif name == "reference":
        return
    else:
        _runs(name, tensors, call, strict=True)
    _check_tiles(name, tensors, tuning)
