#!/usr/bin/env python3
"""Neighborhood attention as a layer of Flax: what nhood.torch.NeighborhoodAttention2D is for PyTorch, to copy into a program.

    pip install flax
    examples/jax_flax.py

Run as a program it trains the layer for some steps and prints the loss. Needs the package nhood: installed, or
PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import jax
import jax.numpy as jnp
import jax_adam
import nhood.jax
from flax import nnx


class NeighborhoodAttention(nnx.Module):
    """On tokens [B, X.., embed_dim] of a grid with any number of axes from 1 to 3."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kernel_size: Sequence[int],
        dilation: Union[int, Sequence[int]] = 1,
        is_causal: Union[bool, Sequence[bool]] = False,
        is_periodic: Union[bool, Sequence[bool]] = False,
        use_bias: bool = False,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        self.num_heads, self.kernel_size = num_heads, tuple(kernel_size)
        self.axes = {"dilation": dilation, "is_causal": is_causal, "is_periodic": is_periodic}
        self.qkv = nnx.Linear(embed_dim, 3 * embed_dim, rngs=rngs)
        self.out = nnx.Linear(embed_dim, embed_dim, rngs=rngs)
        extents = (num_heads, *(2 * k - 1 for k in kernel_size))
        self.bias = nnx.Param(jnp.zeros(extents)) if use_bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        heads = self.qkv(x).reshape(*x.shape[:-1], 3, self.num_heads, -1)
        query, key, value = (heads[..., i, :, :] for i in range(3))
        bias = None if self.bias is None else self.bias[...]
        out = nhood.jax.neighborhood_attention(query, key, value, self.kernel_size, bias=bias, **self.axes)
        return self.out(out.reshape(x.shape))


def main() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 12, 10, 32))
    layer = NeighborhoodAttention(32, 4, (5, 3), dilation=(2, 1), use_bias=True, rngs=nnx.Rngs(0))
    graph, parameters = nnx.split(layer, nnx.Param)

    @jax.jit
    def step(parameters: nnx.State, state: object) -> tuple[nnx.State, object, jax.Array]:
        def loss(parameters: nnx.State) -> jax.Array:
            return ((nnx.merge(graph, parameters)(x) - x[:, ::-1]) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(parameters)
        return *jax_adam.step(parameters, gradients, state, 1e-2), value

    state = jax_adam.begin(parameters)
    for number in range(51):
        parameters, state, value = step(parameters, state)
        if number % 25 == 0:
            print(f"step {number:2}: loss {value:.4f}")


if __name__ == "__main__":
    main()
