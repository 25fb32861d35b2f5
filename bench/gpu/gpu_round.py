#!/usr/bin/env python3
"""Everything that is measured anew on a GPU once kernels have changed, by one command. It needs a driver, NVRTC, gcc, cmake
and python3, and no network; what needs torch or diffusers is left out, with the reason, where they are not there.

    bench/gpu/gpu_round.py --budget 1800 --base 62b5dd3 --output DIR
    bench/gpu/gpu_round.py --budget 550 --base ../before --steps choices before_after --output DIR

Steps, in this order:
    check         tests/gpu/run; it writes tests/gpu/record.txt, a copy of which lies in DIR
    choices       bench/model/choices.py on problems that no fit has seen: the choice by estimate beside the fastest candidate
    before_after  bench/model/before_after.py: this tree beside another one, --base, on such problems
    suite         nhood bench on bench/suites/video-vae.txt
    performance   tables of bench/report/performance.py: small windows, sm_80's kernels; with torch, cuDNN beside large windows and decoders
    norm_rope     bench/gpu/norm_rope.py (torch)
    regions       bench/gpu/regions.py: boxes of grids, periodic axes (torch)
    streams       bench/gpu/streaming.py (torch)
    decoder       bench/gpu/video_decoder.py at 512x768x121 (torch, diffusers)
    sharded       bench/sharded/sharded.py on up to four GPUs (torch, two GPUs)

With two or more GPUs choices and before_after have one, and the steps from suite to decoder another one at the same time. The
check and sharded take all that are like the first. Each step has a time limit, which grows with the budget, and is ended there;
one that fails stops no other. DIR/summary.md and summary.json are written anew after each: goals beside what was measured, from
all results in DIR, so that steps can also be taken by several commands; DIR is of one tree. Exit status 1 if a step failed; a
goal that is missed is no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Optional

sys.path[:0] = map(str, Path(__file__).parents[1].iterdir())  # modules of all folders of bench
import round_report  # noqa: E402
from report import ROOT, find_commit, find_driver, make_folder  # noqa: E402

KNOWN = ROOT / "bench" / "model" / "choices-h200.jsonl.xz"
RECORD = ROOT / "tests" / "gpu" / "record.txt"
RECORD_S = 240 + 20  # tests/gpu/run ends what it has begun so long after --seconds, and writes its record
CLOSING_S = 40  # from the end of a program's own budget to that of its last problem
LOG_BYTES = 1 << 18  # of a step, its end
PATIENCE_S = 10  # after SIGTERM
MOST_SHARDS = 4
# What the kernels of tests/common/fake_driver.c are compiled for.
PRETENDED = "compute capability 9.0, 132 multiprocessors"


class Step(NamedTuple):
    name: str
    seconds: float
    """after which it is ended, if the budget is not larger than all steps together"""
    lane: Optional[int]
    """which of two GPUs; None: all of them"""
    command: Callable[[Round, float], list[str]]
    needs: tuple[str, ...] = ()
    json_lines: bool = False
    """what it prints is its result"""


class Round:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.output = options, options.output
        self.build = options.build
        self.end = time.monotonic() + options.budget
        self.scale = 1.0
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen[bytes]] = set()
        self.stopped = False
        self.gpus: list[str] = []
        self.base: Optional[Path] = None
        self.missing: dict[str, str] = {}
        """what steps may need and this machine has not, and why"""
        self.summary: dict[str, Any] = round_report.read_summary(self.output)
        self.summary |= {"commit": options.commit or find_commit(), "base": options.base, "cores": os.cpu_count()}

    # ---- commands ----

    def program(self, name: str) -> str:
        return str(self.build / name)

    def python(self, script: str, *arguments: Any) -> list[str]:
        return [sys.executable, str(ROOT / "bench" / script), *map(str, arguments)]

    def sampling(self, seconds: float) -> list[Any]:
        """Returns the sampling of choices and before_after: the same problems, whose kernels both need."""
        options = self.options
        cores = (os.cpu_count() or 2) - (2 if len(self.gpus) > 1 else 0)
        found = ["--sample", options.sample, "--without", KNOWN, "--dtypes", "f16,bf16,f32"]
        found += ["--budget", f"{max(1, seconds - CLOSING_S):.0f}", "--nhood", self.program("nhood")]
        found += ["--choices", self.program("choices"), "--processes", max(2, cores), "--cache", self.cache]
        if PRETENDED in self.summary["device"]:
            found += ["--pretended", self.build / "fake_driver"]
        return found + (["--free", 1] if options.pretend else [])

    @property
    def cache(self) -> Path:
        return self.build / ("round_pretended" if self.options.pretend else "round_cache")

    @property
    def torch_device(self) -> list[str]:
        return ["--device", "cpu" if self.options.pretend else "cuda"]

    def environment(self, lane: Optional[int], needs: Iterable[str] = ()) -> dict[str, str]:
        found = {**os.environ, "NHOOD_LIBRARY": self.program("libnhood.so"), "NHOOD_CACHE": str(self.cache)}
        folders = (str(ROOT / "bindings" / "python"), os.environ.get("PYTHONPATH"))
        found |= {"PYTHONPATH": os.pathsep.join(filter(None, folders)), "PYTHONUNBUFFERED": "1"}
        if self.gpus:
            own = self.gpus if lane is None else [self.gpus[lane % len(self.gpus)]]
            found["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        if self.options.pretend and "torch" not in needs:  # torch for CUDA does not survive this driver
            found |= {"LD_LIBRARY_PATH": self.program("fake_driver"), "NHOOD_NVRTC": self.program("libfake_nvrtc.so")}
        return found

    # ---- a step ----

    def take(self, step: Step) -> None:
        lacking = [self.missing[need] for need in step.needs if need in self.missing]
        left = self.end - time.monotonic()
        if lacking:
            self.note(step.name, {"state": "left out", "why": lacking[0]})
        elif self.stopped:
            self.note(step.name, {"state": "left out", "why": "stopped"})
        elif left < step.seconds / 3 and not self.options.pretend:
            self.note(step.name, {"state": "left out", "why": f"{max(0, left):.0f} s of the budget were left"})
        else:
            limit = min(left, step.seconds * self.scale)
            try:
                outcome = self.run(step, step.command(self, limit), limit)
            except OSError as error:  # a program is not there, a disk is full
                outcome = {"state": "failed", "why": str(error)}
            if step.name == "check":
                self.keep_record()
            self.note(step.name, outcome)

    def run(self, step: Step, command: list[str], limit: float) -> dict[str, Any]:
        """What it prints goes to DIR/NAME.log, or to NAME.jsonl if these are its results."""
        log = self.output / f"{step.name}.log"
        printed = log.with_suffix(".jsonl") if step.json_lines else log
        start = time.monotonic()
        with printed.open("wb") as out, (log.open("wb") if step.json_lines else contextlib.nullcontext(out)) as errors:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment(step.lane, step.needs),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
            self.running.add(process)
            in_time = True
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                in_time = False
            finally:
                end_session(process)
                self.running.discard(process)
        shorten(log)
        found = {"state": "done", "seconds": round(time.monotonic() - start, 1), "limit_s": round(limit), "command": shown(command)}
        if not in_time:
            return {**found, "state": "failed", "why": f"ended after its limit of {limit:.0f} s"}
        if process.returncode:
            return {**found, "state": "failed", "why": f"exit status {process.returncode}: {last_line(log)}"}
        return found

    def note(self, name: str, outcome: dict[str, Any]) -> None:
        """At once, as the next step may never end."""
        with self.lock:
            self.summary.setdefault("steps", {})[name] = outcome
            round_report.write(self.output, self.summary)
        why = f": {outcome['why']}" if "why" in outcome else ""
        print(f"{name}: {outcome['state']}{why} ({outcome.get('seconds', 0):.0f} s)", flush=True)

    def keep_record(self) -> None:
        """The record is this run's if the run printed the same."""
        record = RECORD.read_text() if RECORD.exists() else ""
        if record and record in (self.output / "check.log").read_text(errors="replace"):
            (self.output / "record.txt").write_text(record)

    def stop(self, *_: Any) -> None:
        self.stopped = True
        for process in list(self.running):
            end_session(process)

    # ---- before the first step ----

    def prepare(self, steps: list[Step]) -> None:
        """Raises SystemExit if there is nothing to measure with."""
        needed = {need for step in steps for need in step.needs}
        if not self.options.pretend:
            outcome = self.make("build", ROOT, self.build, "", TARGETS)
            if outcome["state"] != "done":
                raise SystemExit(f"bench/gpu/gpu_round.py: the build failed, see {self.output / 'build.log'}: {outcome['why']}")
        self.find_gpus()
        for package, probe in PROBES.items():
            if package in needed:
                self.probe(package, probe)
        if "base" in needed:
            self.make_base()

    def make(self, name: str, source: Path, folder: Path, option: str, targets: Iterable[str]) -> dict[str, Any]:
        left = self.end - time.monotonic()
        command = ["bash", "-c", BUILD, "build", str(source), str(folder), option, *targets]
        outcome = self.run(Step(name, left, None, lambda *_: command), command, left)
        self.note(name, {**outcome, "command": f"cmake --build {folder} --target {' '.join(targets)}"})
        return outcome

    def find_gpus(self) -> None:
        """Those that are like the first, as CUDA_VISIBLE_DEVICES calls them."""
        command = (self.program("nhood"), "info", "--json")
        info = subprocess.run(command, capture_output=True, text=True, env=self.environment(None))
        found = json.loads(info.stdout) if info.returncode == 0 else {"devices": [], "notes": info.stderr.strip()}
        devices = [device["description"] for device in found["devices"] if device["kind"] == "cuda"]
        if not devices:
            raise SystemExit(f"bench/gpu/gpu_round.py: no CUDA device here: {found['notes']}")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(number) for number in range(len(devices))]
        self.gpus = [name for name, device in zip(names, devices) if device == devices[0]]
        self.summary |= {"device": devices[0], "gpus": len(self.gpus), "driver": find_driver(), "notes": found["notes"]}
        if len(self.gpus) < 2 and not self.options.pretend:
            self.missing["two GPUs"] = "there is one GPU"

    def probe(self, package: str, probe: str) -> None:
        if not self.options.pretend:
            probe += "; import torch; assert torch.cuda.is_available(), 'torch sees no CUDA device'"
        command = (sys.executable, "-c", probe)
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment(0, ("torch",)))
        if done.returncode:
            self.missing[package] = (done.stderr.strip().splitlines() or [f"no {package}"])[-1]

    def make_base(self) -> None:
        """Its build/choices is all that is needed; kernels of the CPU need no optimisation."""
        options = self.options
        if options.pretend:
            self.base = self.build / "choices"
        elif not options.base:
            self.missing["base"] = "no --base was given"
        else:
            folder = options.base_folder / "build" / "gpu"
            outcome = self.make("build_base", options.base_folder, folder, "-DNHOOD_KERNEL_OPTIONS=-O0", ["choices"])
            self.base = folder / "choices"
            if outcome["state"] != "done":
                self.missing["base"] = f"--base {options.base} could not be built: {outcome['why']}"


PROBES = {"torch": "import torch, nhood.torch", "diffusers": "import diffusers"}
# As tests/gpu/run builds, so that it finds all made: SOURCE FOLDER OPTION TARGET..
BUILD = (
    'set -e; cmake -S "$1" -B "$2" -DCMAKE_BUILD_TYPE=Release -DNHOOD_EXAMPLES=OFF $3;'
    ' cmake --build "$2" --parallel "$(nproc)" --target "${@:4}"'
)
TARGETS = ("nhood", "nhood_tool", "choices", "fake_libcuda")


def end_session(leader: subprocess.Popen[bytes]) -> None:
    """Ends a process and what it has left behind: some of that changes its process group, none its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for member in session_of(leader.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, number)
        end = time.monotonic() + PATIENCE_S
        while session_of(leader.pid) and time.monotonic() < end:
            time.sleep(0.05)
    leader.poll()


def session_of(leader: int) -> set[int]:
    """Processes of the session, without those that have ended."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = path.read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        if int(session) == leader and state != "Z":
            found.add(int(path.parent.name))
    return found


def shown(command: Iterable[str]) -> str:
    words = ("python3" if word == sys.executable else word.removeprefix(f"{ROOT}/") for word in command)
    return " ".join(f"'{word}'" if " " in word else word for word in words)


def shorten(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.write_bytes(log.read_bytes()[-LOG_BYTES:])


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it says nothing"


# ---- steps ----


def check(r: Round, limit: float) -> list[str]:
    if r.options.pretend:
        return ["cat", str(RECORD)]  # what the other prints at its end
    return ["tests/gpu/run", "--cases", str(r.options.cases), "--seconds", f"{max(0, limit - RECORD_S):.0f}"]


def choices(r: Round, limit: float) -> list[str]:
    return r.python("model/choices.py", *r.sampling(limit), "--measure-every", 0, "--output", r.output / "choices")


def before_after(r: Round, limit: float) -> list[str]:
    return r.python("model/before_after.py", "--base", r.base, *r.sampling(limit), "--output", r.output / "before_after")


def suite(r: Round, limit: float) -> list[str]:
    name, seconds = ("paper-2d.txt", "0.001") if r.options.pretend else ("video-vae.txt", "0.5")
    on_device = ["--device", "cuda:0", "--min-time", seconds]
    return [r.program("nhood"), "bench", "--json", *on_device, "--suite", str(ROOT / "bench" / "suites" / name)]


def performance(r: Round, limit: float) -> list[str]:
    tables = ["small_windows", "sm80", "large_windows", "decoders"]
    kept = tables[:1] if r.options.pretend else tables[:2] if "torch" in r.missing else tables
    own = ["--budget", f"{max(1, limit - CLOSING_S):.0f}", "--rounds", 1 if r.options.pretend else 5]
    own += ["--commit", r.summary["commit"], "--nhood", r.program("nhood"), "--output", r.output / "performance.json"]
    return r.python("report/performance.py", "run", "--device", "cuda:0", "--tables", *kept, *own)


def norm_rope(r: Round, limit: float) -> list[str]:
    tiny = ["--shapes", "1x2x4x4x2x16", "--dtype", "float32", "--turns", 1, "--nhood-only"] if r.options.pretend else []
    return r.python("gpu/norm_rope.py", *r.torch_device, *tiny, "--output", r.output / "norm_rope.json")


def regions(r: Round, limit: float) -> list[str]:
    tiny = ["--boxes", "f32:b1h1d8:64:w9", "--periodic", "f32:b1h1d8:12x12:w3x3", "--turns", 1] if r.options.pretend else []
    return r.python("gpu/regions.py", "--json", *r.torch_device, *tiny)


def streams(r: Round, limit: float) -> list[str]:
    tiny = ["--grid", "5x4x4", "--window", "3x3x3", "--heads", 1, "--dim", 8, "--dtype", "float32", "--turns", 1]
    return r.python("gpu/streaming.py", "--json", *r.torch_device, *(tiny if r.options.pretend else []))


def decoder(r: Round, limit: float) -> list[str]:
    own = ["--sizes", "512x768x121"]
    if r.options.pretend:
        own = ["--small", "--sizes", "64x64x9", "--dtype", "float32", "--turns", 1, "--modes", "eager"]
    output = ["--output", r.output / "video_decoder.json"]
    return r.python("gpu/video_decoder.py", "--ways", "nhood", "none", *r.torch_device, *own, *output)


def sharded(r: Round, limit: float) -> list[str]:
    processes = 2 if r.options.pretend else min(len(r.gpus), MOST_SHARDS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    own = [str(ROOT / "bench" / "sharded" / "sharded.py"), "--balanced", "--json", str(r.output / "sharded.json")]
    own += ["--seconds", f"{max(1, limit - 2 * CLOSING_S):.0f}"]
    return launch + own + (["b1h2d8:6x10:w3x5", "--turns", "1", "--calls", "1"] if r.options.pretend else [])


# On one H200 with 16 cores the check took 289 s, choices of 268 problems 247 s, before_after 154 s, suite 32 s, performance 170 s,
# regions 54 s, streams 15 s; norm_rope was not done after 60 s. The others are guesses: a limit only ends what hangs.
STEPS = (
    Step("check", 420, None, check),
    Step("choices", 300, 0, choices),
    Step("before_after", 300, 0, before_after, ("base",)),
    Step("suite", 60, 1, suite, json_lines=True),
    Step("performance", 200, 1, performance),
    Step("norm_rope", 120, 1, norm_rope, ("torch",)),
    Step("regions", 180, 1, regions, ("torch",), json_lines=True),
    Step("streams", 60, 1, streams, ("torch",), json_lines=True),
    Step("decoder", 180, 1, decoder, ("torch", "diffusers")),
    Step("sharded", 180, None, sharded, ("two GPUs", "torch")),
)


def take_all(r: Round, steps: list[Step]) -> None:
    for alone, group in itertools.groupby(steps, lambda step: step.lane is None):
        own = list(group)
        lanes = [own]
        if not alone and len(r.gpus) > 1:
            lanes = [[step for step in own if step.lane == lane] for lane in (0, 1)]
        threads = [threading.Thread(target=lambda lane=lane: [r.take(step) for step in lane]) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def find_base(text: str) -> Path:
    """A folder as it is; a commit, unpacked into the build folder."""
    folder = Path(text).resolve()
    if (folder / "CMakeLists.txt").exists():
        return folder
    git = ("git", "-C", str(ROOT))
    asked = (*git, "rev-parse", "--quiet", "--verify", f"{text}^{{commit}}")
    commit = subprocess.run(asked, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    if not commit:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a folder with a CMakeLists.txt nor a commit that git knows here")
    folder = ROOT / "build" / "gpu_base" / commit[:12]
    if not folder.exists():
        part = folder.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        unpack = 'set -o pipefail; git -C "$1" archive "$2" | tar -x -C "$3"'
        subprocess.run(["bash", "-c", unpack, "unpack", str(ROOT), commit, str(part)], check=True)
        part.rename(folder)
    return folder


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [step.name for step in STEPS]
    parser.add_argument("--budget", type=positive, required=True, help="seconds for everything, builds included")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a folder; made if need be")
    parser.add_argument("--steps", nargs="+", choices=names, default=names, metavar="STEP", help="only these (all)")
    parser.add_argument("--base", metavar="TREE", help="of before_after: a folder with another tree, or a commit")
    parser.add_argument("--sample", type=int, default=100, help="problems of each rank in choices and before_after (100)")
    parser.add_argument("--cases", type=int, default=320, help="random problems per solver in the check (320)")
    parser.add_argument("--commit", help="what is measured, where there is no repository to ask")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "gpu", help="folder to build in (build/gpu)")
    pretend = "try the script: tiny problems by the pretended driver, torch on the CPU, nothing built, no check but its record"
    parser.add_argument("--pretend", action="store_true", help=pretend)
    options = parser.parse_args()
    if options.sample < 1:
        parser.error(f"--sample {options.sample} is below 1")
    if options.pretend and not (options.build / "choices").exists():
        parser.error(f"--pretend: {options.build} has no program choices: build it, or give another --build")
    try:
        options.base_folder = find_base(options.base) if options.base else None
    except argparse.ArgumentTypeError as error:
        parser.error(f"--base: {error}")
    options.build, options.output = options.build.resolve(), options.output.resolve()
    return options


def main() -> int:
    options = parse_options()
    make_folder(options.output)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core files among the results
    r = Round(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, r.stop)
    steps = [step for step in STEPS if step.name in options.steps]
    r.prepare(steps)
    r.scale = max(1.0, (r.end - time.monotonic()) / sum(step.seconds for step in steps))
    take_all(r, steps)
    print(f"{options.output / 'summary.md'}")
    return any(outcome["state"] == "failed" for outcome in r.summary["steps"].values())


if __name__ == "__main__":
    sys.exit(main())
