#!/usr/bin/env python3
"""What solvers, knobs and configs are worth, by the committed timings (no GPU needed).

    bench/model/economy.py [--arch 80] [TIMINGS]

With --arch 80 without the solvers of sm_90, for what GPUs have that lack these. Time lost is a geometric mean over problems, of the fastest candidate that is left over the fastest of all. Only timed
candidates can take another's place, so what is lost without a solver or a value is an upper bound. Problems that have no
candidate left are counted apart.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
from collections import Counter, defaultdict
from pathlib import Path

from preference import WORDS, knobs_of

TIMINGS = Path(__file__).parent / "choices-h200.jsonl.xz"
GROUPS = ("fwd:f16", "fwd:f32", "bwd:f16", "bwd:f32")


def load(path=TIMINGS):
    """[(problem, [(solver, {knob: value}, ns)])]."""
    problems = []
    for line in lzma.open(path, "rt"):
        record = json.loads(line)
        candidates = []
        for solver, config, _, ns, _ in record["candidates"]:
            knobs = {name: own[0] if len(own) == 1 else tuple(own) for name, own in knobs_of(config).items()}
            candidates.append((solver, knobs, ns))
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


def show_values(problems):
    print("\n## Time lost without a value of a knob, over all problems\n")
    print("| solver | knob | value | time lost | beyond 2 % | beyond 5 % | the most | nothing left | where most is lost |")
    print("|---" * 9 + "|")
    values = {(s, knob, value) for _, cs in problems for s, knobs, _ in cs for knob, value in knobs.items()}
    for solver, knob, value in sorted(values):
        without = lambda s, k: s != solver or k[knob] != value
        ratios, none = lost(problems, without)
        most, where = max((lost([p], without)[0] or [1.0], p[0]) for p in problems)
        print(
            f"| `{solver}` | {knob} | {value} | {100 * mean(ratios) - 100:.3f} % | {sum(r > 1.02 for r in ratios)} | "
            f"{sum(r > 1.05 for r in ratios)} | {most[0]:.2f} | {none} | `{where}` |"
        )


def show_knobs(problems):
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


# Simpler sets of configs: a solver, and which of its configs are kept.
SIMPLER = {
    "short: no split": ("cuda.short", lambda k: k["sharing_warps"] == 1),
    "short: no parts, no split": ("cuda.short", lambda k: k["sharing_blocks"] == 1 and k["sharing_warps"] == 1),
    "short: one stage": ("cuda.short", lambda k: k["stages"] == 1),
    "short: rows 16, 64, 128": ("cuda.short", lambda k: k["rows"] < 256),
    "short: warps 1, 2, 4, 8": ("cuda.short", lambda k: k["warps"] <= 8),
    "short: warps 1 to 8, rows to 128, one stage, no split": (
        "cuda.short", lambda k: k["warps"] <= 8 and k["rows"] < 256 and k["stages"] == k["sharing_warps"] == 1),
    "short90: warps 10": ("cuda.short90", lambda k: k["warps"] == 10),
    "short90: no parts": ("cuda.short90", lambda k: k["sharing_blocks"] == 1),
    "short90: warps 8, 12, parts 1, 2": ("cuda.short90", lambda k: k["warps"] != 10 and k["sharing_blocks"] <= 2),
    "fused90: one box per key tile": ("cuda.fused90", lambda k: k["boxes_per_tile"] == 1),
    "fused90: queries never held": ("cuda.fused90", lambda k: not k["q_in_registers"]),
    "fused90: queries always held": ("cuda.fused90", lambda k: k["q_in_registers"]),
    "fused90: one head per tile": ("cuda.fused90", lambda k: k["tile_heads"] == 1),
    "fused90: two warpgroups": ("cuda.fused90", lambda k: k["warpgroups"] == 2),
    "fused90: three warpgroups": ("cuda.fused90", lambda k: k["warpgroups"] == 3),
    "fused90: 64 or 128 keys": (
        "cuda.fused90", lambda k: math.prod(k["key_box"]) * k["boxes_per_tile"] in (64, 128)),
    "small: at most three stages, not one": (
        "cuda.small", lambda k: k["stages"] in (0, 2, 3) and k["dkv_stages"] in (0, 2, 3)),
    "small: no copy engine": ("cuda.small", lambda k: k["stages"] == k["dkv_stages"] == 0),
    "small: no turns": ("cuda.small", lambda k: WORDS["turns"] not in (k["pipeline"], k["dkv_pipeline"])),
    "fused80: one stage": ("cuda.fused80", lambda k: k["stages"] == 1),
    "split80: at most four warps": ("cuda.split80", lambda k: k["dq_warps"] <= 4 and k["dkv_warps"] <= 4),
}


def show_simpler(problems):
    print("\n## Time lost with simpler sets of configs\n")
    print("| kept | " + " | ".join(GROUPS) + " | all | beyond 2 % | beyond 5 % | the most |")
    print("|---" * (len(GROUPS) + 5) + "|")
    for label, (solver, keeps) in SIMPLER.items():
        kept = lambda s, k: s != solver or keeps(k)
        row = [mean(lost([p for p in problems if group_of(p[0]) == g], kept)[0]) for g in GROUPS]
        ratios, _ = lost(problems, kept)
        cells = " | ".join(f"{100 * x - 100:.2f} %" for x in [*row, mean(ratios)])
        print(f"| {label} | {cells} | {sum(r > 1.02 for r in ratios)} | {sum(r > 1.05 for r in ratios)} | {max(ratios):.2f} |")


# Knobs that only change the order of work.
ORDER = {"order_axis"}


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("timings", nargs="?", type=Path, default=TIMINGS)
    parser.add_argument("--arch", type=int, default=90, help="leave out solvers of later architectures")
    given = parser.parse_args()
    problems = load(given.timings)
    if given.arch < 90:
        problems = [(p, [c for c in cs if not c[0].endswith("90")]) for p, cs in problems]
        problems = [(p, cs) for p, cs in problems if cs]
    show_solvers(problems)
    show_simpler(problems)
    show_values(problems)
    show_knobs(problems)
    show_pairs(problems)
    show_sets(problems)


if __name__ == "__main__":
    main()
