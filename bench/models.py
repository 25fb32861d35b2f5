#!/usr/bin/env python3
"""Images per second of the papers' models, and the time of training steps, by every way to get the attention.

    nhood     nhood.torch, the library choosing its kernels
    gemm      nhood held to its kernels on GEMMs, the attention weights in memory (CUDA)
    naive     nhood held to its simplest kernels (CUDA)
    unfused   nhood's operators: logits, torch's softmax, weighted sum
    gather    plain torch: every window gathered in memory
    flex      torch's FlexAttention, compiled, with a block mask (CUDA)
    none      values passed on: what the rest of the model takes, and so the share of time spent in attention

These are the rows of Tables 5 to 8 in Hassani, Hwu, Shi, "Faster Neighborhood Attention" (2024), for the machine
at hand. Each way is first compared, per distinct attention of the models, with `gather` in f32; one that differs
or cannot do it is left out, with the reason. Then all take turns; times are medians over turns. Training steps
are forward, loss, backward and AdamW, under autocast for f16 and bf16. f32 is full f32 for all, unless --tf32.

    bench/models.py --models paper --dtypes f16 f32 --bias with without --output build/bench/models

writes models.md, models.csv and, with matplotlib, models.png, anew after each case. Needs torch and the package
nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import csv
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import nhood
import torch
from attention_ways import WAYS, Way, attention_of_models, gather_attention, going, synchronize
from nhood import models
from torch import Tensor, nn

PAPER = """
    nat_mini dinat_mini dinat_s_tiny nat_tiny dinat_tiny dinat_s_small nat_small dinat_small dinat_s_base
    nat_base dinat_base dinat_s_large dinat_large dinat_s_large_384 dinat_large_384_11x11
    stylenat_ffhq_256 stylenat_ffhq_1024
""".split()
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {"f32": 2e-3, "f16": 1e-2, "bf16": 4e-2}  # of the largest value; f32 may run as TF32
STYLENAT_BATCH = 8  # at most: its images are larger


class Absent(Exception):
    """Why a way does not take part."""


@dataclass
class Case:
    """A line of the table: one model in one setting."""

    model: str
    dtype: str
    bias: bool
    training: bool
    batch: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """per way, per turn"""
    absent: dict[str, str] = field(default_factory=dict)
    """per way that does not take part, why"""

    @property
    def text(self) -> str:
        parts = (self.model, self.dtype, "" if self.bias else "no bias", "train" if self.training else "")
        return " ".join(part for part in parts if part)

    def median(self, way: str) -> float | None:
        turns = self.seconds.get(way)
        return statistics.median(turns) if turns else None

    @property
    def share(self) -> float | None:
        """of the time with nhood that is spent in attention"""
        whole, rest = self.median("nhood"), self.median("none")
        return max(0.0, 1.0 - rest / whole) if whole and rest else None


def make_input(model: str, batch: int, device: str) -> Tensor:
    if model.startswith("stylenat"):
        return torch.randn(batch, 512, device=device)
    size = 384 if "384" in model else 224
    return torch.randn(batch, 3, size, size, device=device)


def make_run(case: Case, device: str) -> Callable[[], None]:
    """One forward call, or one training step, with whatever attention is in place then."""
    torch.manual_seed(0)
    model = models.create(case.model, rel_pos_bias=case.bias).to(device)
    images, dtype = make_input(case.model, case.batch, device), DTYPES[case.dtype]
    if not case.training:
        model.eval().to(dtype)
        images = images.to(dtype)
        return torch.no_grad()(lambda: model(images))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    labels = torch.randint(1000, (case.batch,), device=device)

    def step() -> None:
        with torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def attentions_in(case: Case, device: str) -> set[tuple]:
    """The distinct ones: shape of the query but for the batch, kernel_size, dilation, shape of the bias."""
    found = set()

    def record(query, key, value, kernel_size, dilation, bias) -> Tensor:
        found.add((query.shape[1:], kernel_size, dilation, None if bias is None else bias.shape))
        return value

    with attention_of_models(record), torch.no_grad():
        models.create(case.model, rel_pos_bias=case.bias).to(device)(make_input(case.model, 1, device))
    return found


def check(way: Way, attentions: set[tuple], case: Case, device: str) -> None:
    """Raises Absent unless the way computes these attentions, on slices of a packed projection as models have them.
    One entry of the batch is compared."""
    generator, dtype = torch.Generator(device).manual_seed(1), DTYPES[case.dtype]

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    with going(way), torch.no_grad():
        for shape, kernel_size, dilation, bias_shape in sorted(attentions, key=str):
            height, width, heads, dim = shape
            inputs = randn(case.batch, height, width, 3, heads, dim).unbind(3)
            bias = None if bias_shape is None else randn(*bias_shape)
            out = way.attention(*inputs, kernel_size, dilation, bias)[:1].float()
            exact = [tensor[:1].float() for tensor in inputs]
            expected = gather_attention(*exact, kernel_size, dilation, None if bias is None else bias.float())
            error = ((out - expected).abs().max() / expected.abs().max()).item()
            if not error <= TOLERANCE[case.dtype]:
                raise Absent(
                    f"off by {error:.1e} of the largest value on {tuple(shape)} {kernel_size} {dilation}"
                )


def attempt(case: Case, way: Way, action: Callable[[], None]) -> None:
    """Does it, or notes in the case why the way does not take part."""
    try:
        action()
    except Absent as reason:
        case.absent[way.name] = str(reason)
    except torch.cuda.OutOfMemoryError:
        case.absent[way.name] = "out of memory"
    except (NotImplementedError, RuntimeError, ValueError) as error:
        case.absent[way.name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    if way.name in case.absent:
        case.seconds.pop(way.name, None)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def timed(run: Callable[[], None], seconds: float) -> float:
    """Mean of the calls that fit the time, after one that is not counted."""
    run()
    synchronize()
    count, start = 0, time.perf_counter()
    while True:
        run()
        synchronize()  # else the queue hides how much time has passed
        count += 1
        spent = time.perf_counter() - start
        if spent >= seconds:
            return spent / count


def measure(case: Case, ways: list[Way], turns: int, seconds: float, device: str) -> None:
    attentions = attentions_in(case, device)
    for way in ways:
        if way.cuda_only and device == "cpu":
            case.absent[way.name] = "needs CUDA"
        elif way.computes:
            attempt(case, way, lambda way=way: check(way, attentions, case, device))
    run = make_run(case, device)

    def turn(way: Way) -> None:
        with going(way):
            case.seconds.setdefault(way.name, []).append(timed(run, seconds))

    for _ in range(turns):
        for way in ways:
            if way.name not in case.absent:
                attempt(case, way, lambda way=way: turn(way))


def rounded(value: float) -> str:
    """Three digits or more, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def table(cases: list[Case], ways: list[Way]) -> str:
    """Markdown: images/s for forward passes, ms for training steps."""
    names = [way.name for way in ways if way.computes]
    lines = [
        "| model | dtype | bias | batch | |"
        + "".join(f" {name} |" for name in names)
        + " best other | in attention |",
        "|" + "---|" * (7 + len(names)),
    ]
    for case in cases:
        medians = {name: case.median(name) for name in names}
        cells = [
            "–" if m is None else rounded(1e3 * m if case.training else case.batch / m)
            for m in medians.values()
        ]
        others = [m for name, m in medians.items() if name != "nhood" and m]
        ratio = f"{min(others) / medians['nhood']:.2f}×" if others and medians.get("nhood") else "–"
        share = "–" if case.share is None else f"{case.share:.0%}"
        setting = [case.model, case.dtype, "yes" if case.bias else "no", str(case.batch)]
        unit = "ms/step" if case.training else "images/s"
        lines.append("| " + " | ".join((*setting, unit, *cells, ratio, share)) + " |")
    reasons = sorted({f"- {case.text}, {way}: {why}" for case in cases for way, why in case.absent.items()})
    return "\n".join([*lines, *([""] if reasons else []), *reasons]) + "\n"


def machine(device: str) -> str:
    name = platform.processor() or platform.machine()
    if device != "cpu":
        name = torch.cuda.get_device_name()
    return f"{name}, torch {torch.__version__}, nhood {nhood.__version__}"


def write(cases: list[Case], ways: list[Way], folder: Path, device: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "models.md").write_text(f"{machine(device)}\n\n{table(cases, ways)}")
    with (folder / "models.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("model", "dtype", "bias", "training", "batch", "way", "seconds", "turns"))
        for case in cases:
            setting = (case.model, case.dtype, case.bias, case.training, case.batch)
            for way, turns in case.seconds.items():
                writer.writerow((*setting, way, statistics.median(turns), len(turns)))
    plot(cases, ways, folder / "models.png", device)


def plot(cases: list[Case], ways: list[Way], path: Path, device: str) -> None:
    """Speed of each way relative to nhood: one group of bars per case."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [case for case in cases if case.median("nhood")]
    names = [way.name for way in ways if way.computes]
    figure, axes = pyplot.subplots(figsize=(max(6, 0.8 * len(shown) + 2), 4.5), layout="constrained")
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        speeds = [case.median("nhood") / (case.median(name) or float("inf")) for case in shown]
        axes.bar([x + (i + 0.5) * width - 0.4 for x in range(len(shown))], speeds, width, label=name)
    axes.set(ylabel="speed of the whole model, nhood = 1", title=machine(device))
    axes.set_xticks(range(len(shown)), [case.text for case in shown], rotation=60, ha="right", fontsize=7)
    axes.legend(ncols=len(names), fontsize=7)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def make_cases(arguments: argparse.Namespace) -> list[Case]:
    cases = []
    for training in (False, True) if arguments.train == "both" else (arguments.train == "only",):
        for dtype in arguments.dtypes:
            for bias in arguments.bias:
                for model in arguments.models:
                    generator = model.startswith("stylenat")
                    if generator and training:
                        continue  # its loss is that of a discriminator
                    batch = min(arguments.batch, STYLENAT_BATCH) if generator else arguments.batch
                    cases.append(Case(model, dtype, bias == "with", training, batch))
    return cases


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", default=["nat_mini", "dinat_mini"], help="names, or paper: all its rows"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["f32"])
    parser.add_argument("--bias", nargs="+", choices=("with", "without"), default=["with"])
    parser.add_argument("--train", choices=("no", "both", "only"), default="no")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="per way and turn")
    parser.add_argument("--tf32", action="store_true", help="f32 products may run as TF32, in all ways")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=Path("build/bench/models"), help="a folder")
    arguments = parser.parse_args()
    if arguments.models == ["paper"]:
        arguments.models = PAPER
    for name in arguments.models:
        if name not in models.names():
            parser.error(f"--models: {name} is not one of {', '.join(models.names())}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.set_float32_matmul_precision("high" if arguments.tf32 else "highest")
    ways = [WAYS[name] for name in arguments.ways]
    cases = make_cases(arguments)
    for i, case in enumerate(cases, 1):
        print(f"{i}/{len(cases)} {case.text}", file=sys.stderr, flush=True)
        measure(case, ways, arguments.turns, arguments.seconds, arguments.device)
        write(cases[:i], ways, arguments.output, arguments.device)
    print((arguments.output / "models.md").read_text())


if __name__ == "__main__":
    main()
