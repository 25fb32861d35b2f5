"""Attention of a sharded grid, and what its strategies are chosen by."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, Literal, Optional, Union, overload

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..._functions import FlagPerAxis, PerAxis, check_additional, flag, flag_per_axis, number, per_axis, sizes_and_windows
from ..._windows import KernelSize, Windows, windows_of
from .._functions import autocast, check_tensor
from ._agreement import agree, tensor_arguments
from ._attention import sharded_attention
from ._axes import Window, balanced
from ._plan import Plan
from ._sharding import MeshAxis, Sharding, dimensions, sizes_of
from ._strategies import LINKS, Choice, Link, Sizes, choices, chosen


def _plan(
    sharding: Sharding,
    groups: Sequence[Any],
    windows: Sequence[Sequence[Any]],
    scale: Optional[float],
    extents: Sequence[int],
    device: torch.device,
) -> tuple[Plan, Link]:
    """For shards of these extents. Its strategy is that of the sharding, which may be auto."""
    lengths, sizes, names = [], [], []
    link = sharding.link
    for axis, (group, length) in enumerate(zip(groups, extents)):
        if group is None:
            lengths.append(length)
            sizes.append(None)
            names.append(None)
            continue
        found = sizes_of(sharding, axis, length, group, device)
        link = link or LINKS["cuda" if device.type == "cuda" else "cpu"]
        lengths.append(sum(found))
        sizes.append(found)
        names.append(group.group_name)
    axes = tuple(Window(length, *window) for length, window in zip(lengths, zip(*windows)))
    _check_axes(axes, tuple([size is not None for size in sizes]))
    plan = Plan(axes, tuple(sizes), tuple(names), sharding.strategy, scale, sharding.timeout)
    return plan, link or LINKS["cpu"]


def _groups(sharding: Sharding, rank: int) -> list[Any]:
    """The processes along each axis of the grid, None where it is not sharded."""
    return [None if d is None else sharding.mesh.get_group(d) for d in dimensions(sharding, rank)]


@functools.lru_cache(maxsize=1024)
def _check_axes(axes: tuple[Window, ...], sharded: tuple[bool, ...]) -> None:
    """Checks the axes of the whole grid: a shard alone would be judged by its own length."""
    for i, axis in enumerate(axes):
        table = windows_of(axis.windows)[0] if axis.windows else None
        if table is not None and sharded[i]:
            raise NotImplementedError(
                f"kernel_size[{i}] = {table}: axis {i} is sharded, and a sharded axis has windows by formula, by which processes "
                "find the keys of a shard; axes that are not sharded may have Windows"
            )
        if table is not None and table.queries != axis.length:
            raise ValueError(f"kernel_size[{i}] = {table} has {table.queries} queries, axis {i} of query has {axis.length}")
        if axis.kernel_size < 1 or axis.dilation < 1 or axis.kernel_size * axis.dilation > axis.length:
            raise ValueError(
                f"kernel_size[{i}] = {axis.kernel_size} times dilation {axis.dilation} is not in [1, {axis.length}], the "
                "length of the grid"
            )
        if not 1 <= axis.stride <= axis.kernel_size:
            raise ValueError(f"stride[{i}] = {axis.stride} is not in [1, kernel_size {axis.kernel_size}]")
        if not axis.is_periodic:
            continue
        if axis.is_causal:
            raise ValueError(f"is_periodic[{i}] = True: a causal axis cannot wrap")
        if axis.length % axis.dilation or axis.length // axis.dilation % axis.stride:
            raise ValueError(
                f"is_periodic[{i}] = True: dilation {axis.dilation} and then stride {axis.stride} do not divide {axis.length}"
            )


@functools.lru_cache(maxsize=1024)
def _with_strategy(plan: Plan, sizes: Sizes, link: Link) -> Plan:
    return plan._replace(strategy=chosen(plan, sizes, plan.strategy, link)) if plan.sharded else plan


def _agree(
    sharding: Sharding,
    groups: Sequence[Any],
    windows: Sequence[Sequence[Any]],
    scale: Optional[float],
    inputs: Sequence[Optional[Tensor]],
) -> None:
    """Has the processes compare what must be the same in all: plain numbers in tuples, as what is equal is to read alike, too."""
    sharded = dimensions(sharding, len(groups))
    grid = None if sharding.grid is None else per_axis(sharding.grid, len(groups), "grid")
    sizes = sharding.sizes and tuple([entry and tuple(map(int, entry)) for entry in sharding.sizes])
    arguments = (
        ("sharded_axes", tuple(sharded)),
        *zip(("kernel_size", "stride", "dilation", "is_causal", "is_periodic", "windows"), windows),
        *tensor_arguments(inputs, scale, sharded),
        ("grid", grid),
        ("sizes", sizes),
        ("strategy", sharding.strategy),
        ("link", sharding.link and tuple(map(float, sharding.link))),
    )
    # In the order of the mesh's dimensions, in which processes also agree if they take them for different axes.
    found = dict(zip(sharded, groups))
    along = [found[dimension] for dimension in range(sharding.mesh.ndim) if dimension in found]
    agree(along, arguments, inputs[0].device, sharding.timeout)  # type: ignore[union-attr]


@torch.compiler.assume_constant_result
def _plan_text(
    mesh: DeviceMesh,
    sharded: Sequence[Any],
    link: Optional[Sequence[float]],
    windows: Sequence[Sequence[Any]],
    scale: Optional[float],
    extents: Sequence[int],
    device: torch.device,
    sizes: Sequence[int],
    inputs: Optional[Sequence[Optional[Tensor]]],
) -> str:
    """The text of the plan with its strategy, for a Sharding's fields. To torch.compile all arguments are constants, which tuples
    with names are not. inputs: None in compiled code, whose operator has the processes compare."""
    sharding = Sharding(mesh, *sharded, link=None if link is None else Link(*link))
    groups = _groups(sharding, len(extents))
    if inputs is not None:
        _agree(sharding, groups, windows, scale, inputs)
    plan, found_link = _plan(sharding, groups, windows, scale, extents, device)
    return _with_strategy(plan._replace(compare=inputs is None), Sizes(*sizes), found_link).text()


def _tensor_sizes(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """The fields of Sizes."""
    heads, dim = query.shape[-2:]
    return query.shape[0], heads, key.shape[-2], dim, value.shape[-1], query.element_size()


def _constants(lengths: Sequence[int]) -> tuple[int, ...]:
    """As integers: torch.compile makes a symbol of a number that it has seen change, which is no constant to hand on."""
    return tuple([operator.index(length) for length in lengths])


def _windows(
    rank: int,
    kernel_size: KernelSize,
    stride: PerAxis,
    dilation: PerAxis,
    is_causal: FlagPerAxis,
    is_periodic: FlagPerAxis,
) -> tuple[tuple[Any, ...], ...]:
    """One value per axis of each; the fields of Window behind its length."""
    sizes, text = sizes_and_windows(kernel_size, rank, stride, dilation, is_causal, is_periodic)
    return (
        sizes,
        per_axis(stride, rank, "stride"),
        per_axis(dilation, rank, "dilation"),
        flag_per_axis(is_causal, rank, "is_causal"),
        flag_per_axis(is_periodic, rank, "is_periodic"),
        tuple(text.split(",")) if text else ("",) * rank,
    )


def _rank_of(query: Tensor) -> int:
    check_tensor("query", query)
    if query.dim() not in (4, 5, 6):
        raise ValueError(f"query.shape = {tuple(query.shape)} has {query.dim()} axes: [B, X.., H, D] has 4, 5 or 6")
    return query.dim() - 3


def _check_keys(query: Tensor, key: Tensor, value: Tensor, kernel_size: KernelSize) -> None:
    """What does not fit the whole grid is refused later, by _check_axes."""
    lengths = list(query.shape[:-2])
    for i, windows in enumerate([kernel_size] * (len(lengths) - 1) if isinstance(kernel_size, (int, Windows)) else kernel_size):
        if isinstance(windows, Windows) and windows.queries == lengths[1 + i]:
            lengths[1 + i] = windows.keys
    for name, tensor in (("key", key), ("value", value)):
        check_tensor(name, tensor)
        if tuple(tensor.shape[:-2]) != tuple(lengths):
            raise ValueError(
                f"{name}.shape = {tuple(tensor.shape)}: batch and shard of the grid are not {tuple(lengths)}, as query's, "
                f"{tuple(query.shape[:-2])}, ask for"
            )


@overload
def neighborhood_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: KernelSize,
    *,
    mesh: Optional[DeviceMesh] = None,
    sharded_axes: Sequence[MeshAxis] = (),
    strategy: str = "auto",
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    is_periodic: FlagPerAxis = False,
    scale: Optional[float] = None,
    bias: Optional[Tensor] = None,
    additional_keys: Optional[Tensor] = None,
    additional_values: Optional[Tensor] = None,
    return_lse: Literal[False] = False,
    grid: Optional[PerAxis] = None,
    sizes: Optional[Sequence[Optional[Sequence[int]]]] = None,
    timeout: Optional[float] = None,
    link: Optional[Link] = None,
) -> Tensor: ...


@overload
def neighborhood_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: KernelSize,
    *,
    mesh: Optional[DeviceMesh] = None,
    sharded_axes: Sequence[MeshAxis] = (),
    strategy: str = "auto",
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    is_periodic: FlagPerAxis = False,
    scale: Optional[float] = None,
    bias: Optional[Tensor] = None,
    additional_keys: Optional[Tensor] = None,
    additional_values: Optional[Tensor] = None,
    return_lse: Literal[True],
    grid: Optional[PerAxis] = None,
    sizes: Optional[Sequence[Optional[Sequence[int]]]] = None,
    timeout: Optional[float] = None,
    link: Optional[Link] = None,
) -> tuple[Tensor, Tensor]: ...


@overload
def neighborhood_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: KernelSize,
    *,
    mesh: Optional[DeviceMesh] = None,
    sharded_axes: Sequence[MeshAxis] = (),
    strategy: str = "auto",
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    is_periodic: FlagPerAxis = False,
    scale: Optional[float] = None,
    bias: Optional[Tensor] = None,
    additional_keys: Optional[Tensor] = None,
    additional_values: Optional[Tensor] = None,
    return_lse: bool,
    grid: Optional[PerAxis] = None,
    sizes: Optional[Sequence[Optional[Sequence[int]]]] = None,
    timeout: Optional[float] = None,
    link: Optional[Link] = None,
) -> Union[Tensor, tuple[Tensor, Tensor]]: ...


def neighborhood_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: KernelSize,
    *,
    mesh: Optional[DeviceMesh] = None,
    sharded_axes: Sequence[MeshAxis] = (),
    strategy: str = "auto",
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    is_periodic: FlagPerAxis = False,
    scale: Optional[float] = None,
    bias: Optional[Tensor] = None,
    additional_keys: Optional[Tensor] = None,
    additional_values: Optional[Tensor] = None,
    return_lse: bool = False,
    grid: Optional[PerAxis] = None,
    sizes: Optional[Sequence[Optional[Sequence[int]]]] = None,
    timeout: Optional[float] = None,
    link: Optional[Link] = None,
) -> Any:
    """Neighborhood attention of this process' shard of a grid: nhood.torch.na1d, na2d or na3d of the whole grid, of which each
    process hands in its shards of query, key and value and gets its shard of the result. All processes of the mesh call it
    with equal arguments but for the tensors.

    query: [B, X.., H, D], the shard.  key: [B, X.., Hkv, D].  value: [B, X.., Hkv, Dv].
    kernel_size, stride, dilation, is_causal, is_periodic, scale: as nhood.torch.na2d, of the whole grid. Any window that the
        grid allows, also one wider than a shard. nhood.Windows are for axes that are not sharded.
    mesh, sharded_axes, strategy, grid, sizes, timeout, link: see Sharding.
    bias, additional_keys, additional_values: the same in all processes; so are their gradients, summed over the processes.

    Tensors may be DTensors that are sharded along batch, axes of the grid or heads, all alike; mesh and sharded_axes are theirs
    then, and the result is a DTensor, too.

    Returns out [B, X.., H, Dv]; with return_lse, out and the log-sum-exp of the logits [B, X.., H]. Differentiable once, in
    reverse mode.

    Raises ValueError and TypeError as nhood.torch.na2d; ValueError in all processes if an argument differs between them, on the
    first call with these arguments; RuntimeError if another process failed or did not come in time.
    """
    if type(query).__name__ == "DTensor":
        from ._dtensor import of_dtensors

        named = dict(strategy=strategy, stride=stride, dilation=dilation, is_causal=is_causal, is_periodic=is_periodic)
        named.update(scale=scale, return_lse=return_lse, timeout=timeout, link=link)
        extras = (bias, additional_keys, additional_values)
        return of_dtensors(neighborhood_attention, query, key, value, kernel_size, extras, named)
    if mesh is None:
        raise TypeError("mesh is None: give the DeviceMesh of the processes, or DTensors")
    check_additional(additional_keys, additional_values)
    windows = _windows(_rank_of(query), kernel_size, stride, dilation, is_causal, is_periodic)
    _check_keys(query, key, value, kernel_size)
    if bias is not None and any(windows[-1]):
        raise ValueError("bias with a Windows in kernel_size: a relative bias needs windows by formula on all axes")
    inputs = autocast(query, key, value, bias, additional_keys, additional_values)
    windows = (*map(_constants, windows[:3]), *windows[3:])
    scale = None if scale is None else number(scale, "scale")
    if torch.compiler.is_compiling() and grid is None and sizes is None:
        raise ValueError("grid and sizes are None: compiled code cannot ask the other processes for theirs")
    if torch.compiler.is_compiling() and grid is not None:
        grid = _constants(per_axis(grid, query.dim() - 3, "grid"))
    if torch.compiler.is_compiling() and sizes is not None:
        sizes = tuple([None if entry is None else _constants(entry) for entry in sizes])
    sharded = (sharded_axes if isinstance(sharded_axes, str) else tuple(sharded_axes), grid, sizes, strategy, timeout)
    extents, sizes_of_tensors = _constants(query.shape[1:-2]), _constants(_tensor_sizes(*inputs[:3]))
    compared = None if torch.compiler.is_compiling() else inputs
    text = _plan_text(
        mesh, sharded, link and tuple(link), windows, scale, extents, query.device, sizes_of_tensors, compared
    )
    out, lse = sharded_attention(inputs, text)
    return (out, lse) if flag(return_lse, "return_lse") else out


def balanced_sizes(
    grid: PerAxis,
    kernel_size: KernelSize,
    mesh: DeviceMesh,
    sharded_axes: Sequence[MeshAxis],
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    is_periodic: FlagPerAxis = False,
    multiple_of: int = 1,
) -> tuple[Optional[tuple[int, ...]], ...]:
    """Lengths of shards, for `sizes`, with which every process has about as much to compute. On a causal axis the first queries
    see few keys, so the first shard is longer than the others; elsewhere they differ by `multiple_of` at most.

    multiple_of: every length but the last of an axis is a multiple of it, such as the stride of a convolution.
    """
    rank = len(sharded_axes)
    sharding = Sharding(mesh, sharded_axes)
    windows = _windows(rank, kernel_size, stride, dilation, is_causal, is_periodic)
    axes = tuple(Window(*axis) for axis in zip(per_axis(grid, rank, "grid"), *windows))
    _check_axes(axes, tuple([dimension is not None for dimension in dimensions(sharding, rank)]))
    if multiple_of < 1:
        raise ValueError(f"multiple_of = {multiple_of} is less than 1")
    found = []
    for axis, dimension in zip(axes, dimensions(sharding, rank)):
        found.append(None if dimension is None else balanced(axis, mesh.size(dimension), multiple_of))
    return tuple(found)


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: KernelSize,
    sharding: Sharding,
    *,
    stride: PerAxis = 1,
    dilation: PerAxis = 1,
    is_causal: FlagPerAxis = False,
    is_periodic: FlagPerAxis = False,
) -> list[Choice]:
    """What strategy auto would weigh for such a call, the best first: time, bytes and reason of each. Every process of the mesh
    calls it, unless the sharding has grid or sizes."""
    windows = _windows(_rank_of(query), kernel_size, stride, dilation, is_causal, is_periodic)
    _check_keys(query, key, value, kernel_size)
    groups = _groups(sharding, query.dim() - 3)
    plan, link = _plan(sharding, groups, windows, None, query.shape[1:-2], query.device)
    return choices(plan, Sizes(*_tensor_sizes(query, key, value)), link)
