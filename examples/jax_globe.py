#!/usr/bin/env python3
"""Learns to forecast a field on the globe, whose longitudes are a periodic axis of neighborhood attention in JAX.

Fields on a grid of latitudes and longitudes are carried around the globe by a zonal wind that is strongest at the equator: in
the time of one step a cell moves by SPEED * cos(latitude) ** 2 columns to the east. A layer learns to do that: each head looks
where its relative bias says, as queries and keys are zero, and the latitude decides how much of each head is taken. Nothing in
the model knows where the grid begins, so with a periodic axis the forecast is as good at the seam as at any other meridian.

    pip install jax
    examples/jax_globe.py

Needs the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built. Exits with status 1 if the
forecast has more than a quarter of the error of saying that nothing moves, or if the seam can be told.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import jax_adam
import nhood.jax

ROWS, COLUMNS = 16, 48
WINDOW = (1, 9)
HEADS = 4
SPEED = 3.0  # columns a step at the equator
WAVES = 8  # of the shortest wave's number
NEAR = 4  # columns on either side of the seam, which windows across it reach


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="of training (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and fields (default 0)")
    return parser.parse_args()


LATITUDE = (jnp.arange(ROWS) + 0.5) / ROWS * jnp.pi - jnp.pi / 2
LONGITUDE = jnp.arange(COLUMNS) / COLUMNS * 2 * jnp.pi


def fields(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Random fields [count, ROWS, COLUMNS] as they are, and a step later: sums of waves, so that they can be moved exactly."""
    amplitude, phase, tilt = jax.random.normal(key, (3, count, WAVES))
    number = jnp.arange(1, WAVES + 1)

    def at(longitude: jax.Array) -> jax.Array:
        angle = number * longitude[..., None] + jnp.pi * phase[:, None, None] + 2 * tilt[:, None, None] * LATITUDE[:, None, None]
        return (amplitude[:, None, None] / jnp.sqrt(number) * jnp.cos(angle)).sum(-1)

    moved = SPEED * jnp.cos(LATITUDE) ** 2 / COLUMNS * 2 * jnp.pi
    grid = jnp.broadcast_to(LONGITUDE, (ROWS, COLUMNS))
    return at(grid), at(grid - moved[:, None])


def make_parameters(key: jax.Array) -> Any:
    return {"bias": 0.1 * jax.random.normal(key, (HEADS, 1, 2 * WINDOW[1] - 1)), "mix": jnp.zeros((4, HEADS))}


def forecast(parameters: Any, field: jax.Array, periodic: bool = True) -> jax.Array:
    """[B, ROWS, COLUMNS]"""
    batch = len(field)
    seen = jnp.stack([jnp.ones(ROWS), jnp.sin(LATITUDE), jnp.cos(LATITUDE), jnp.cos(LATITUDE) ** 2], axis=-1)
    zeros = jnp.zeros((batch, ROWS, COLUMNS, HEADS, 1))
    value = jnp.broadcast_to(field[..., None, None], (batch, ROWS, COLUMNS, HEADS, 1))
    shifted = nhood.jax.na2d(
        zeros, zeros, value, WINDOW, bias=4 * parameters["bias"], is_periodic=(False, periodic)
    )[..., 0]
    weights = 1 / HEADS + jnp.einsum("rf,fh->rh", seen, parameters["mix"])
    return (shifted * weights[:, None]).sum(-1)


def error(parameters: Any, before: jax.Array, after: jax.Array) -> jax.Array:
    return ((forecast(parameters, before) - after) ** 2).mean()


@functools.partial(jax.jit, static_argnames=("steps",))
def train(parameters: Any, key: jax.Array, steps: int) -> tuple[Any, jax.Array]:
    """All steps as one program."""

    def step(carry: Any, key: jax.Array) -> Any:
        parameters, state = carry
        value, gradients = jax.value_and_grad(error)(parameters, *fields(key, 8))
        rate = 0.03 * 0.5 * (1 + jnp.cos(jnp.pi * state[2] / steps))
        return jax_adam.step(parameters, gradients, state, rate), value

    (parameters, _), errors = jax.lax.scan(step, (parameters, jax_adam.begin(parameters)), jax.random.split(key, steps))
    return parameters, errors


def main() -> int:
    arguments = parse_arguments()
    keys = jax.random.split(jax.random.key(arguments.seed), 3)
    parameters, _ = train(make_parameters(keys[0]), keys[1], arguments.steps)
    before, after = fields(keys[2], 256)
    seam = jnp.minimum(jnp.arange(COLUMNS), jnp.arange(COLUMNS)[::-1]) < NEAR
    still = ((before - after) ** 2).mean()
    found = {}
    for periodic in (True, False):
        squares = ((forecast(parameters, before, periodic) - after) ** 2).mean((0, 1)) / still
        found[periodic] = float(squares[seam].mean()), float(squares[~seam].mean())
        print(
            f"{'periodic' if periodic else 'bounded'} longitudes: error at the seam {found[periodic][0]:.3f}, "
            f"elsewhere {found[periodic][1]:.3f} of what it is if nothing moves"
        )
    at_seam, elsewhere = found[True]
    if elsewhere > 0.25 or at_seam > 1.1 * elsewhere:
        print("the forecast is bad, or the seam can be told", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
