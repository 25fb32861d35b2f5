"""Tensors on their way to the library: addresses and layouts in, new tensors out.

CPU tensors run on the library's CPU device, CUDA tensors on the CUDA device of their ordinal, enqueued on
torch's current stream with a workspace from torch's allocator. Nothing here synchronises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from .. import _library as c
from .. import _bounded, _groups, _plans, _quick
from .._layouts import Layout, packed_strides, wrong_dtype
from .._operations import Operation
from .._operations import Tensor as Result
from .._plans import Request

_TO_DTYPE = {getattr(torch, name): dtype for dtype, name in c.DTYPE_NAMES.items()}
_FROM_DTYPE = {dtype: torch_dtype for torch_dtype, dtype in _TO_DTYPE.items()}
Seen = tuple[torch.Size, tuple[int, ...], torch.dtype]
"""shape, strides and dtype of a tensor"""


class _Call(NamedTuple):
    """What the layouts of its tensors decide about a call."""

    unreadable: tuple[int, ...]
    """the inputs to copy first; if there are any, that is all that is known"""
    plan: Optional[_plans.Plan] = None
    outputs: tuple[Optional[tuple[tuple[int, ...], torch.dtype]], ...] = ()


@_plans.cached
def _prepare(context: _plans.Context, device: int, request: Request, *seen: Optional[Seen]) -> _Call:
    """How to run `request` on tensors of these shapes, strides and dtypes; cached, as most calls come again."""
    names = request.operation.input_names
    unreadable = tuple(i for i, tensor in enumerate(seen) if tensor and not _readable(names[i], *tensor))
    if unreadable:
        return _Call(unreadable)
    layouts = tuple(tensor and _layout(*tensor) for tensor in seen)
    plan = _plans.find_plan(context, device, request, layouts)
    return _Call((), plan, tuple(output and (output[0], _FROM_DTYPE[output[1]]) for output in plan.outputs))


def check(request: Request, tensors: Sequence[Optional[Tensor]]) -> None:
    """Raises what `run` would of tensors without memory: meta, fake and traced ones. Of an extent that is a symbol, the
    example's is checked, where there is one, and the true one when the call is executed."""
    layouts = example_layouts(request.operation, tensors)
    if layouts is None:
        return
    region = request.region
    if region is not None:
        places = [None if place is None else _example(place) for place in region]
        if any(place is None and given is not None for place, given in zip(places, region)):
            return
        request = request._replace(region=_plans.Region(*places))
    _plans.describe(request, layouts)


def example_layouts(
    operation: Operation, tensors: Sequence[Optional[Tensor]]
) -> Optional[tuple[Optional[Layout], ...]]:
    """Returns the layouts of packed tensors like these; None if an extent is a symbol without an example. Raises what is wrong with any tensor by
    itself, or with their devices."""
    first = tensors[0]
    assert first is not None  # no operation's first input is optional
    if any([tensor is not None and tensor.device != first.device for tensor in tensors]):
        raise _mixed_devices(operation, tensors)
    layouts: list[Optional[Layout]] = []
    for name, tensor in zip(operation.input_names, tensors):
        if tensor is None:
            layouts.append(None)
            continue
        shape = _example(tensor.shape)
        if shape is None:
            return None
        packed = packed_strides(shape, 1)
        _readable(name, torch.Size(shape), packed, tensor.dtype)
        layouts.append(_layout(shape, packed, tensor.dtype))
    return tuple(layouts)


def _example(extents: Sequence[Any]) -> Optional[tuple[int, ...]]:
    """Numbers for symbols; None if a symbol has none."""
    known = []
    for extent in extents:
        if not isinstance(extent, int):
            if not extent.node.has_hint():
                return None
            extent = int(extent.node.hint)
        known.append(extent)
    return tuple(known)


def _readable(name: str, shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether the library can read such a tensor as it lies: not one that is not contiguous on its last axis, or
    is broadcast on all others, for which its strides have no word. ValueError if a copy would not help."""
    if dtype not in _TO_DTYPE:
        raise wrong_dtype(name, dtype)
    if len(shape) < 2 and name != "bias":
        raise ValueError(f"{name}.shape = {tuple(shape)} has {len(shape)} axes")
    if 0 in shape:
        return True
    if name == "bias":  # of sets of heads it is one axis long
        packed = packed_strides(tuple(shape), 1)
        return all(size <= 1 or given == needed for size, given, needed in zip(shape, strides, packed))
    contiguous = strides[-1] == 1 or shape[-1] <= 1
    broadcast = not any(strides[:-1]) and shape.numel() > shape[-1]
    return contiguous and not broadcast


def _layout(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Layout:
    number = _TO_DTYPE[dtype]
    return tuple(shape), tuple(stride * c.DTYPE_BYTES[number] for stride in strides), number


try:  # what torch's own generated code calls; the public way makes an object first
    from torch._C import _cuda_getCurrentRawStream as _current_stream
except ImportError:

    def _current_stream(device: int) -> int:
        return torch.cuda.current_stream(device).cuda_stream


def tf32_allowed() -> bool:
    """Whether torch may round factors of float32 matrix products on CUDA to TF32."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # set by the names of torch 2.9 and later, which this one then refuses to know
        return torch.backends.cuda.matmul.fp32_precision == "tf32"


deterministic_switches = [torch.are_deterministic_algorithms_enabled]
"""any of them asks for results that are equal run to run"""


_threads = 0  # of torch, as it was when last asked


def _follow_threads() -> None:
    global _threads
    _threads = torch.get_num_threads()
    _plans.limit_threads(_threads)


def deterministic() -> bool:
    """Whether results are to be equal run to run. Every call asks, and so learns of torch's number of threads, too."""
    if torch.get_num_threads() != _threads:
        _follow_threads()
    for switch in deterministic_switches:
        if switch():
            return True
    return False


def _settings(request: Request, first: Tensor, low_bits: int) -> Request:
    flags = _flags(request.flags, first, low_bits)
    return request if flags == request.flags else request._replace(flags=flags)


def _flags(flags: int, first: Tensor, low_bits: int) -> int:
    """Torch's global settings apply, as they do to torch's own operations; so does where the tensors start."""
    if deterministic():
        flags |= c.FLAG_DETERMINISTIC
    if first.is_cuda:
        if low_bits % _plans.CUDA_ALIGNMENT:
            flags |= c.FLAG_UNALIGNED
        if first.dtype is torch.float32 and tf32_allowed():
            flags |= c.FLAG_ALLOW_TF32
    return flags


def compute(
    name: str, ask: Callable[..., tuple[Request, Sequence[Optional[Tensor]]]], arguments: tuple[Any, ...]
) -> list[Tensor]:
    """run(*ask(*arguments)), where `name` stands for `ask`: at once if there has been such a call."""
    whole = (name, deterministic(), *arguments)
    known = _quick.execute(*whole)
    if known is not None and known is not False:
        return list(known) if type(known) is tuple else [known]
    request, tensors = ask(*arguments)
    parameters = ("", "", *request.operation.input_names)
    return run(request, tensors, None if known is False else _quick.begin(whole, {}, parameters))


def run(
    request: Request, tensors: Sequence[Optional[Tensor]], begun: Optional[_quick.Call] = None
) -> list[Tensor]:
    """Executes; the wanted results, in the order of the operation's outputs. begun: the call to remember it by.

    Tensors are read as they lie. Only one that the library cannot read so is copied: not contiguous on its last
    axis, broadcast on all others, or a bias that is not contiguous.
    """
    first = tensors[0]
    assert first is not None  # no operation's first input is optional
    ordinal = first.get_device()  # -1 for the CPU
    seen: list[Optional[Seen]] = []
    addresses: list[int] = []
    low_bits = 0
    for tensor in tensors:
        if tensor is None:
            seen.append(None)
            continue
        if tensor.get_device() != ordinal:
            raise _mixed_devices(request.operation, tensors)
        seen.append((tensor.shape, tensor.stride(), tensor.dtype))
        address = tensor.data_ptr()
        addresses.append(address)
        low_bits |= address
    context = _plans.current_context()
    device = _plans.CPU if ordinal < 0 else context.cuda_device(ordinal)
    call = _prepare(context, device, _settings(request, first, low_bits), *seen)
    if call.unreadable:
        return run(request, [t.contiguous() if i in call.unreadable else t for i, t in enumerate(tensors)])
    results = _allocate(call, first, addresses)
    if ordinal < 0:
        _plans.execute(call.plan, addresses)
    else:
        size = call.plan.workspace_bytes
        workspace = torch.empty(size, dtype=torch.uint8, device=first.device) if size else None
        address = workspace.data_ptr() if size else None
        _plans.enqueue(call.plan, addresses, address, _current_stream(ordinal))
    if begun:
        makers = [_maker(*output, first.device) for output in call.outputs if output]
        launch = None if ordinal < 0 else _launch(call.plan.workspace_bytes, first.dtype, first.device)
        _quick.remember(begun, request.operation, call.plan, makers, launch)
    return results


def _launch(workspace_bytes: int, dtype: torch.dtype, device: torch.device) -> _quick.Launch:
    workspace = _maker((workspace_bytes,), torch.uint8, device) if workspace_bytes else None
    if dtype is torch.float32:
        return _quick.Launch(_current_stream, workspace, tf32_allowed, tf32_allowed())
    return _quick.Launch(_current_stream, workspace, None, None)


class Launch(NamedTuple):
    """A group's call, but for its tensors."""

    asked: _groups.Asked
    members: _groups.AnyMembers


def compute_group(
    name: str,
    names: Sequence[str],
    ask: Callable[..., tuple[Launch, Sequence[Optional[Tensor]]]],
    arguments: tuple[Any, ...],
) -> list[Tensor]:
    """launch(*ask(*arguments)), where `name` stands for `ask`: at once if there has been such a call twice. names: of the first
    arguments, the tensors."""
    whole = (name, deterministic(), *arguments)
    known = _quick.execute(*whole)
    if known is not None and known is not False:
        return list(known) if type(known) is tuple else [known]
    return launch(*ask(*arguments), None if known is False else begin_group(whole, ("", "", *names)))


def begin_group(arguments: tuple[Any, ...], names: tuple[str, ...]) -> _quick.Call:
    """names: of the arguments. Of those that may be tensors and are no inputs it counts what they hold."""
    contents = tuple([i for i in _contents(names) if isinstance(arguments[i], Tensor)])
    return _quick.begin(arguments, {}, names, contents)


@lru_cache(maxsize=16)
def _contents(names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple([i for i, name in enumerate(names) if name in ("table", "layouts", "kernel_sizes", "strides", "dilations")])


def launch(call: Launch, tensors: Sequence[Optional[Tensor]], begun: Optional[_quick.Call] = None) -> list[Tensor]:
    """Executes a group; the wanted results. Tensors are read as by `run`. Tokens of no member get 0, log-sum-exps -infinity.
    begun: the call to remember it by, where its plan comes again."""
    first = tensors[0]
    assert first is not None  # no operation's first input is optional
    ordinal = first.get_device()
    seen: list[Optional[Seen]] = []
    for tensor in tensors:
        if tensor is None:
            seen.append(None)
            continue
        if tensor.get_device() != ordinal:
            raise _mixed_devices(call.asked.operation, tensors)
        seen.append((tensor.shape, tensor.stride(), tensor.dtype))
    asked = call.asked
    flags = _flags(asked.flags, first, 0 if ordinal < 0 else _low_bits(asked.operation, tensors))
    if flags != asked.flags:
        asked = asked._replace(flags=flags)
    prepared = _prepare_group(_plans.current_context(), first.device, asked, call.members, *seen)
    if prepared.unreadable:
        return launch(call, [t.contiguous() if i in prepared.unreadable else t for i, t in enumerate(tensors)])  # type: ignore[union-attr]
    plan = prepared.plan
    assert plan is not None
    given = tuple([tensor for tensor in tensors if tensor is not None])
    known = _quick.run_group(plan, prepared.makers, prepared.launch, given)
    results = _run_group(prepared, given) if known is None else list(known) if type(known) is tuple else [known]
    if begun and plan.comes_again():
        _quick.remember(begun, asked.operation, plan, prepared.makers, prepared.launch, plan.offsets)
    return results


def _run_group(prepared: _GroupCall, given: Sequence[Tensor]) -> list[Tensor]:
    """Without nhood_quick."""
    plan, first = prepared.plan, given[0]
    assert plan is not None
    results = [make(*arguments) for make, arguments in prepared.makers]
    addresses = [tensor.data_ptr() for tensor in (*given, *results)]
    if prepared.launch is None:
        _groups.execute(plan, addresses)
        return results
    size = plan.workspace_bytes
    workspace = torch.empty(size, dtype=torch.uint8, device=first.device) if size else None
    where = workspace.data_ptr() if workspace is not None else None
    _groups.enqueue(plan, addresses, where, _current_stream(first.get_device()))
    return results


def _low_bits(operation: Operation, tensors: Sequence[Optional[Tensor]]) -> int:
    """Of the addresses of members, which begin at any token or head; results, which are packed, at multiples of a row."""
    low_bits = 0
    for of, tensor in zip(operation.inputs, tensors):
        if tensor is not None:
            low_bits |= tensor.data_ptr()
            if of.shape[-1] in "DV":
                size = tensor.element_size()
                low_bits |= tensor.shape[-1] * size
                for stride in tensor.stride()[1:-1]:
                    low_bits |= stride * size
    return low_bits


class _GroupCall(NamedTuple):
    """What all but the tensors' memory decides about a call of a group."""

    unreadable: tuple[int, ...]
    """the inputs to copy first; if there are any, that is all that is known"""
    plan: Optional[_groups.GroupPlan] = None
    makers: tuple[_quick.Maker, ...] = ()
    launch: Optional[_quick.Launch] = None


@_plans.cached_groups
def _prepare_group(
    context: _plans.Context, where: torch.device, asked: _groups.Asked, members: _groups.AnyMembers, *seen: Optional[Seen]
) -> _GroupCall:
    device = _plans.CPU if where.type == "cpu" else context.cuda_device(where.index)
    plan = _plan_quickly(context, device, asked, members, seen) if isinstance(members, _groups.PackedMembers) else None
    if plan is None:
        names = asked.operation.input_names
        unreadable = tuple([i for i, given in enumerate(seen) if given and not _readable(names[i], *given)])
        if unreadable:
            return _GroupCall(unreadable)
        plan = _groups.plan_of(context, device, asked, members, tuple([given and _layout(*given) for given in seen]))
    makers = []
    for of, output in zip(asked.operation.outputs, plan.outputs):
        if output is not None:
            filled = None if plan.whole["Y" in of.shape] else _nothing_of(of)
            makers.append(_maker(output[0], _FROM_DTYPE[output[1]], where, filled))
    dtype = seen[0][2]  # type: ignore[index]
    return _GroupCall((), plan, tuple(makers), None if where.type == "cpu" else _launch(plan.workspace_bytes, dtype, where))


def _plan_quickly(
    context: _plans.Context, device: int, asked: _groups.Asked, members: _groups.PackedMembers, seen: Sequence[Optional[Seen]]
) -> Optional[_groups.GroupPlan]:
    tokens = [0, 0]
    for of, given in zip(asked.operation.inputs, seen):
        if given is None:
            continue
        shape, side = given[0], of.shape[1] == "Y"
        if len(shape) < 3 or shape[0] != 1 or shape[1] < 1 or (tokens[side] or shape[1]) != shape[1]:
            return None
        tokens[side] = shape[1]
    behind = [given and (given[0][2:], given[1][1:], given[2]) for given in seen]
    kind = _packed_kind(asked, _groups.rank_of(members.words), *behind)
    return kind and _groups.plan_quickly(context, device, kind, members, (tokens[0], tokens[1]))


@lru_cache(maxsize=256)
def _packed_kind(asked: _groups.Asked, rank: int, *behind: Optional[Seen]) -> Optional[_groups.PackedKind]:
    if any([of is not None and of[2] not in _TO_DTYPE for of in behind]):
        return None
    return _groups.packed_kind(asked, rank, [of and (of[0], of[1], _TO_DTYPE[of[2]]) for of in behind])


def _nothing_of(tensor: Result) -> float:
    """What tokens of no member get."""
    return -torch.inf if tensor.slot == c.LSE else 0.0


def run_bounded(
    operation: Operation,
    find: Callable[[_plans.Context, int, int, tuple[Optional[Layout], ...]], _bounded.BoundedPlan],
    tensors: Sequence[Optional[Tensor]],
    lengths: _bounded.Lengths,
) -> list[Tensor]:
    """Executes a plan of any lengths; the wanted results. Tensors are read as by `run`. find: (context, device, flags, layouts) -> the
    plan."""
    first = tensors[0]
    assert first is not None  # no operation's first input is optional
    ordinal = first.get_device()
    if any([tensor is not None and tensor.get_device() != ordinal for tensor in tensors]):
        raise _mixed_devices(operation, tensors)
    readable = [
        t if t is None or _readable(name, t.shape, t.stride(), t.dtype) else t.contiguous()
        for name, t in zip(operation.input_names, tensors)
    ]
    layouts = tuple([t if t is None else _layout(t.shape, t.stride(), t.dtype) for t in readable])
    addresses = [t.data_ptr() for t in readable if t is not None]
    low_bits = 0
    for address in addresses:
        low_bits |= address
    context = _plans.current_context()
    device = _plans.CPU if ordinal < 0 else context.cuda_device(ordinal)
    plan = find(context, device, _flags(0, first, low_bits), layouts)
    results = [first.new_empty(of[0], dtype=_FROM_DTYPE[of[1]]) for of in plan.outputs if of is not None]
    addresses += [result.data_ptr() for result in results]
    if ordinal < 0:
        _bounded.execute(plan, addresses, lengths)
        return results
    size = plan.workspace_bytes
    workspace = torch.empty(size, dtype=torch.uint8, device=first.device) if size else None
    where = workspace.data_ptr() if workspace is not None else None
    _bounded.enqueue(plan, addresses, lengths, where, _current_stream(ordinal))
    return results


try:  # what torch's own generated code calls; the public way takes twice the time
    from torch._C._dynamo.guards import _empty_strided_cpu, _empty_strided_cuda
except ImportError:
    _empty_strided_cpu = _empty_strided_cuda = None


def _maker(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, filled: Optional[float] = None
) -> _quick.Maker:
    if filled is not None:
        return partial(torch.full, dtype=dtype, device=device), (shape, filled)
    strided = (shape, packed_strides(shape, 1), dtype)
    if device.type == "cpu" and _empty_strided_cpu:
        return _empty_strided_cpu, strided
    if device.type == "cuda" and _empty_strided_cuda and torch.cuda.device_count() == 1:  # it takes the current device
        return _empty_strided_cuda, strided
    return partial(torch.empty, dtype=dtype, device=device), (shape,)


def _mixed_devices(operation: Operation, tensors: Sequence[Optional[Tensor]]) -> ValueError:
    (first, device), *others = (
        (name, tensor.device) for name, tensor in zip(operation.input_names, tensors) if tensor is not None
    )
    other, its_device = next(pair for pair in others if pair[1] != device)
    return ValueError(f"{other} is on {its_device}, {first} on {device}")


def _allocate(call: _Call, first: Tensor, addresses: list[int]) -> list[Tensor]:
    """New tensors for the wanted results, where the first is; their addresses are appended."""
    results = []
    for output in call.outputs:
        if output is None:
            continue
        shape, dtype = output
        result = first.new_empty(shape) if dtype is first.dtype else first.new_empty(shape, dtype=dtype)
        results.append(result)
        addresses.append(result.data_ptr())
    return results
