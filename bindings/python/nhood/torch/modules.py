"""Neighborhood attention as layers: projections of one packed tensor around the functions.

Parameters are named as in the models of the paper (qkv, rpb, proj), whose checkpoints fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from .._functions import FlagPerAxis, PerAxis, flag_per_axis, head_sets, is_nested, per_axis, sizes_and_windows
from .._groups import HeadSets, bias_shapes, parted
from .._layouts import counted
from .._windows import KernelSize, Windows
from ._functions import attention_of_rank, autocast, check_tensor
from ._streaming import StreamingNeighborhoodAttention
from ._unfused import Axes, unfused_attention


class _NeighborhoodAttention(nn.Module):
    """Multi-head neighborhood self-attention of tokens on RANK_TEXT.

    embed_dim: channels of input and output.  num_heads: divides embed_dim.
    kernel_size, stride, dilation, is_causal: one value for all axes, or one per axis; kernel_size * dilation may
        not exceed the tokens of an axis. Each may also be a sequence with an entry for each of several sets of heads, as in
        na2d; rpb is then a list of tables, one for each set. A kernel_size may also be a nhood.Windows with as many queries as
        keys, which the input must have on that axis; not with rel_pos_bias or a stream. Queries on another grid than keys are
        for na1d, na2d and na3d.
    qkv_bias: whether the projection to query, key and value has a bias.
    qk_scale: of the logits; None: head dim ** -0.5.
    rel_pos_bias: learn a bias on the logits per head and relative position; not with causal axes.
    num_kv_heads: of key and value, divides num_heads; None: num_heads.
    attn_drop: share of the attention weights dropped in training. The weights are in memory then.
    proj_drop: share of the results dropped in training.
    is_periodic: which axes wrap around, one value for all or one per axis; not with is_causal on the same axis.

    forward: [B, TOKENS, embed_dim] -> the same shape. With a stream, of the stream method, x are the next tokens along the
        causal axis of that; no gradients are computed then, and no attention weights dropped.
    """

    rank: int

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kernel_size: KernelSize,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        is_causal: FlagPerAxis = False,
        qkv_bias: bool = True,
        qk_scale: Optional[float] = None,
        proj_drop: float = 0.0,
        *,
        attn_drop: float = 0.0,
        rel_pos_bias: bool = False,
        num_kv_heads: Optional[int] = None,
        is_periodic: FlagPerAxis = False,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1:
            raise ValueError(f"num_heads = {num_heads} is less than 1")
        if embed_dim < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim = {embed_dim} is not a multiple of num_heads = {num_heads}")
        if num_kv_heads < 1 or num_heads % num_kv_heads:
            raise ValueError(f"num_kv_heads = {num_kv_heads} does not divide num_heads = {num_heads}")
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads
        refused = dict(attn_drop=attn_drop or None)
        self.sets = head_sets(self.rank, kernel_size, stride, dilation, is_causal, is_periodic, **refused)
        """windows by sets of heads; None: one window for all heads"""
        sizes: tuple[int, ...] = ()
        self._windows = ""
        if not self.sets:
            sizes, self._windows = sizes_and_windows(kernel_size, self.rank, stride, dilation, is_causal, is_periodic)
        self.kernel_size = _by_set(_with_windows, kernel_size, self.rank, "kernel_size")
        self.stride = _by_set(per_axis, stride, self.rank, "stride")
        self.dilation = _by_set(per_axis, dilation, self.rank, "dilation")
        self.is_causal = _by_set(flag_per_axis, is_causal, self.rank, "is_causal")
        self.is_periodic = flag_per_axis(is_periodic, self.rank, "is_periodic")
        windows = self.sets or HeadSets(
            1, sizes, self.stride, self.dilation, self.is_causal, self.is_periodic
        )
        _check_axes(*windows[1:4])
        if any(causal and periodic for causal, periodic in zip(windows.causal, windows.periodic)):
            raise ValueError(
                f"is_periodic = {self.is_periodic} with is_causal = {self.is_causal}: a causal axis cannot wrap"
            )
        if rel_pos_bias and (self._windows or windows.windows):
            raise ValueError(f"rel_pos_bias with kernel_size = {self.kernel_size}: a bias needs windows by formula")
        if rel_pos_bias and any(windows.causal):
            raise ValueError(f"rel_pos_bias with is_causal = {self.is_causal}: a causal axis has no bias")
        if windows.count > num_kv_heads:
            raise ValueError(f"windows are of {windows.count} sets of heads, there are {num_kv_heads} key/value heads")
        self.scale = self.head_dim**-0.5 if qk_scale is None else qk_scale
        self.qkv = nn.Linear(
            embed_dim, (num_heads + 2 * num_kv_heads) * self.head_dim, bias=qkv_bias, device=device, dtype=dtype
        )
        self.rpb: Any = None
        if rel_pos_bias:
            heads = [own * (num_heads // num_kv_heads) for own in parted(num_kv_heads, windows.count)]
            tables = [
                nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                for shape in bias_shapes(windows, (), heads, False)
            ]
            self.rpb = nn.ParameterList(tables) if self.sets else tables[0]
            self._reset_bias()
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(embed_dim, embed_dim, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def _reset_bias(self) -> None:
        for table in self._tables():
            nn.init.trunc_normal_(table, std=0.02)

    def _tables(self) -> list[Tensor]:
        if self.rpb is None:
            return []
        return list(self.rpb) if self.sets else [self.rpb]

    def reset_parameters(self) -> None:
        """Initial values, as a new layer draws them: for layers that were made on the device meta, after to_empty."""
        self.qkv.reset_parameters()
        self._reset_bias()
        self.proj.reset_parameters()

    def stream(self, axis: int = 0, block: int = 1) -> StreamingNeighborhoodAttention:
        """A stream of this layer's windows along a causal axis, to be handed to `forward` with the tokens of each call."""
        if self.sets:
            raise NotImplementedError("a stream with windows per set of heads: make a layer for each set")
        return StreamingNeighborhoodAttention(
            self.kernel_size,
            self.stride,
            self.dilation,
            self.is_causal,
            self.scale,
            axis=axis,
            block=block,
            is_periodic=self.is_periodic,
        )

    def forward(self, x: Tensor, stream: Optional[StreamingNeighborhoodAttention] = None) -> Tensor:
        if isinstance(x, Proxy):
            return self._in_graph(x)
        check_tensor("x", x)
        if x.dim() != self.rank + 2:
            raise ValueError(f"x.shape = {tuple(x.shape)} has {counted(x.dim(), 'axis', 'axes')}, not {self.rank + 2}")
        if x.shape[-1] != self.embed_dim:
            text = f"x.shape = {tuple(x.shape)}: {x.shape[-1]} channels on the last axis, expected {self.embed_dim}"
            if x.shape[1] == self.embed_dim:
                text += "; if its channels come before the grid, as a convolution has them, pass x.movedim(1, -1)"
            raise ValueError(text)
        return self._forward(x, stream)

    def _forward(self, x: Any, stream: Optional[StreamingNeighborhoodAttention]) -> Any:
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        kv_heads = self.num_kv_heads
        query, key, value = heads.split_with_sizes([self.num_heads, kv_heads, kv_heads], dim=-2)
        attended = stream(query, key, value) if stream else self._attend(query, key, value)
        out = self.proj(attended.flatten(-2))
        drop = self.proj_drop
        return out if _does_nothing(drop) and not isinstance(out, Proxy) else drop(out)

    def _in_graph(self, x: Proxy) -> Any:
        """What torch.fx traces: a call of this layer, as of torch's own ones, or, if the layer is all that is traced, of what it
        consists of."""
        name = x.tracer.path_of_module(self)
        return x.tracer.create_proxy("call_module", name, (x,), {}) if name else self._forward(x, None)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        axes = self.kernel_size, self.stride, self.dilation, self.is_causal
        if self.sets:
            tables = self._tables() or None
            return attention_of_rank(
                self.rank, query, key, value, *axes, self.scale, bias=tables, is_periodic=self.is_periodic
            )
        periodic = True in self.is_periodic
        if self.training and self.attn_drop.p > 0:
            place = (self.is_periodic, (), (), ()) if periodic else ()
            sizes = tuple([1 if isinstance(size, Windows) else size for size in self.kernel_size])
            of_operator = Axes(sizes, *axes[1:], place, self._windows)
            query, key, value, bias = autocast(query, key, value, self.rpb)
            return unfused_attention(
                query, key, value, bias, None, None, of_operator, self.scale, False, self.attn_drop.p
            )[0]
        is_periodic = self.is_periodic if periodic else False
        return attention_of_rank(
            self.rank, query, key, value, *axes, self.scale, bias=self.rpb, is_periodic=is_periodic
        )

    def extra_repr(self) -> str:
        return (
            f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, dilation={self.dilation}, is_causal={self.is_causal}, "
            f"rel_pos_bias={self.rpb is not None}" + f", is_periodic={self.is_periodic}" * any(self.is_periodic)
        )


def _with_windows(given: Any, rank: int, name: str) -> tuple[Any, ...]:
    """kernel_size per axis. ValueError for windows that no input of a layer has."""
    whole = isinstance(given, Sequence) and not isinstance(given, str)
    entries = tuple(given) if whole else (given,) * rank
    sizes = per_axis([1 if isinstance(entry, Windows) else entry for entry in entries], rank, name)
    for i, entry in enumerate(entries):
        if isinstance(entry, Windows) and entry.queries != entry.keys:
            raise ValueError(
                f"kernel_size[{i}] = {entry} has {entry.queries} queries and {entry.keys} keys: a layer's queries and keys are of "
                "one input; na1d, na2d and na3d take two grids"
            )
    return tuple([entry if isinstance(entry, Windows) else size for entry, size in zip(entries, sizes)])


def _by_set(read: Any, value: Any, rank: int, name: str) -> Any:
    """Values per axis, or a tuple of them with one for each set of heads."""
    if is_nested(value):
        return tuple([read(row, rank, name) for row in value])
    return read(value, rank, name)


def _does_nothing(drop: nn.Module) -> bool:
    """Whether it is a Dropout of nothing, without a hook that would notice: calling one takes 3 us."""
    if type(drop) is not nn.Dropout or drop.p != 0:
        return False
    return not (drop._forward_hooks or drop._forward_pre_hooks or drop._backward_hooks or drop._backward_pre_hooks)


def _check_axes(kernel_size: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> None:
    """What can be said before there is an input."""
    for name, values in (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation)):
        if min(values) < 1:
            raise ValueError(f"{name} = {values}: {min(values)} is less than 1")
    for k, s in zip(kernel_size, stride):
        if s > k:
            raise ValueError(f"stride = {stride}: {s} exceeds kernel_size {k}")


def _doc(where: str, tokens: str) -> str:
    return (_NeighborhoodAttention.__doc__ or "").replace("RANK_TEXT", where).replace("TOKENS", tokens)


class NeighborhoodAttention1D(_NeighborhoodAttention):
    __doc__ = _doc("a line", "X")
    rank = 1


class NeighborhoodAttention2D(_NeighborhoodAttention):
    __doc__ = _doc("a plane", "X, Y")
    rank = 2


class NeighborhoodAttention3D(_NeighborhoodAttention):
    __doc__ = _doc("a volume", "X, Y, Z")
    rank = 3
