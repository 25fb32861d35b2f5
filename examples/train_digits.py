#!/usr/bin/env python3
"""Trains a small DiNAT to read handwritten digits, and plots its loss and accuracy.

The data are scikit-learn's: 1797 pictures of 8 x 8 pixels, of which 360 are kept for the test. They are enlarged
to 32 x 32, which makes 8 x 8 tokens; windows are 3 x 3 with dilations 1 and 2, then 3 x 3 of 4 x 4 tokens.

    pip install torch scikit-learn matplotlib tqdm
    examples/train_digits.py --output digits.png

Needs the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built. Exits with
status 1 if the accuracy of the last epoch is below --expect.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import nhood
import torch
import torch.nn.functional as F
from nhood import models
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from tqdm import tqdm

TEST_IMAGES = 360
BLANK = -0.5  # pixels are -0.5 .. 0.5, digits bright
LEARNING_RATE = 3e-3


@dataclass
class History:
    loss: list[float] = field(default_factory=list)
    """of training, mean over an epoch"""
    accuracy: list[float] = field(default_factory=list)
    """on the test images, after an epoch"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60, help="(default 60)")
    parser.add_argument("--batch", type=int, default=32, help="images a step (default 32)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and shifts (default 0)")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="(default: cuda where there is one)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("digits.png"), help="the plot (default digits.png)"
    )
    parser.add_argument("--expect", type=float, default=0.97, help="accuracy to reach (default 0.97)")
    return parser.parse_args()


def load(device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images [N, 1, 8, 8], training and test labels [N]; the split is always the same."""
    digits = load_digits()
    images = digits.images[:, None].astype("float32") / 16.0 + BLANK
    parts = train_test_split(
        images, digits.target, test_size=TEST_IMAGES, random_state=0, stratify=digits.target
    )
    return tuple(torch.from_numpy(part).to(device) for part in parts)


def enlarge(images: Tensor) -> Tensor:
    return F.interpolate(images, scale_factor=4, mode="bilinear")


def shift(images: Tensor) -> Tensor:
    """Each image by up to one pixel in either direction."""
    rows, columns = torch.randint(3, (2, len(images), 1, 1), device=images.device)
    pixel = torch.arange(images.shape[-1], device=images.device)
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    padded = F.pad(images[:, 0], (1, 1, 1, 1), value=BLANK)
    return padded[batch, pixel[:, None] + rows, pixel + columns][:, None]


def train_epoch(model, optimizer, schedule, images: Tensor, labels: Tensor, batch: int) -> float:
    model.train()
    losses = []
    for chosen in torch.randperm(len(images), device=images.device).split(batch):
        logits = model(enlarge(shift(images[chosen])))
        loss = F.cross_entropy(logits, labels[chosen], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


@torch.no_grad()
def accuracy(model, images: Tensor, labels: Tensor) -> float:
    model.eval()
    return (model(enlarge(images)).argmax(dim=1) == labels).float().mean().item()


def plot(history: History, path: Path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    epochs = range(1, len(history.loss) + 1)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.plot(epochs, history.loss)
    left.set(xlabel="epoch", ylabel="training loss")
    right.plot(epochs, [100 * a for a in history.accuracy])
    right.set(xlabel="epoch", ylabel="test accuracy in %", title=f"last: {history.accuracy[-1]:.1%}")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # batches are small: more threads cost more than they give
    nhood.configure(threads=1)
    images, test_images, labels, test_labels = load(arguments.device)
    model = models.NAT(
        32, 2, (2, 2), 2.0, kernel_size=3, dilations=(2, 1), in_channels=1, num_classes=10, drop_path_rate=0.0
    ).to(arguments.device)
    steps = arguments.epochs * -(-len(images) // arguments.batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    history, start = History(), time.perf_counter()
    with tqdm(total=arguments.epochs, unit="epoch") as bar:
        for _ in range(arguments.epochs):
            history.loss.append(train_epoch(model, optimizer, schedule, images, labels, arguments.batch))
            history.accuracy.append(accuracy(model, test_images, test_labels))
            bar.set_postfix_str(f"loss {history.loss[-1]:.3f}, accuracy {history.accuracy[-1]:.1%}")
            bar.update()
    seconds = time.perf_counter() - start
    plot(history, arguments.output)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{parameters} parameters, {arguments.epochs} epochs in {seconds:.0f} s on {arguments.device}: "
        f"{history.accuracy[-1]:.1%} of {len(test_labels)} test images; plot in {arguments.output}"
    )
    if history.accuracy[-1] < arguments.expect:
        sys.exit(f"accuracy {history.accuracy[-1]:.3f} is below {arguments.expect}")


if __name__ == "__main__":
    main()
