"""One line of bench/gpu/models.py: a model in one setting, how each way's attention is checked there, and its times."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from attention_ways import Way, attention_of_models, gather_attention, going
from nhood import models
from timing import synchronize
from torch import Tensor, nn

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {"f32": 2e-3, "f16": 1e-2, "bf16": 4e-2}  # of the largest value; f32 may run as TF32


class Absent(Exception):
    """Why a way does not take part."""


@dataclass
class Case:
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
    def setting(self) -> tuple:
        return self.model, self.dtype, self.bias, self.training, self.batch

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


@dataclass(frozen=True)
class Attention:
    """One that a model computes."""

    shape: tuple[int, ...]
    """of the query, but for the batch"""
    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    bias_shape: tuple[int, ...] | None


# ---- the model ----


def make_model(name: str, bias: bool, device: str) -> nn.Module:
    torch.manual_seed(0)
    with torch.device(device):  # large models take long to initialise on a CPU
        return models.create(name, rel_pos_bias=bias).to(device)


def make_input(model: str, batch: int, device: str) -> Tensor:
    if model.startswith("stylenat"):
        return torch.randn(batch, 512, device=device)
    size = 384 if "384" in model else 224
    return torch.randn(batch, 3, size, size, device=device)


def autocast(case: Case, device: str) -> contextlib.AbstractContextManager:
    """As training has it: parameters stay f32."""
    return torch.autocast(torch.device(device).type, DTYPES[case.dtype], enabled=case.training and case.dtype != "f32")


def make_run(case: Case, model: nn.Module, device: str, graphs: bool) -> Callable[[], None]:
    """One forward call, or one training step, with whatever attention is in place then."""
    images = make_input(case.model, case.batch, device)
    if not case.training:
        model.eval().to(DTYPES[case.dtype])
        images = images.to(DTYPES[case.dtype])
        return torch.no_grad()(lambda: model(images))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=graphs)
    labels = torch.randint(1000, (case.batch,), device=device)

    def step() -> None:
        with autocast(case, device):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@functools.lru_cache(maxsize=None)
def attentions_in(name: str, bias: bool) -> list[Attention]:
    """The distinct ones of a model."""
    found = set()

    def record(query, key, value, kernel_size, dilation, bias) -> Tensor:
        bias_shape = None if bias is None else tuple(bias.shape)
        found.add(Attention(tuple(query.shape[1:]), tuple(kernel_size), tuple(dilation), bias_shape))
        return value

    with attention_of_models(record), torch.no_grad():
        make_model(name, bias, "meta")(make_input(name, 1, "meta"))
    return sorted(found, key=str)


# ---- one attention, as the model would have it computed ----


def make_tensors(attention: Attention, case: Case, device: str) -> tuple[Tensor, Tensor | None]:
    """A packed projection and the bias."""
    generator = torch.Generator(device).manual_seed(1)
    height, width, heads, dim = attention.shape
    packed = torch.randn(case.batch, height, width, 3, heads, dim, generator=generator, device=device)
    packed = packed.to(DTYPES[case.dtype]).requires_grad_(case.training)
    if attention.bias_shape is None:
        return packed, None
    bias = torch.randn(attention.bias_shape, generator=generator, device=device)
    return packed, bias.requires_grad_() if case.training else bias.to(DTYPES[case.dtype])


def compute(call: Callable[..., Tensor], attention: Attention, packed: Tensor, bias: Tensor | None) -> list[Tensor]:
    """The result and, if it is to be had, the gradient of half its square, as far as the packed projection goes."""
    out = call(*packed.unbind(3), attention.kernel_size, attention.dilation, bias)
    if not packed.requires_grad:
        return [out]
    return [out.detach(), *torch.autograd.grad(out, packed, out.detach())]


def run_once(way: Way, attention: Attention, case: Case, device: str) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    packed, bias = make_tensors(attention, case, device)
    with going(way), torch.set_grad_enabled(case.training), autocast(case, device):
        return packed, bias, compute(way.attention, attention, packed, bias)


def check(way: Way, attentions: list[Attention], case: Case, device: str) -> None:
    """Raises Absent unless the way computes these attentions, on slices of a packed projection as models have them.
    One entry of the batch is compared."""
    for attention in attentions:
        packed, bias, results = run_once(way, attention, case, device)
        exact = packed[:1].detach().float().requires_grad_(case.training)
        exact_bias = None if bias is None else bias.detach().to(DTYPES[case.dtype]).float()
        for got, expected in zip(results, compute(gather_attention, attention, exact, exact_bias), strict=True):
            error = ((got[:1].float() - expected).abs().max() / expected.abs().max()).item()
            if not error <= TOLERANCE[case.dtype]:
                raise Absent(f"off by {error:.1e} of the largest value on {attention}")


# ---- times ----


def attempt(case: Case, way: Way, action: Callable[[], Any]) -> None:
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


def graph_of(run: Callable[[], None]) -> Callable[[], None]:
    """A CUDA graph of the call: what the device takes, however long the CPU takes to launch it."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            run()  # makes plans and the optimizer's state
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def timed(run: Callable[[], None], seconds: float) -> float:
    """Time of one call; as many as fit the time are queued one after the other, so that a busy CPU does not show."""

    def spent(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            run()
        synchronize()
        return time.perf_counter() - start

    spent(1)  # loads kernels, finds memory
    once = spent(1)
    calls = int(seconds / once)
    return spent(calls) / calls if calls > 1 else once


def measure(case: Case, ways: list[Way], turns: int, seconds: float, device: str, graphs: bool) -> Case:
    attentions = attentions_in(case.model, case.bias)
    for way in (way for way in ways if way.computes):
        if way.cuda_only and device == "cpu":
            case.absent[way.name] = "needs CUDA"
        else:
            attempt(case, way, lambda way=way: check(way, attentions, case, device))

    def turn(way: Way) -> None:
        with going(way):
            case.seconds.setdefault(way.name, []).append(timed(graph_of(run) if graphs else run, seconds))

    run = make_run(case, make_model(case.model, case.bias, device), device, graphs)
    for _ in range(turns):
        for way in (way for way in ways if way.name not in case.absent):
            attempt(case, way, lambda way=way: turn(way))
    return case
