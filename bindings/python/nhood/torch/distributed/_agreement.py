"""Whether all processes that share a grid were called with the same arguments. What differs would go unnoticed, as another
scale, or make messages of other lengths, at which gloo ends a neighbour. Processes compare once for each problem.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from ._exchange import arrival

Arguments = tuple[tuple[str, Any], ...]
"""names and values, hashable; the names are the same in all processes"""

_agreed: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()
"""by process group, with the names of those along further axes. All processes of one make the same calls in the same order, so
all come to compare, or none. That would not be so if only the last calls were kept, as a process may be in other groups, too."""

_TEXT_BYTES = 256
"""of a value in the message"""


def tensor_arguments(inputs: Sequence[Optional[Tensor]], scale: Optional[float], sharded: Sequence[Any]) -> Arguments:
    """What must be the same of query, key, value, bias, additional keys and values, and the scale; sharded: per axis of the grid,
    None if it is not."""
    query, key, value, bias, additional_keys, _ = inputs
    assert query is not None and key is not None and value is not None
    batch, *lengths, heads, dim = query.shape
    return (
        ("scale", dim**-0.5 if scale is None else float(scale)),
        ("query.dtype", query.dtype),
        ("query.shape", (batch, *(n if cut is None else ... for n, cut in zip(lengths, sharded)), heads, dim)),
        ("key.shape[-2:]", tuple(key.shape[-2:])),
        ("value.shape[-2:]", tuple(value.shape[-2:])),
        ("bias.shape", None if bias is None else tuple(bias.shape)),
        ("additional_keys.shape", None if additional_keys is None else tuple(additional_keys.shape)),
    )


def agree(groups: Sequence[Any], arguments: Arguments, device: torch.device, timeout: Optional[float]) -> None:
    """ValueError, in all processes of all lines of these groups, if the arguments are not the same in all; it names the first that
    differs. A collective along each group if the first of them has not seen these arguments before, and nothing else."""
    groups = [group for group in groups if group is not None and group.size() > 1]
    if not groups:
        return
    known = _agreed.setdefault(groups[0], set())
    call = arguments, *(group.group_name for group in groups[1:])
    if call in known or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return
    hashes = [int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:8], "big", signed=True) for _, value in arguments]
    rows = _of_all([dist.get_rank(), *hashes], torch.int64, groups, device, timeout)
    for i, (name, value) in enumerate(arguments, 1):
        if len({row[i] for row in rows}) == 1:
            continue
        text = repr(value).replace("Ellipsis", "..").encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)
        texts = [bytes(row).decode(errors="replace").rstrip() for row in _of_all(list(text), torch.uint8, groups, device, timeout)]
        said: dict[str, list[int]] = {}
        for text_of_row, process in sorted(zip(texts, (row[0] for row in rows)), key=lambda pair: pair[1]):
            said.setdefault(text_of_row, []).append(process)
        values = "; ".join(f"{text_of_rows} in {_processes(numbers)}" for text_of_rows, numbers in said.items())
        raise ValueError(f"{name} is not the same in all processes that share the grid: {values}")
    known.add(call)


def _processes(numbers: Sequence[int]) -> str:
    return ("process " if len(numbers) == 1 else "processes ") + ", ".join(map(str, numbers))


def _of_all(
    row: list[int], dtype: torch.dtype, groups: Sequence[Any], device: torch.device, timeout: Optional[float]
) -> list[list[int]]:
    """The rows of all processes, in the same order in each."""
    rows = torch.tensor([row], dtype=dtype, device=device)
    for group in groups:
        parts = [torch.empty_like(rows) for _ in range(group.size())]
        arrival(dist.all_gather(parts, rows, group=group, async_op=True), timeout)()
        rows = torch.cat(parts)
    return rows.tolist()
