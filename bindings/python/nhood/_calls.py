"""From arrays to results: on the CPU, and on the CUDA device that the arrays are on."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from . import _cuda, _device_arrays, _quick
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
from ._layouts import Layout
from ._library import FLAG_UNALIGNED
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


def run(request: Request, arrays: tuple[Any, ...], begun: Optional[_quick.Call] = None) -> list[Any]:
    """Executes; the wanted results, in the order of the operation's outputs. begun: the call to remember it by."""
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
