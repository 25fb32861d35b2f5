"""Adam for JAX in a few lines, so that the examples need nothing beside it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

DECAY, DECAY_OF_SQUARES, EPSILON = 0.9, 0.999, 1e-8


def begin(parameters: Any) -> Any:
    """The state before the first step; all of it arrays, so that a compiled step takes it as it takes later ones."""
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    return zeros, zeros, jnp.zeros((), jnp.int32)


def step(parameters: Any, gradients: Any, state: Any, rate: Any) -> tuple[Any, Any]:
    """Parameters and state after a step."""
    means, squares, count = state
    count += 1
    means = jax.tree.map(lambda m, g: DECAY * m + (1 - DECAY) * g, means, gradients)
    squares = jax.tree.map(lambda s, g: DECAY_OF_SQUARES * s + (1 - DECAY_OF_SQUARES) * g * g, squares, gradients)
    unbiased, unbiased_squares = 1 - DECAY**count, 1 - DECAY_OF_SQUARES**count

    def moved(p: Any, m: Any, s: Any) -> Any:
        return p - rate * (m / unbiased) / (jnp.sqrt(s / unbiased_squares) + EPSILON)

    return jax.tree.map(moved, parameters, means, squares), (means, squares, count)
