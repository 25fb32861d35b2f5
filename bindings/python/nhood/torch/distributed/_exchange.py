"""What processes send each other: keys and values to those whose queries need them, gradients back home, and heads for tokens.

All of it is one collective along one axis, torch.distributed's all_to_all_single, of flat buffers whose parts every process
knows from the sizes of the shards (_axes.py). Axes are exchanged one after the other: what lies around a corner travels twice.
"""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from ._axes import Segment, Shard


class Link:
    """The processes along one axis of the grid, and this one's place among them."""

    def __init__(self, group: Any, shards: Sequence[Shard], index: int, timeout: Optional[float]) -> None:
        self.group, self.shards, self.index, self.timeout = group, shards, index, timeout
        self.idle = not any(shard.needs for shard in shards)
        """nobody needs anything: no collective"""

    def asked_by(self, process: int) -> list[Segment]:
        """What `process` needs of this one's tokens."""
        return [segment for segment in self.shards[process].needs if segment.owner == self.index]

    def needed_from(self, process: int) -> list[Segment]:
        return [segment for segment in self.shards[self.index].needs if segment.owner == process]

    @property
    def processes(self) -> range:
        return range(len(self.shards))


class Travel:
    """A collective under way; its buffers live as long."""

    def __init__(self, buffers: Sequence[Tensor], arrive: Callable[[], Any]) -> None:
        self._buffers, self._arrive = buffers, arrive

    def wait(self) -> Tensor:
        """What came, the last of the buffers; on CUDA, the current stream waits, not the process. RuntimeError if another
        process failed, or did not take part in time."""
        self._arrive()
        return self._buffers[-1]


def arrival(work: Any, timeout: Optional[float]) -> Callable[[], Any]:
    """What waits for torch's Work."""
    return work.wait if timeout is None else lambda: work.wait(datetime.timedelta(seconds=timeout))


def _all_to_all(
    parts: Sequence[Sequence[Tensor]], expected: Sequence[int], like: Tensor, link: Link
) -> Travel:
    """Sends each process its parts, one after the other in one flat buffer; `expected` elements come from each."""
    counts = [sum(part.numel() for part in process) for process in parts]
    sent, received = like.new_empty(sum(counts)), like.new_empty(sum(expected))
    flat = [part for process in parts for part in process]
    for target, part in zip(sent.split([part.numel() for part in flat]), flat):
        copy(target.view(part.shape), part)  # parts need not be contiguous: no copy but this one
    exchange = functools.partial(dist.all_to_all_single, received, sent, list(expected), counts, group=link.group)
    if like.is_cuda and link.timeout is None:
        return Travel((sent, received), _ahead(like.device, exchange))
    return Travel((sent, received), arrival(exchange(async_op=True), link.timeout))


def _ahead(device: torch.device, exchange: Callable[[], Any]) -> Callable[[], None]:
    """Has the exchange begin before what the current stream is handed next, and returns what waits for it. It is a kernel: one
    that finds a multiprocessor taken by a block of a long launch would wait for the end of that, and all others for it. From
    torch 2.8 on it runs on the stream that is current where it is called; NCCL's own comes between in older ones."""
    current, stream = torch.cuda.current_stream(device), _stream_of_exchanges(device)
    stream.wait_stream(current)
    begun = stream.record_event()
    with torch.cuda.stream(stream):
        exchange()
    arrived = stream.record_event()
    current.wait_event(begun)
    return lambda: torch.cuda.current_stream(device).wait_event(arrived)


@functools.lru_cache(maxsize=None)
def _stream_of_exchanges(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def copy(target: Tensor, source: Tensor) -> None:
    """16 bytes at a time where they lie so: slices of 16-bit numbers torch copies at 1.6 of an H200's 4.3 TB/s."""
    if all(_in_vectors(tensor) for tensor in (target, source)):
        target, source = target.view(torch.complex128), source.view(torch.complex128)
    target.copy_(source)


def _in_vectors(tensor: Tensor) -> bool:
    numbers = 16 // tensor.element_size()
    strides = (tensor.stride(axis) for axis in range(tensor.dim() - 1))
    aligned = not tensor.data_ptr() % 16 and not tensor.storage_offset() % numbers
    whole = not tensor.shape[-1] % numbers and not any(stride % numbers for stride in strides)
    return tensor.stride(-1) == 1 and aligned and whole


def _elements(tensor: Tensor, axis: int, tokens: int) -> int:
    return tensor.numel() // tensor.shape[axis] * tokens


def send_keys(tensors: Sequence[Tensor], axis: int, link: Link) -> Travel:
    """Starts the exchange of these shards (key and value) along an axis of the tensors."""
    parts = [
        [t.narrow(axis, s.start, s.length) for s in link.asked_by(process) for t in tensors]
        for process in link.processes
    ]
    expected = [
        sum(_elements(t, axis, s.length) for s in link.needed_from(process) for t in tensors)
        for process in link.processes
    ]
    return _all_to_all(parts, expected, tensors[0], link)


def take_keys(flat: Tensor, tensors: Sequence[Tensor], axis: int, link: Link) -> dict[Segment, list[Tensor]]:
    """What came of send_keys: for each segment that this process needs, its part of every tensor."""
    found: dict[Segment, list[Tensor]] = {}
    at = 0
    for process in link.processes:
        for segment in link.needed_from(process):
            found[segment] = []
            for tensor in tensors:
                shape = (*tensor.shape[:axis], segment.length, *tensor.shape[axis + 1 :])
                count = _elements(tensor, axis, segment.length)
                found[segment].append(flat[at : at + count].view(shape))
                at += count
    return found


def send_gradients(
    gradients: dict[Segment, list[Tensor]], own: Sequence[Tensor], axis: int, link: Link
) -> Travel:
    """Starts the way home of the gradients of what take_keys gave; zero for segments that are not among them. `own` are tensors
    of the shape of this process' shards."""
    parts = [
        [
            gradient
            for segment in link.needed_from(process)
            for gradient in gradients.get(segment) or _zeros(own, axis, segment.length)
        ]
        for process in link.processes
    ]
    expected = [
        sum(_elements(t, axis, s.length) for s in link.asked_by(process) for t in own) for process in link.processes
    ]
    return _all_to_all(parts, expected, own[0], link)


def _zeros(own: Sequence[Tensor], axis: int, length: int) -> list[Tensor]:
    return [t.new_zeros((*t.shape[:axis], length, *t.shape[axis + 1 :])) for t in own]


def add_gradients(flat: Tensor, own: Sequence[Tensor], axis: int, link: Link) -> None:
    """Adds what came of send_gradients to the gradients of this process' shards."""
    at = 0
    for process in link.processes:
        for segment in link.asked_by(process):
            for tensor in own:
                target = tensor.narrow(axis, segment.start, segment.length)
                target += flat[at : at + target.numel()].view(target.shape)
                at += target.numel()


def heads_for_tokens(tensors: Sequence[Tensor], axis: int, sizes: Sequence[int], link: Link) -> list[Tensor]:
    """Gives each process a share of the heads, the last axis but one, for all tokens of an axis of the
    grid, whose shards have these sizes."""
    count = len(sizes)
    parts = [[_share(t, process, count) for t in tensors] for process in link.processes]
    whole = [_whole_shape(t, axis, sum(sizes), count) for t in tensors]
    expected = [
        sum(math.prod(shape) // sum(sizes) * sizes[process] for shape in whole) for process in link.processes
    ]
    flat = _all_to_all(parts, expected, tensors[0], link).wait()
    results = [tensor.new_empty(shape) for tensor, shape in zip(tensors, whole)]
    at, begin = 0, 0
    for process in link.processes:
        for result in results:
            target = result.narrow(axis, begin, sizes[process])
            copy(target, flat[at : at + target.numel()].view(target.shape))
            at += target.numel()
        begin += sizes[process]
    return results


def tokens_for_heads(tensors: Sequence[Tensor], axis: int, sizes: Sequence[int], link: Link) -> list[Tensor]:
    """The way back."""
    count = len(sizes)
    begins = [sum(sizes[:process]) for process in link.processes]
    parts = [
        [t.narrow(axis, begins[process], sizes[process]) for t in tensors] for process in link.processes
    ]
    mine = sizes[link.index]
    shapes = [(*t.shape[:axis], mine, *t.shape[axis + 1 :]) for t in tensors]
    expected = [sum(map(math.prod, shapes))] * count
    flat = _all_to_all(parts, expected, tensors[0], link).wait()
    results = []
    for tensor, shape in zip(tensors, shapes):
        heads = _heads_axis(tensor)
        results.append(tensor.new_empty((*shape[:heads], shape[heads] * count, *shape[heads + 1 :])))
    at = 0
    for process in link.processes:
        for result in results:
            target = _share(result, process, count)
            copy(target, flat[at : at + target.numel()].view(target.shape))
            at += target.numel()
    return results


def _heads_axis(tensor: Tensor) -> int:
    """The axis of heads in [B, X.., H, D]; an LSE is handed over with a last axis of 1."""
    return tensor.dim() - 2


def _share(tensor: Tensor, process: int, count: int) -> Tensor:
    axis = _heads_axis(tensor)
    heads = tensor.shape[axis] // count
    return tensor.narrow(axis, process * heads, heads)


def _whole_shape(tensor: Tensor, axis: int, length: int, count: int) -> tuple[int, ...]:
    heads = _heads_axis(tensor)
    shape = list(tensor.shape)
    shape[axis], shape[heads] = length, shape[heads] // count
    return tuple(shape)


def reduce_over(tensors: Iterable[Tensor], links: Iterable[Link]) -> None:
    """Sums what every process has of the gradient of a tensor that all have."""
    links = list(links)
    for tensor in tensors:
        for link in links:
            arrival(dist.all_reduce(tensor, group=link.group, async_op=True), link.timeout)()
