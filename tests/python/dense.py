"""Neighborhood attention as dense attention under a mask, in plain numpy and f64: what the tests compare with.

Nothing is shared with the library: windows come from the definition, one token at a time.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Optional

import numpy as np


def axis_window(
    length: int, window: int, stride: int, dilation: int, causal: bool, token: int, periodic: bool = False
) -> list[int]:
    """The tokens that `token` attends on one axis, in order; on a periodic one as if it were unrolled."""
    group, position = token % dilation, token // dilation
    group_length = len(range(group, length, dilation))
    block = position // stride * stride
    if causal:
        leader = min(block + stride - 1, group_length - 1)
        positions = range(max(leader - (window - 1), 0), position + 1)
    elif periodic:
        start = block + stride // 2 - window // 2
        positions = range(start, start + window)
    else:
        leader = min(block + stride // 2, group_length - 1)
        start = min(max(leader - window // 2, 0), group_length - window)
        positions = range(start, start + window)
    return [p * dilation + group for p in positions]


@dataclass(frozen=True)
class Case:
    """A problem, with random arrays for it. shape and key_shape are the extents of the boxes that queries and keys cover
    of the grid, which is `shape` by default."""

    shape: tuple[int, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    causal: tuple[bool, ...] = ()
    batch: int = 1
    heads: int = 1
    kv_heads: int = 0
    dim: int = 8
    dim_v: int = 0
    scale: Optional[float] = None
    bias: bool = False
    extra: int = 0
    periodic: tuple[bool, ...] = ()
    grid: tuple[int, ...] = ()
    query_offset: tuple[int, ...] = ()
    key_offset: tuple[int, ...] = ()
    key_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rank = len(self.shape)
        ones, zeros, no = (1,) * rank, (0,) * rank, (False,) * rank
        defaults = {"stride": ones, "dilation": ones, "causal": no, "periodic": no, "grid": self.shape}
        defaults.update(query_offset=zeros, key_offset=zeros, key_shape=self.grid or self.shape)
        for name, default in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, default)
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "dim_v", self.dim_v or self.dim)

    def __str__(self) -> str:
        text = f"b{self.batch}h{self.heads}k{self.kv_heads}d{self.dim}v{self.dim_v}"
        for name in ("shape", "window", "stride", "dilation"):
            text += ":" + name[0] + "x".join(map(str, getattr(self, name)))
        text += ":c" + "".join(str(int(causal)) for causal in self.causal)
        if any(self.periodic):
            text += ":p" + "".join(str(int(periodic)) for periodic in self.periodic)
        if self.is_part:
            for name in ("grid", "query_offset", "key_offset", "key_shape"):
                text += ":" + name + "x".join(map(str, getattr(self, name)))
        return text + (":rpb" if self.bias else "") + (f":x{self.extra}" if self.extra else "")

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_part(self) -> bool:
        return self.shape != self.grid or self.key_shape != self.grid or any(self.query_offset + self.key_offset)

    @property
    def axes(self) -> dict:
        """The axis parameters, as the package's functions take them."""
        axes = dict(kernel_size=self.window, stride=self.stride, dilation=self.dilation, is_causal=self.causal)
        if any(self.periodic):
            axes.update(is_periodic=self.periodic)
        if self.is_part:
            axes.update(grid=self.grid, query_offset=self.query_offset, key_offset=self.key_offset)
        return axes

    def arrays(self, dtype: np.dtype, seed: int = 1) -> dict[str, np.ndarray]:
        """query, key, value and, where the case has them, bias, additional_keys, additional_values."""
        random = np.random.default_rng(seed)
        batch, heads, kv = self.batch, self.heads, self.kv_heads
        shapes = {
            "query": (batch, *self.shape, heads, self.dim),
            "key": (batch, *self.key_shape, kv, self.dim),
            "value": (batch, *self.key_shape, kv, self.dim_v),
        }
        if self.bias:
            shapes["bias"] = (heads, *(2 * k - 1 for k in self.window))
        if self.extra:
            shapes["additional_keys"] = (batch, self.extra, kv, self.dim)
            shapes["additional_values"] = (batch, self.extra, kv, self.dim_v)
        return {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}

    def slots(self) -> tuple[np.ndarray, np.ndarray]:
        """Per token and window slot: the key token, -1 where unused; and the flat index into a head's bias."""
        def box(offsets: tuple[int, ...], lengths: tuple[int, ...]) -> list[tuple[int, ...]]:
            covered = [[(o + i) % n for i in range(m)] for o, m, n in zip(offsets, lengths, self.grid)]
            return list(itertools.product(*covered))

        tokens = box(self.query_offset, self.shape)
        number = {token: i for i, token in enumerate(box(self.key_offset, self.key_shape))}
        keys = np.full((len(tokens), int(np.prod(self.window))), -1)
        bias = np.zeros_like(keys)
        axes = list(zip(self.grid, self.window, self.stride, self.dilation, self.causal))
        for i, token in enumerate(tokens):
            windows = [axis_window(*axis, t, wraps) for axis, t, wraps in zip(axes, token, self.periodic)]
            for places in itertools.product(*(enumerate(window) for window in windows)):
                slot = np.ravel_multi_index([place for place, _ in places], self.window)
                key = tuple(t for _, t in places)
                keys[i, slot] = number.get(tuple(t % n for t, n in zip(key, self.grid)), -1)
                if self.bias:
                    offsets = [
                        k // d - q // d + w - 1
                        for k, q, d, w in zip(key, token, self.dilation, self.window)
                    ]
                    bias[i, slot] = np.ravel_multi_index(offsets, [2 * w - 1 for w in self.window])
        return keys, bias


def _heads_first(array: np.ndarray, heads: int) -> np.ndarray:
    """[B, X.., K, D] -> f64 [B, heads, N, D], kv heads repeated for the query heads that read them."""
    batch, kv, dim = array.shape[0], array.shape[-2], array.shape[-1]
    flat = array.astype(np.float64).reshape(batch, -1, kv, dim).transpose(0, 2, 1, 3)
    return np.repeat(flat, heads // kv, axis=1)


def forward(case: Case, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """out and lse, in f64."""
    keys, bias_index = case.slots()
    query, key, value = (_heads_first(arrays[name], case.heads) for name in ("query", "key", "value"))
    row, slot = np.nonzero(keys >= 0)
    column = keys[row, slot]
    mask = np.full((query.shape[2], key.shape[2]), -np.inf)
    mask[row, column] = 0
    scale = case.dim**-0.5 if case.scale is None else case.scale
    logits = scale * (query @ key.swapaxes(-1, -2)) + mask
    if case.bias:
        table = arrays["bias"].astype(np.float64).reshape(case.heads, -1)
        logits[:, :, row, column] += table[:, bias_index[row, slot]]
    if case.extra:
        extra = _heads_first(arrays["additional_keys"], case.heads)
        logits = np.concatenate([logits, scale * (query @ extra.swapaxes(-1, -2))], axis=-1)
        value = np.concatenate([value, _heads_first(arrays["additional_values"], case.heads)], axis=2)
    largest = logits.max(axis=-1, keepdims=True)
    weights = np.exp(logits - np.where(largest == -np.inf, 0, largest))
    total = weights.sum(axis=-1, keepdims=True)
    out = (weights / np.where(total == 0, 1, total)) @ value  # 0 where there is no key
    with np.errstate(divide="ignore"):
        lse = (largest + np.log(total))[..., 0]
    out = out.transpose(0, 2, 1, 3).reshape(case.batch, *case.shape, case.heads, case.dim_v)
    return out, lse.transpose(0, 2, 1).reshape(case.batch, *case.shape, case.heads)


def qk(case: Case, arrays: dict[str, np.ndarray], unused: float) -> np.ndarray:
    keys, bias_index = case.slots()
    query, key = (_heads_first(arrays[name], case.heads) for name in ("query", "key"))
    attn = np.einsum("bhid,bhiwd->bhiw", query, key[:, :, keys])
    attn *= 1 if case.scale is None else case.scale
    if case.bias:
        attn += arrays["bias"].astype(np.float64).reshape(case.heads, -1)[:, bias_index]
    attn[:, :, keys < 0] = unused
    return attn.transpose(0, 2, 1, 3).reshape(case.batch, *case.shape, case.heads, -1)


def _weights(case: Case, attn: np.ndarray) -> np.ndarray:
    """[B, X.., H, W] as a matrix over tokens, [B, H, N, N]."""
    keys, _ = case.slots()
    slots = _heads_first(attn, case.heads)
    matrix = np.zeros((*slots.shape[:3], int(np.prod(case.key_shape))))
    row, slot = np.nonzero(keys >= 0)
    matrix[:, :, row, keys[row, slot]] = slots[:, :, row, slot]
    return matrix


def av(case: Case, attn: np.ndarray, value: np.ndarray) -> np.ndarray:
    out = _weights(case, attn) @ _heads_first(value, case.heads)
    return out.transpose(0, 2, 1, 3).reshape(case.batch, *case.shape, case.heads, -1)


def inverse(case: Case, attn: np.ndarray, d_out: np.ndarray) -> np.ndarray:
    d_value = _weights(case, attn).swapaxes(-1, -2) @ _heads_first(d_out, case.heads)
    batch, _, tokens, dim = d_value.shape
    grouped = d_value.reshape(batch, case.kv_heads, -1, tokens, dim).sum(axis=2)
    return grouped.transpose(0, 2, 1, 3).reshape(batch, *case.key_shape, case.kv_heads, dim)
