#!/usr/bin/env python3
"""Errors of f32 attention: every solver of nhood that takes a problem beside torch's own attention, against f64.

    math        scaled_dot_product_attention as two matrix products and a softmax
    efficient   by torch's fused kernels: memory-efficient attention on a GPU, flash attention on a CPU

An error is the largest one of an output over the largest value of that output: of the attention's result, its
log-sum-exps, and the gradients of query, key, value, bias and additional tokens. What exceeds LIMIT times that of the
better of torch's ways is marked with a "!". The f64 results are torch's, on the same device.

Problems: `--windows` lengths of one axis whose window is all of it, so that torch's dense attention computes the same.
With `--grids` also windows on planes and in volumes, a relative bias and additional tokens; torch gets a mask then.
Tensors are normal numbers of deviation 1: queries and keys around 0, values and the result's gradients around each of
`--means`; with `--all-shifted` all of them around that, which at 100 makes scores of 80,000 and rows of one key alone.
Needs torch and the package nhood: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Optional

import nhood
import nhood.torch
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SOLVERS = {  # of the forward, and of the backward if that is another one
    "cuda": ("cuda.naive", "cuda.fused80 cuda.split80", "cuda.small", "cuda.short"),
    "cpu": ("cpu.unfused", "cpu.fused"),
}
LIMIT = 1.5  # times torch's error
ELEMENTS = 1 << 22  # of a tensor of a short problem, by its number of heads: a largest error of few is a chance
TRUTH_BYTES = 1 << 29  # of an f64 matrix of weights
STEP = 2.0**-23  # between f32 numbers: no error of torch's is taken for less

Results = dict[str, Tensor]
NAMES = ("out", "lse", "d_query", "d_key", "d_value", "d_bias", "d_extra_k", "d_extra_v")


@dataclass(frozen=True)
class Problem:
    lengths: tuple[int, ...]
    window: tuple[int, ...]
    heads: int
    mean: float
    biased: bool = False
    extra: int = 0

    def __str__(self) -> str:
        text = "x".join(map(str, self.lengths)) + " w" + "x".join(map(str, self.window))
        return text + (" bias" if self.biased else "") + (f" extra {self.extra}" if self.extra else "")

    @property
    def tokens(self) -> int:
        return math.prod(self.lengths)

    @property
    def dense(self) -> bool:
        return self.lengths == self.window and not self.biased and not self.extra


@dataclass
class Inputs:
    """Tokens in one axis, heads last."""

    query: Tensor
    key: Tensor
    value: Tensor
    d_out: Tensor
    bias: Optional[Tensor]
    extra_k: Optional[Tensor]
    extra_v: Optional[Tensor]

    def leaves(self, dtype: torch.dtype) -> list[Optional[Tensor]]:
        given = (self.query, self.key, self.value, self.bias, self.extra_k, self.extra_v)
        return [None if t is None else t.to(dtype).detach().requires_grad_() for t in given]


def inputs_of(problem: Problem, dim: int, device: str, all_shifted: bool) -> Inputs:
    generator = torch.Generator(device).manual_seed(1)

    def draw(shifted: bool, *shape: int) -> Tensor:
        return torch.randn(shape, device=device, generator=generator) + (problem.mean if shifted or all_shifted else 0)

    rows = [draw(i > 1, 1, problem.tokens, problem.heads, dim) for i in range(4)]
    bias = draw(False, problem.heads, *(2 * w - 1 for w in problem.window)) if problem.biased else None
    extra: list[Optional[Tensor]] = [None, None]
    if problem.extra:
        extra = [draw(i > 0, 1, problem.extra, problem.heads, dim) for i in range(2)]
    return Inputs(*rows, bias, *extra)


def gradients(out: Tensor, lse: Tensor, leaves: list[Optional[Tensor]], d_out: Tensor) -> Results:
    wanted = [t for t in leaves if t is not None]
    found = iter(torch.autograd.grad(out, wanted, d_out))
    named = {name: next(found) for name, leaf in zip(NAMES[2:], leaves) if leaf is not None}
    return {"out": out.detach(), "lse": lse.detach(), **named}


# ---- f64 and torch ----


def dense_truth(inputs: Inputs) -> Results:
    """By parts of the queries, as weights of all do not fit memory."""
    given = (inputs.query, inputs.key, inputs.value, inputs.d_out)
    query, key, value, d_out = (t[0].double().transpose(0, 1) for t in given)
    heads, tokens, dim = query.shape
    scale, step = dim**-0.5, max(1, TRUTH_BYTES // (8 * heads * tokens))
    d_key, d_value = torch.zeros_like(key), torch.zeros_like(value)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for first in range(0, tokens, step):
        q, d_o = query[:, first : first + step], d_out[:, first : first + step]
        scores = scale * q @ key.mT
        lse = scores.logsumexp(-1, keepdim=True)
        weights = scores.sub_(lse).exp_()
        out = weights @ value
        d_value += weights.mT @ d_o
        d_scores = (d_o @ value.mT).sub_((d_o * out).sum(-1, keepdim=True)).mul_(weights)
        parts.append((out, lse[..., 0], scale * d_scores @ key))
        d_key += scale * d_scores.mT @ q
    out, lse, d_query = (torch.cat(each, 1) for each in zip(*parts))
    rows = {"out": out, "d_query": d_query, "d_key": d_key, "d_value": d_value}
    return {name: rows[name].transpose(0, 1)[None] if name != "lse" else lse.T[None] for name in NAMES[:5]}


def places(problem: Problem, device: str) -> tuple[Tensor, Tensor]:
    """[tokens, tokens]: whether the key is in the query's window, and the entry of the bias table between them."""
    shape = (problem.tokens, problem.tokens)
    inside = torch.ones(shape, dtype=torch.bool, device=device)
    entry = torch.zeros(shape, dtype=torch.long, device=device)
    at = torch.meshgrid(*(torch.arange(n, device=device) for n in problem.lengths), indexing="ij")
    for place, length, window in zip(at, problem.lengths, problem.window):
        query, key = place.flatten()[:, None], place.flatten()[None]
        begin = (query - window // 2).clamp(min=0, max=length - window)
        inside &= (key >= begin) & (key < begin + window)
        entry = entry * (2 * window - 1) + (key - query + window - 1).clamp(0, 2 * window - 2)
    return inside, entry


def by_torch(problem: Problem, inputs: Inputs, dtype: torch.dtype, backend: SDPBackend) -> Results:
    leaves = inputs.leaves(dtype)
    query, key, value, bias, extra_k, extra_v = leaves
    assert query is not None and key is not None and value is not None
    if extra_k is not None and extra_v is not None:
        key, value = torch.cat((key, extra_k), 1), torch.cat((value, extra_v), 1)
    mask = None
    if not problem.dense:
        inside, entry = places(problem, query.device.type)
        mask = torch.zeros(1, problem.heads, *inside.shape, dtype=dtype, device=query.device)
        if bias is not None:
            mask = bias.flatten(1)[:, entry][None]
        mask = mask.masked_fill(~inside, -math.inf)
        mask = torch.nn.functional.pad(mask, (0, problem.extra))
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    with sdpa_kernel(backend):
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
    if backend == SDPBackend.EFFICIENT_ATTENTION:
        with torch.no_grad():
            lse = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, True)[1][..., : problem.tokens]
    else:
        with torch.no_grad():
            scores = q @ k.mT * query.shape[-1] ** -0.5
            lse = (scores if mask is None else scores.add_(mask)).logsumexp(-1)
            del scores
    return gradients(out, lse.transpose(1, 2), leaves, inputs.d_out.to(dtype))


# ---- nhood ----


def by_nhood(problem: Problem, inputs: Inputs, solvers: str) -> Results:
    forward, backward = (solvers.split() * 2)[:2]
    leaves = inputs.leaves(torch.float32)

    def grid(tensor: Tensor) -> Tensor:
        return tensor.unflatten(1, problem.lengths)

    query, key, value, bias, extra_k, extra_v = leaves
    call = {1: nhood.torch.na1d, 2: nhood.torch.na2d, 3: nhood.torch.na3d}[len(problem.lengths)]
    nhood.configure(solver=forward)
    out, lse = call(
        *(grid(t) for t in (query, key, value)),
        problem.window,
        additional_keys=extra_k,
        additional_values=extra_v,
        bias=bias,
        return_lse=True,
    )
    nhood.configure(solver=backward)
    rank = len(problem.lengths)
    return gradients(out.flatten(1, rank), lse.flatten(1, rank), leaves, inputs.d_out)


# ---- the table ----


def errors(results: Results, truth: Results) -> dict[str, float]:
    return {
        name: float((results[name].double() - truth[name]).abs().max() / truth[name].abs().max()) for name in results
    }


def attempt(work: Callable[[], Results], truth: Results) -> Optional[dict[str, float]]:
    """None: not for this problem."""
    try:
        return errors(work(), truth)
    except (NotImplementedError, MemoryError, torch.OutOfMemoryError):
        return None
    except RuntimeError as error:
        if "No available kernel" in str(error):
            return None
        raise


def rows_of(problem: Problem, options: argparse.Namespace) -> Iterator[tuple[str, Optional[dict[str, float]]]]:
    inputs = inputs_of(problem, options.dim, options.device, options.all_shifted)
    truth = (
        dense_truth(inputs) if problem.dense else by_torch(problem, inputs, torch.float64, SDPBackend.MATH)
    )
    efficient = SDPBackend.EFFICIENT_ATTENTION if options.device == "cuda" else SDPBackend.FLASH_ATTENTION
    for name, backend in (("torch math", SDPBackend.MATH), ("torch efficient", efficient)):
        if options.torch:
            yield name, attempt(lambda: by_torch(problem, inputs, torch.float32, backend), truth)  # noqa: B023
    for solvers in options.solvers:
        yield solvers, attempt(lambda: by_nhood(problem, inputs, solvers), truth)  # noqa: B023


def problems_of(options: argparse.Namespace) -> Iterator[Problem]:
    for mean in options.means:
        for window in options.windows:
            heads = options.heads or max(1, min(256, ELEMENTS // (window * options.dim) // 4))
            yield Problem((window,), (window,), heads, mean)
        if options.grids:
            yield Problem((32, 32), (7, 7), 2, mean, biased=True)
            yield Problem((40, 40), (31, 31), 2, mean)
            yield Problem((12, 13, 14), (5, 7, 9), 2, mean)
            yield Problem((2048,), (3,), 2, mean, extra=1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=SOLVERS, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--windows", type=int, nargs="*", default=[3, 16, 64, 256, 1024, 4096, 16384, 65536])
    parser.add_argument("--means", type=float, nargs="+", default=[0, 1, 100])
    parser.add_argument("--all-shifted", action="store_true", help="queries and keys around the means, too")
    parser.add_argument("--grids", action="store_true", help="also windows on planes and in volumes")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--heads", type=int, default=0, help="0: as many as make short problems large")
    parser.add_argument("--solvers", nargs="*", metavar="NAME", help="'forward backward' or one for both (all)")
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="nhood's errors alone")
    options = parser.parse_args()
    options.solvers = SOLVERS[options.device] if options.solvers is None else options.solvers
    exceeding = 0
    print("| problem | mean | way |" + "".join(f" {name} |" for name in NAMES))
    print("|---|---|---|" + "---|" * len(NAMES))
    for problem in problems_of(options):
        best: dict[str, float] = {}
        for way, found in rows_of(problem, options):
            if found is None:
                continue
            cells = []
            for name in NAMES:
                over = options.torch and not way.startswith("torch") and name in found
                over = over and not found[name] <= LIMIT * max(best[name], STEP)
                exceeding += over
                cells.append(f"{found[name]:.1e}{' !' if over else ''}" if name in found else "")
                if way.startswith("torch") and name in found:
                    best[name] = min(best.get(name, math.inf), found[name])
            print(f"| {problem} | {problem.mean:g} | {way} | " + " | ".join(cells) + " |", flush=True)
    print(f"\n{exceeding} errors exceed {LIMIT} times torch's")


if __name__ == "__main__":
    main()
