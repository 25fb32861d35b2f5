"""From arrays to results: on the CPU, and on the CUDA device that the arrays are on."""

from __future__ import annotations

from typing import Any, Optional

from . import _cuda, _device_arrays
from ._arrays import EXPORTED, Kind, find_kind, kinds
from ._layouts import Layout
from ._library import FLAG_UNALIGNED
from ._plans import CPU, CUDA_ALIGNMENT, Request, current_context, enqueue, execute, find_plan


def run(request: Request, arrays: tuple[Any, ...]) -> list[Any]:
    """Executes; results in the order of the operation's outputs, None for one that is not wanted."""
    names = request.operation.input_names
    kind = kinds.get(type(arrays[0])) or find_kind(arrays[0], names[0])
    if kind is EXPORTED:
        ordinal = _device_arrays.ordinal_of(arrays[0])
        if ordinal is not None:
            with _cuda.on_device(ordinal):
                return _run_on_device(request, arrays, ordinal)
    return _run_on_cpu(request, arrays, kind)


def _run_on_cpu(request: Request, arrays: tuple[Any, ...], kind: Kind) -> list[Any]:
    addresses: list[Optional[int]] = []
    layouts: list[Optional[Layout]] = []
    owners = []  # keep exported memory alive until the end of the call
    for name, array in zip(request.operation.input_names, arrays):
        if array is None:
            addresses.append(None)
            layouts.append(None)
            continue
        address, layout, owner = (kinds.get(type(array)) or find_kind(array, name)).read(array, name)
        addresses.append(address)
        layouts.append(layout)
        owners.append(owner)
    plan = find_plan(current_context(), CPU, request, tuple(layouts))
    results = []
    for output in plan.outputs:
        made = kind.empty(*output) if output else (None, None)
        results.append(made[0])
        addresses.append(made[1])
    execute(plan, addresses)
    if kind.wrap:
        return [result if result is None else kind.wrap(result, arrays[0]) for result in results]
    return results


def _run_on_device(request: Request, arrays: tuple[Any, ...], ordinal: int) -> list[Any]:
    """Enqueues on the stream of the arrays, and waits for nothing."""
    stream = _device_arrays.stream_of(arrays)
    context = current_context()
    read = [
        (None, None, None) if array is None else _device_arrays.read(array, name, ordinal, stream)
        for name, array in zip(request.operation.input_names, arrays)
    ]
    addresses: list[Optional[int]] = [address for address, _, _ in read]
    if any(address and address % CUDA_ALIGNMENT for address in addresses):
        request = request._replace(flags=request.flags | FLAG_UNALIGNED)
    plan = find_plan(context, context.cuda_device(ordinal), request, tuple(layout for _, layout, _ in read))
    results = [output and _device_arrays.DeviceArray(*output, ordinal, stream) for output in plan.outputs]
    addresses += [result and result.address for result in results]
    workspace = _cuda.Memory(plan.workspace_bytes, ordinal, stream) if plan.workspace_bytes else None
    enqueue(plan, addresses, workspace and workspace.address, stream)
    namespace = getattr(arrays[0], "__array_namespace__", None)
    if namespace is None:
        return results
    return [result and namespace().from_dlpack(result) for result in results]
