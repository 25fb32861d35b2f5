#!/usr/bin/env python3
"""Trains a small neighborhood attention transformer in JAX to read handwritten digits, in less than a minute on a CPU.

The data are scikit-learn's: 1797 pictures of 8 x 8 pixels, of which 360 are kept for the test. Every pixel is a token that begins with the
3 x 3 pixels around it; windows are 3 x 3 with dilations 1 and 2, with a relative bias.

    pip install jax scikit-learn
    examples/jax_digits.py

Needs the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built. Exits with status 1 if the
accuracy of the last epoch is below --expect.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import jax_adam
import nhood.jax
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

TEST_IMAGES = 360
WIDTH, HEADS, WINDOW = 32, 4, 3
DILATIONS = (1, 2, 1)
PEAK_RATE = 4e-3


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8, help="(default 8)")
    parser.add_argument("--batch", type=int, default=32, help="images a step (default 32)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and shifts (default 0)")
    parser.add_argument("--expect", type=float, default=0.97, help="accuracy to reach (default 0.97)")
    return parser.parse_args()


def load() -> list[Any]:
    """Training and test images [N, 8, 8], training and test labels [N]; the split is always the same."""
    digits = load_digits()
    images = (digits.images / 16 - 0.5).astype(np.float32)
    return train_test_split(images, digits.target, test_size=TEST_IMAGES, random_state=0, stratify=digits.target)


def make_parameters(key: jax.Array) -> Any:
    keys = iter(jax.random.split(key, 64))

    def linear(inputs: int, outputs: int) -> Any:
        return {"w": jax.random.normal(next(keys), (inputs, outputs)) / math.sqrt(inputs), "b": jnp.zeros(outputs)}

    def block() -> Any:
        return {
            "qkv": linear(WIDTH, 3 * WIDTH),
            "bias": jnp.zeros((HEADS, 2 * WINDOW - 1, 2 * WINDOW - 1)),
            "out": linear(WIDTH, WIDTH),
            "up": linear(WIDTH, 2 * WIDTH),
            "down": linear(2 * WIDTH, WIDTH),
        }

    position = 0.1 * jax.random.normal(next(keys), (8, 8, WIDTH))
    return {
        "in": linear(9, WIDTH),
        "position": position,
        "blocks": [block() for _ in DILATIONS],
        "head": linear(16 * WIDTH, 10),
    }


def apply(layer: Any, x: jax.Array) -> jax.Array:
    return x @ layer["w"] + layer["b"]


def norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def attend(block: Any, x: jax.Array, dilation: int) -> jax.Array:
    """[B, 8, 8, WIDTH]"""
    query, key, value = jnp.split(apply(block["qkv"], norm(x)).reshape(*x.shape[:-1], 3 * HEADS, -1), 3, axis=-2)
    out = nhood.jax.na2d(query, key, value, WINDOW, dilation=dilation, bias=block["bias"])
    return apply(block["out"], out.reshape(x.shape))


def logits(parameters: Any, images: jax.Array) -> jax.Array:
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1)), constant_values=-0.5)
    around = jnp.stack([padded[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)], axis=-1)
    x = apply(parameters["in"], around) + parameters["position"]
    for block, dilation in zip(parameters["blocks"], DILATIONS):
        x = x + attend(block, x, dilation)
        x = x + apply(block["down"], jax.nn.gelu(apply(block["up"], norm(x))))
    sixteenths = norm(x).reshape(len(x), 4, 2, 4, 2, WIDTH).mean((2, 4))  # means of 2 x 2 tokens
    return apply(parameters["head"], sixteenths.reshape(len(x), -1))


def loss(parameters: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(logits(parameters, images))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


def shifted(images: jax.Array, key: jax.Array) -> jax.Array:
    """Each image by up to one pixel in either direction."""
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1)), constant_values=-0.5)
    places = jax.random.randint(key, (len(images), 2), 0, 3)
    return jax.vmap(lambda image, place: jax.lax.dynamic_slice(image, place, (8, 8)))(padded, places)


@functools.partial(jax.jit, static_argnames=("steps",))
def train_step(parameters: Any, state: Any, images: Any, labels: Any, key: Any, steps: int) -> tuple[Any, Any, Any]:
    value, gradients = jax.value_and_grad(loss)(parameters, shifted(images, key), labels)
    rate = PEAK_RATE * 0.5 * (1 + jnp.cos(jnp.pi * state[2] / steps))
    return *jax_adam.step(parameters, gradients, state, rate), value


@jax.jit
def right(parameters: Any, images: Any, labels: Any) -> jax.Array:
    return (logits(parameters, images).argmax(-1) == labels).mean()


def main() -> int:
    arguments = parse_arguments()
    images, test_images, labels, test_labels = load()
    parameters = make_parameters(jax.random.key(arguments.seed))
    state = jax_adam.begin(parameters)
    order = np.random.default_rng(arguments.seed)
    batches = len(images) // arguments.batch
    start, accuracy = time.perf_counter(), 0.0
    for epoch in range(arguments.epochs):
        losses = []
        for number, chosen in enumerate(order.permutation(len(images))[: batches * arguments.batch].reshape(batches, -1)):
            key = jax.random.fold_in(jax.random.key(arguments.seed + 1), epoch * batches + number)
            parameters, state, value = train_step(
                parameters, state, images[chosen], labels[chosen], key, steps=batches * arguments.epochs
            )
            losses.append(value)
        accuracy = float(right(parameters, test_images, test_labels))
        seconds = time.perf_counter() - start
        print(f"epoch {epoch + 1:2}: loss {float(np.mean(losses)):.3f}, accuracy {accuracy:.4f}, {seconds:.1f} s")
    if accuracy < arguments.expect:
        print(f"accuracy {accuracy:.4f} is below {arguments.expect}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
