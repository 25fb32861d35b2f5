"""The ways to get neighborhood attention on planes that bench/gpu/models.py compares, and how models are led there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

import nhood
import torch
from nhood.models import stylenat
from nhood.torch import modules as nhood_modules
from nhood.torch import na2d, na2d_av, na2d_qk
from timing import synchronize
from torch import Tensor

Attention = Callable[..., Tensor]
"""(query, key, value, kernel_size, dilation, bias) -> out, heads last, of rank 2"""


@dataclass(frozen=True)
class Way:
    name: str
    attention: Attention
    solver: str | None = None
    """what nhood is held to"""
    cuda_only: bool = False
    compiled: bool = False
    """at the first call"""
    computes: bool = True
    """whether the result is neighborhood attention"""


def nhood_attention(query, key, value, kernel_size, dilation, bias) -> Tensor:
    return na2d(query, key, value, kernel_size, dilation=dilation, bias=bias)


def unfused_attention(query, key, value, kernel_size, dilation, bias) -> Tensor:
    scale = query.shape[-1] ** -0.5
    logits = na2d_qk(query, key, kernel_size, dilation=dilation, scale=scale, bias=bias)
    return na2d_av(logits.softmax(dim=-1), value, kernel_size, dilation=dilation)


def no_attention(query, key, value, kernel_size, dilation, bias) -> Tensor:
    return value


@functools.lru_cache(maxsize=None)
def window_index(length: int, kernel_size: int, dilation: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each token of an axis the first key of its window in its dilation group, and its own position there."""
    token = torch.arange(length, device=device)
    group, position = token % dilation, token // dilation
    group_length = (length - group + dilation - 1) // dilation
    return torch.minimum((position - kernel_size // 2).clamp(min=0), group_length - kernel_size), position


@functools.lru_cache(maxsize=None)
def gather_index(length: int, kernel_size: int, dilation: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """[length, kernel_size]: keys, and their rows in the bias table."""
    start, position = window_index(length, kernel_size, dilation, device)
    keys = start[:, None] + torch.arange(kernel_size, device=device)
    group = torch.arange(length, device=device)[:, None] % dilation
    return keys * dilation + group, keys - position[:, None] + kernel_size - 1


def gather_attention(query, key, value, kernel_size, dilation, bias) -> Tensor:
    (height, width), heads = query.shape[1:3], query.shape[3]
    rows, row_steps = gather_index(height, kernel_size[0], dilation[0], query.device)
    columns, column_steps = gather_index(width, kernel_size[1], dilation[1], query.device)
    flat = (rows[:, None, :, None] * width + columns[None, :, None, :]).flatten()  # y, x, window

    def windows(tensor: Tensor) -> Tensor:
        gathered = tensor.flatten(1, 2).index_select(1, flat)
        return gathered.unflatten(1, (height, width, -1)).transpose(3, 4)  # b, y, x, head, window, dim

    logits = (windows(key) @ query[..., None]).squeeze(-1) * query.shape[-1] ** -0.5
    if bias is not None:
        table = bias[:, row_steps[:, None, :, None], column_steps[None, :, None, :]]
        logits = logits + table.reshape(heads, height, width, -1).permute(1, 2, 0, 3)
    return (logits.softmax(dim=-1)[..., None, :] @ windows(value)).squeeze(-2)


@functools.lru_cache(maxsize=None)
def flex_parts(height: int, width: int, kernel_size: tuple, dilation: tuple, device: torch.device):
    """The block mask, and per axis the start of windows and the position of tokens."""
    from torch.nn.attention.flex_attention import create_block_mask

    axes = [window_index(n, k, d, device) for n, k, d in zip((height, width), kernel_size, dilation)]

    def attends(batch, head, query, key):
        inside = True
        for (start, position), window, step, q, k in zip(
            axes, kernel_size, dilation, (query // width, query % width), (key // width, key % width)
        ):
            offset = position[k] - start[q]
            inside = (q % step == k % step) & (offset >= 0) & (offset < window) & inside
        return inside

    tokens = height * width
    return create_block_mask(attends, None, None, tokens, tokens, device=device), axes


@functools.lru_cache(maxsize=1)
def compiled_flex():
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = 256  # the levels, dilations and dtypes of all models
    return torch.compile(flex_attention, dynamic=False)


def flex_attention(query, key, value, kernel_size, dilation, bias) -> Tensor:
    height, width = query.shape[1:3]
    mask, ((_, row), (_, column)) = flex_parts(height, width, kernel_size, dilation, query.device)
    row_limit, column_limit = 2 * kernel_size[0] - 2, 2 * kernel_size[1] - 2

    def add_bias(score, batch, head, q, k):
        row_step = row[k // width] - row[q // width] + kernel_size[0] - 1
        column_step = column[k % width] - column[q % width] + kernel_size[1] - 1
        # keys outside the window are masked, but looked up all the same
        return score + bias[head, row_step.clamp(0, row_limit), column_step.clamp(0, column_limit)]

    sequences = [tensor.flatten(1, 2).transpose(1, 2) for tensor in (query, key, value)]
    out = compiled_flex()(*sequences, score_mod=None if bias is None else add_bias, block_mask=mask)
    return out.transpose(1, 2).unflatten(1, (height, width))


WAYS = {
    way.name: way
    for way in (
        Way("nhood", nhood_attention, compiled=True),
        Way("naive", nhood_attention, solver="cuda.naive", cuda_only=True, compiled=True),
        Way("unfused", unfused_attention, compiled=True),
        Way("gather", gather_attention),
        Way("flex", flex_attention, cuda_only=True, compiled=True),
        Way("none", no_attention, computes=False),
    )
}


@contextlib.contextmanager
def attention_of_models(attention: Attention) -> Iterator[None]:
    """All models of nhood.models compute their attention so."""

    def of_layers(rank, query, key, value, kernel_size, stride, dilation, is_causal, scale, *, bias, is_periodic):
        assert not is_periodic  # no model has such axes
        return attention(query, key, value, kernel_size, dilation, bias)

    def of_generators(query, key, value, kernel_size, *, dilation, bias):
        """nhood takes all sets of heads in one call, the other ways one after the other."""
        if attention is nhood_attention:
            return nhood_attention(query, key, value, kernel_size, dilation, bias)
        heads = query.shape[-2]
        sizes = [(heads + i) // len(kernel_size) for i in range(len(kernel_size))]
        parts = zip(*[tensor.split(sizes, dim=-2) for tensor in (query, key, value)])
        tables = [None] * len(sizes) if bias is None else bias
        sets = zip(parts, kernel_size, dilation, tables)
        return torch.cat([attention(*part, window, step, table) for part, window, step, table in sets], dim=-2)

    with (
        mock.patch.object(nhood_modules, "attention_of_rank", of_layers),
        mock.patch.object(stylenat, "na2d", of_generators),
    ):
        yield


@contextlib.contextmanager
def going(way: Way) -> Iterator[None]:
    if way.solver:
        nhood.configure(solver=way.solver)
    try:
        with attention_of_models(way.attention):
            yield
            synchronize()  # before plans are dropped
    finally:
        if way.solver:
            nhood.configure()
