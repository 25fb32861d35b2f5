#!/usr/bin/env python3
"""Neighborhood attention as a layer of Equinox: what nhood.torch.NeighborhoodAttention2D is for PyTorch, to copy into a program.

    pip install equinox
    examples/jax_equinox.py

As Equinox's own layers, it works on one sample; jax.vmap makes a batch of it. Run as a program it trains the layer for some
steps and prints the loss. Needs the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Union

import equinox
import jax
import jax.numpy as jnp
import jax_adam
import nhood.jax


class NeighborhoodAttention(equinox.Module):
    """On tokens [X.., embed_dim] of a grid with any number of axes from 1 to 3."""

    qkv: equinox.nn.Linear
    out: equinox.nn.Linear
    bias: Optional[jax.Array]
    num_heads: int = equinox.field(static=True)
    kernel_size: tuple[int, ...] = equinox.field(static=True)
    dilation: Union[int, tuple[int, ...]] = equinox.field(static=True)
    is_causal: Union[bool, tuple[bool, ...]] = equinox.field(static=True)
    is_periodic: Union[bool, tuple[bool, ...]] = equinox.field(static=True)

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kernel_size: Sequence[int],
        dilation: Union[int, tuple[int, ...]] = 1,
        is_causal: Union[bool, tuple[bool, ...]] = False,
        is_periodic: Union[bool, tuple[bool, ...]] = False,
        use_bias: bool = False,
        *,
        key: jax.Array,
    ) -> None:
        first, second = jax.random.split(key)
        self.qkv = equinox.nn.Linear(embed_dim, 3 * embed_dim, key=first)
        self.out = equinox.nn.Linear(embed_dim, embed_dim, key=second)
        self.bias = jnp.zeros((num_heads, *(2 * k - 1 for k in kernel_size))) if use_bias else None
        self.num_heads, self.kernel_size = num_heads, tuple(kernel_size)
        self.dilation, self.is_causal, self.is_periodic = dilation, is_causal, is_periodic

    def __call__(self, x: jax.Array) -> jax.Array:
        tokens = x.reshape(-1, x.shape[-1])
        heads = jax.vmap(self.qkv)(tokens).reshape(1, *x.shape[:-1], 3, self.num_heads, -1)
        query, key, value = (heads[..., i, :, :] for i in range(3))
        out = nhood.jax.neighborhood_attention(
            query,
            key,
            value,
            self.kernel_size,
            dilation=self.dilation,
            is_causal=self.is_causal,
            is_periodic=self.is_periodic,
            bias=self.bias,
        )
        return jax.vmap(self.out)(out.reshape(tokens.shape)).reshape(x.shape)


def main() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 12, 10, 32))
    layer = NeighborhoodAttention(32, 4, (5, 3), dilation=(2, 1), use_bias=True, key=jax.random.key(1))
    parameters, rest = equinox.partition(layer, equinox.is_array)

    @jax.jit
    def step(parameters: NeighborhoodAttention, state: object) -> tuple[NeighborhoodAttention, object, jax.Array]:
        def loss(parameters: NeighborhoodAttention) -> jax.Array:
            return ((jax.vmap(equinox.combine(parameters, rest))(x) - x[:, ::-1]) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(parameters)
        return *jax_adam.step(parameters, gradients, state, 1e-2), value

    state = jax_adam.begin(parameters)
    for number in range(51):
        parameters, state, value = step(parameters, state)
        if number % 25 == 0:
            print(f"step {number:2}: loss {value:.4f}")


if __name__ == "__main__":
    main()
