"""The modes of bench/sharded/sharded.py. Every process runs them; process 0 prints."""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Optional
from unittest import mock

import torch
import torch.distributed as dist
from nhood.torch.distributed import _attention, _exchange
from sharded_problem import Forward, Problem, Shards, simulated
from torch import Tensor

TURN_SECONDS = 0.03
"""of calls that are timed together, at least: until the first kernel begins the stream waits for the process"""
LARGEST_ERROR = {"bf16": 3e-2, "f16": 4e-3, "f32": 1e-5}  # of the largest value, between two orders of the same sums


class Run:
    """What modes share: the processes' device, clock and words."""

    def __init__(self, args: argparse.Namespace, device: torch.device, deadline: float) -> None:
        self.args, self.device, self._deadline = args, device, deadline
        self.cuda = device.type == "cuda"
        self.processes, self.rank = dist.get_world_size(), dist.get_rank()

    def shards(self, problem: Problem) -> Shards:
        return Shards(problem, self.device, self.args.blocks, self.args.balanced)

    def mark(self) -> Any:
        """A point in time on the stream, see seconds."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end) * 1e-3 if self.cuda else end - begin

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def align(self) -> None:
        """Streams go on together from here."""
        dist.all_reduce(torch.ones(1, device=self.device))

    def everyone(self, values: list[float]) -> list[list[float]]:
        """These values of all processes."""
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        theirs = [torch.empty_like(mine) for _ in range(self.processes)]
        dist.all_gather(theirs, mine)
        return [tensor.tolist() for tensor in theirs]

    @property
    def late(self) -> bool:
        """The same in all processes."""
        return max(row[0] for row in self.everyone([float(time.monotonic() > self._deadline)])) > 0

    def forget(self) -> None:
        """Gives memory back."""
        gc.collect()
        if self.cuda:
            self.synchronize()
            torch.cuda.empty_cache()

    def say(self, line: str) -> None:
        if self.rank == 0:
            print(line, flush=True)


# ---- table ----


class Step:
    """One way to compute a training step, its times, and those of the process that has it enqueued."""

    def __init__(self, run: Run, name: str, forward: Forward, inputs: list[Tensor], d_out: Tensor) -> None:
        self.run, self.name, self.forward, self.inputs, self.d_out = run, name, forward, inputs, d_out
        self.times: dict[str, list[list[float]]] = {"forward": [], "step": []}
        """per turn what a call took in each process"""
        self.host: dict[str, list[float]] = {"forward": [], "step": []}
        """what this process took to have a call enqueued"""

    def forward_alone(self) -> Tensor:
        return self.forward(*self.inputs).detach()

    def __call__(self) -> tuple[Tensor, ...]:
        out = self.forward(*self.inputs)
        return (out.detach(), *torch.autograd.grad(out, self.inputs, self.d_out))

    def turn(self) -> None:
        run = self.run
        for name, call in (("forward", self.forward_alone), ("step", self)):
            run.align()
            begin = run.mark()
            call()
            end = run.mark()
            run.synchronize()
            once = max(row[0] for row in run.everyone([run.seconds(begin, end)]))
            calls = max(run.args.calls, math.ceil(TURN_SECONDS / once))
            run.align()
            begin, clock = run.mark(), time.perf_counter()
            for _ in range(calls):
                call()
            host = time.perf_counter() - clock
            end = run.mark()
            run.synchronize()
            self.times[name].append([row[0] / calls for row in run.everyone([run.seconds(begin, end)])])
            self.host[name].append(host / calls)

    def medians(self) -> tuple[float, float]:
        """Forward and backward, which is what a step takes longer. Where processes wait for each other the slowest counts."""
        merge = statistics.mean if self.name == "one" else max
        forward, step = [[merge(row) for row in self.times[name]] for name in ("forward", "step")]
        return statistics.median(forward), statistics.median(b - a for a, b in zip(forward, step))


def step_by_halo(run: Run, problem: Problem) -> Step:
    """A step of this process's shard, with inputs of its own."""
    shards = run.shards(problem)
    inputs, d_out = problem.random(shards.lengths, run.device, seed=1 + run.rank)
    return Step(run, "halo", shards.forward("halo"), inputs, d_out)


def bytes_that_travel(run: Run, step: Step) -> tuple[float, float]:
    """From other processes, forward and backward, to the one that receives most."""
    received = [0.0]

    def counting(parts: Any, expected: Any, like: Tensor, link: Any, exchange: Any = _exchange._all_to_all) -> Any:
        received[-1] += (sum(expected) - expected[link.index]) * like.element_size()
        return exchange(parts, expected, like, link)

    with mock.patch.object(_exchange, "_all_to_all", counting):
        out = step.forward(*step.inputs)
        received.append(0.0)
        torch.autograd.grad(out, step.inputs, step.d_out)
    forward, backward = [max(column) for column in zip(*run.everyone(received))]
    return forward, backward


def error_of(got: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest value, slice by slice along the first axis, as memory is scarce."""
    worst = largest = 0.0
    for mine, theirs in zip(got.detach().split(1 << 12, 1), expected.split(1 << 12, 1)):
        worst = max(worst, float((mine - theirs).abs().max()))
        largest = max(largest, float(theirs.abs().max()))
    return worst / largest


def steps_of(run: Run, problem: Problem, shards: Shards) -> tuple[list[Step], dict[str, float], dict[str, Any]]:
    """Those that can be taken, with the largest errors that any process saw, and what explain says."""
    inputs, d_out = problem.random(problem.lengths if not run.args.without_one else shards.lengths, run.device, seed=1)
    expected, own, own_d_out = [], inputs, d_out
    steps = []
    if not run.args.without_one:
        own = [shards.own(t).detach().clone(memory_format=torch.contiguous_format).requires_grad_() for t in inputs]
        own_d_out = shards.own(d_out).clone(memory_format=torch.contiguous_format)
        steps.append(Step(run, "one", problem.one, inputs, d_out))
        expected = [shards.own(t).clone(memory_format=torch.contiguous_format) for t in steps[0]()]
    choices = {choice.strategy: choice for choice in shards.explain(own)}
    errors = {}
    for strategy in run.args.strategies:
        if strategy in choices and choices[strategy].seconds == float("inf"):
            continue
        forward = problem.one if strategy == "alone" else shards.forward(strategy)
        step = Step(run, strategy, forward, own, own_d_out)
        run.forget()
        found = step()
        steps.append(step)
        if expected and strategy != "alone":
            mine = [max(error_of(got, wanted) for got, wanted in zip(found, expected))]
            errors[strategy] = max(row[0] for row in run.everyone(mine))
    run.forget()
    return steps, errors, choices


def table(run: Run, problem: Optional[Problem]) -> dict[str, Any]:
    assert problem
    shards = run.shards(problem)
    steps, errors, choices = steps_of(run, problem, shards)
    travels = {step.name: bytes_that_travel(run, step) for step in steps if step.name in choices}
    retries = torch.cuda.memory_stats()["num_alloc_retries"] if run.cuda else 0
    for turn in range(run.args.turns):
        if turn >= 2 and run.late:
            break
        for step in steps:
            step.turn()
    if run.cuda:  # memory that was given back between turns is time of the allocator
        retries = torch.cuda.memory_stats()["num_alloc_retries"] - retries
    one = next((step.medians() for step in steps if step.name == "one"), None)
    predicted = simulated(problem) if run.rank == 0 else {}
    auto = min(choices.values(), key=lambda choice: choice.seconds).strategy
    run.say(f"\n{problem.text}, {problem.dtype}, shards {problem.shards_text}; auto takes {auto}")
    run.say("strategy      forward us   backward us   efficiency   predicted    MB received       host us    error")
    rows = []
    for step in steps:
        forward, backward = step.medians()
        host = {name: statistics.median(times) for name, times in step.host.items()}
        row: dict[str, Any] = {
            "strategy": step.name,
            "forward_s": forward,
            "backward_s": backward,
            "host_s": host,
            "times_s": step.times,
        }
        rows.append(row)
        line = f"{step.name:10}{forward * 1e6:14.0f}{backward * 1e6:14.0f}"
        if one and step.name != "one":
            row["efficiency"] = [t / (run.processes * mine) for t, mine in zip(one, (forward, backward))]
        if step.name in choices:
            row["received_bytes"] = travels[step.name]
            row["explained"] = choices[step.name]._asdict()
            row["simulated"] = [predicted.get(op, {}).get(step.name, {}) for op in ("fwd", "bwd")]
            row["error"] = errors.get(step.name)
        line += f"   {pair(row.get('efficiency'))}   {pair([g.get('efficiency') for g in row.get('simulated', ())])}"
        line += "  {:6.0f} {:6.0f}".format(*(b * 1e-6 for b in travels.get(step.name, (0, 0))))
        line += f"  {host['forward'] * 1e6:5.0f} {host['step'] * 1e6:5.0f}"
        run.say(line + (f"   {errors[step.name]:.1e}" if step.name in errors else ""))
    if retries:
        run.say(f"the allocator gave memory back {retries} times meanwhile: times include that")
    wrong = [name for name, error in errors.items() if error > LARGEST_ERROR[problem.dtype]]
    if wrong:
        run.say(f"WRONG RESULTS: {', '.join(wrong)}")
    result = {"problem": problem.text, "dtype": problem.dtype, "shards": problem.shards_text, "auto": auto}
    return {**result, "turns": len(steps[0].times["step"]), "alloc_retries": retries, "rows": rows}


def pair(values: Any) -> str:
    return " ".join("    -" if v is None else f"{v:5.3f}" for v in values or (None, None))


# ---- link ----


def neighbours(run: Run) -> list[int]:
    return [rank for rank in (run.rank - 1, run.rank + 1) if 0 <= rank < run.processes]


def swap_by_collective(run: Run, elements: int) -> Callable[[], None]:
    counts = [elements if rank in neighbours(run) else 0 for rank in range(run.processes)]
    sent, received = (torch.zeros(sum(counts), dtype=torch.uint8, device=run.device) for _ in range(2))
    return lambda: dist.all_to_all_single(received, sent, counts, counts)


def swap_by_messages(run: Run, elements: int) -> Callable[[], None]:
    parts = [(rank, *torch.zeros(2, elements, dtype=torch.uint8, device=run.device)) for rank in neighbours(run)]

    def swap() -> None:
        messages = []
        for rank, sent, received in parts:
            messages += [dist.P2POp(dist.isend, sent, rank), dist.P2POp(dist.irecv, received, rank)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()

    return swap


def link(run: Run, problem: Optional[Problem]) -> dict[str, Any]:
    run.say("\nswap with neighbours, us (GB/s each way and neighbour)")
    rows = []
    for power in range(12, 30 if run.cuda else 21, 2):
        row: dict[str, Any] = {"bytes": 1 << power}
        line = f"{1 << power:12} bytes"
        for name, make in (("collective", swap_by_collective), ("messages", swap_by_messages)):
            swap, calls = make(run, 1 << power), 20
            for _ in range(3):
                swap()
            run.align()
            marks = [run.mark()]
            for _ in range(calls):
                swap()
                marks.append(run.mark())
            run.synchronize()
            times = run.everyone([run.seconds(*two) for two in zip(marks, marks[1:])])
            row[name + "_s"] = statistics.median(max(column) for column in zip(*times))
            line += f"   {name} {row[name + '_s'] * 1e6:8.1f} ({(1 << power) / row[name + '_s'] * 1e-9:6.1f})"
        rows.append(row)
        run.say(line)
    return {"swaps": rows}


# ---- breakdown ----


@dataclass
class Part:
    """A call inside a step."""

    label: str
    again: Callable[[], Any]
    """once more, alone"""
    begin: Any
    end: Any


class Parts:
    """Notes when the stream begins and ends what a step by halo is made of."""

    def __init__(self, run: Run) -> None:
        self.run, self.parts = run, []  # type: tuple[Run, list[Part]]

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for owner, name, label in (
                (_attention, "_na", self._attention_label),
                (_attention, "_na_backward", self._attention_label),
                (_attention, "send_keys", lambda *_: "exchange of keys: copies and start"),
                (_attention, "send_gradients", lambda *_: "exchange of gradients: copies and start"),
                (_attention, "add_gradients", lambda *_: "gradients that came, added"),
                (_attention, "_merge", lambda *_: "results of two parts merged"),
                (_exchange.Travel, "wait", lambda *_: "waiting for the exchange"),
            ):
                stack.enter_context(mock.patch.object(owner, name, self._noting(getattr(owner, name), label)))
            yield

    def _attention_label(self, plan: Any, place: Any, inputs: Any, *_: Any) -> str:
        queries, keys = ("x".join(map(str, tensor.shape[1:-2])) for tensor in inputs[:2])
        return f"attention, {queries} queries, {keys} keys"

    def _noting(self, function: Callable[..., Any], label: Callable[..., str]) -> Callable[..., Any]:
        def noting(*arguments: Any) -> Any:
            begin = self.run.mark()
            found = function(*arguments)
            self.parts.append(Part(label(*arguments), lambda: function(*arguments), begin, self.run.mark()))
            return found

        return noting


def median_of(run: Run, call: Callable[[], Any], repeats: int = 5) -> float:
    call()
    marks = [run.mark()]
    for _ in range(repeats):
        call()
        marks.append(run.mark())
    run.synchronize()
    return statistics.median(run.seconds(*two) for two in zip(marks, marks[1:]))


PHASES = ("forward", "backward")


def noted_step(run: Run, step: Step) -> tuple[dict[str, list[Part]], dict[str, float]]:
    """The parts of a step, and what the phases took."""
    notes = {phase: Parts(run) for phase in PHASES}
    step()
    run.align()
    marks = [run.mark()]
    with notes["forward"].noted():
        out = step.forward(*step.inputs)
    marks.append(run.mark())
    with notes["backward"].noted():
        torch.autograd.grad(out, step.inputs, step.d_out)
    marks.append(run.mark())
    run.synchronize()
    totals = [run.seconds(*two) for two in zip(marks, marks[1:])]
    return {phase: note.parts for phase, note in notes.items()}, dict(zip(PHASES, totals))


def breakdown(run: Run, problem: Optional[Problem]) -> dict[str, Any]:
    assert problem
    step = step_by_halo(run, problem)
    parts, _ = noted_step(run, step)
    found: dict[str, Any] = {"process": run.rank}
    for phase in PHASES:
        alone = [median_of(run, p.again) if p.label.startswith("attention") else None for p in parts[phase]]
        found[phase] = [{"what": p.label, "alone_s": seconds} for p, seconds in zip(parts[phase], alone)]
    del parts
    samples = []
    for _ in range(5):
        parts, totals = noted_step(run, step)
        samples.append({p: [totals[p], *(run.seconds(part.begin, part.end) for part in parts[p])] for p in PHASES})
        del parts
    run.say(f"\n{problem.text}, {problem.dtype}, shards {problem.shards_text}: a step by halo, process 0")
    for phase in PHASES:
        total, *of_parts = [statistics.median(column) for column in zip(*(sample[phase] for sample in samples))]
        found[phase + "_s"] = total
        run.say(f"  {phase:48}{total * 1e6:10.0f} us")
        for part, seconds in zip(found[phase], of_parts):
            part["seconds"] = seconds
            alone_s = part["alone_s"]
            run.say(f"    {part['what']:46}{seconds * 1e6:10.0f}" + (f", alone {alone_s * 1e6:.0f}" if alone_s else ""))
        run.say(f"    {'the rest':46}{(total - sum(of_parts)) * 1e6:10.0f}")
    everyone: list[Any] = [None] * run.processes
    dist.all_gather_object(everyone, found)
    return {"problem": problem.text, "shards": problem.shards_text, "processes": everyone}


# ---- timeline ----


def timeline(run: Run, problem: Optional[Problem]) -> dict[str, Any]:
    """What the GPU of each process does in forwards by halo and then a step, kernel by kernel, as torch's profiler sees it."""
    assert problem
    found: dict[str, Any] = {"problem": problem.text, "shards": problem.shards_text}
    if not run.cuda:
        run.say("no kernels on the CPU")
        return found
    step = step_by_halo(run, problem)
    for _ in range(2):
        step()
    run.align()
    run.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(run.args.calls):
            step.forward_alone()
        step()
        run.synchronize()
    kernels = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    begin = kernels[0][0]
    mine = [{"begin_us": a - begin, "end_us": b - begin, "name": name[:120]} for a, b, name in kernels]
    everyone: list[Any] = [None] * run.processes
    dist.all_gather_object(everyone, mine)
    for process, rows in enumerate(everyone):
        run.say(f"\n{problem.text}, {problem.dtype}, shards {problem.shards_text}: forwards and a step by halo, process {process}")
        run.say("  begins at us   takes us")
        for row in rows:
            run.say(f"  {row['begin_us']:12.0f}{row['end_us'] - row['begin_us']:11.0f}   {row['name'][:80]}")
    return {**found, "processes": everyone}


# ---- graph ----


def graph(run: Run, problem: Optional[Problem]) -> dict[str, Any]:
    assert problem
    found: dict[str, Any] = {"problem": problem.text, "shards": problem.shards_text}
    if not run.cuda:
        run.say("no CUDA graphs on the CPU")
        return found
    step = step_by_halo(run, problem)
    for name, call in (("forward", torch.no_grad()(step.forward_alone)), ("step", step)):
        side = torch.cuda.Stream()  # what capture is preceded by, as torch's documentation asks
        with torch.cuda.stream(side):
            for _ in range(3):
                expected = call()
        run.synchronize()
        captured = torch.cuda.CUDAGraph()
        # NCCL's watchdog asks for events in another thread meanwhile.
        with torch.cuda.graph(captured, capture_error_mode="thread_local"):
            results = call()
        run.align()
        captured.replay()
        run.synchronize()
        pairs = zip(*((t,) if isinstance(t, Tensor) else t for t in (results, expected)))
        error = max(error_of(*two) for two in pairs)
        del expected
        both = {}
        for kind, again in (("eager", call), ("replayed", captured.replay)):
            run.align()
            mine = median_of(run, again, 10)
            both[kind + "_s"] = max(row[0] for row in run.everyone([mine]))
        found[name] = {**both, "error": max(row[0] for row in run.everyone([error]))}
        run.say(
            f"{problem.text}, {name}: {both['eager_s'] * 1e6:.0f} us, captured {both['replayed_s'] * 1e6:.0f} us, "
            f"error {found[name]['error']:.1e}"
        )
        del captured, results
        run.forget()
    return found


# ---- memory ----


def peak(run: Run, problem: Problem, forward: Forward, lengths: tuple[int, ...]) -> int:
    """Bytes in use at most during a step. torch.OutOfMemoryError if it does not fit."""
    run.forget()
    if run.cuda:
        torch.cuda.reset_peak_memory_stats()
    inputs, d_out = problem.random(lengths, run.device, seed=1 + run.rank)
    out = forward(*inputs)
    gradients = torch.autograd.grad(out, inputs, d_out)
    assert all(bool(g.flatten()[-1].isfinite()) for g in gradients)
    run.synchronize()
    return torch.cuda.max_memory_allocated() if run.cuda else sum(4 * t.nbytes for t in inputs)


def fits_alone(run: Run, problem: Problem) -> Optional[int]:
    """The peak of a step in this process, or None if it has not that much memory."""
    try:
        return peak(run, problem, problem.one, problem.lengths)
    except torch.OutOfMemoryError:
        return None


def largest_alone(run: Run, problem: Problem, tile: int) -> tuple[Problem, int]:
    """The longest that one process holds, to an eighth, by doubling and then halving what is added; and its peak."""
    best, factor, added = problem.grown(1, tile), 1.0, 1.0
    best_bytes = fits_alone(run, best)
    assert best_bytes, f"{problem.text} does not fit one process"
    doubling = True
    while added >= factor / 8:
        trial = problem.grown(factor + added, tile)
        within_limit = run.cuda or factor + added <= 4  # the memory of a CPU's host is not to be filled
        trial_bytes = fits_alone(run, trial) if within_limit else None
        if trial_bytes:
            best, best_bytes, factor = trial, trial_bytes, factor + added
        doubling = doubling and bool(trial_bytes)
        added = factor if doubling else added / 2
    return best, best_bytes


def memory(run: Run, problem: Optional[Problem]) -> dict[str, Any]:
    """Processes never run out of memory together: one that did would leave the others waiting. What one GPU holds is tried out;
    of all of them only the length that the peak of a shorter one promises to fit."""
    assert problem
    tile = 64 if len(problem.lengths) == 1 else 2
    one, one_bytes = largest_alone(run, problem, tile * run.processes)
    lengths = torch.tensor([one.lengths[0]], device=run.device)
    dist.all_reduce(lengths, op=dist.ReduceOp.MIN)
    one = problem.grown(int(lengths) / problem.lengths[0], tile * run.processes)
    run.forget()

    def together(trial: Problem) -> float:
        shards = run.shards(trial)
        mine = peak(run, trial, shards.forward("halo"), shards.lengths)
        return max(row[0] for row in run.everyone([float(mine)]))

    used = together(one)
    limit = float(torch.cuda.mem_get_info()[1]) - 6e9 if run.cuda else 4 * used  # 6 GB: NCCL, contexts and fragments
    limit = min(row[0] for row in run.everyone([limit]))
    trial = problem.grown(one.lengths[0] / problem.lengths[0] * limit / used * 0.99, tile * run.processes)
    all_bytes = together(trial)
    ratio = trial.lengths[0] / one.lengths[0]
    run.say(
        f"\n{problem.text}: one process holds a first axis of {one.lengths[0]} ({one_bytes * 1e-9:.1f} GB), "
        f"{run.processes} hold {trial.lengths[0]} ({all_bytes * 1e-9:.1f} GB each), {ratio:.2f} times as much"
    )
    found = {"problem": problem.text, "shards": problem.shards_text, "one": one.text, "all": trial.text}
    return {**found, "one_bytes": one_bytes, "all_bytes": all_bytes, "ratio": ratio}


@dataclass(frozen=True)
class Mode:
    function: Callable[[Run, Optional[Problem]], dict[str, Any]]
    of_problems: bool = True


MODES = {
    "table": Mode(table),
    "link": Mode(link, of_problems=False),
    "breakdown": Mode(breakdown),
    "timeline": Mode(timeline),
    "graph": Mode(graph),
    "memory": Mode(memory),
}
