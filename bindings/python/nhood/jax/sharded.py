"""Neighborhood attention over grids that are sharded over the devices of a mesh.

    mesh = jax.make_mesh((4,), ("x",))
    out = nhood.jax.sharded.neighborhood_attention(query, key, value, kernel_size=7, mesh=mesh, sharded_axes=("x", None))

Arrays are whole, as everywhere in JAX. Each device computes the queries that it has. The keys and values around them that their
windows reach come from its neighbours by ppermute or, if those are nearly all, from everybody.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Optional, Union, overload

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .. import _functions as of_arrays
from .. import _library as c
from .._functions import FlagPerAxis, PerAxis
from .._plans import Region, Request
from .._windows import KernelSize, windows_of
from ._functions import asked
from ._ops import bind, describe, vary_alike

__all__ = ["neighborhood_attention"]

AxisName = Union[str, tuple[str, ...], None]


class _Kind(NamedTuple):
    """What one or several shards of an axis do, relative to where they begin: they see the same keys."""

    queries: int
    """where the first of them begins in the grid"""
    before: int
    """keys before the shard that its windows reach"""
    after: int


class _Axis(NamedTuple):
    """How an axis is cut. Shards of one kind are computed by one call."""

    length: int
    shards: int
    kinds: tuple[_Kind, ...]
    kind_of: tuple[int, ...]
    """the number of a shard's kind"""
    before: int
    """the most that any shard needs"""
    after: int
    gathered: bool
    """every device gets all keys"""

    @property
    def size(self) -> int:
        return self.length // self.shards


@functools.lru_cache(maxsize=256)
def _cut(length: int, window: int, stride: int, dilation: int, causal: bool, periodic: bool, shards: int) -> _Axis:
    axis = c.Axis(length, window, stride, dilation, causal, periodic)
    first, count = ctypes.c_int64(), ctypes.c_int64()
    size = length // shards
    kinds: dict[Any, int] = {}
    found, kind_of = [], []
    for shard in range(shards):
        start, relative = shard * size, []
        for token in range(start, start + size):
            c.check(c.lib.nhood_window(axis, token, first, count))
            relative.append((first.value - start, count.value))
        before = max(0, -min(begin for begin, _ in relative))
        after = max(0, max(begin + (number - 1) * dilation + 1 for begin, number in relative) - size)
        number = kinds.setdefault(tuple(relative), len(kinds))
        if number == len(found):
            found.append(_Kind(start, before, after))
        kind_of.append(number)
    before, after = max(kind.before for kind in found), max(kind.after for kind in found)
    gathered = before + size + after >= length
    if gathered:  # where the shard lies in the keys is no longer the same for all
        found = [_Kind(shard * size, shard * size, length - (shard + 1) * size) for shard in range(shards)]
        kind_of = list(range(shards))
    return _Axis(length, shards, tuple(found), tuple(kind_of), before, after, gathered)


def _names(entry: AxisName) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _shards(mesh: Mesh, entry: AxisName, argument: str) -> int:
    for name in _names(entry):
        if name not in mesh.shape:
            raise ValueError(f"{argument} = {entry!r}: {name!r} is not an axis of the mesh, {tuple(mesh.shape)}")
    return math.prod(mesh.shape[name] for name in _names(entry))


def _with_halo(array: jax.Array, at: int, axis: _Axis, name: AxisName) -> jax.Array:
    """A shard with what lies before and after it on one axis. Beyond the ends of the grid that is zeros, which nobody reads."""
    names = _names(name)
    if axis.gathered:
        return jax.lax.all_gather(array, names, axis=at, tiled=True)
    size, shards = axis.size, axis.shards

    def part(start: int, stop: int, hops: int) -> jax.Array:
        """Returns this part of the shard that comes so many later, or before if negative."""
        piece = jax.lax.slice_in_dim(array, start, stop, axis=at)
        return jax.lax.ppermute(piece, names, [((i + hops) % shards, i) for i in range(shards)])

    pieces = [array]
    for hops in range(1, -(-axis.before // size) + 1):
        wanted = min(size, axis.before - (hops - 1) * size)
        pieces.insert(0, part(size - wanted, size, -hops))
    for hops in range(1, -(-axis.after // size) + 1):
        wanted = min(size, axis.after - (hops - 1) * size)
        pieces.append(part(0, wanted, hops))
    return jnp.concatenate(pieces, axis=at)


def _attend_as(request: Request, axes: Sequence[Optional[_Axis]], kinds: Sequence[_Kind], *arrays: Any) -> list[Any]:
    """What shards of these kinds do: attention of their queries to the keys that they need, cut out of the halos."""
    query, key, value, *others = arrays
    query_offset, key_offset = [], []
    for at, (axis, kind) in enumerate(zip(axes, kinds), start=1):
        query_offset.append(kind.queries)
        if axis is None:
            key_offset.append(0)
            continue
        start = 0 if axis.gathered else axis.before - kind.before
        stop = start + kind.before + axis.size + kind.after
        key, value = (jax.lax.slice_in_dim(x, start, stop, axis=at) for x in (key, value))
        key_offset.append((kind.queries - kind.before) % axis.length)
    lengths = tuple(query.shape[at] if axis is None else axis.length for at, axis in enumerate(axes, start=1))
    region = Region(lengths, tuple(query_offset), tuple(key_offset))
    return bind(request._replace(region=region), query, key, value, *others)


def _on_one_device(
    request: Request, axes: Sequence[Optional[_Axis]], sharded_axes: Sequence[AxisName], *arrays: Any
) -> tuple[Any, ...]:
    # Before the switch: what undoes it is a sum over devices, in which all must take part.
    there = iter(vary_alike([x for x in arrays if x is not None]))
    query, key, value, *others = (None if x is None else next(there) for x in arrays)
    for at, (axis, name) in enumerate(zip(axes, sharded_axes), start=1):
        if axis is not None:
            key, value = (_with_halo(x, at, axis, name) for x in (key, value))
    whole = (_Kind(0, 0, 0),)
    choices: list[tuple[_Kind, ...]] = [()]
    number: Any = 0
    for axis, name in zip(axes, sharded_axes):
        kinds = axis.kinds if axis is not None else whole
        choices = [(*choice, kind) for choice in choices for kind in kinds]
        if axis is not None and len(kinds) > 1:
            number = number * len(kinds) + jnp.asarray(axis.kind_of)[jax.lax.axis_index(_names(name))]
    branches = [functools.partial(_attend_as, request, axes, choice) for choice in choices]
    operands = (query, key, value, *others)
    results = branches[0](*operands) if len(branches) == 1 else jax.lax.switch(number, branches, *operands)
    return tuple(results)


@overload
def neighborhood_attention(
    query: Any,
    key: Any,
    value: Any,
    kernel_size: KernelSize,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    *,
    mesh: Mesh,
    sharded_axes: Sequence[AxisName],
    batch_axis: AxisName = None,
    heads_axis: AxisName = None,
    bias: Optional[Any] = None,
    additional_keys: Optional[Any] = None,
    additional_values: Optional[Any] = None,
    return_lse: Literal[False] = False,
    clamp_window: bool = False,
    is_periodic: FlagPerAxis = False,
    deterministic: bool = False,
) -> jax.Array: ...


@overload
def neighborhood_attention(
    query: Any,
    key: Any,
    value: Any,
    kernel_size: KernelSize,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    *,
    mesh: Mesh,
    sharded_axes: Sequence[AxisName],
    batch_axis: AxisName = None,
    heads_axis: AxisName = None,
    bias: Optional[Any] = None,
    additional_keys: Optional[Any] = None,
    additional_values: Optional[Any] = None,
    return_lse: Literal[True],
    clamp_window: bool = False,
    is_periodic: FlagPerAxis = False,
    deterministic: bool = False,
) -> tuple[jax.Array, jax.Array]: ...


@overload
def neighborhood_attention(
    query: Any,
    key: Any,
    value: Any,
    kernel_size: KernelSize,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    *,
    mesh: Mesh,
    sharded_axes: Sequence[AxisName],
    batch_axis: AxisName = None,
    heads_axis: AxisName = None,
    bias: Optional[Any] = None,
    additional_keys: Optional[Any] = None,
    additional_values: Optional[Any] = None,
    return_lse: bool,
    clamp_window: bool = False,
    is_periodic: FlagPerAxis = False,
    deterministic: bool = False,
) -> Union[jax.Array, tuple[jax.Array, jax.Array]]: ...


def neighborhood_attention(
    query: Any,
    key: Any,
    value: Any,
    kernel_size: KernelSize,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    *,
    mesh: Mesh,
    sharded_axes: Sequence[AxisName],
    batch_axis: AxisName = None,
    heads_axis: AxisName = None,
    bias: Optional[Any] = None,
    additional_keys: Optional[Any] = None,
    additional_values: Optional[Any] = None,
    return_lse: bool = False,
    clamp_window: bool = False,
    is_periodic: FlagPerAxis = False,
    deterministic: bool = False,
) -> Any:
    """As nhood.jax.neighborhood_attention of whole grids, with one axis or more sharded over the devices of a mesh.

    mesh: the devices.
    sharded_axes: per axis of the grid the axis of the mesh, or several, along which it is sharded, or None. The number of devices
        divides the length. Windows in kernel_size are for axes that are not sharded.
    batch_axis, heads_axis: the same for batch and heads.

    Results are sharded in the same way. They are those of one device up to rounding. May be called inside jit; differentiable and
    mappable as nhood.jax' other functions.

    Raises what those raise, and ValueError for axes that the mesh does not have or does not divide.
    """
    rank = getattr(query, "ndim", 0) - 3
    if rank not in (1, 2, 3):
        raise ValueError(f"query.shape = {getattr(query, 'shape', None)}: [B, X.., H, D] has 4, 5 or 6 axes")
    request, arrays = of_arrays.attention(
        rank,
        query,
        key,
        value,
        kernel_size,
        stride,
        dilation,
        is_causal,
        scale,
        bias=bias,
        additional_keys=additional_keys,
        additional_values=additional_values,
        return_lse=return_lse,
        clamp_window=clamp_window,
        is_periodic=is_periodic,
    )
    request, given = asked(request, arrays, deterministic)
    describe(request, tuple(x is not None for x in given), [x for x in given if x is not None])  # checks everything whole
    if isinstance(sharded_axes, str) or len(sharded_axes) != rank:
        raise ValueError(f"sharded_axes = {sharded_axes!r} has not one entry for each of {rank} axes")
    entries = {"B": batch_axis, "H": heads_axis, "K": heads_axis}
    entries.update({f"{letter}{i}": entry for i, entry in enumerate(sharded_axes) for letter in "XY"})
    used = [name for entry in (batch_axis, heads_axis, *sharded_axes) for name in _names(entry)]
    if len(set(used)) < len(used):
        given_axes = f"sharded_axes = {sharded_axes!r}, batch_axis = {batch_axis!r}, heads_axis = {heads_axis!r}"
        raise ValueError(f"{given_axes}: one axis of the mesh twice")
    _check_divides(mesh, batch_axis, "batch_axis", "the batch", given[0].shape[0])
    _check_divides(mesh, heads_axis, "heads_axis", "the key/value heads", given[1].shape[-2])
    axes = [_axis_of(request, i, given[0].shape[1 + i], mesh, entry) for i, entry in enumerate(sharded_axes)]
    specs, there = [], []
    for tensor, array in zip(request.operation.inputs, given):
        if array is not None:
            specs.append(PartitionSpec(*(entries.get(letter) for letter in tensor.letters(rank))))
            there.append(array)
    out_specs = [
        PartitionSpec(*(entries.get(letter) for letter in tensor.letters(rank)))
        for tensor, want in zip(request.operation.outputs, request.wanted)
        if want
    ]

    def on_one_device(*local: Any) -> tuple[Any, ...]:
        present = iter(local)
        whole = [None if x is None else next(present) for x in given]
        return _on_one_device(request, axes, sharded_axes, *whole)

    spread = jax.shard_map(on_one_device, mesh=mesh, in_specs=tuple(specs), out_specs=tuple(out_specs))
    if AxisType.Explicit in mesh.axis_types:  # shard_map then takes only what is sharded as it says
        there = [jax.sharding.reshard(x, NamedSharding(mesh, spec)) for x, spec in zip(there, specs)]
    results = spread(*there)
    return results if request.wanted[1] else results[0]


def _check_divides(mesh: Mesh, entry: AxisName, argument: str, meaning: str, extent: int) -> int:
    shards = _shards(mesh, entry, argument)
    if extent % shards:
        raise ValueError(f"{argument} = {entry!r}: {shards} devices do not divide {meaning}, {extent}")
    return shards


def _axis_of(request: Request, i: int, length: int, mesh: Mesh, entry: AxisName) -> Optional[_Axis]:
    shards = _check_divides(mesh, entry, f"sharded_axes[{i}]", f"the length of axis {i}", length)
    if shards == 1:
        return None
    windows = windows_of(request.windows)
    if windows and windows[i] is not None:
        raise NotImplementedError(
            f"kernel_size[{i}] = {windows[i]} with sharded_axes[{i}] = {entry!r}: a sharded axis has windows by formula, by which "
            "devices know the keys of a shard; axes that are not sharded may have Windows"
        )
    dilation, window, stride = request.dilation[i], request.window[i], request.stride[i]
    if request.flags & c.FLAG_CLAMP_WINDOW:
        window = max(1, min(window, length // dilation))
        stride = min(stride, window)
    periodic = request.periodic is not None and request.periodic[i]
    return _cut(length, window, stride, dilation, request.causal[i], periodic, shards)
