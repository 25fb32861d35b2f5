"""The CUDA contenders of bench/gpu/study.py: plans of nhood and torch's dense attention, in turns on the same memory.

Getting ready takes far longer than running: nhood and cuDNN compile kernels for every problem. So several processes get
problems ready, and only the one that holds their lock runs contenders for the clock.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, Optional

import torch
from nhood import _library as c
from nhood import _plans
from peers import Clock, Contender, number_of, parse_problem, race
from study_report import Problem, Result
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
NUMBERS = {"f16": c.DTYPE_F16, "bf16": c.DTYPE_BF16, "f32": c.DTYPE_F32}
DENSE = {
    "dense cuDNN": SDPBackend.CUDNN_ATTENTION,
    "dense flash": SDPBackend.FLASH_ATTENTION,
    "dense efficient": SDPBackend.EFFICIENT_ATTENTION,
}
FUSED = ("fused90", "joint90", "split90", "small", "short90", "short", "fused80", "split80")
UNFUSED = ("gemm", "naive")
CONTENDERS = {name: ("fwd", "bwd") for name in ("fused", *UNFUSED, *DENSE)}
FULL_MS, CALLS = 2.0, 5  # of a turn: thousands of problems are to be timed, and of three turns two may be spoilt


class Plan:
    def __init__(self, device: int, text: str, solver: Optional[str], tune_s: float) -> None:
        self.problem, self.handle = parse_problem(text), ctypes.c_void_p()
        effort = c.EFFORT_MEASURE if tune_s else c.EFFORT_ESTIMATE
        only = solver.encode() if solver else None
        options = c.PlanOptions(ctypes.sizeof(c.PlanOptions), only, effort, budget_s=tune_s)
        context = _plans.current_context().handle
        c.check(c.lib.nhood_plan_create(context, device, self.problem, options, ctypes.byref(self.handle)))
        self.workspace_bytes = c.lib.nhood_plan_workspace_bytes(self.handle)
        description = c.lib.nhood_plan_description(self.handle).decode()
        self.solver, self.config = description.split(": ", 1)[1].split(", ")[0].partition(" ")[::2]

    def __del__(self, _release: Callable = c.lib.nhood_plan_release) -> None:
        _release(self.handle)

    def call(self, memory: Memory, own: dict[int, torch.Tensor] = {}) -> Callable[[], None]:
        """own: tensors of slots that are others than the memory's"""
        io = c.Io(ctypes.sizeof(c.Io), workspace=memory.scratch.data_ptr(), workspace_bytes=memory.scratch.numel())
        for slot, tensor in {**memory.tensors, **own}.items():
            io.data[slot] = tensor.data_ptr()
        io.stream = memory.stream
        return lambda: c.check(c.lib.nhood_plan_execute(self.handle, ctypes.byref(io)))


class GemmPlan:
    """Attention as the paper's GEMM-based one: operators of cuda.gemm, attention weights in memory, and torch's softmax."""

    def __init__(self, problem: str, plan: Callable[[str, str], Plan]) -> None:
        """plan: of an operator's text by a solver"""
        self.op, sizes = problem.split(":", 1)
        self.of = Problem.parse(problem)
        self.scale = 1 / math.sqrt(self.of.dim)
        self.pn, self.nn = plan(f"pn:{sizes}:scale{self.scale!r}", "gemm"), plan(f"nn:{sizes}", "gemm")
        self.plans = [self.pn, self.nn]
        if self.op == "bwd":
            self.plain, self.sums = plan(f"pn:{sizes}", "gemm"), plan(f"in:{sizes}", "gemm")
            self.plans += [self.plain, self.sums]
        self.workspace_bytes = max(each.workspace_bytes for each in self.plans)
        self.solver, self.config = self.pn.solver, self.pn.config

    def weights(self, memory: Memory) -> torch.Tensor:
        of, like = self.of, memory.tensors[c.Q]
        return torch.empty((of.batch * of.tokens * of.heads, math.prod(of.window)), dtype=like.dtype, device=like.device)

    def call(self, memory: Memory) -> Callable[[], None]:
        tensors, weights = memory.tensors, self.weights(memory)
        score = self.pn.call(memory, {c.A: weights})

        def forward() -> None:
            score()
            torch.softmax(weights, -1, out=weights)
            weigh()

        weigh = self.nn.call(memory, {c.A: weights})
        if self.op == "fwd":
            return forward
        forward()  # whose weights the backward pass reads
        gradient = self.weights(memory)
        d_weights = self.plain.call(memory, {c.A: gradient, c.Q: tensors[c.D_O], c.K: tensors[c.V]})
        d_value = self.sums.call(memory, {c.A: weights})
        d_query = self.nn.call(memory, {c.A: gradient, c.V: tensors[c.K], c.O: tensors[c.D_Q]})
        d_key = self.sums.call(memory, {c.A: gradient, c.D_O: tensors[c.Q], c.D_V: tensors[c.D_K]})

        def backward() -> None:
            d_weights()
            d_value()
            torch._softmax_backward_data(gradient, weights, -1, weights.dtype, grad_input=gradient)
            gradient.mul_(self.scale)
            d_query()
            d_key()

        return backward


class Memory:
    """The tensors of one problem, forward and backward, packed; for torch's attention they are [B, H, N, D]."""

    def __init__(self, problem: Problem, workspace_bytes: int, device: torch.device) -> None:
        shape = (problem.batch, problem.heads, problem.tokens, problem.dim)
        self.tensors = {
            slot: torch.randn(shape, dtype=DTYPES[problem.dtype], device=device)
            for slot in (c.Q, c.K, c.V, c.O, c.D_O, c.D_Q, c.D_K, c.D_V)
        }
        self.tensors[c.LSE] = torch.empty(shape[:3], dtype=torch.float32, device=device)
        self.scratch = torch.empty(workspace_bytes, dtype=torch.uint8, device=device)
        self.stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


def dense_call(backend: SDPBackend, op: str, memory: Memory) -> Callable[[], Any]:
    inputs = [memory.tensors[slot].detach() for slot in (c.Q, c.K, c.V)]

    def attention() -> torch.Tensor:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(*inputs)

    call = attention
    if op == "bwd":
        for tensor in inputs:
            tensor.requires_grad_()
        out = attention()

        def call() -> Any:
            return torch.autograd.grad(out, inputs, memory.tensors[c.D_O], retain_graph=True)

    call()  # what the backend refuses shows now
    return call


def measure_ceilings(device: int) -> dict[str, Result]:
    """By dtype."""
    ceilings = {}
    for name, dtype in NUMBERS.items():
        found = c.Ceilings(struct_size=ctypes.sizeof(c.Ceilings))
        c.check(c.lib.nhood_device_measure(_plans.current_context().handle, device, dtype, found))
        ceilings[name] = {"peak_flops_per_s": found.flops_per_s, "copy_bytes_per_s": found.bytes_per_s}
    return ceilings


def by_problem(asked: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    found = defaultdict(list)
    for text, contender in asked:
        found[text.split(":", 1)[1]].append((text, contender))
    return found


class CudaStudy:
    """Measures (problem text, contender) pairs on one device, which nhood knows by a number."""

    contenders = CONTENDERS

    def __init__(
        self,
        device: torch.device,
        number: int,
        turns: int = 3,
        dense_gflop: float = math.inf,
        tune_s: float = 0,
        alone: Any = None,
    ) -> None:
        """alone: a lock, held while the clock runs"""
        self.device, self.number, self.turns = device, number, turns
        self.dense_gflop, self.tune_s = dense_gflop, tune_s
        self.alone = alone or contextlib.nullcontext()
        self.clock = Clock(device)

    def measure(self, asked: list[tuple[str, str]]) -> Iterator[tuple[str, str, Result]]:
        """Yields each pair with its result, those of one problem after each other."""
        for problem, pairs in by_problem(asked).items():
            plans = {pair: self.plans(*pair) for pair in pairs if pair[1] not in DENSE}
            try:
                yield from self.measure_problem(problem, pairs, plans)
            except torch.OutOfMemoryError:
                yield from ((*pair, {"absent": "not enough memory"}) for pair in pairs)
            torch.cuda.empty_cache()

    def plan(self, text: str, solver: Optional[str]) -> Plan:
        return Plan(self.number, text, solver and f"cuda.{solver}", self.tune_s)

    def plans(self, text: str, contender: str) -> list[Plan] | Result:
        """The plan, of fused the one chosen or, if that is not fused, all that are; or why there is none."""
        try:
            if contender == "gemm":
                return [GemmPlan(text, self.plan)]
            if contender != "fused":
                return [self.plan(text, contender)]
            chosen = self.plan(text, None)
        except (RuntimeError, ValueError, NotImplementedError, MemoryError) as error:
            return {"absent": str(error).splitlines()[0]}
        if chosen.solver.removeprefix("cuda.") not in UNFUSED:
            return [chosen]
        each = [self.plans(text, solver) for solver in FUSED]
        return sum((plans for plans in each if isinstance(plans, list)), []) or each[0]

    def measure_problem(
        self, problem: str, pairs: list[tuple[str, str]], plans: dict[tuple[str, str], list[Plan] | Result]
    ) -> Iterator[tuple[str, str, Result]]:
        backward = any(text.startswith("bwd:") for text, _ in pairs)
        forward = [self.plan(f"fwd:{problem}", None)] if backward else []  # backward passes read its O and LSE
        used = forward + [plan for made in plans.values() if isinstance(made, list) for plan in made]
        workspace = max((plan.workspace_bytes for plan in used), default=0)
        memory = Memory(Problem.parse(pairs[0][0]), workspace, self.device)
        for plan in forward:
            plan.call(memory)()
        for text in dict.fromkeys(text for text, _ in pairs):
            racing = []
            for name in (name for each, name in pairs if each == text):
                entered = self.enter(text, name, plans.get((text, name)), memory)
                if isinstance(entered, dict):
                    yield text, name, entered
                else:
                    racing.append((name, entered))
            with self.alone:
                race([each for _, entered in racing for each in entered], self.clock, self.turns, FULL_MS, CALLS)
            for name, entered in racing:
                yield text, name, self.result(text, min(entered, key=lambda each: min(each.turns)))

    def enter(self, text: str, name: str, plans: Any, memory: Memory) -> list[Contender] | Result:
        """Contenders by the name of what computes; or why there is none."""
        problem = Problem.parse(text)
        if isinstance(plans, dict):
            return plans
        if plans:
            try:
                return [Contender(f"{plan.solver} {plan.config}".strip(), plan.call(memory)) for plan in plans]
            except torch.OutOfMemoryError:
                return {"absent": "not enough memory for the attention weights"}
        if problem.dense_flops > self.dense_gflop * 1e9:
            return {"absent": f"above {self.dense_gflop:g} GFLOP"}
        try:
            return [Contender(f"torch {torch.__version__}", dense_call(DENSE[name], problem.op, memory))]
        except RuntimeError as error:  # the backend refuses, or memory is short
            return {"absent": str(error).strip().splitlines()[0]}

    def result(self, text: str, contender: Contender) -> Result:
        ns = min(contender.turns) * 1e6  # of medians; another process's work makes turns longer, never shorter
        timed = {"median_ns": ns, "turns_ns": [round(ms * 1e6) for ms in contender.turns]}
        solver, _, config = contender.name.partition(" ")
        if solver == "torch":
            flops = Problem.parse(text).dense_flops
            return {**timed, "flops_per_s": flops * 1e9 / ns, "solver": contender.name}
        problem, flops, size = parse_problem(text), ctypes.c_double(), ctypes.c_double()
        c.check(c.lib.nhood_problem_cost(problem, ctypes.byref(flops), ctypes.byref(size)))
        rates = {"flops_per_s": flops.value * 1e9 / ns, "bytes_per_s": size.value * 1e9 / ns}
        return {**timed, "solver": solver, "config": config, **rates}


# ---- many processes ----

_study: Optional[CudaStudy] = None  # of a worker


def _begin(name: str, *options: Any) -> None:
    global _study
    warnings.filterwarnings("ignore", module="torch")  # why a backend refuses is in the results
    warnings.filterwarnings("ignore", message=".*attention.*")
    device = torch.device(name)
    _study = CudaStudy(device, number_of(device), *options)


def _measure(asked: list[tuple[str, str]]) -> list[tuple[str, str, Result]]:
    return list(_study.measure(asked))


class Workers:
    """As CudaStudy, by many processes; problems are done when they are done, in no order. What nhood's results are
    held against, the device's ceilings, stands in them, too."""

    contenders = CONTENDERS

    def __init__(self, count: int, device: str, *options: Any) -> None:
        """options: of CudaStudy, but for the lock"""
        context = multiprocessing.get_context("forkserver")
        self.pool = ProcessPoolExecutor(count, context, _begin, (device, *options, context.Lock()))
        for _ in range(count):
            self.pool.submit(int)  # they begin, which takes seconds, while the device is measured
        self.ceilings = measure_ceilings(number_of(torch.device(device)))

    def measure(self, asked: list[tuple[str, str]]) -> Iterator[tuple[str, str, Result]]:
        made = [self.pool.submit(_measure, pairs) for pairs in by_problem(asked).values()]
        try:
            for one in as_completed(made):
                for text, name, result in one.result():
                    known = self.ceilings[text.split(":")[1]] if "bytes_per_s" in result else {}
                    yield text, name, {**result, **known}
        finally:
            for one in made:
                one.cancel()

    def close(self) -> None:
        """Ends what is under way, too."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
