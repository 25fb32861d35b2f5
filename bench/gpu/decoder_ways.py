"""The ways to get the attention of LTX-2's diffusion decoder that bench/gpu/video_decoder.py compares, and its compilation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from diffusers.models.autoencoders import ltx2_diffusion_decoder as ltx2
from nhood.integrations.diffusers import NhoodProcessor
from torch import Tensor, nn

Attention = Callable[[Tensor, Tensor, Tensor, tuple], Tensor]
"""(query, key, value, kernel_size) -> out, [B, T, H, W, heads, D], of a query that has been scaled"""


class Absent(Exception):
    """Why a way does not take part."""


@dataclass(frozen=True)
class Way:
    name: str
    make: Callable[[], Attention]
    """raises Absent"""
    computes: bool = True
    """whether the result is neighborhood attention"""


def nhood_attention() -> Attention:
    processor = NhoodProcessor()
    return lambda query, key, value, kernel_size: processor.attend(query, key, value, kernel_size, None)


def comfy_attention() -> Attention:
    try:
        from comfy_kitchen import na3d
    except ImportError as error:
        raise Absent("comfy-kitchen is not installed") from error
    return lambda query, key, value, kernel_size: na3d(query, key, value, list(kernel_size), scale=1.0)


def natten_attention() -> Attention:
    try:
        from natten.functional import na3d
    except ImportError as error:
        raise Absent("NATTEN is not installed") from error
    return lambda query, key, value, kernel_size: na3d(query, key, value, kernel_size, scale=1.0)


FLEX_BLOCK = 128  # tokens of a side of a block of FlexAttention's mask


@functools.lru_cache(maxsize=None)
def window_mask(grid: tuple, kernel_size: tuple) -> Callable:
    """FlexAttention's mask_mod; the same object for the same windows, as graphs are kept by it."""

    def attends(batch, head, query, key):
        inside, after = True, 1
        for length, window in zip(reversed(grid), reversed(kernel_size)):
            q, k = query // after % length, key // after % length
            start = torch.clamp(q - window // 2, 0, length - window)
            inside = inside & (k >= start) & (k < start + window)
            after *= length
        return inside

    return attends


class FlexAttention:
    """As diffusers' own processor has it, with a mask for each stage of each decoding; but the mask of all pairs of tokens, from
    which its blocks are made, is not kept in memory."""

    def __init__(self) -> None:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        if not torch.cuda.is_available():
            raise Absent("FlexAttention with a mask of blocks is for CUDA here")
        self.make_mask = torch.compile(create_block_mask)
        self.compiled = torch.compile(flex_attention, dynamic=False)
        self.forget()

    def forget(self) -> None:
        self.of, self.mask = None, None

    @torch.compiler.disable(recursive=False)
    def __call__(self, query: Tensor, key: Tensor, value: Tensor, kernel_size: tuple) -> Tensor:
        of = grid, window = tuple(query.shape[1:4]), tuple(kernel_size)
        if of != self.of:
            self.forget()
            self.of, self.mask = of, self.block_mask(grid, window, query.device)
        sequences = (tensor.flatten(1, 3).transpose(1, 2) for tensor in (query, key, value))
        return self.compiled(*sequences, block_mask=self.mask, scale=1.0).transpose(1, 2).unflatten(1, grid)

    def block_mask(self, grid: tuple, window: tuple, device: torch.device):
        tokens = math.prod(grid)
        # Blocks that are seen, in the order of queries and in that of keys, as indices and as flags before: 4 bytes each.
        needed = 4 * 4 * math.ceil(tokens / FLEX_BLOCK) ** 2
        torch.cuda.empty_cache()
        if needed > torch.cuda.mem_get_info(device)[0]:
            raise Absent(f"the mask of blocks of {'x'.join(map(str, grid))} takes {needed / 2**30:.0f} GiB")
        return self.make_mask(window_mask(grid, window), None, None, tokens, tokens, device=device)


@torch.library.custom_op("nhood_bench::copy_values", mutates_args=())
def copy_values(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Copies value. As the compiler does not look inside, it has to compute query and key, as for attention."""
    return value.clone()


@copy_values.register_fake
def _(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.empty_like(value)


def no_attention() -> Attention:
    return lambda query, key, value, kernel_size: copy_values(query, key, value)


WAYS = {
    way.name: way
    for way in (
        Way("nhood", nhood_attention),
        Way("comfy-kitchen", comfy_attention),
        Way("natten", natten_attention),
        Way("flex", FlexAttention),
        Way("none", no_attention, computes=False),
    )
}


class WayProcessor(NhoodProcessor):
    def __init__(self, attention: Attention) -> None:
        self.attention = attention

    def attend(self, query, key, value, kernel_size, region):
        return self.attention(query, key, value, kernel_size)

    def forget(self) -> None:
        """What was kept during a decoding, and would count as memory of the next one."""
        if hasattr(self.attention, "forget"):
            self.attention.forget()


def by_mask(query: Tensor, key: Tensor, value: Tensor, kernel_size: tuple) -> Tensor:
    """By a mask of all pairs of tokens, in f32: for small grids."""
    grid = tuple(query.shape[1:4])
    mask = torch.ones(1, 1, dtype=torch.bool, device=query.device)
    for length, window in zip(grid, kernel_size):
        token = torch.arange(length, device=query.device)
        start = (token - window // 2).clamp(0, length - window)[:, None]
        axis = (token >= start) & (token < start + window)
        mask = (mask[:, None, :, None] & axis[None, :, None, :]).reshape(len(mask) * length, -1)
    flat = [tensor.flatten(1, 3).transpose(1, 2).float() for tensor in (query, key, value)]
    out = nn.functional.scaled_dot_product_attention(*flat, attn_mask=mask, scale=1.0)
    return out.transpose(1, 2).unflatten(1, grid)


def blocks_of(decoder: nn.Module) -> Iterator[nn.Module]:
    for stage in decoder.det_stages:
        yield from stage
    yield from decoder.diff_blocks


def compiled_tiles(mlp: nn.Module, backend: str) -> Callable[[Tensor], Tensor]:
    """The model's MLP with its tile compiled, and not its loop, which would be thousands of copies of the tile."""
    compiled = torch.compile(type(mlp).forward, backend=backend)

    @torch.compiler.disable(recursive=False)
    def forward(x: Tensor) -> Tensor:
        flat = x.flatten(1, 3)
        out = torch.empty_like(flat)
        size = ltx2._SWIGLU_TILE_SIZE
        for part, result in zip(flat.split(size, dim=1), out.split(size, dim=1)):
            result.copy_(compiled(mlp, part))
        return out.view(x.shape)

    return forward


class Compiled:
    """While entered, the decoder's blocks are compiled: attention with its projections, norms and rotations is one graph."""

    def __init__(self, decoder: nn.Module, backend: str = "inductor") -> None:
        torch._dynamo.config.recompile_limit = 64  # stages times ways: all blocks are one function
        self.forwards = []
        for block in blocks_of(decoder):
            self.forwards.append((block.mlp, compiled_tiles(block.mlp, backend)))
            self.forwards.append((block, torch.compile(block.forward, backend=backend)))

    def __enter__(self) -> None:
        for module, forward in self.forwards:
            module.forward = forward

    def __exit__(self, *_: object) -> None:
        for module, _ in self.forwards:
            del module.forward  # its class's shows again
