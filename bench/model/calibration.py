#!/usr/bin/env python3
"""Says how much a calibration mends, by timings that were recorded, as no GPU is needed for that.

    bench/model/calibration.py [--timings FILE] [--program PROGRAM] [--problems N] [--draws N]

The timings of a few problems, drawn by lot, stand for what `nhood calibrate` times in five minutes; choices are judged on all other problems. Of
each problem, as many candidates of each solver are taken as one of its contests builds.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ("none", "rates", "families", "a100", "sm80")


def lines_of(record: dict, use: str, most: int) -> list[str]:
    of_solver: Counter = Counter()
    lines = []
    for solver, config, _, ns, _ in record["candidates"]:
        of_solver[solver] += 1
        if of_solver[solver] <= most:
            lines.append(f"{use} {record['problem']} {solver} {config or '-'} {ns}")
    return lines


def judge(given: argparse.Namespace, records: list[dict], scenario: str, draw: int) -> list[str]:
    chosen = set(random.Random(draw).sample(range(len(records)), given.problems))
    lines = [line for i, record in enumerate(records)
             for line in lines_of(record, *(("f", given.candidates) if i in chosen else ("j", 1000)))]
    asked = "".join(line + "\n" for line in lines)
    command = [given.program, scenario, str(draw + 1)]
    return subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timings", type=Path, default=ROOT / "bench/model/choices-h200.jsonl.xz")
    parser.add_argument("--program", type=Path, default=ROOT / "build/calibration")
    parser.add_argument("--problems", type=int, default=64, help="that the fit sees (64)")
    parser.add_argument("--candidates", type=int, default=8, help="of a solver, that the fit sees (8)")
    parser.add_argument("--draws", type=int, default=10, help="of problems and of what is wrong with the table (10)")
    given = parser.parse_args()
    records = [json.loads(line) for line in lzma.open(given.timings, "rt")]
    print("| table | within 10 % before | after | least, of all draws | worst choice before | after | time lost before | after | written |")
    print("|---|---|---|---|---|---|---|---|---|")
    for scenario in SCENARIOS:
        rows = [judge(given, records, scenario, draw) for draw in range(given.draws)]
        mean = [sum(float(row[i]) for row in rows) / len(rows) for i in range(12)]
        most = [max(float(row[i]) for row in rows) for i in range(12)]
        least = min(float(row[9]) for row in rows)
        written = sum(row[-1] == "written" for row in rows)
        print(f"| {scenario} | {mean[3]:.1f} % | {mean[9]:.1f} % | {least:.1f} % | {most[4]:.2f} | {most[10]:.2f} | "
              f"{mean[5]:.1f} % | {mean[11]:.1f} % | {written} of {len(rows)} |", flush=True)


if __name__ == "__main__":
    main()
