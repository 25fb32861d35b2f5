"""From arrays to results: on the CPU, and on the CUDA device that the arrays are on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from . import _cuda, _device_arrays, _groups, _quick
from ._arrays import (
    EXPORTED,
    LARGE,
    Kind,
    Output,
    address_of_numpy,
    empty_numpy,
    find_kind,
    kinds,
    layout_of_numpy,
    output_of_numpy,
)
from ._groups import Asked, GroupPlan, HeadSets
from ._layouts import Layout
from ._library import BIAS, FLAG_CLAMP_WINDOW, FLAG_UNALIGNED
from ._plans import (
    CPU,
    CUDA_ALIGNMENT,
    Context,
    Plan,
    Request,
    cached,
    current_context,
    enqueue,
    execute,
    find_plan,
)


class HeadsRequest(NamedTuple):
    """A request with windows by sets of heads."""

    asked: Asked
    sets: HeadSets


def run(
    request: Union[Request, HeadsRequest], arrays: tuple[Any, ...], begun: Optional[_quick.Call] = None
) -> list[Any]:
    """Executes; the wanted results, in the order of the operation's outputs. begun: the call to remember it by."""
    if type(request) is HeadsRequest:
        return _run_sets(request, arrays)
    results = _run_on_numpy(request, arrays, begun)
    if results is not None:
        return results
    names = request.operation.input_names
    kind = kinds.get(type(arrays[0])) or find_kind(arrays[0], names[0])
    if kind is EXPORTED:
        ordinal = _device_arrays.ordinal_of(arrays[0])
        if ordinal is not None:
            with _cuda.on_device(ordinal):
                return _run_on_device(request, arrays, ordinal)
    return _run_on_cpu(request, arrays, kind)


def _run_on_numpy(
    request: Request, arrays: tuple[Any, ...], begun: Optional[_quick.Call]
) -> Optional[list[Any]]:
    """A shorter way, for numpy's own arrays; None if one is none of them."""
    seen: list[Any] = []
    addresses = []
    for array in arrays:
        if type(array) is np.ndarray:
            seen += array.shape, array.strides, array.dtype
            addresses.append(address_of_numpy(array))
        elif array is None:
            seen.append(None)
        else:
            return None
    plan, outputs = _prepare_numpy(current_context(), request, *seen)
    results = []
    for output in outputs:
        result = empty_numpy(*output)
        results.append(result)
        addresses.append(address_of_numpy(result))
    execute(plan, addresses)
    if begun and all([size < LARGE for _, _, size in outputs]):
        makers = [(np.empty, (shape, dtype)) for shape, dtype, _ in outputs]
        _quick.remember(begun, request.operation, plan, makers)
    return results


@cached
def _prepare_numpy(context: Context, request: Request, *seen: Any) -> tuple[Plan, tuple[Output, ...]]:
    """The plan and the wanted results of a request; `seen` has shape, strides and dtype of each input, or a None."""
    layouts: list[Optional[Layout]] = []
    parts = iter(seen)
    for name, part in zip(request.operation.input_names, parts):
        layouts.append(None if part is None else layout_of_numpy(part, next(parts), next(parts), name))
    plan = find_plan(context, CPU, request, tuple(layouts))
    return plan, tuple([output_of_numpy(*output) for output in plan.outputs if output])


def _run_on_cpu(request: Request, arrays: tuple[Any, ...], kind: Kind) -> list[Any]:
    addresses: list[int] = []
    layouts: list[Optional[Layout]] = []
    owners = []  # keep exported memory alive until the end of the call
    for name, array in zip(request.operation.input_names, arrays):
        if array is None:
            layouts.append(None)
            continue
        address, layout, owner = (kinds.get(type(array)) or find_kind(array, name)).read(array, name)
        addresses.append(address)
        layouts.append(layout)
        owners.append(owner)
    plan = find_plan(current_context(), CPU, request, tuple(layouts))
    results = []
    for output in plan.outputs:
        if output is None:
            continue
        result, address = kind.empty(*output)
        results.append(result)
        addresses.append(address)
    execute(plan, addresses)
    if kind.wrap:
        return [kind.wrap(result, arrays[0]) for result in results]
    return results


def _run_on_device(request: Request, arrays: tuple[Any, ...], ordinal: int) -> list[Any]:
    """Enqueues on the stream of the arrays, and waits for nothing."""
    stream = _device_arrays.stream_of(arrays)
    context = current_context()
    read = [
        (None, None, None) if array is None else _device_arrays.read(array, name, ordinal, stream)
        for name, array in zip(request.operation.input_names, arrays)
    ]
    addresses = [address for (address, _, _), array in zip(read, arrays) if array is not None]
    if any(address % CUDA_ALIGNMENT for address in addresses):
        request = request._replace(flags=request.flags | FLAG_UNALIGNED)
    plan = find_plan(context, context.cuda_device(ordinal), request, tuple(layout for _, layout, _ in read))
    results = [_device_arrays.DeviceArray(*output, ordinal, stream) for output in plan.outputs if output]
    addresses += [result.address for result in results]
    workspace = _cuda.Memory(plan.workspace_bytes, ordinal, stream) if plan.workspace_bytes else None
    enqueue(plan, addresses, workspace and workspace.address, stream)
    namespace = getattr(arrays[0], "__array_namespace__", None)
    if namespace is None:
        return results
    return [namespace().from_dlpack(result) for result in results]


# Groups: of arrays in the CPU's memory


def _in_memory(array: Any, name: str) -> None:
    if array is not None and kinds.get(type(array), EXPORTED) is EXPORTED and find_kind(array, name) is EXPORTED:
        if _device_arrays.ordinal_of(array) is not None:
            raise NotImplementedError(f"{name} is on a CUDA device: nhood.torch computes groups there, this function on the CPU")


def run_group(asked: Asked, arrays: Sequence[Any], find: Any) -> list[Any]:
    """Executes the plan that find(context, device, layouts) gives; results as of `run`."""
    names = asked.operation.input_names
    for array, name in zip(arrays, names):
        _in_memory(array, name)
    kind = kinds.get(type(arrays[0])) or find_kind(arrays[0], names[0])
    read = [
        None if array is None else (kinds.get(type(array)) or find_kind(array, name)).read(array, name)
        for array, name in zip(arrays, names)
    ]
    plan: GroupPlan = find(current_context(), CPU, tuple([one and one[1] for one in read]))
    addresses = [one[0] for one in read if one is not None]
    results = []
    for output in plan.outputs:
        if output is not None:
            result, address = kind.empty(*output)
            results.append(result)
            addresses.append(address)
    _groups.execute(plan, addresses)
    return [kind.wrap(result, arrays[0]) for result in results] if kind.wrap else results


def check_tables(
    request: HeadsRequest, query: Sequence[int], key: Sequence[int], tables: Any, read: Callable[[Any], Any]
) -> list[Any]:
    """The tables of a bias, one for each set, as arrays. query, key: the shapes."""
    asked, sets = request
    if not isinstance(tables, (list, tuple)) or len(tables) != sets.count:
        raise TypeError(f"bias: give a list of {sets.count} tables, one for each set of heads")
    arrays = [read(table) for table in tables]
    heads = [own * (query[-2] // max(key[-2], 1)) for own in _groups.parted(key[-2], sets.count)]
    clamp = bool(asked.flags & FLAG_CLAMP_WINDOW)
    for array, shape in zip(arrays, _groups.bias_shapes(sets, query[1:-2], heads, clamp)):
        if array.shape != shape:
            raise ValueError(f"bias has a table of the shape {array.shape}, expected {shape}")
    return arrays


def _run_sets(request: HeadsRequest, arrays: tuple[Any, ...]) -> list[Any]:
    """The tables of a bias are joined for the call, and their gradients taken apart again."""
    asked, sets = request
    at = [of.slot for of in asked.operation.inputs].index(BIAS)
    tables = arrays[at]
    if tables is not None:
        tables = check_tables(request, arrays[0].shape, arrays[1].shape, tables, np.ascontiguousarray)
        joined = np.concatenate([table.ravel() for table in tables])
        arrays = (*arrays[:at], joined, *arrays[at + 1 :])
    results = run_group(asked, arrays, lambda *where: _groups.heads_plan(*where[:2], asked, sets, where[2]))
    if tables is not None and len(results) > 3:  # the gradient of a bias follows those of query, key and value
        ends = np.cumsum([table.size for table in tables])[:-1]
        parts = np.split(np.asarray(results[3]), ends)
        results[3] = [part.reshape(table.shape) for part, table in zip(parts, tables)]
    return results
