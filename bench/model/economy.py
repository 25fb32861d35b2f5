#!/usr/bin/env python3
"""What solvers, knobs and configs are worth, by the committed timings (no GPU needed).

    bench/model/economy.py [TIMINGS]

Time lost is a geometric mean over problems, of the fastest candidate that is left over the fastest of all. Only timed
candidates can take another's place, so what is lost without a solver or a value is an upper bound. Problems that have no
candidate left are counted apart.
"""

from __future__ import annotations

import json
import lzma
import math
import sys
from collections import Counter, defaultdict
from pathlib import Path

TIMINGS = Path(__file__).parent / "choices-h200-a8d5650.jsonl.xz"
GROUPS = ("fwd:f16", "fwd:f32", "bwd:f16", "bwd:f32")


def load(path=TIMINGS):
    """[(problem, [(solver, {knob: value}, ns)])], of the candidates with at least four samples or a time beyond
    1.3 times the fastest."""
    problems = []
    for line in lzma.open(path, "rt"):
        record = json.loads(line)
        candidates = []
        for solver, config, _, ns, _ in record["candidates"]:
            knobs = dict(word.split("=") for word in config.split(",")) if config not in ("", "-") else {}
            candidates.append((solver, {k: int(v) for k, v in knobs.items()}, ns))
        problems.append((record["problem"], candidates))
    return problems


def group_of(problem):
    words = problem.split(":")
    return f"{words[0]}:{words[1]}"


def rank_of(problem):
    return problem.split(":")[3].count("x") + 1


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def lost(problems, kept):
    """Ratios, and how many problems have nothing left."""
    ratios, none = [], 0
    for problem, candidates in problems:
        left = [ns for solver, knobs, ns in candidates if kept(solver, knobs)]
        if left:
            ratios.append(min(left) / min(ns for _, _, ns in candidates))
        else:
            none += 1
    return ratios, none


def show_solvers(problems):
    print("## Time lost without a solver\n")
    print("| solver | " + " | ".join(GROUPS) + " | 1-D | 2-D | 3-D | all | fastest of | beyond 10 % | nothing left |")
    print("|---" * 12 + "|")
    for solver in sorted({c[0] for _, cs in problems for c in cs}):
        kept = lambda s, _: s != solver
        row = [mean(lost([p for p in problems if group_of(p[0]) == g], kept)[0]) for g in GROUPS]
        row += [mean(lost([p for p in problems if rank_of(p[0]) == r], kept)[0]) for r in (1, 2, 3)]
        ratios, none = lost(problems, kept)
        cells = " | ".join(f"{100 * x - 100:.1f} %" for x in [*row, mean(ratios)])
        fastest = sum(min(cs, key=lambda c: c[2])[0] == solver for _, cs in problems)
        print(f"| `{solver}` | {cells} | {fastest} | {100 * sum(x > 1.1 for x in ratios) / len(ratios):.1f} % | {none} |")


def show_knobs(problems):
    """Of each value of a knob, over the problems whose fastest candidate is of the solver."""
    print("\n## Time lost without a value of a knob, over all problems of the group where the solver has a candidate\n")
    print("| solver | pass and type | knob | values: time lost, problems that lose more than 2 % and 5 %, the most |")
    print("|---|---|---|---|")
    groups = defaultdict(list)
    for problem, candidates in problems:
        for solver in {c[0] for c in candidates}:
            groups[solver, group_of(problem)].append((problem, candidates))
    for (solver, group), own in sorted(groups.items()):
        values = defaultdict(set)
        for _, candidates in own:
            for s, knobs, _ in candidates:
                if s == solver:
                    for knob, value in knobs.items():
                        values[knob].add(value)
        for knob, options in values.items():
            if len(options) < 2:
                continue
            cells = []
            for value in sorted(options):
                ratios, none = lost(own, lambda s, k: s != solver or k[knob] != value)
                cells.append(
                    f"{value}: {100 * mean(ratios) - 100:.1f} %, {sum(r > 1.02 for r in ratios)}, "
                    f"{sum(r > 1.05 for r in ratios)}, {max(ratios, default=1):.2f}" + (f", {none} alone" if none else "")
                )
            print(f"| `{solver}` | {group} ({len(own)}) | {knob} | {'; '.join(cells)} |")


def show_pairs(problems):
    print("\n## Candidates that differ in one knob alone: time with the greater value over time with the lesser\n")
    print("| solver | pass and type | knob | values | pairs | mean | 10th, 90th percentile |")
    print("|---" * 7 + "|")
    ratios = defaultdict(list)
    for problem, candidates in problems:
        by_rest = defaultdict(dict)
        best = min(c[2] for c in candidates)
        for solver, knobs, ns in candidates:
            for knob, value in knobs.items():
                by_rest[solver, knob, tuple(sorted((k, v) for k, v in knobs.items() if k != knob))][value] = ns
        for (solver, knob, _), by_value in by_rest.items():
            ordered = sorted(by_value)
            for a, b in zip(ordered, ordered[1:]):
                if min(by_value[a], by_value[b]) < 1.5 * best:
                    ratios[solver, group_of(problem), knob, a, b].append(by_value[b] / by_value[a])
    for (solver, group, knob, a, b), of in sorted(ratios.items()):
        if len(of) < 15:
            continue
        of.sort()
        print(
            f"| `{solver}` | {group} | {knob} | {a}, {b} | {len(of)} | {mean(of):.3f} | {of[len(of) // 10]:.3f}, "
            f"{of[-1 - len(of) // 10]:.3f} |"
        )


# Knobs that only change the order of work.
ORDER = {"order"}
WHICH = ("op", "dtype", "dim", "rank")


def kernel_of(solver, knobs):
    return solver, tuple((k, v) for k, v in knobs.items() if k not in ORDER)


def key_of(problem):
    words = problem.split(":")
    shape = words[2]
    dim = shape[shape.index("d") + 1 :]
    return words[0], words[1], dim, rank_of(problem)


def show_sets(problems):
    """Greedy sets of configs per pass, type, head dim and rank."""
    print("\n## Configs per pass, type, head dim and rank, added greedily; time lost with the best of the set\n")
    groups = defaultdict(list)
    for problem in problems:
        groups[key_of(problem[0])].append(problem)
    sizes = (2, 4, 6, 8, 12, 16)
    lost_by_size = {size: [] for size in sizes}
    used = Counter()
    for own in groups.values():
        times = []
        for _, candidates in own:
            by = {}
            for solver, knobs, ns in candidates:
                kernel = kernel_of(solver, knobs)
                by[kernel] = min(ns, by.get(kernel, math.inf))
            times.append(by)
        least = [min(by.values()) for by in times]
        now = [4.0 * ns for ns in least]  # of problems that none of the set was timed on
        chosen = []
        kernels = {k for by in times for k in by}
        for count in range(1, max(sizes) + 1):
            def loss(kernel):
                return sum(math.log(min(t, by.get(kernel, math.inf))) for t, by in zip(now, times))
            if kernels:
                best = min(kernels, key=loss)
                kernels.discard(best)
                chosen.append(best)
                now = [min(t, by.get(best, math.inf)) for t, by in zip(now, times)]
            if count in sizes:
                lost_by_size[count] += [t / l for t, l in zip(now, least)]
        used.update(k[0] for k in chosen[:8])
    print("| configs | time lost | problems beyond 5 % | beyond 10 % |\n|---|---|---|---|")
    for size in sizes:
        of = lost_by_size[size]
        print(
            f"| {size} | {100 * mean(of) - 100:.1f} % | {100 * sum(r > 1.05 for r in of) / len(of):.0f} % | "
            f"{100 * sum(r > 1.1 for r in of) / len(of):.0f} % |"
        )
    print("\nsolvers in the sets of 8: " + ", ".join(f"{s} {n}" for s, n in used.most_common()))


def main():
    problems = load(*sys.argv[1:2])
    show_solvers(problems)
    show_knobs(problems)
    show_pairs(problems)
    show_sets(problems)


if __name__ == "__main__":
    main()
