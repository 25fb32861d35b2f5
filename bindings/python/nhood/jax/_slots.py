"""Windows of samples whose lengths are an array, by JAX's own operations, slot by slot of the windows. Derivatives of samples within a
bound that are not plain gradients are built of this, as those of others are of the unfused operators."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np

from .._bounded import Bounded
from ._members import BoundedRequest
from ._ops import vary_alike


class _Samples(NamedTuple):
    """Numbers above that of all tokens are cut to one more."""

    starts: Any
    ends: Any
    legal: Any


def _samples_of(lengths: Any, of: Bounded, tokens: int) -> _Samples:
    most = tokens + 1
    least = jnp.asarray([window * dilation for window, dilation in zip(of.window, of.dilation)])
    none = (lengths == 0).all(axis=1)
    legal = none | ((lengths >= least) & (lengths <= jnp.asarray(of.longest))).all(axis=1)
    count = jnp.where(legal & ~none, 1, 0).astype(jnp.int32)
    for axis in range(lengths.shape[1]):
        length = jnp.clip(lengths[:, axis], 0, most).astype(jnp.int32)
        count = jnp.where(length > most // jnp.maximum(count, 1), most, count * length)
    ends = jax.lax.associative_scan(lambda a, b: jnp.minimum(a + b, most), count)
    starts = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
    return _Samples(starts, ends, legal & (ends <= tokens))


class _Axis(NamedTuple):
    """The windows of all queries on an axis: the positions first <= x < end of a dilation group."""

    first: Any
    end: Any
    group: Any
    dilation: int
    step: Any
    """tokens from a coordinate to the next"""


def _axis_of(of: Bounded, axis: int, coordinate: Any, length: Any, step: Any) -> _Axis:
    window, stride, dilation = of.window[axis], of.stride[axis], of.dilation[axis]
    group, position = coordinate % dilation, coordinate // dilation
    size = (length - group + dilation - 1) // dilation
    block = position // stride * stride
    if of.causal[axis]:
        leader = jnp.minimum(block + stride - 1, size - 1)
        return _Axis(jnp.maximum(leader - (window - 1), 0), position + 1, group, dilation, step)
    leader = jnp.minimum(block + stride // 2, size - 1)
    first = jnp.clip(leader - window // 2, 0, jnp.maximum(size - window, 0))
    return _Axis(first, first + window, group, dilation, step)


class Slots:
    """A request on so many tokens, for samples of such lengths, [samples, axes]."""

    def __init__(self, request: BoundedRequest, lengths: Any, tokens: int) -> None:
        self.scale, of = request.scale, request.within
        lengths = jnp.concatenate([lengths, jnp.zeros((1, lengths.shape[1]), lengths.dtype)])  # there is one in any case
        samples = _samples_of(lengths, of, tokens)
        self.token = token = jnp.arange(tokens, dtype=jnp.int32)
        sample = jnp.minimum(jnp.searchsorted(samples.ends, token, side="right"), len(lengths) - 1)
        # As the library does on GPUs, an illegal sample gives NaN to its tokens and to all behind them.
        self.illegal = token >= jnp.where(samples.legal, tokens, samples.starts).min()
        self.there = (token < samples.ends[sample]) & ~self.illegal
        self.start = samples.starts[sample]
        own = jnp.where(self.there[:, None], lengths[sample], 1).astype(jnp.int32)
        self.axes: list[_Axis] = []
        step = jnp.ones_like(token)
        for axis in reversed(range(len(of.window))):
            coordinate = (token - self.start) // step % own[:, axis]
            self.axes.insert(0, _axis_of(of, axis, coordinate, own[:, axis], step))
            step = step * own[:, axis]
        slots = np.unravel_index(np.arange(math.prod(of.window)), of.window)
        self.slots = jnp.asarray(np.stack(slots, axis=1), jnp.int32)

    def _read(self, array: Any, slot: Any) -> tuple[Any, Any]:
        """array [1, tokens, ..] at the keys in a slot of the windows, 0 where there is none, and whether there is one."""
        key, there = self.start, self.there
        for axis, number in zip(self.axes, slot):
            position = axis.first + number
            there = there & (position < axis.end)
            key = key + (position * axis.dilation + axis.group) * axis.step
        key = jnp.where(there, key, self.token)
        there = there | (self.illegal & (slot == 0).all())  # for gradients by its key, which get NaN, too
        return jnp.where(there[:, None, None], array[0][key], 0), there[:, None]

    def qk(self, query: Any, key: Any, scale: Optional[float], zero_fill: bool) -> Any:
        """The logits [1, tokens, H, slots]."""
        _, tokens, heads, dim = query.shape
        kv_heads, sums = key.shape[-2], jnp.promote_types(query.dtype, jnp.float32)
        factor = jnp.where(self.illegal, jnp.nan, 1.0 if scale is None else scale).astype(sums)[:, None]
        attends = (self.there | self.illegal)[:, None, None]
        grouped = jnp.where(attends, query[0], 0).reshape(tokens, kv_heads, heads // kv_heads, dim)

        @jax.checkpoint
        def of_slot(slot: Any) -> Any:
            keys, there = self._read(key, slot)
            logits = jnp.einsum("nkgd,nkd->nkg", grouped, keys, precision="highest", preferred_element_type=sums)
            return jnp.where(there, logits.reshape(tokens, heads) * factor, 0 if zero_fill else -jnp.inf).astype(query.dtype)

        return jnp.moveaxis(jax.lax.map(of_slot, self.slots), 0, -1)[None]

    def av(self, attn: Any, value: Any) -> Any:
        """The sums of values, [1, tokens, H, Dv]."""
        _, tokens, heads, _ = attn.shape
        (kv_heads, dim), sums = value.shape[-2:], jnp.promote_types(attn.dtype, jnp.float32)

        @jax.checkpoint
        def add(total: Any, given: tuple[Any, Any]) -> tuple[Any, None]:
            weights, slot = given
            values, there = self._read(value, slot)
            grouped = jnp.where(there, weights, 0).reshape(tokens, kv_heads, heads // kv_heads, 1)
            return total + grouped.astype(sums) * values[:, :, None].astype(sums), None

        zero = jnp.zeros((tokens, kv_heads, heads // kv_heads, dim), sums)
        zero, *_ = vary_alike([zero, attn, value, self.start])
        total, _ = jax.lax.scan(add, zero, (jnp.moveaxis(attn[0], -1, 0), self.slots))
        return total.reshape(1, tokens, heads, dim).astype(attn.dtype)
