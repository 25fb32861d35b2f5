"""The library's operations as operators of torch, torch.ops.nhood.*: schema, implementation, fake, FLOPs.

Their formulas of derivatives are in _fused.py and _unfused.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .. import _plans, _quick
from .._layouts import Layout, packed_strides
from .._library import DTYPE_BYTES, DTYPE_F32, FLAG_CLAMP_WINDOW, FLAG_ZERO_FILL
from .._operations import AV, BACKWARD, FORWARD, IN, QK, Operation
from .._plans import Region, Request
from .._windows import windows_of
from ._dispatch import directly, only_inference_here
from ._tensors import check, compute, deterministic
from ._transforms import folding, register_mapping

Ints = Sequence[int]
Bools = Sequence[bool]

# is_causal in ints: torch.jit, with which fvcore counts FLOPs, cannot trace lists of bool.
_AXES = "int[] kernel_size, int[] stride, int[] dilation, int[] is_causal"
_PLACE = "int[] is_periodic=[], SymInt[] grid=[], SymInt[] query_offset=[], SymInt[] key_offset=[]"
_WINDOWS = 'str windows=""'
_SCHEMAS = {
    "na": "(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? additional_keys, "
    f"Tensor? additional_values, {_AXES}, float? scale, bool clamp_window, bool need_lse, {_PLACE}, {_WINDOWS}) "
    "-> Tensor[]",
    "na_backward": "(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? additional_keys, "
    "Tensor? additional_values, Tensor out, Tensor lse, Tensor d_out, Tensor? d_lse, "
    f"{_AXES}, float? scale, bool clamp_window, bool[] wanted, {_PLACE}, {_WINDOWS}) -> Tensor[]",
    "na_qk": f"(Tensor query, Tensor key, Tensor? bias, {_AXES}, float? scale, bool zero_fill, "
    f"bool clamp_window, {_PLACE}, {_WINDOWS}) -> Tensor",
    "na_av": f"(Tensor attn, Tensor value, {_AXES}, bool clamp_window, {_PLACE}, {_WINDOWS}) -> Tensor",
    "na_in": f"(Tensor attn, Tensor d_out, {_AXES}, int kv_heads, bool clamp_window, {_PLACE}, "
    f"SymInt[] key_lengths=[], {_WINDOWS}) -> Tensor",
}
"""na returns out and, if needed, lse; na_backward one gradient per True in `wanted`, in the order of the first
six inputs. Where the last arguments are empty no axis is periodic, and all tensors cover the whole grid; if one of grid
and the offsets is not, an empty grid has the lengths of the queries, and empty offsets are 0. windows: those of axes that have
no formula, as nhood/_windows.py writes them; window, stride and dilation of such an axis are 1."""


# What is asked for: from an operator's arguments to a request and the tensors (or their shapes) in it.


def _request(
    operation: Operation,
    axes: tuple[Ints, Ints, Ints, Bools],
    scale: Optional[float],
    flags: int,
    wanted: tuple[bool, ...],
    place: tuple[Any, ...],
    kv_heads: Optional[int] = None,
) -> Request:
    window, stride, dilation, causal = axes
    request = Request(
        operation, tuple(window), tuple(stride), tuple(dilation), tuple(causal), scale, flags, wanted, kv_heads
    )
    return _placed(request, *place) if place else request


def _placed(
    request: Request,
    periodic: Ints = (),
    grid: Ints = (),
    query_offset: Ints = (),
    key_offset: Ints = (),
    windows: str = "",
    key_lengths: Ints = (),
) -> Request:
    zeros = (0,) * len(request.window)
    region = None
    if grid or query_offset or key_offset:
        region = Region(
            tuple(grid) or None,
            tuple(query_offset) or zeros,
            tuple(key_offset) or zeros,
            tuple(key_lengths) or None,
        )
    return request._replace(periodic=tuple(map(bool, periodic)) or None, region=region, windows=windows)


def _flags(clamp_window: bool, zero_fill: bool = False) -> int:
    return (FLAG_CLAMP_WINDOW if clamp_window else 0) | (FLAG_ZERO_FILL if zero_fill else 0)


def ask_na(*arguments: Any) -> tuple[Request, Sequence[Any]]:
    scale, clamp_window, need_lse, *place = arguments[10:]
    request = _request(FORWARD, arguments[6:10], scale, _flags(clamp_window), (True, need_lse), place)
    return request, arguments[:6]


def _ask_na_backward(*arguments: Any) -> tuple[Request, Sequence[Any]]:
    scale, clamp_window, wanted, *place = arguments[14:]
    request = _request(BACKWARD, arguments[10:14], scale, _flags(clamp_window), tuple(wanted), place)
    return request, arguments[:10]


def _ask_na_qk(*arguments: Any) -> tuple[Request, Sequence[Any]]:
    scale, zero_fill, clamp_window, *place = arguments[7:]
    request = _request(QK, arguments[3:7], scale, _flags(clamp_window, zero_fill), (True,), place)
    return request, arguments[:3]


def _ask_na_av(*arguments: Any) -> tuple[Request, Sequence[Any]]:
    clamp_window, *place = arguments[6:]
    return _request(AV, arguments[2:6], None, _flags(clamp_window), (True,), place), arguments[:2]


def _ask_na_in(*arguments: Any) -> tuple[Request, Sequence[Any]]:
    kv_heads, clamp_window, *place = arguments[6:]
    if len(place) > 4:  # the windows, which are the last ones, come before the lengths in other operators
        place = [*place[:4], *(place[5:] or [""]), place[4]]
    return _request(IN, arguments[2:6], None, _flags(clamp_window), (True,), place, kv_heads), arguments[:2]


# Implementations, for CPU and CUDA tensors alike


def compute_na(*arguments: Any) -> list[Tensor]:
    return compute("na", ask_na, arguments)


def _na_backward(*arguments: Any) -> list[Tensor]:
    return compute("na_backward", _ask_na_backward, arguments)


def _na_qk(*arguments: Any) -> Tensor:
    return compute("na_qk", _ask_na_qk, arguments)[0]


def _na_av(*arguments: Any) -> Tensor:
    return compute("na_av", _ask_na_av, arguments)[0]


def _na_in(*arguments: Any) -> Tensor:
    return compute("na_in", _ask_na_in, arguments)[0]


# Fakes: what a call returns without its values, for tracers. Extents may be symbols.


def _checked(ask: Callable[..., tuple[Request, Sequence[Any]]], fake: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*arguments: Any) -> Any:
        check(*ask(*arguments))
        return fake(*arguments)

    return checked


def _fake_na(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> list[Tensor]:
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    need_lse = arguments[9]
    return [out, query.new_empty(query.shape[:-1], dtype=lse_dtype)] if need_lse else [out]


def _fake_na_backward(*arguments: Any) -> list[Tensor]:
    wanted = arguments[16]
    return [tensor.new_empty(tensor.shape) for tensor, want in zip(arguments, wanted) if want]


def _fake_na_qk(
    query: Tensor,
    key: Tensor,
    bias: Optional[Tensor],
    window: Ints,
    stride: Ints,
    dilation: Ints,
    causal: Ints,
    scale: Optional[float],
    zero_fill: bool,
    clamp_window: bool,
    periodic: Ints = (),
    grid: Ints = (),
    query_offset: Ints = (),
    key_offset: Ints = (),
    windows: str = "",
) -> Tensor:
    if clamp_window:
        lengths = grid or query.shape[1:-2]
        window = [min(k, max(1, length // d)) for k, length, d in zip(window, lengths, dilation)]
    if windows:
        window = [k if of_axis is None else of_axis.most for k, of_axis in zip(window, windows_of(windows))]
    return query.new_empty((*query.shape[:-1], math.prod(window)))


def _fake_na_av(attn: Tensor, value: Tensor, *arguments: Any) -> Tensor:
    return attn.new_empty((*attn.shape[:-1], value.shape[-1]))


def _fake_na_in(attn: Tensor, d_out: Tensor, *arguments: Any) -> Tensor:
    kv_heads, _, *place = arguments[4:]
    key_lengths = place[4] if len(place) > 4 and place[4] else d_out.shape[1:-2]
    if len(place) > 5 and place[5] and not place[4]:
        key_lengths = [n if of_axis is None else of_axis.keys for n, of_axis in zip(key_lengths, windows_of(place[5]))]
    return d_out.new_empty((d_out.shape[0], *key_lengths, kv_heads, d_out.shape[-1]))


# FLOPs, for torch.utils.flop_counter: 2 per multiply-add over the windows, 2.5 times as many backward.


def _packed(shape: Sequence[int]) -> Layout:
    return tuple(shape), packed_strides(tuple(shape), DTYPE_BYTES[DTYPE_F32]), DTYPE_F32


def _flop_formula(ask: Callable[..., tuple[Request, Sequence[Any]]]) -> Callable[..., int]:
    def count(*arguments: Any, **_: Any) -> int:
        request, shapes = ask(*arguments)
        return int(_plans.flops(request, [None if shape is None else _packed(shape) for shape in shapes]))

    return count


def _at_once(name: str, several: bool, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, but for executions that come again where nothing is recorded for gradients. Several results are a list or a
    tuple."""

    def at_once(*arguments: Any) -> Any:
        if only_inference_here():
            known = _quick.call(name, deterministic(), *arguments)
            if known is not None and known is not False:
                return (known,) if several and type(known) is not tuple else known
        return call(*arguments)

    return at_once


library = torch.library.Library("nhood", "DEF")


def _register(
    name: str,
    operation: Operation,
    ask: Callable[..., tuple[Request, Sequence[Any]]],
    implementation: Callable[..., Any],
    fake: Callable[..., Any],
) -> Callable[..., Any]:
    """Defines an operator; what to call it by."""
    library.define(name + _SCHEMAS[name])
    for key in ("CPU", "CUDA"):
        library.impl(name, implementation, key)
    torch.library.register_fake(f"nhood::{name}", _checked(ask, fake), lib=library)
    packet, tensors = getattr(torch.ops.nhood, name), len(operation.inputs)
    register_flop_formula(packet)(_flop_formula(ask))
    register_mapping(library, name, tensors, folding(operation))
    several = not isinstance(packet.default._schema.returns[0].type, torch.TensorType)
    return _at_once(name, several, directly(name, packet.default, implementation, tensors))


na = _register("na", FORWARD, ask_na, compute_na, _fake_na)
na_backward = _register("na_backward", BACKWARD, _ask_na_backward, _na_backward, _fake_na_backward)
na_qk = _register("na_qk", QK, _ask_na_qk, _na_qk, _fake_na_qk)
na_av = _register("na_av", AV, _ask_na_av, _na_av, _fake_na_av)
na_in = _register("na_in", IN, _ask_na_in, _na_in, _fake_na_in)
