"""Samples of different sizes, packed token after token: one call for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Optional, Union, overload

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .. import _quick
from .. import _varlen as of_arrays
from .._functions import FlagPerAxis, PerAxis, flag, flag_per_axis, number
from .._groups import Asked, row_words
from .._operations import FORWARD
from .._windows import KernelSize
from ._bounded import na_bounded
from ._dispatch import are_plain, only_inference_here
from ._functions import _COMMON_PARAGRAPHS, _check_tensors, autocast, in_graph
from ._groups import Varlen, ask_na_varlen, compute_na_varlen, na_varlen, of_any_number, packed_layout_check, varlen_windows
from ._tensors import begin_group, deterministic, launch

Layouts = Union[Tensor, Sequence[Sequence[int]]]


def _rows(name: str, one: Any, many: Any, rank: int, count: int, default: Any = None) -> Tensor:
    """[count, rank], of what is given for all samples or for each."""
    if isinstance(many, Tensor):
        if one is not None:
            raise ValueError(f"{name} = {one} and {name}s: give one of them")
        return _checked(f"{name}s", many, rank)
    rows = of_arrays._of_samples(name, one, many, rank, count, default)
    return torch.tensor(rows, dtype=torch.int64, device="cpu").expand(count, rank)


def _checked(name: str, tensor: Tensor, rank: Optional[int] = None) -> Tensor:
    if tensor.dim() != 2 or tensor.device.type != "cpu" or tensor.dtype != torch.int64:
        raise ValueError(
            f"{name} is {tensor.dtype} of {tensor.dim()} axes on {tensor.device}, expected torch.int64 of 2, samples and their "
            "axes, on the CPU"
        )
    if tensor.shape[1] not in ((1, 2, 3) if rank is None else (rank,)):
        raise ValueError(f"{name} has {tensor.shape[1]} axes a sample, expected {'1, 2 or 3' if rank is None else rank}")
    return tensor


def varlen_table(
    layouts: Layouts,
    kernel_size: Optional[KernelSize] = None,
    *,
    kernel_sizes: Union[None, Tensor, Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Union[None, Tensor, Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Union[None, Tensor, Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
) -> Tensor:
    """What neighborhood_attention_varlen takes for `table`, of its arguments of these names.

    Made once, for instance where a batch is put together, it serves all layers. In compiled programs it is a tensor like others,
    whose first axis is marked as dynamic: new lengths, windows and numbers of samples compile nothing anew."""
    if not isinstance(layouts, Tensor):
        read = of_arrays.read_layouts(layouts)
        rank = len(read[0]) if read else 1
        lengths = torch.tensor(read, dtype=torch.int64, device="cpu").reshape(len(read), rank)
    else:
        lengths = _checked("layouts", layouts)
        rank = lengths.shape[1]
    count = lengths.shape[0]
    kernel_size, kernel_sizes, windows = of_arrays.part_windows(kernel_size, kernel_sizes, rank)
    zeros = torch.zeros_like(lengths)
    # There is a row that is no sample in any case: torch.compile takes sizes of 1 for constants.
    data = torch.full((1, row_words(rank)), -1, device="cpu")
    key_lengths, places = zeros, zeros
    if windows:
        words, data = varlen_windows(lengths, windows)
        key_lengths, places = words.unbind(-1)
    columns = [
        lengths,
        _rows("kernel_size", kernel_size, kernel_sizes, rank, count),
        _rows("stride", stride, strides, rank, count, 1),
        _rows("dilation", dilation, dilations, rank, count, 1),
        torch.tensor([int(causal) for causal in flag_per_axis(is_causal, rank, "is_causal")], device="cpu").expand(count, rank),
        zeros,
        key_lengths,
        places,
    ]
    firsts = []
    for extents in (lengths, torch.where(key_lengths == 0, lengths, key_lengths) if windows else lengths):
        tokens = extents.prod(1, keepdim=True)
        firsts.append(tokens.cumsum(0) - tokens)
    return of_any_number(torch.cat([torch.cat([*firsts, torch.stack(columns, dim=-1).flatten(1)], dim=1), data]))


@overload
def neighborhood_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Optional[Layouts] = None,
    kernel_sizes: Union[None, Tensor, Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Union[None, Tensor, Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Union[None, Tensor, Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    return_lse: Literal[False] = False,
    table: Optional[Tensor] = None,
    bound: Optional[Sequence[int]] = None,
) -> Tensor: ...


@overload
def neighborhood_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Optional[Layouts] = None,
    kernel_sizes: Union[None, Tensor, Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Union[None, Tensor, Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Union[None, Tensor, Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    return_lse: Literal[True],
    table: Optional[Tensor] = None,
    bound: Optional[Sequence[int]] = None,
) -> tuple[Tensor, Tensor]: ...


@overload
def neighborhood_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Optional[Layouts] = None,
    kernel_sizes: Union[None, Tensor, Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Union[None, Tensor, Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Union[None, Tensor, Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    return_lse: bool,
    table: Optional[Tensor] = None,
    bound: Optional[Sequence[int]] = None,
) -> Union[Tensor, tuple[Tensor, Tensor]]: ...


def neighborhood_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel_size: Optional[KernelSize] = None,
    *,
    layouts: Optional[Layouts] = None,
    kernel_sizes: Union[None, Tensor, Sequence[KernelSize]] = None,
    stride: Optional[PerAxis] = None,
    strides: Union[None, Tensor, Sequence[PerAxis]] = None,
    dilation: Optional[PerAxis] = None,
    dilations: Union[None, Tensor, Sequence[PerAxis]] = None,
    is_causal: FlagPerAxis = False,
    scale: Optional[float] = None,
    return_lse: bool = False,
    table: Optional[Tensor] = None,
    bound: Optional[Sequence[int]] = None,
) -> Any:
    """Neighborhood attention of samples of different sizes, packed token after token: one call for all of them.

    query: [1, tokens, H, D].  key: [1, tokens, Hkv, D].  value: [1, tokens, Hkv, Dv]; Hkv divides H.
    layouts: the lengths of the axes of each sample, such as [(14, 14), (20, 30)], or an integer tensor [samples, axes] on the
        CPU; all have 1, 2 or 3 axes. Their tokens follow each other in this order, the last axis fastest, and are all there are.
        Samples may have none.
    kernel_size, stride, dilation: of all samples, one value for all axes or one per axis; stride and dilation are 1 by default.
    kernel_sizes, strides, dilations: of each sample, instead. A kernel_size of either kind may have nhood.Windows, with as many
        queries as the layout has on their axis; a sample has their number of keys there, of which key and value hold as many.
    is_causal: one value for all axes, or one per axis.
    table: what varlen_table makes of the arguments from layouts to is_causal, instead of these.
    bound: the longest axes that samples may have, such as (64, 64). layouts is then a tensor of int32 or int64 on the device of the
        others, which is read when the call is computed: nothing of the host depends on it, and a CUDA graph serves all lengths
        within the bound. Rows of zeros are no samples. Tokens behind the last sample get out 0, log-sum-exp -infinity and gradients
        0. kernel_size, stride and dilation are of all samples, without nhood.Windows.
    scale: any finite number; None: D ** -0.5.

    Returns out [1, tokens, H, Dv]; with return_lse, out and the log-sum-exp of the logits [1, tokens, H].

    COMMON_PARAGRAPHS

    An illegal sample is named by its index, with axis, value and limit; but with a bound on a GPU, which cannot refuse it, that
    sample and all tokens behind it get NaN.
    """
    given = (query, key, value, kernel_size, layouts, kernel_sizes, stride, strides, dilation, dilations)
    given = (*given, is_causal, scale, return_lse, table)
    inference, known = bound is None and only_inference_here(), False
    if inference:
        call = ("varlen", deterministic(), *given)
        known = _quick.call(*call)
        if known is not None and known is not False:
            return known
    try:
        _check_tensors(FORWARD, (query, key, value), ())
    except TypeError as refusal:
        named = dict(layouts=layouts, kernel_sizes=kernel_sizes, stride=stride, strides=strides, dilation=dilation)
        named.update(dilations=dilations, is_causal=is_causal, scale=scale, return_lse=return_lse, table=table, bound=bound)
        return in_graph(neighborhood_attention_varlen, (query, key, value, kernel_size), named, refusal)
    of_samples = (kernel_size, kernel_sizes, stride, strides, dilation, dilations)
    if bound is not None:
        query, key, value = autocast(query, key, value)
        array, is_array = f"a tensor on {query.device}", isinstance(layouts, Tensor)
        of = of_arrays.within_bound(bound, array, is_array, of_samples, is_causal, table)
        parameters = [list(map(int, values)) for values in of]
        scale = None if scale is None else number(scale, "scale")
        results = na_bounded(query, key, value, layouts, *parameters, scale, flag(return_lse, "return_lse"))
        return tuple(results) if return_lse else results[0]
    own_table = table is not None
    if table is None:
        if layouts is None:
            raise ValueError("layouts = None and table = None: give one of them")
        table = _table(layouts, of_samples, is_causal, (query, key, value), inference)
    elif layouts is not None or any([of is not None for of in of_samples]):
        raise ValueError("table and layouts, windows, strides or dilations: give one or the others")
    query, key, value = autocast(query, key, value)
    scale = None if scale is None else number(scale, "scale")
    return_lse = flag(return_lse, "return_lse")
    begun = begin_group(call, _NAMES) if known is None and query.numel() and key.numel() else None
    arguments = (query, key, value, table, scale, True, return_lse)
    if inference and are_plain(True, *arguments[:4]):
        results = launch(*ask_na_varlen(*arguments), begun) if begun else compute_na_varlen(*arguments)
    elif begun:  # what is known or can be is plain
        results = Varlen.apply(*arguments[:4], arguments[4:], compute_na_varlen, False)
        _remember_recorded(begun, own_table, *arguments)
    else:
        results = na_varlen(*arguments)
    return tuple(results) if return_lse else results[0]


_NAMES = (
    *("", "", "query", "key", "value", "kernel_size", "layouts", "kernel_sizes", "stride", "strides", "dilation", "dilations"),
    *("is_causal", "scale", "return_lse", "table"),
)


def _remember_recorded(begun: _quick.Call, own_table: bool, *arguments: Any) -> None:
    """That the call is na_varlen(..) of its own tensors, with gradients recorded past the dispatcher, if its execution is remembered.
    own_table: whether the table is one of the tensors."""
    if not _quick.knows("na_varlen", begun.arguments[1], *arguments[:-1], True):
        return
    table, scale, whole, need_lse = arguments[3:]
    names = ("query", "key", "value", "table") if own_table else ("query", "key", "value")
    made = () if own_table else (table,)
    execution = _quick.Execution(("na_varlen", begun.arguments[1]), (*made, scale, whole, True), len(made) + 1)
    rest = (*made, (scale, whole, need_lse), compute_na_varlen, False)
    _quick.remember_function(begun, Varlen.apply, names, rest, execution, of_group=True)


def _table(
    layouts: Layouts, of_samples: tuple[Any, ...], is_causal: FlagPerAxis, tensors: tuple[Tensor, ...], inference: bool
) -> Tensor:
    if inference and not isinstance(tensors[0], FakeTensor):
        made = _quick.group_table(layouts, *of_samples, is_causal)
        if made is not None:
            return torch.frombuffer(made[0], dtype=torch.int64).view(-1, made[1])
    if torch.compiler.is_compiling() or any([isinstance(given, Tensor) for given in (layouts, *of_samples)]):
        kernel_size, kernel_sizes, stride, strides, dilation, dilations = of_samples
        return varlen_table(
            layouts,
            kernel_size,
            kernel_sizes=kernel_sizes,
            stride=stride,
            strides=strides,
            dilation=dilation,
            dilations=dilations,
            is_causal=is_causal,
        )
    numbers = of_arrays.table_of(layouts, *of_samples, is_causal)
    if isinstance(tensors[0], FakeTensor) and tensors[0].numel():
        packed_layout_check(Asked(FORWARD, None, 0, (True, False)), numbers, (*tensors, None, None, None))
    return torch.from_numpy(numbers.copy())


neighborhood_attention_varlen.__doc__ = (neighborhood_attention_varlen.__doc__ or "").replace(
    "COMMON_PARAGRAPHS", _COMMON_PARAGRAPHS
)
