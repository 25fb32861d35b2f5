#!/usr/bin/env python3
"""Fits the coefficients of src/cuda/model/predict.h to timings, and says how good the choices are that follow.

    bench/model/fit.py [--timings FILE] [--work PROGRAM] [--gpu NAME] [--check | --write]

Timings are lines of JSON as bench/model/choices.py writes them: problems with [solver, config, estimate, measured ns, samples]
of each candidate. build/work says what each candidate asks of the device, and which table the library has: kernels, their
pipelines and operations are read from the .def file, whose numbers --write replaces.

The fit is least squares of the logarithm of time, with less weight for candidates that are far from the fastest of
their problem, and coefficients drawn towards PRIOR as far as the timings say nothing. Those of cuda.gemm, of which there are
next to no timings, stay as they were fitted when it computed attention, too (589 timings in commit 9c9cd1f). Choices are judged on problems that took no
part in the fit: five folds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from preference import about_as_long, count_estimated, count_fastest, kernel_of, read_rows, rows_of

ROOT = Path(__file__).resolve().parents[2]
TIMINGS = ROOT / "bench/model/choices-h200.jsonl.xz"
FOLDS, NEAR, DEVIATION = 5, 0.3, 0.08
LEAST_TIMINGS = 100  # of operations that share pipelines: with fewer their coefficients stay as they are
LEAST_WITHIN = 88.0  # percent of problems whose choice is within 10 % of the fastest, in each rank

# Coefficients: what they are where nothing is known, and by what factor e^s they may differ.
PIPELINE = {"half": (1.0, 1.5), "uneven": (0.3, 1.0), "alone": (0.2, 1.0), "serial": (1.5, 1.0), "ending": (0.4, 0.7),
            "whole_waves": (0.4, 0.8), "code": (10.0, 1.0), "fetch": (300.0, 1.0), "box": (70.0, 1.0)}
KERNEL = {"start": (2000.0, 1.0), "step": (700.0, 1.0)}
UNIT = {"tensor": (1.0, 1.5), "exp": (1.0, 1.5), "shared": (0.2, 1.5), "l2": (0.2, 1.5), "copy": (3.0, 1.5),
        "mask": (3.0, 1.5), "line": (1.0, 1.5), "idle": (1.0, 1.5), "vector": (1.0, 1.5), "step": (200.0, 1.5),
        "tile": (50.0, 1.5), "block": (1000.0, 1.5), "index": (100.0, 1.5), "reduce": (1.0, 1.5), "spill": (1.0, 1.5),
        "wait": (0.2, 1.5)}
OPERATION = {"launch": (10000.0, 0.5), "helper": (6000.0, 1.0), "helper_bytes": (2.0, 1.0), "memory": (1.3, 0.4),
             "beside": (0.3, 1.0)}
SHARES = ("whole_waves",)
FEATURES = ("blocks", "residents", "warps", "in_flight", "steps", "longest", "serial", "fetchers", "boxes", "code")


class Table:
    """Names of the .def file, in its order, and its numbers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = {"NH_PIPELINE": {}, "NH_KERNEL": {}, "NH_OPERATION": {}}
        for kind, words in re.findall(r"^(NH_\w+)\(([^)]*)\)", path.read_text(), re.M):
            name, *values = [word.strip() for word in words.split(",")]
            self.rows[kind][name] = values
        self.kernels = list(self.rows["NH_KERNEL"])
        self.operations = list(self.rows["NH_OPERATION"])
        self.pipeline_of = {name: values[0] for name, values in self.rows["NH_KERNEL"].items()}

    def value(self, key: tuple[str, str, str]) -> float:
        kind, name, coefficient = key
        values = self.rows[kind][name]
        if kind == "NH_PIPELINE":
            return float(values[list(PIPELINE).index(coefficient)])
        if kind == "NH_OPERATION":
            return float(values[list(OPERATION).index(coefficient)])
        if coefficient in KERNEL and not coefficient.startswith("unit "):
            return float(values[1 + list(KERNEL).index(coefficient)])
        return float(values[3 + list(UNIT).index(coefficient[5:])])

    def write(self, values: dict[tuple[str, str, str], float], header: str) -> None:
        kept = {name for name in self.kernels if ("NH_KERNEL", name, "start") not in values}
        kept |= {self.pipeline_of[name] for name in kept} | set(self.operations) - {name for _, name, _ in values}

        def text(key: tuple[str, str, str], default: float) -> str:
            return f"{values.get(key, self.value(key) if key[1] in kept else default):.3g}"

        lines = [header]
        lines.append("/* " + ", ".join(PIPELINE) + " */")
        for name in self.rows["NH_PIPELINE"]:
            row = [text(("NH_PIPELINE", name, c), prior[0]) for c, prior in PIPELINE.items()]
            lines.append(f"NH_PIPELINE({name}, {', '.join(row)})")
        lines.append("\n/* pipeline, start, step; " + ", ".join(UNIT) + " */")
        for name, pipeline in self.pipeline_of.items():
            # kernels whose blocks all take one step have no time for it
            row = [text(("NH_KERNEL", name, c), 0.0 if c == "step" else prior[0]) for c, prior in KERNEL.items()]
            row += [text(("NH_KERNEL", name, "unit " + c), prior[0]) for c, prior in UNIT.items()]
            lines.append(f"NH_KERNEL({name}, {pipeline}, {', '.join(row)})")
        lines.append("\n/* " + ", ".join(OPERATION) + " */")
        for name in self.operations:
            row = [text(("NH_OPERATION", name, c), prior[0]) for c, prior in OPERATION.items()]
            lines.append(f"NH_OPERATION({name}, {', '.join(row)})")
        lines += ["\n#undef NH_PIPELINE", "#undef NH_KERNEL", "#undef NH_OPERATION", ""]
        self.path.write_text("\n".join(lines))


class Sample:
    """Timings with the work that they are of."""

    def __init__(self, timings: Path, program: Path, gpu: str) -> None:
        records = [json.loads(line) for line in lzma.open(timings, "rt")]
        self.problems = [record["problem"] for record in records]
        self.rank = np.array([text.split(":")[3].count("x") + 1 for text in self.problems])
        rows = [(p, *candidate) for p, record in enumerate(records) for candidate in record["candidates"]]
        asked = "".join(f"{self.problems[row[0]]} {row[1]} {row[2] or ''}\n" for row in rows)
        run = subprocess.run([program, gpu], input=asked, capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(f"{timings}: {run.stderr.strip()}")
        answer = run.stdout.splitlines()
        device = answer[0].split()
        self.multiprocessors, self.clocks_per_ns = int(device[0]), float(device[1]) * 1e-9
        self.byte_clocks = float(device[1]) / float(device[2])
        # Configs that kernels no longer have, for example because a halo and tables now exceed shared memory, take forever.
        found = [(row, work) for row, work in zip(rows, map(str.split, answer[1:]), strict=True) if np.isfinite(float(work[0]))]
        print(f"timings: {len(rows)}, of them {len(rows) - len(found)} of configs that no longer exist")
        rows, self.work = [row for row, _ in found], [work for _, work in found]
        self.estimate = np.array([float(words[0]) for words in self.work])
        self.problem = np.array([row[0] for row in rows])
        self.solver = [row[1] for row in rows]
        self.config = [row[2] or "" for row in rows]
        self.kernel = [kernel_of(row[1], row[2] or "") for row in rows]
        self.measured = np.array([float(row[4]) for row in rows])
        self.fastest = np.full(len(records), np.inf)
        np.minimum.at(self.fastest, self.problem, self.measured)

    def choose(self, predicted: np.ndarray, preferred: dict, rows: np.ndarray) -> int:
        """The planner's choice among the rows of one problem: each solver's preferred config, of these the least prediction."""
        best: dict[str, tuple[float, int]] = {}
        for solver in {self.solver[row] for row in rows}:
            own = [row for row in rows if self.solver[row] == solver]
            least = min(predicted[row] for row in own)
            limit = about_as_long(least) * least
            near = [row for row in own if predicted[row] <= limit]
            row = min(near, key=lambda row: (preferred.get(self.kernel[row], len(preferred)), predicted[row]))
            best[solver] = (predicted[row], row)
        return min(best.values())[1]

    def judge(self, predicted: np.ndarray, preferred: dict) -> np.ndarray:
        """How many times slower than the fastest the choice is, per problem; `preferred`: places of configs, the first 0."""
        rows = np.split(np.arange(len(self.problem)), np.flatnonzero(np.diff(self.problem)) + 1)
        chosen = np.array([self.choose(predicted, preferred, own) for own in rows])
        return self.measured[chosen] / self.fastest

    def timed(self, problems: np.ndarray) -> list[list[tuple[str, str, float]]]:
        """Candidates of the problems of the mask."""
        lists: list[list[tuple[str, str, float]]] = [[] for _ in self.problems]
        for row in np.flatnonzero(problems[self.problem]):
            lists[self.problem[row]].append((self.solver[row], self.config[row], self.measured[row]))
        return lists


class Fit:
    """Candidates whose operations share coefficients."""

    def __init__(self, sample: Sample, table: Table, rows: np.ndarray) -> None:
        self.sample, self.rows = sample, rows
        words = [sample.work[row] for row in rows]
        most = max(int(w[6]) for w in words)
        count, units = len(rows), len(UNIT)
        self.kernel = np.full((count, most), -1)
        self.feature = np.ones((count, most, len(FEATURES)))
        self.unit = np.zeros((count, most, units))
        size = 1 + len(FEATURES) + units
        for i, w in enumerate(words):
            for j in range(int(w[6])):
                launch = w[7 + j * size : 7 + (j + 1) * size]
                self.kernel[i, j] = int(launch[0])
                self.feature[i, j] = [float(x) for x in launch[1 : 1 + len(FEATURES)]]
                self.unit[i, j] = [float(x) for x in launch[1 + len(FEATURES) :]]
        self.operation = np.array([int(w[1]) for w in words])
        self.overlaps = np.array([int(w[2]) > 0 for w in words])
        self.helpers, self.bytes, self.helper_bytes = (np.array([float(w[i]) for w in words]) for i in (3, 4, 5))
        self.launches = np.where(self.overlaps, 1, [int(w[6]) for w in words])
        self.measured = sample.measured[rows]
        # Two more launches, listed beside the same config without them: planned only where they do not count.
        self.repairing = np.array(["repair_apart=1" in sample.config[row] for row in rows]) & (self.measured < 3e5)
        self.keys: list[tuple[str, str, str]] = []
        self.start, self.spread = [], []
        self.touched: list[np.ndarray] = []
        self.index_coefficients(table)
        self.is_share = np.array([key[2] in SHARES for key in self.keys])
        start, self.spread = np.array(self.start), np.array(self.spread)
        self.start = np.where(self.is_share, np.log(start / (1 - np.minimum(start, 0.99))), np.log(start))

    def add(self, key: tuple[str, str, str], prior: tuple[float, float], touched: np.ndarray) -> int:
        if key in self.keys:
            at = self.keys.index(key)
            self.touched[at] = np.union1d(self.touched[at], touched)
            return at
        self.keys.append(key)
        self.start.append(prior[0])
        self.spread.append(prior[1])
        self.touched.append(touched)
        return len(self.keys) - 1

    def index_coefficients(self, table: Table) -> None:
        kernels = len(table.kernels)
        self.of_pipeline = np.full((kernels, len(PIPELINE)), -1)
        self.of_kernel = np.full((kernels, len(KERNEL)), -1)
        self.of_unit = np.full((kernels, len(UNIT)), -1)
        self.of_operation = np.full((len(table.operations), len(OPERATION)), -1)
        for k in np.unique(self.kernel[self.kernel >= 0]):
            name, used = table.kernels[k], self.kernel == k
            touched = np.flatnonzero(used.any(1))
            feature, unit = self.feature[used], self.unit[used]
            needed = {"code": feature[:, 9].any(), "fetch": feature[:, 7].any(), "box": feature[:, 7].any()}
            for i, (c, prior) in enumerate(PIPELINE.items()):
                if needed.get(c, True):
                    self.of_pipeline[k, i] = self.add(("NH_PIPELINE", table.pipeline_of[name], c), prior, touched)
            for i, (c, prior) in enumerate(KERNEL.items()):
                if c == "start" or (feature[:, 4] != 1).any():
                    self.of_kernel[k, i] = self.add(("NH_KERNEL", name, c), prior, touched)
            for i, (c, prior) in enumerate(UNIT.items()):
                if unit[:, i].any():
                    self.of_unit[k, i] = self.add(("NH_KERNEL", name, "unit " + c), prior, touched)
        for o in np.unique(self.operation):
            touched = np.flatnonzero(self.operation == o)
            for i, (c, prior) in enumerate(OPERATION.items()):
                needed = {"helper": self.helpers, "helper_bytes": self.helper_bytes}.get(c, self.bytes)
                if needed[touched].any():
                    self.of_operation[o, i] = self.add(("NH_OPERATION", table.operations[o], c), prior, touched)

    def values(self, x: np.ndarray) -> np.ndarray:
        """Coefficients are positive; shares are below one."""
        return np.where(self.is_share, 1 / (1 + np.exp(-x)), np.exp(np.minimum(x, 50)))

    def predict(self, x: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Nanoseconds, as src/cuda/model/predict.c works them out."""
        values = np.append(self.values(x), 0.0)
        kernel = self.kernel[rows]
        there = kernel >= 0
        half, uneven, alone, serial_alone, ending, whole, code_clocks, fetch, box = np.moveaxis(
            values[self.of_pipeline[kernel]], -1, 0)
        start, step = np.moveaxis(values[self.of_kernel[kernel]], -1, 0)
        blocks, residents, warps, in_flight, steps, longest, serial, fetchers, boxes, code = np.moveaxis(
            self.feature[rows], -1, 0)
        waves = blocks / self.sample.multiprocessors
        warps = warps * np.minimum(residents, np.maximum(1, waves))
        block = (values[self.of_unit[kernel]] * self.unit[rows]).sum(-1)
        filled = block * (1 + half / warps) * (1 + uneven * (np.ceil(warps / 4) * 4 / warps - 1))
        loop = step * steps + block * (alone + serial_alone * serial)
        of_block = start + loop
        engine = np.where(fetchers > 0, (fetch + box * boxes) / np.maximum(fetchers, 1e-9), 0)
        filled = (filled**4 + engine**4) ** 0.25
        busy = (waves + whole * (np.ceil(waves) - waves)) * filled * there
        latency = np.maximum(np.maximum(1, np.ceil(waves / in_flight)) * of_block, start + loop * longest) * there
        end, begin = ending * of_block * there, code_clocks * code * there
        apart = (((busy + end) ** 4 + latency**4) ** 0.25 + begin).sum(-1)
        together = ((busy.sum(-1) + end.max(-1)) ** 4 + latency.max(-1) ** 4) ** 0.25 + begin.sum(-1)
        clocks = np.where(self.overlaps[rows], together, apart)
        launch, helper, helper_bytes, memory, beside = np.moveaxis(values[self.of_operation[self.operation[rows]]], -1, 0)
        memory = memory * self.sample.byte_clocks * self.bytes[rows]
        return (launch * self.launches[rows] + helper * self.helpers[rows]
                + helper_bytes * self.sample.byte_clocks * self.helper_bytes[rows]
                + np.maximum(clocks, memory) + beside * np.minimum(clocks, memory)) / self.sample.clocks_per_ns

    def residuals(self, x: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        r = np.log(self.predict(x, rows) / self.measured[rows])
        return np.where(np.abs(r) < 0.5, r, np.sign(r) * np.sqrt(np.maximum(np.abs(r) - 0.25, 0.25)))

    def solve(self, problems: np.ndarray, iterations: int = 40) -> np.ndarray:
        """Levenberg and Marquardt's method, on the problems of the mask."""
        sample = self.sample
        of = sample.problem[self.rows]
        weight = np.sqrt(problems[of] * ~self.repairing / (1 + (self.measured / sample.fastest[of] - 1) / NEAR))
        pull = DEVIATION / self.spread
        x, damping = self.start.copy(), 1.0
        r = self.residuals(x) * weight
        cost = (r**2).sum()
        for _ in range(iterations):
            jacobian = np.zeros((len(r), len(x)))
            for j, rows in enumerate(self.touched):
                moved = x.copy()
                moved[j] += 1e-4
                jacobian[rows, j] = (self.residuals(moved, rows) * weight[rows] - r[rows]) / 1e-4
            square = jacobian.T @ jacobian + np.diag(pull**2)
            gradient = jacobian.T @ r + pull**2 * (x - self.start)
            for _ in range(10):
                move = np.clip(-np.linalg.solve(square + damping * np.diag(np.diag(square)), gradient), -1.5, 1.5)
                r_next = self.residuals(x + move) * weight
                next_cost = (r_next**2).sum() + ((pull * (x + move - self.start)) ** 2).sum()
                if next_cost < cost:
                    break
                damping *= 4
            else:
                break
            done = cost - next_cost < 1e-4 * cost
            x, r, cost, damping = x + move, r_next, next_cost, max(damping / 5, 1e-6)
            if done:
                break
        return x


def groups_of(sample: Sample, table: Table) -> list[np.ndarray]:
    """Rows of the operations that share pipelines."""
    size = 1 + len(FEATURES) + len(UNIT)
    part: dict[int, set[str]] = {}
    rows: dict[int, list[int]] = {}
    for row, words in enumerate(sample.work):
        if words[1] == "-":
            continue
        operation = int(words[1])
        rows.setdefault(operation, []).append(row)
        kernels = {int(words[7 + j * size]) for j in range(int(words[6]))}
        part.setdefault(operation, set()).update(table.pipeline_of[table.kernels[k]] for k in kernels)
    groups: list[tuple[set[str], list[int]]] = []
    for operation, pipelines in part.items():
        own = list(rows[operation])
        for other in [g for g in groups if g[0] & pipelines]:
            groups.remove(other)
            pipelines, own = pipelines | other[0], own + other[1]
        groups.append((pipelines, own))
    return [np.array(sorted(own)) for _, own in groups]


def places(rows: list) -> dict:
    return {kernel: place for place, kernel in enumerate(rows)}


def show(sample: Sample, label: str, slower: np.ndarray) -> list[float]:
    within = [100 * (slower[sample.rank == rank] <= 1.1).mean() for rank in (1, 2, 3)]
    print(f"{label}: within 10 % of the fastest {within[0]:.1f}, {within[1]:.1f}, {within[2]:.1f} % (1-D, 2-D, 3-D), "
          f"worst {slower.max():.2f}, time lost {100 * np.expm1(np.log(slower).mean()):.1f} %")
    return within


def held_out(sample: Sample, fits: list[Fit], of_models: Counter) -> dict[str, np.ndarray]:
    """Neither coefficients nor preferences know of the fold that is judged; with and without the preferences."""
    fold = np.random.default_rng(1).permutation(len(sample.problems)) % FOLDS
    slower = {"held out of the fit": np.ones(len(fold)), "without preferences": np.ones(len(fold))}
    for k in range(FOLDS):
        predicted = sample.estimate.copy()
        for fit in fits:
            own = fold[sample.problem[fit.rows]] == k
            predicted[fit.rows[own]] = fit.predict(fit.solve(fold != k), own)
        preferred = places(rows_of(count_fastest(sample.problems, sample.timed(fold != k)) + of_models))
        for label, order in zip(slower, (preferred, {})):
            slower[label][fold == k] = sample.judge(predicted, order)[fold == k]
    return slower


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timings", type=Path, default=TIMINGS)
    parser.add_argument("--work", type=Path, default=ROOT / "build/work")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--write", action="store_true", help="replace the table's numbers")
    parser.add_argument("--check", action="store_true", help="fail unless the table is the fit, and choices are good")
    given = parser.parse_args()
    table = Table(ROOT / f"src/cuda/model/{given.gpu}.def")
    sample = Sample(given.timings, given.work, given.gpu)
    fits = [Fit(sample, table, rows) for rows in groups_of(sample, table) if len(rows) >= LEAST_TIMINGS]
    preferred = places(read_rows(ROOT / f"src/cuda/model/{given.gpu}_preferred.def"))
    of_models = count_estimated(given.work.parent / "planning", given.gpu)
    show(sample, "table", sample.judge(sample.estimate, preferred))
    everything = np.ones(len(sample.problems))
    fitted, values = sample.estimate.copy(), {}
    for fit in fits:
        x = fit.solve(everything)
        values.update(zip(fit.keys, fit.values(x)))
        fitted[fit.rows] = fit.predict(x)
        near = fit.measured < (1 + NEAR) * sample.fastest[sample.problem[fit.rows]]
        error = np.log(fitted[fit.rows] / fit.measured)
        print(f"  {', '.join(sorted({sample.solver[r] for r in fit.rows}))} {'forward' if 'fwd' in sample.problems[sample.problem[fit.rows[0]]] else 'backward'}: "
              f"{len(fit.rows)} timings, {len(fit.keys)} coefficients, error {np.sqrt((error**2).mean()):.3f}, "
              f"of those near the fastest {np.sqrt((error[near]**2).mean()):.3f}", flush=True)
    fitted_within = show(sample, "fitted", sample.judge(fitted, preferred))
    within, _ = (show(sample, label, slower) for label, slower in held_out(sample, fits, of_models).items())
    digest = hashlib.sha256(given.timings.read_bytes()).hexdigest()
    if given.write:
        rms = float(np.sqrt((np.log(fitted / sample.measured) ** 2).mean()))
        table.write(values, f"/* Generated by bench/model/fit.py --write from {given.timings.name}, sha256\n"
                    f" * {digest}: do not edit.\n"
                    f" * Root mean square error of log time {rms:.3f}. Choices within 10 % of the fastest, of the problems in the fit:\n"
                    f" * {', '.join(f'{rank}-D {share:.1f} %' for rank, share in enumerate(fitted_within, 1))}. Columns as in predict.h. */")
    if not given.check:
        return 0
    moved = float(np.sqrt((np.log(fitted / sample.estimate) ** 2).mean()))
    good = digest in table.path.read_text() and moved < 0.01 and min(within) >= LEAST_WITHIN
    print(f"the table's estimates differ from the fit's by {100 * moved:.2f} %: {'good' if good else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
