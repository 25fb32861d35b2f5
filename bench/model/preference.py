#!/usr/bin/env python3
"""Writes the configs that are preferred to others that take about as long (nh_preference of src/cuda/model/predict.h).

    bench/model/preference.py [--timings FILE] [--planning PROGRAM] [--gpu NAME]

A config counts as often as it is the fastest of its solver on a problem of the timings, ten times on one of the suites of
problems that users have, and as it has the least estimate of all on a size of their models: video, detection. Those that count
twice or more make the table, most first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import random
import subprocess
from collections import Counter
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ABOUT_AS_LONG, LEAST, OF_USERS = 1.05, 2, 10
LONG_NS, OF_LONG = 5e6, 1.01  # as nh_about_as_long of src/core/solver.h
SUITES = [ROOT / "bench/suites" / name for name in ("cuda.txt", "video-vae.txt")]
# Knobs that no preference is about: no kernel is compiled for an order, and how rows are repaired follows the estimated time.
ANY = {"cuda.fused90": ("order_axis", "repair_apart")}
# Words of a config, as numbers of small_knobs.def.
WORDS = {"copies": 0, "turns": 1, "fetched": 2}
KNOBS = 14


def knobs_of(config: str) -> dict[str, list[int]]:
    """The values of each knob; of a tile, one for each axis."""
    words = [word.split("=") for word in config.split(",")] if config not in ("", "-") else []
    return {name: [WORDS[value]] if value in WORDS else [int(x) for x in value.split("x")] for name, value in words}


def about_as_long(least_ns: float) -> float:
    """Within what factor of a solver's least estimate its configs count as equally fast."""
    return OF_LONG if least_ns > LONG_NS else ABOUT_AS_LONG


def kernel_of(solver: str, config: str) -> tuple[str, tuple[int | None, ...]]:
    """The solver, and the values of its knobs; None where any will do."""
    knobs = knobs_of(config)
    return solver, tuple(None if name in ANY.get(solver, ()) else value for name, own in knobs.items() for value in own)


def problems_of_users() -> set[str]:
    lines = (line.split("#")[0].strip() for suite in SUITES for line in suite.read_text().splitlines())
    return {line for line in lines if line}


def count_fastest(problems: list[str], candidates: list[list[tuple[str, str, float]]]) -> Counter:
    """Counts how often each kernel is a solver's fastest; of each problem the candidates are [(solver, config, ns)]."""
    counts: Counter = Counter()
    of_users = problems_of_users()
    for problem, own in zip(problems, candidates, strict=True):
        fastest: dict[str, tuple[float, str]] = {}
        for solver, config, ns in own:
            fastest[solver] = min(fastest.get(solver, (ns, config)), (ns, config))
        times = OF_USERS if problem in of_users else 1
        counts.update({kernel_of(solver, config): times for solver, (_, config) in fastest.items()})
    return counts


def sizes_of_models() -> list[str]:
    """200 sizes of a video model, forward, 150 of a detection backbone of four levels, forward and backward, and 100 of a
    video decoder, backward."""
    draw = random.Random(7).randint
    texts = []
    for _ in range(200):
        t, h, w = draw(5, 33), draw(24, 68), draw(24, 120)
        texts.append(f"fwd:bf16:b1h24d128:{t}x{h}x{w}:w{min(9, t)}x24x24")
    for _ in range(75):
        level, height, width = draw(0, 3), draw(80, 180), draw(80, 180)
        h, w = height >> level, width >> level
        for op in ("fwd", "bwd"):
            for dilation in ("", f":d{h // 7}x{w // 7}"):
                texts.append(f"{op}:f16:b2h{4 << level}d32:{h}x{w}:w7x7{dilation}")
    for _ in range(50):
        t, h, w = draw(16, 64), draw(32, 128), draw(32, 192)
        for heads in ("b1h8d64", "b2h4d32"):
            texts.append(f"bwd:bf16:{heads}:{t}x{h}x{w}:w5x5x5")
    return texts


def proposals(planning: Path, gpu: str, problems: list[str]) -> list[tuple[str, tuple, float]]:
    """Problem, config and estimate of all candidates."""
    asked = "".join(text + "\n" for text in problems)
    lines = subprocess.run([planning, gpu, "--list"], input=asked, capture_output=True, text=True, check=True).stdout
    words = [line.split() for line in lines.splitlines()]
    return [(w[0], kernel_of(w[1], w[2] if len(w) == 4 else ""), float(w[-1])) for w in words]


def count_estimated(planning: Path, gpu: str) -> Counter:
    """The candidates of least estimate on the sizes of models."""
    least: dict[str, tuple[float, tuple]] = {}
    for problem, kernel, ns in proposals(planning, gpu, sizes_of_models()):
        if ns < least.get(problem, (float("inf"),))[0]:
            least[problem] = (ns, kernel)
    return Counter(kernel for _, kernel in least.values())


def rows_of(counts: Counter) -> list[tuple[str, tuple[int | None, ...]]]:
    """By solver, the most frequent first."""
    order = sorted(counts.items(), key=lambda item: (item[0][0], -item[1], str(item[0])))
    return [kernel for kernel, n in order if n >= LEAST]


def read_rows(path: Path) -> list[tuple[str, tuple[int | None, ...]]]:
    rows, solver = [], ""
    for line in path.read_text().splitlines():
        macro, _, words = line.rstrip(")").partition("(")
        values = words.split(", ")
        if macro == "NH_SOLVER":
            solver = values[0].strip('"')
        elif macro == "NH_PREFERRED":
            rows.append((solver, tuple(None if value == "ANY" else int(value) for value in values)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timings", type=Path, default=ROOT / "bench/model/choices-h200.jsonl.xz")
    parser.add_argument("--planning", type=Path, default=ROOT / "build/planning")
    parser.add_argument("--gpu", default="h200")
    given = parser.parse_args()
    records = [json.loads(line) for line in lzma.open(given.timings, "rt")]
    problems = [record["problem"] for record in records]
    timed = [[(c[0], c[1] or "", c[3]) for c in record["candidates"]] for record in records]
    counts = count_fastest(problems, timed) + count_estimated(given.planning, given.gpu)
    # the sample has candidates that are no longer tried
    proposed = {kernel for _, kernel, _ in proposals(given.planning, given.gpu, problems + sizes_of_models())}
    rows = [kernel for kernel in rows_of(counts) if kernel in proposed]
    digest = hashlib.sha256(given.timings.read_bytes()).hexdigest()
    lines = [
        f"/* Generated by bench/model/preference.py from {given.timings.name}, sha256",
        f" * {digest}: do not edit. Solvers and how many rows",
        " * they have; values in the order of their knobs. */",
    ]
    for solver, own in groupby(rows, key=lambda row: row[0]):
        configs = [", ".join("ANY" if value is None else str(value) for value in values) for _, values in own]
        lines += [f'NH_SOLVER("{solver}", {len(configs)})', *(f"NH_PREFERRED({config})" for config in configs)]
    lines += ["#undef NH_SOLVER", "#undef NH_PREFERRED", ""]
    (ROOT / f"src/cuda/model/{given.gpu}_preferred.def").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
