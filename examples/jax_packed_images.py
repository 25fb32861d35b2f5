#!/usr/bin/env python3
"""Trains a small classifier in JAX on images of all sizes, without resizing or padding any: a batch is packed, token after token.

Every image has stripes in one of four directions, under noise, and sides of its own between 6 and 24. A batch lies in a room for so many
images and tokens, and its sizes are an array that the program reads when it runs, so jax.jit compiles one step for all batches. All layers
but attention work on tokens one by one; attention is one call of nhood.jax.neighborhood_attention_varlen with a bound.

    examples/jax_packed_images.py --steps 60

Exits with status 1 if fewer than nine in ten fresh images are told right, if images by themselves give other results than packed, or if
a program was compiled more than once. Needs the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import jax
import jax.numpy as jnp
import jax_adam
import nhood.jax
import numpy as np

DIRECTIONS = ((1, 0), (0, 1), (1, 1), (1, -1))
LONGEST, IMAGES, TOKENS = 24, 16, 4096
"""of a side, and the room of a batch: images, of which there may be fewer, and tokens"""
WIDTH, HEADS, LAYERS, WINDOW = 32, 4, 2, 5


def draw(random: np.random.Generator) -> tuple[list[np.ndarray], np.ndarray]:
    """Images [rows, columns], and the directions of their stripes: as many as fit the room."""
    images: list[np.ndarray] = []
    labels = random.integers(len(DIRECTIONS), size=IMAGES)
    for label in labels:
        rows, columns = random.integers(6, LONGEST + 1, size=2)
        if sum([image.size for image in images]) + rows * columns > TOKENS:
            break
        down, right = DIRECTIONS[label]
        place = down * np.arange(rows)[:, None] + right * np.arange(columns)
        images.append(np.sin(2.1 * place + 6 * random.random()) + 0.5 * random.standard_normal((rows, columns)))
    return images, labels


def pack(images: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [1, TOKENS, 3], a pixel with its differences to those above and to the left, and the images' sizes [IMAGES, 2]."""
    layouts = np.zeros((IMAGES, 2), np.int32)  # rows of zeros are no images
    layouts[: len(images)] = [image.shape for image in images]
    pixels = [np.stack([x, x - np.roll(x, 1, 0), x - np.roll(x, 1, 1)], -1).reshape(-1, 3) for x in images]
    tokens = np.concatenate(pixels).astype(np.float32)
    return np.pad(tokens, ((0, TOKENS - len(tokens)), (0, 0)))[None], layouts


def make_parameters(key: jax.Array) -> Any:
    keys = iter(jax.random.split(key, 32))

    def linear(inputs: int, outputs: int) -> Any:
        return {"w": jax.random.normal(next(keys), (inputs, outputs)) / math.sqrt(inputs), "b": jnp.zeros(outputs)}

    def layer() -> Any:
        sizes = {"qkv": (1, 3), "out": (1, 1), "up": (1, 2), "down": (2, 1)}
        return {name: linear(i * WIDTH, o * WIDTH) for name, (i, o) in sizes.items()}

    return {"in": linear(3, WIDTH), "layers": [layer() for _ in range(LAYERS)], "head": linear(WIDTH, len(DIRECTIONS))}


def apply(layer: Any, x: jax.Array) -> jax.Array:
    return x @ layer["w"] + layer["b"]


def norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def attend(layer: Any, x: jax.Array, layouts: jax.Array) -> jax.Array:
    query, key, value = jnp.split(apply(layer["qkv"], norm(x)).reshape(1, TOKENS, 3 * HEADS, -1), 3, axis=-2)
    bound = (LONGEST, LONGEST)
    out = nhood.jax.neighborhood_attention_varlen(query, key, value, WINDOW, layouts=layouts, bound=bound)
    return apply(layer["out"], out.reshape(x.shape))


def logits(parameters: Any, tokens: jax.Array, layouts: jax.Array) -> jax.Array:
    """[IMAGES, directions], of each image by the mean of its tokens."""
    x = apply(parameters["in"], tokens)
    for layer in parameters["layers"]:
        x = x + attend(layer, x, layouts)
        x = x + apply(layer["down"], jax.nn.gelu(apply(layer["up"], norm(x))))
    sizes = layouts.prod(axis=1)
    image = jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(TOKENS), side="right")  # IMAGES for tokens of no image
    sums = jax.ops.segment_sum(x[0], image, IMAGES)
    return apply(parameters["head"], sums / jnp.maximum(sizes, 1)[:, None])


def loss(parameters: Any, tokens: jax.Array, layouts: jax.Array, labels: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(logits(parameters, tokens, layouts))
    there = layouts[:, 0] > 0
    return -jnp.where(there, jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0], 0).sum() / there.sum()


@jax.jit
def train_step(parameters: Any, state: Any, tokens: Any, layouts: Any, labels: Any) -> tuple[Any, Any, Any]:
    value, gradients = jax.value_and_grad(loss)(parameters, tokens, layouts, labels)
    return *jax_adam.step(parameters, gradients, state, 3e-3), value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    random = np.random.default_rng(0)
    parameters = make_parameters(jax.random.key(0))
    state = jax_adam.begin(parameters)
    for step in range(given.steps):
        images, labels = draw(random)
        parameters, state, value = train_step(parameters, state, *pack(images), labels)
        if step % 20 == 19:
            print(f"step {step + 1}: loss {float(value):.3f}")
    predict = jax.jit(logits)
    right = count = 0
    for _ in range(12):
        images, labels = draw(random)
        packed = predict(parameters, *pack(images))[: len(images)]
        right, count = right + int((packed.argmax(-1) == labels[: len(images)]).sum()), count + len(images)
    alone = jnp.stack([predict(parameters, *pack([image]))[0] for image in images])
    difference = float(abs(packed - alone).max())
    programs = max(train_step._cache_size(), predict._cache_size())
    print(f"{right / count:.1%} of {count} fresh images are told right; one by one their results differ by {difference:.1g}")
    return int(right < 0.9 * count or difference > 1e-4 or programs > 1)


if __name__ == "__main__":
    sys.exit(main())
