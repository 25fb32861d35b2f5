"""Groups in JAX's programs, also within a bound: the text that says what a call computes, and its plan."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from .. import _bounded, _groups
from .. import _library as c
from .._bounded import Bounded, BoundedPlan
from .._groups import Asked, GroupPlan, HeadSets
from .._layouts import Layout, packed_strides
from .._operations import BACKWARD, FORWARD, Operation
from .._plans import Context


class Packed(NamedTuple):
    """Samples in packed arrays: the rows of a table (nhood/_groups.py)."""

    words: int
    """of a row"""
    table: bytes

    def rows(self) -> np.ndarray:
        return np.frombuffer(self.table, np.int64).reshape(-1, self.words)


class GroupRequest(NamedTuple):
    """As a Request, of a group."""

    operation: Operation
    scale: Optional[float]
    flags: int
    wanted: tuple[bool, ...]
    members: Union[Packed, HeadSets]

    def asked(self) -> Asked:
        return Asked(*self[:4])


class BoundedRequest(NamedTuple):
    """As a Request, of samples whose lengths are data."""

    operation: Operation
    scale: Optional[float]
    flags: int
    wanted: tuple[bool, ...]
    within: Bounded

    def asked(self) -> Asked:
        return Asked(*self[:4])


def text_of(
    request: Union[GroupRequest, BoundedRequest], layouts: Sequence[Optional[Layout]], samples: Optional[int] = None
) -> str:
    """Everything that the plan on packed arrays of these shapes and dtypes depends on. samples: of a BoundedRequest, the most."""
    content: dict[str, Any] = {
        "operation": request.operation.code,
        "scale": request.scale,
        "flags": request.flags,
        "wanted": request.wanted,
        "arrays": [layout and (layout[0], layout[2]) for layout in layouts],
    }
    if isinstance(request, BoundedRequest):
        content.update(bound=request.within, samples=samples)
    elif isinstance(request.members, Packed):
        table = base64.b64encode(zlib.compress(request.members.table, 1)).decode()
        content.update(words=request.members.words, table=table)
    else:
        content.update(sets=request.members)
    return json.dumps(content, separators=(",", ":"))


def plan_of_text(context: Context, device: int, text: bytes) -> Union[GroupPlan, BoundedPlan]:
    content = json.loads(text)
    operation = next(of for of in (FORWARD, BACKWARD) if of.code == content["operation"])
    asked = Asked(operation, content["scale"], content["flags"], tuple(content["wanted"]))
    layouts = tuple(
        None if array is None else (tuple(array[0]), packed_strides(tuple(array[0]), c.DTYPE_BYTES[array[1]]), array[1])
        for array in content["arrays"]
    )
    if "bound" in content:
        within = Bounded(*map(tuple, content["bound"]))
        return _bounded.bounded_plan(context, device, asked, within, content["samples"], layouts)
    if "sets" in content:
        count, *axes, windows = content["sets"]
        return _groups.heads_plan(context, device, asked, HeadSets(count, *map(tuple, axes), windows), layouts)
    table = zlib.decompress(base64.b64decode(content["table"]))
    return _groups.packed_plan(context, device, asked, table, content["words"], layouts, True)


def check(request: GroupRequest, layouts: Sequence[Optional[Layout]]) -> None:
    """Raises what making the plan would, but for want of a solver."""
    members = request.members
    if isinstance(members, Packed):
        _groups.check_packed(request.asked(), members.rows(), layouts, True)
    else:
        _groups.check_heads(request.asked(), members, layouts)


def places_of(plan: GroupPlan, dtype: int, elements: Sequence[int]) -> str:
    """What the handlers (native/xla.c) are told of the members: their number, the dtype, and for each array, arguments before
    results, its elements and where the members begin in it, in bytes."""
    words: list[Any] = [plan.count, dtype]
    for i, count in enumerate(elements):
        words += [count, *plan.offset_array[:, i].tolist()]
    return "".join([f"{word} " for word in words])


def place_of(tokens: int, dtype: int, lengths: tuple[int, int], length_bytes: int, elements: Sequence[int]) -> str:
    """What the handlers are told of samples within a bound: the tokens of the arrays, the dtype, samples and axes, bytes of a length,
    and the elements of each array, arguments before results."""
    return "".join([f"{word} " for word in (tokens, dtype, *lengths, length_bytes, *elements)])
