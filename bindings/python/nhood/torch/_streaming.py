"""Neighborhood attention of tokens that arrive one after another: a ring buffer of the keys that windows still see.

Windows of a causal axis look alike wherever they are, once they are full. So tokens far down the axis are handed to the
library at the first coordinates that look like theirs, as a part of a short grid, and the same few plans come again.

Attention does not depend on the order of its keys. Where one token is added at a time and windows have stride 1, the ring
holds exactly the keys of the window of that token, in the order of the ring, and is read whole; once it is full, as an axis
that is not causal and as long as its window, which is the quickest there is. Otherwise several windows are in the ring at
once, and their order counts: every key is written twice, one length of the ring apart, so that the last ones always lie in
a row somewhere. That costs a copy of what is new; two calls over both ends of the ring and a merge, or copying the ring,
would cost one of what is old, which is more. bench/gpu/streaming.py compares them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Optional, Union, overload

import torch
from torch import Tensor

from .._functions import FlagPerAxis, PerAxis, flag, flag_per_axis, integer, number, per_axis, refuse_windows
from .._layouts import counted
from .._plans import Region
from ._functions import attention_of_rank, autocast, check_tensor


class StreamingNeighborhoodAttention:
    """Neighborhood attention of tokens that arrive along a causal axis: frames of a video, samples of a sound.

    Each call takes the next tokens of that axis, whole on all others, and returns what attention over the whole sequence
    so far returns for them. The keys and values that later windows see are kept in a ring buffer, of kernel_size * dilation
    tokens if one token comes at a time and the stride is 1, else of twice (kernel_size - 1) * dilation + block.

    kernel_size, stride, dilation: as for na1d .. na3d; a kernel_size of one number is that of a line.
    is_causal: one value per axis; None: the streamed axis alone. The streamed axis must be causal.
    scale: of the logits; None: head dim ** -0.5.
    axis: the streamed one, counted without batch.
    block: the most tokens of that axis that are computed at once; a call with more is cut.
    is_periodic: which of the other axes wrap around.

    stream(query, key, value): as for na1d .. na3d, with one extent on the streamed axis, which may change from call to call;
        additional_keys, additional_values and return_lse are also as there. Gradients are not computed.

    With a stride above 1 the last windows of a sequence reach further back if its end cuts a group of stride * dilation
    tokens. A stream has no end: its windows are those of a sequence that goes on.

    period: calls with `block` tokens each after which, windows being full, plans and addresses are the same again; so
        many calls, captured in CUDA graphs, can be replayed for ever.
    tokens: how many have come. Replayed graphs do not count: add to it what they took.
    """

    def __init__(
        self,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        dilation: PerAxis = 1,
        is_causal: Optional[FlagPerAxis] = None,
        scale: Optional[float] = None,
        *,
        axis: int = 0,
        block: int = 1,
        is_periodic: FlagPerAxis = False,
    ) -> None:
        self.rank = rank = len(kernel_size) if isinstance(kernel_size, Sequence) else 1
        refuse_windows(kernel_size, "a stream has windows by formula")
        if rank not in (1, 2, 3):
            raise ValueError(f"kernel_size = {kernel_size} has {counted(rank, 'entry', 'entries')}: 1, 2 or 3 are axes")
        self.axis, self.block = integer(axis, "axis"), integer(block, "block")
        if not 0 <= self.axis < rank:
            raise ValueError(f"axis = {axis} is not in [0, {rank})")
        if self.block < 1:
            raise ValueError(f"block = {block} is less than 1")
        self.kernel_size = per_axis(kernel_size, rank, "kernel_size")
        self.stride = per_axis(stride, rank, "stride")
        self.dilation = per_axis(dilation, rank, "dilation")
        causal = [i == self.axis for i in range(rank)] if is_causal is None else is_causal
        self.is_causal = flag_per_axis(causal, rank, "is_causal")
        self.is_periodic = flag_per_axis(is_periodic, rank, "is_periodic")
        self.scale = None if scale is None else number(scale, "scale")
        window, step, spacing = (x[self.axis] for x in (self.kernel_size, self.stride, self.dilation))
        if not self.is_causal[self.axis]:
            raise ValueError(f"is_causal = {self.is_causal}: the streamed axis {self.axis} must be causal")
        if self.is_periodic[self.axis]:
            raise ValueError(f"is_periodic = {self.is_periodic}: the streamed axis {self.axis} cannot wrap")
        if window < 1 or spacing < 1 or not 1 <= step <= window:
            raise ValueError(
                f"kernel_size {window}, stride {step}, dilation {spacing} on axis {self.axis}: "
                "1 <= stride <= kernel_size and 1 <= dilation are legal"
            )
        self._history = (window - 1) * spacing  # tokens before a query that its window may reach
        self._phases = step * spacing  # tokens after which windows look alike
        self._twice = self.block > 1 or step > 1
        blocks = -(-self._history // self.block) + 1
        self._length = blocks * self.block if self._twice else window * spacing
        self._buffers: Optional[tuple[Tensor, Tensor]] = None
        self.tokens = 0

    @property
    def period(self) -> int:
        return math.lcm(self._length, self._phases, self.block) // self.block

    def reset(self) -> None:
        """Begins a new sequence in the same buffers."""
        self.tokens = 0

    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        additional_keys: Optional[Tensor] = None,
        additional_values: Optional[Tensor] = None,
        return_lse: Literal[False] = False,
    ) -> Tensor: ...

    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        additional_keys: Optional[Tensor] = None,
        additional_values: Optional[Tensor] = None,
        return_lse: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...

    @overload
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        additional_keys: Optional[Tensor] = None,
        additional_values: Optional[Tensor] = None,
        return_lse: bool,
    ) -> Union[Tensor, tuple[Tensor, Tensor]]: ...

    @torch.no_grad()
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        additional_keys: Optional[Tensor] = None,
        additional_values: Optional[Tensor] = None,
        return_lse: bool = False,
    ) -> Any:
        query, key, value, keys, values = autocast(query, key, value, additional_keys, additional_values)
        count = self._check(query, key, value)
        if self._buffers is None:
            self._buffers = self._buffer_like(key), self._buffer_like(value)
        along, results = 1 + self.axis, []
        return_lse = flag(return_lse, "return_lse")
        for start in range(0, count, self.block):
            parts = [x.narrow(along, start, min(self.block, count - start)) for x in (query, key, value)]
            results.append(self._attend(*parts, keys, values, return_lse))
        if count == 0:
            results.append(self._nothing(query, value, return_lse))
        if len(results) == 1:
            return results[0]
        return tuple(torch.cat(part, along) for part in zip(*results)) if return_lse else torch.cat(results, along)

    @staticmethod
    def _nothing(query: Tensor, value: Tensor, return_lse: bool) -> Any:
        """The results of no tokens."""
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        if not return_lse:
            return out
        return out, query.new_empty(query.shape[:-1], dtype=torch.promote_types(query.dtype, torch.float32))

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> int:
        """The number of new tokens. ValueError if the tensors do not go with each other or with those before."""
        axes = self.rank + 3
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            check_tensor(name, tensor)
            shape = tuple(tensor.shape)
            if len(shape) != axes:
                raise ValueError(f"{name}.shape = {shape} has {counted(len(shape), 'axis', 'axes')}, not {axes}")
            if shape[:-2] != tuple(query.shape[:-2]):
                raise ValueError(
                    f"{name}.shape = {shape}: batch and tokens are not those of query, {tuple(query.shape)}"
                )
        for name, tensor, buffer in zip(("key", "value"), (key, value), self._buffers or ()):
            given, kept = (self._without_axis(x) for x in (tensor, buffer))
            if given != kept:
                raise ValueError(
                    f"{name} has {given[0]}, device and dtype {given[1:]}; the tokens before it {kept[0]}, {kept[1:]}"
                )
        return query.shape[1 + self.axis]

    def _without_axis(self, tensor: Tensor) -> tuple[list[int], torch.device, torch.dtype]:
        shape = list(tensor.shape)
        del shape[1 + self.axis]
        return shape, tensor.device, tensor.dtype

    def _buffer_like(self, tensor: Tensor) -> Tensor:
        shape = list(tensor.shape)
        shape[1 + self.axis] = (1 + self._twice) * self._length
        return tensor.new_zeros(shape)

    def _write(self, buffer: Tensor, tokens: Tensor, start: int) -> None:
        """Tokens start, start + 1, .. of the sequence, at most the length of the ring."""
        along, at = 1 + self.axis, start % self._length
        count = tokens.shape[along]
        first = min(count, self._length - at)
        for turn in range(1 + self._twice):
            base = turn * self._length
            buffer.narrow(along, base + at, first).copy_(tokens.narrow(along, 0, first))
            if first < count:
                buffer.narrow(along, base, count - first).copy_(tokens.narrow(along, first, count - first))

    def _region(self, count: int, extents: Sequence[int]) -> tuple[Region, tuple[bool, ...], int, int]:
        """Where the next `count` tokens lie in a grid that looks like the sequence, which of its axes are causal, and where
        and how many the keys are in the buffer."""
        length, now, causal = self._length, self.tokens, self.is_causal
        if not self._twice:
            first, keys, key_offset = 0, length, 0
            if now + 1 >= length:  # every token of the group is attended
                now %= self.dilation[self.axis]
                causal = (*causal[: self.axis], False, *causal[self.axis + 1 :])
        else:
            oldest = max(now - self._history, 0)
            first, keys = oldest % length, now - oldest + count
            left_out = oldest // self._phases * self._phases
            now, key_offset = now - left_out, oldest - left_out
            window = self.kernel_size[self.axis] * self.dilation[self.axis]
            length = -(-max(now + count, window) // self._phases) * self._phases

        def on_axis(value: int, others: Sequence[int]) -> tuple[int, ...]:
            return (*others[: self.axis], value, *others[self.axis + 1 :])

        zeros = (0,) * self.rank
        region = Region(on_axis(length, extents), on_axis(now, zeros), on_axis(key_offset, zeros))
        return region, causal, first, keys

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Optional[Tensor],
        values: Optional[Tensor],
        return_lse: bool,
    ) -> Any:
        assert self._buffers is not None
        along = 1 + self.axis
        for buffer, tokens in zip(self._buffers, (key, value)):
            self._write(buffer, tokens, self.tokens)
        region, is_causal, first, count = self._region(query.shape[along], tuple(query.shape[1:-2]))
        seen = [buffer.narrow(along, first, count) for buffer in self._buffers]
        results = attention_of_rank(
            self.rank,
            query,
            *seen,
            self.kernel_size,
            self.stride,
            self.dilation,
            is_causal,
            self.scale,
            keys,
            values,
            return_lse=return_lse,
            is_periodic=self.is_periodic if any(self.is_periodic) else False,
            grid=region.grid,
            query_offset=region.query_offset,
            key_offset=region.key_offset,
        )
        self.tokens += query.shape[along]
        return results

    def state_dict(self) -> dict[str, Union[int, Tensor, None]]:
        """How many tokens have come, and the keys and values of the last ones that windows see, oldest first: all that a
        stream of the same windows needs to go on, also with another block."""
        state: dict[str, Union[int, Tensor, None]] = {"tokens": self.tokens, "key": None, "value": None}
        kept = min(self.tokens, self._history)
        if self._buffers is not None:
            at = torch.arange(self.tokens - kept, self.tokens, device=self._buffers[0].device) % self._length
            for name, buffer in zip(("key", "value"), self._buffers):
                state[name] = buffer.index_select(1 + self.axis, at)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the stream was that `state` comes from, on the device of its tensors."""
        tokens, key, value = (state[name] for name in ("tokens", "key", "value"))
        kept = min(integer(tokens, "tokens"), self._history)
        if tokens < 0 or (key is None or value is None) and tokens > 0:
            raise ValueError(
                f"tokens = {tokens} in a state with key {type(key).__name__}, value {type(value).__name__}"
            )
        buffers = []
        for name, tensor in (("key", key), ("value", value)):
            if tensor is None:
                continue
            if tensor.dim() != self.rank + 3 or tensor.shape[1 + self.axis] != kept:
                raise ValueError(
                    f"{name}.shape = {tuple(tensor.shape)}: not {self.rank + 3} axes with {kept} tokens on axis "
                    f"{self.axis}, of which there have been {tokens}"
                )
            buffers.append(self._buffer_like(tensor))
            self._write(buffers[-1], tensor, tokens - kept)
        self._buffers = tuple(buffers) or None  # type: ignore[assignment]
        self.tokens = tokens
