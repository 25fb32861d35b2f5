#!/usr/bin/env python3
"""Instructions that the CPU kernels execute, counted by qemu: for instruction sets whose machines are not at hand.

    bench/cpu/instructions.py [--x86 build] [--aarch64 build/wheel/aarch64] [--isa avx2,neon,..] [problem..]
    bench/cpu/instructions.py --candidates --isa neon problem..

A line for each problem and instruction set: all instructions of one call, multiply-adds, loads and stores, each over the least
number of multiply-adds (the useful ones over the lanes of a vector); all instructions per 1,000 useful multiply-adds, by which
instruction sets compare; the estimate in nanoseconds; solver and config. --candidates counts every candidate, not only the
planner's choice. Needs qemu-user and the target `instructions` of both build folders; tests/aarch64/run makes the second."""
import argparse
import os
import subprocess
import sys
import tempfile

PROBLEMS = """fwd:f32:b1h1d32:56x56:w7x7 fwd:f32:b1h1d64:48x48:w13x13 fwd:f32:b1h1d32:1500:w1001 fwd:f32:b1h1d32:6x16x16:w5x5x5
bwd:f32:b1h1d32:56x56:w7x7 bwd:f32:b1h1d64:40x40:w13x13 bwd:f32:b1h1d32:1500:w1001 bwd:f32:b1h1d32:6x16x16:w5x5x5""".split()
CPU = {"neon": "cortex-a57", "sve256": "max,sve-default-vector-length=32", "sve512": "max,sve-default-vector-length=64"}
VECTOR_BYTES = {"generic": 16, "avx2": 32, "neon": 16, "sve256": 32, "sve512": 64}


def run(options: argparse.Namespace, plugin: str, isa: str, calls: int, candidate: int, problem: str) -> tuple:
    """What `instructions` prints, and the counts of the plugin."""
    arm = isa in CPU
    command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"] if arm else ["qemu-x86_64"]
    command += ["-cpu", CPU.get(isa, "max"), "-plugin", plugin, "-d", "plugin"]
    program = os.path.join(options.aarch64 if arm else options.x86, "instructions")
    command += [program, isa, str(calls), str(candidate), problem]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr}")
    line = next(line for line in done.stderr.splitlines() if line.startswith("executed "))
    return done.stdout.split(), [int(count) for count in line.split()[1:]]


def count(options: argparse.Namespace, plugin: str, isa: str, candidate: int, problem: str) -> tuple:
    """What one call executes."""
    told, before = run(options, plugin, isa, 0, candidate, problem)
    _, after = run(options, plugin, isa, 1, candidate, problem)
    if f"{isa}," not in told:
        sys.exit(f"{isa} is not what runs: {' '.join(told)}")
    return told, [late - early for late, early in zip(after, before)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--x86", default="build")
    parser.add_argument("--aarch64", default="build/wheel/aarch64")
    parser.add_argument("--isa", default="avx2,neon,sve256,sve512")
    parser.add_argument("--candidates", action="store_true")
    parser.add_argument("problem", nargs="*", default=PROBLEMS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plugin = os.path.join(folder, "mix.so")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "instruction_mix.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", plugin, source], check=True)
        for problem in options.problem:
            for isa in options.isa.split(","):
                told, _ = run(options, plugin, isa, 0, 0, problem)
                useful, candidates = float(told[-3]), int(told[-2])
                lanes = VECTOR_BYTES[isa] / (8 if ":f64:" in problem else 4)
                for candidate in range(candidates if options.candidates else 1):
                    told, counts = count(options, plugin, isa, candidate, problem)
                    shares = " ".join(f"{each * lanes / useful:6.2f}" for each in counts)
                    each = 1000 * counts[0] / useful
                    print(f"{problem:32} {isa:7} {shares} {each:7.0f} {float(told[-1]):9.0f} {told[0]}", flush=True)


if __name__ == "__main__":
    main()
