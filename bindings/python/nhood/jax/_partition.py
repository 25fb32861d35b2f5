"""Programs that run on several devices: batch and heads may be sharded, everything else is gathered first.

That is said to XLA's partitioner by JAX's custom_partitioning. Under jax.shard_map there is nothing to partition.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import CompoundFactor, SdyShardingRule, custom_partitioning
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._operations import Tensor
from .._plans import Request


try:
    from jax._src.dispatch import prim_requires_devices_during_lowering as _need_devices
except ImportError:  # then arrays are gathered
    _need_devices = set()


def needs_devices(primitive: Any) -> None:
    """Tells JAX that lowering the primitive needs to know the devices of the program, as custom_partitioning does."""
    _need_devices.add(primitive)


def is_spread(context: Any) -> bool:
    """Whether the program that is being lowered runs on several devices that XLA partitions it over."""
    axes = context.module_context.axis_context
    if isinstance(axes, mlir.SPMDAxisContext) and set(axes.manual_axes) == set(axes.mesh.axis_names):
        return False
    devices = getattr(axes, "device_assignment", None)
    if devices is None:
        devices = getattr(getattr(axes, "mesh", None), "_flat_devices_tuple", None)
    return devices is not None and len(devices) > 1


def _factors(tensor: Tensor, rank: int, heads: Any) -> tuple[Any, ...]:
    """The axes of a tensor in the words of a sharding rule; `heads`: what query heads are."""
    return tuple(heads if letter == "H" else letter for letter in tensor.letters(rank))


def _simple(mapping: Sequence[Any]) -> Iterator[str]:
    """The factors of a tensor, those within compound ones, too."""
    for factor in mapping:
        yield from [factor] if isinstance(factor, str) else factor


def partitioned(
    compute: Callable[..., Any], request: Request, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Callable[..., Any]:
    """`compute`, which works on the arrays of one device, as a function of those of all devices."""
    rank = len(request.window)

    def rule(mesh: Any, arguments: Any, results: Any) -> SdyShardingRule:
        extents: dict[str, int] = {}
        for tensor, kind in zip((*inputs, *outputs), (*arguments, *results)):
            extents.update(zip(tensor.letters(rank), mlir.ir.RankedTensorType(kind).shape))
        heads, kv_heads = extents["H"], extents.get("K", extents["H"])
        # H query heads are K key/value heads times a group G of them; a product has no factor 1.
        sizes = {"G": heads // kv_heads} if kv_heads not in (1, heads) else {}
        of_heads = CompoundFactor("K", "G") if sizes else "K" if kv_heads == heads else "G"
        mappings = [tuple(_factors(t, rank, of_heads) for t in tensors) for tensors in (inputs, outputs)]
        met = dict.fromkeys(factor for mapping in itertools.chain(*mappings) for factor in _simple(mapping))
        fixed = tuple(factor for factor in met if factor not in ("B", "K"))  # in the order in which they are met
        return SdyShardingRule(*mappings, need_replication_factors=fixed, **sizes)

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        mesh, entries = _entries(arguments, results)

        def sharding(tensor: Tensor) -> NamedSharding:
            kinds = {"B": "B", "H": "H", "K": "H"}
            return NamedSharding(mesh, PartitionSpec(*(entries.get(kinds.get(x, "")) for x in tensor.letters(rank))))

        def on_one(*arrays: Any) -> Any:
            """Sums of a batch, of which every device has a part, are added up."""
            found = compute(*arrays)
            axes = entries.get("B")
            if axes is None:
                return found
            return [x if "B" in of.shape else jax.lax.psum(x, axes) for x, of in zip(found, outputs)]

        return mesh, on_one, [sharding(of) for of in outputs], tuple(sharding(of) for of in inputs)

    def _entries(arguments: Any, results: Any) -> tuple[Any, dict[str, Any]]:
        """The mesh, and the axes of it along which batch and heads are sharded: as XLA has chosen for any of the arrays, if
        they divide."""
        entries: dict[str, Any] = {}
        first = arguments[0].sharding
        if not isinstance(first, NamedSharding):  # nothing says what the mesh is: everything is gathered
            return Mesh(np.array(first._device_assignment), ("devices",)), entries
        mesh = first.mesh
        kinds = list(zip((*inputs, *outputs), (*arguments, *results)))
        for tensor, kind in kinds:
            for letter, entry in zip(tensor.letters(rank), kind.sharding.spec):
                if entry is not None and letter in ("B", "H", "K"):
                    entries.setdefault("B" if letter == "B" else "H", entry)
        if _axes(entries.get("B")) & _axes(entries.get("H")):
            del entries["H"]
        for tensor, kind in kinds:
            for letter, extent in zip(tensor.letters(rank), kind.shape):
                name = "B" if letter == "B" else "H"
                if letter in ("B", "H", "K") and extent % math.prod(mesh.shape[a] for a in _axes(entries.get(name))):
                    del entries[name]
        return mesh, entries

    wrapped = custom_partitioning(lambda *arrays: compute(*arrays))
    wrapped.def_partition(partition, infer_sharding_from_operands=None, sharding_rule=rule)
    return wrapped


def _axes(entry: Any) -> set[Any]:
    return set() if entry is None else {entry} if isinstance(entry, str) else set(entry)
