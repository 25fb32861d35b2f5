"""Contexts, plans and execution: what stands between the public functions and the C library.

The quick path of a call: read the arrays' addresses and layouts, find the plan by everything it depends on in
a bounded LRU cache, allocate the results, and execute with an io struct and a workspace from a pool. The pool
holds as many of them as calls have ever run at the same time, and each grows to the largest workspace it has
served: repeating calls allocates nothing but results. Pointers that a plan has no use for are made NULL when an io
struct comes to it from another plan.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

from . import _library as c
from . import _log, _quick, _words
from ._layouts import Layout
from ._memory import aligned_bytes
from ._operations import Operation, Tensor, bind, dtype_of, set_strides, tensor_dtype
from ._windows import Windows, windows_of

PLAN_CACHE_SIZE = 512
GROUP_CACHE_SIZE = 32
CPU = 0  # the library's number of the only device that takes CPU memory
CUDA_ALIGNMENT = 16  # of tensors, in bytes, for solvers that need some


class Context:
    """The library's context with what its plans are held to: a solver, and how much effort choosing is worth."""

    def __init__(
        self, threads: int = 0, isa: Optional[str] = None, solver: Optional[str] = None, bundle: Any = None
    ) -> None:
        self.handle = ctypes.c_void_p()
        self.solver = None if solver is None else _known_solver(solver)
        self.measuring: list[c.PlanOptions] = []
        """of the blocks of nhood.tuning() that are open, in all threads; the last one counts"""
        options = c.ContextOptions(
            struct_size=ctypes.sizeof(c.ContextOptions),
            threads=int_in(threads, "threads", 31),
            isa=None if isa is None else c.as_bytes("isa", isa),
            bundle=None if bundle is None else c.paths_as_bytes("bundle", bundle),
            interrupted=_quick.interrupted,
            log=_quick.keep_log,
        )
        self.estimating = plan_options(self.solver, c.EFFORT_ESTIMATE)
        """what plans are made with elsewhere"""
        status = c.lib.nhood_context_create(ctypes.byref(options), ctypes.byref(self.handle))
        _log.hand_on()
        if status:
            raise c.error(status, _words.of_options(c.last_error()))
        self.cuda_devices = {
            info.ordinal: number for number, info in enumerate(self.devices()) if info.kind == c.DEVICE_CUDA
        }
        """the library's numbers of CUDA devices, by ordinal"""
        self.threads_origin = c.text(c.lib.nhood_context_threads(self.handle))
        self.limit_threads(_thread_limit)

    def limit_threads(self, threads: int) -> None:
        """To at most so many, 0: all, unless their number was chosen for this library."""
        chosen = self.threads_origin in ("options.threads", "NHOOD_THREADS")
        c.check(c.lib.nhood_context_limit_threads(self.handle, 0 if chosen else min(threads, 1024)))

    def cuda_device(self, ordinal: int) -> int:
        number = self.cuda_devices.get(ordinal)
        if number is None:
            notes = c.text(c.lib.nhood_context_notes(self.handle))
            raise RuntimeError(f"the library does not see cuda:{ordinal}: {notes}")
        return number

    def devices(self) -> list[c.DeviceInfo]:
        found = []
        for number in range(c.lib.nhood_device_count(self.handle)):
            info = c.DeviceInfo(struct_size=ctypes.sizeof(c.DeviceInfo))
            c.check(c.lib.nhood_device_query(self.handle, number, info))
            found.append(info)
        return found

    handle: Optional[ctypes.c_void_p] = None  # of one whose making was interrupted

    def __del__(self, _destroy: Callable = c.lib.nhood_context_destroy) -> None:
        _destroy(self.handle)


def _known_solver(name: str) -> bytes:
    known: list[str] = []
    while (next_name := c.lib.nhood_solver_name(len(known), None)) is not None:
        known.append(c.text(next_name))
    given = c.as_bytes("solver", name)
    if name not in known:
        raise ValueError(f"solver = {name!r} is not one of {', '.join(known)}")
    return given


Outputs = tuple[Optional[tuple[tuple[int, ...], int]], ...]
"""shape and dtype per output of an operation, None for one that is not wanted"""


class Plan(NamedTuple):
    owner: PlanOwner
    handle: ctypes.c_void_p
    workspace_bytes: int
    outputs: Outputs
    slots: tuple[int, ...]
    """where the pointers of the inputs, then of the outputs, go: of those that are there"""

    @property
    def description(self) -> str:
        return c.text(c.lib.nhood_plan_description(self.handle))


class PlanOwner:
    """Releases the plan when the last of cache and running calls lets go of it."""

    handle: Optional[ctypes.c_void_p] = None  # of one whose making was interrupted
    called = False

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()

    def __del__(self, _release: Callable = c.lib.nhood_plan_release) -> None:
        _release(self.handle)


class Region(NamedTuple):
    """Where in a grid the arrays lie."""

    grid: Optional[tuple[int, ...]]
    """its lengths; None: those of the queries"""
    query_offset: tuple[int, ...]
    key_offset: tuple[int, ...]
    key_lengths: Optional[tuple[int, ...]] = None
    """where no input tells"""


class Request(NamedTuple):
    """What is asked for beside the arrays; with their layouts it is the key of a plan."""

    operation: Operation
    window: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    causal: tuple[bool, ...]
    scale: Optional[float]
    flags: int
    wanted: tuple[bool, ...]
    """per output"""
    kv_heads: Optional[int] = None
    """where no input tells"""
    periodic: Optional[tuple[bool, ...]] = None
    """None: no axis"""
    region: Optional[Region] = None
    """None: all arrays cover the whole grid"""
    windows: str = ""
    """as _windows.py writes them; axes with any have a window, stride and dilation of 1 in the fields above"""


_thread_limit = 0


def limit_threads(threads: int) -> None:
    """Limits the threads of contexts whose number of threads is the default, now and later."""
    global _thread_limit
    _thread_limit = threads
    if _context is not None:
        _context.limit_threads(threads)


_context: Optional[Context] = None
_context_lock = threading.Lock()


def current_context() -> Context:
    global _context
    if _context is None:
        with _context_lock:
            if _context is None:
                _context = Context()
    return _context


def set_context(context: Context) -> None:
    global _context
    with _context_lock:
        _context = context
    clear_cache()


_caches: list[Any] = []


def cached(function: Callable[..., Any]) -> Any:
    """Remembers results that hold plans, until clear_cache."""
    return _remembering(function, PLAN_CACHE_SIZE)


def cached_groups(function: Callable[..., Any]) -> Any:
    """As `cached`, but fewer: a plan of a group takes as much memory as those of its different members, each some 100 KB."""
    return _remembering(function, GROUP_CACHE_SIZE)


def _remembering(function: Callable[..., Any], most: int) -> Any:
    cache = functools.lru_cache(maxsize=most)(function)
    _caches.append(cache)
    return cache


def int_in(value: int, name: str, bits: int) -> int:
    """ctypes would silently cut an integer that its field cannot hold."""
    if not -(2**bits) <= value < 2**bits:
        raise ValueError(f"{name} = {value} does not fit {bits + 1} bits")
    return value


def _fill_axes(problem: c.Problem, request: Request, lengths: Sequence[int]) -> None:
    for i, window in enumerate(request.window):
        axis = problem.axis[i]
        axis.length = lengths[i]
        axis.window = int_in(window, f"kernel_size[{i}]", 63)
        axis.stride = int_in(request.stride[i], f"stride[{i}]", 63)
        axis.dilation = int_in(request.dilation[i], f"dilation[{i}]", 63)
        axis.causal = request.causal[i]
        axis.periodic = request.periodic is not None and request.periodic[i]


def _fill_windows(problem: c.Problem, windows: Sequence[Optional[Windows]]) -> None:
    for i, of_axis in enumerate(windows):
        if of_axis is not None:
            problem.windows[i] = of_axis.borrowed()
    problem.tables = windows  # which it borrows


def _fill_region(
    problem: c.Problem, region: Region, sizes: dict[str, int], windows: Sequence[Optional[Windows]]
) -> None:
    for i in range(problem.rank):
        axis, box = problem.axis[i], problem.region[i]
        of_axis = windows[i] if windows else None
        for side, letter, offset in (("query", "X", region.query_offset[i]), ("key", "Y", region.key_offset[i])):
            tokens = sizes[f"{letter}{i}"]
            length = of_axis.keys if of_axis is not None and side == "key" else axis.length
            if not 0 <= offset < length:
                raise ValueError(f"{side}_offset[{i}] = {offset} is not in [0, {length}), the grid's axis {i}")
            if tokens > (length if axis.periodic else length - offset):
                raise ValueError(
                    f"{side}_offset[{i}] = {offset} and {tokens} tokens on axis {i} of {side}: "
                    f"they reach beyond {length}, the grid's length"
                )
        box.query_offset, box.query_length = region.query_offset[i], sizes[f"X{i}"]
        box.key_offset, box.key_length = region.key_offset[i], sizes[f"Y{i}"]


def _window_sizes(problem: c.Problem, windows: Sequence[Optional[Windows]]) -> dict[str, int]:
    """What W and R stand for, after the clamping of windows that the library does."""
    sizes, slots = {}, 1
    for i in range(problem.rank):
        axis = problem.axis[i]
        window = axis.window
        of_axis = windows[i] if windows else None
        if of_axis is not None:
            window = of_axis.most
        elif problem.flags & c.FLAG_CLAMP_WINDOW:
            window = max(1, min(window, axis.length // axis.dilation))
        sizes[f"R{i}"] = 2 * window - 1
        slots *= window
    return {**sizes, "W": slots}


def _first(windows: Sequence[Optional[Windows]]) -> str:
    return next(f"kernel_size[{i}] = {of_axis}" for i, of_axis in enumerate(windows) if of_axis is not None)


def check_lengths(
    request: Request, windows: Sequence[Optional[Windows]], layouts: Sequence[Optional[Layout]], sizes: dict[str, int]
) -> None:
    """ValueError if arrays do not have as many queries and keys as the windows of an axis."""
    region, rank = request.region, len(request.window)
    if len(windows) != rank:
        raise ValueError(f"windows = {request.windows[:80]!r} has {len(windows)} entries, not {rank}")
    for i, of_axis in enumerate(windows):
        if of_axis is None:
            continue
        if region and region.grid and region.grid[i] != of_axis.queries:
            raise ValueError(f"grid[{i}] = {region.grid[i]}, but kernel_size[{i}] = {of_axis} has {of_axis.queries} queries")
        if region is not None:
            continue
        for letter, what, expected in (("X", "queries", of_axis.queries), ("Y", "keys", of_axis.keys)):
            size = sizes.get(f"{letter}{i}", expected)
            if size != expected:
                name, shape = _array_with(letter, request.operation.inputs, layouts)
                raise ValueError(
                    f"{name}.shape = {shape}: {size} {what} on axis {i}, but kernel_size[{i}] = {of_axis} has {expected}"
                )


def _array_with(
    letter: str, inputs: Sequence[Tensor], layouts: Sequence[Optional[Layout]]
) -> tuple[str, tuple[int, ...]]:
    return next((of.name, layout[0]) for of, layout in zip(inputs, layouts) if layout is not None and letter in of.shape)


def _problem(request: Request, layouts: Sequence[Optional[Layout]]) -> tuple[c.Problem, dict[str, int]]:
    """What the library is to be asked, and the sizes that letters stand for. ValueError, TypeError."""
    try:
        return _fill_problem(request, layouts)
    except ValueError as error:
        raise _words.heads_first(error, request, layouts, _fill_problem) from None


def _check(status: int, request: Request, layouts: Sequence[Optional[Layout]]) -> None:
    if status:
        raise c.error(status, _words.of_problem(c.last_error(), request, layouts))


def _fill_problem(request: Request, layouts: Sequence[Optional[Layout]]) -> tuple[c.Problem, dict[str, int]]:
    operation, rank = request.operation, len(request.window)
    dtype = dtype_of(operation, layouts)
    given = {} if request.kv_heads is None else {"K": int_in(request.kv_heads, "kv_heads", 63)}
    region = request.region
    if region and region.key_lengths:
        given.update({f"Y{i}": length for i, length in enumerate(region.key_lengths)})
    windows = windows_of(request.windows)
    own_keys = range(rank) if region else [i for i, of_axis in enumerate(windows) if of_axis is not None]
    sizes = bind(operation, layouts, rank, given, own_keys)
    lengths = region.grid if region and region.grid else [sizes[f"X{i}"] for i in range(rank)]
    if windows:
        check_lengths(request, windows, layouts, sizes)
        lengths = [length if of is None else of.queries for of, length in zip(windows, lengths)]
    for i, length in enumerate(lengths):
        of_axis = windows[i] if windows else None
        sizes.setdefault(f"Y{i}", int_in(length, f"grid[{i}]", 63) if of_axis is None else of_axis.keys)
    problem = c.Problem()
    c.lib.nhood_problem_init_sized(problem, ctypes.sizeof(problem), operation.code, dtype, rank)
    problem.flags = request.flags
    problem.batch, problem.heads = sizes["B"], sizes["H"]
    problem.kv_heads = sizes.setdefault("K", sizes["H"])
    problem.dim = sizes.get("D", 1)
    problem.dim_v = sizes.get("V", 1)
    problem.extra_tokens = sizes.get("M", 0)
    problem.has_bias = "R0" in sizes
    if problem.has_bias and windows:
        raise ValueError(f"bias with {_first(windows)}: a relative bias needs windows by formula on all axes")
    if request.scale is not None:
        if request.scale != request.scale:  # to the library, NaN means the default
            raise ValueError("scale = nan is not finite")
        problem.scale = request.scale
    _fill_axes(problem, request, lengths)
    _fill_windows(problem, windows)
    # The library judges the windows before shapes that follow from them are compared.
    _check(c.lib.nhood_problem_cost(problem, None, None), request, layouts)
    if region:
        _fill_region(problem, region, sizes, windows)
        _check(c.lib.nhood_problem_cost(problem, None, None), request, layouts)
    without_windows = {letter: size for letter, size in sizes.items() if letter[0] not in "WR"}
    sizes = bind(operation, layouts, rank, {**without_windows, **_window_sizes(problem, windows)}, own_keys)
    for tensor, layout in zip(operation.inputs, layouts):
        if layout is not None:
            set_strides(problem.strides[tensor.slot], tensor, layout, rank)
    return problem, sizes


def plan_options(solver: Optional[bytes], effort: int, budget: float = 0.0) -> c.PlanOptions:
    return c.PlanOptions(ctypes.sizeof(c.PlanOptions), solver, effort, budget_s=budget)


def current_options(context: Context) -> c.PlanOptions:
    measuring = context.measuring[-1:]  # at once: other threads change it
    return measuring[0] if measuring else context.estimating


def _create(context: Context, device: int, problem: c.Problem, words: Callable[[str], str] = str) -> PlanOwner:
    """words: of the caller, for the library's text."""
    options = current_options(context)
    owner = PlanOwner()
    status = c.lib.nhood_plan_create(context.handle, device, problem, options, ctypes.byref(owner.handle))
    _log.hand_on()
    if status:
        raise c.error(status, _words.of_options(words(c.last_error())))
    return owner


def _outputs(request: Request, problem: c.Problem, sizes: dict[str, int]) -> Outputs:
    rank = len(request.window)
    return tuple(
        (tuple(sizes[letter] for letter in tensor.letters(rank)), tensor_dtype(tensor, problem.dtype))
        if wanted
        else None
        for tensor, wanted in zip(request.operation.outputs, request.wanted)
    )


@functools.lru_cache(maxsize=PLAN_CACHE_SIZE)
def describe(request: Request, layouts: tuple[Optional[Layout], ...]) -> tuple[bytes, Outputs]:
    """A request on packed arrays as the text of its problem (find_plan_of_text), and what it results in. Raises what find_plan
    would, but for want of a solver."""
    problem, sizes = _problem(request, layouts)
    length = ctypes.c_size_t()
    c.lib.nhood_problem_format(problem, None, 0, ctypes.byref(length))
    text = ctypes.create_string_buffer(length.value + 1)
    c.check(c.lib.nhood_problem_format(problem, text, len(text), None))
    return _with_tables(text.value, request.windows), _outputs(request, problem, sizes)


_TABLE = re.compile(rb"t(\d+)#[0-9a-f]{16}(?:v\d+)?")


def _with_tables(text: bytes, windows: str) -> bytes:
    """The library's text names a table by a hash only. Here it names windows with as many queries, keys and slots, and the tables
    follow behind a line break, as _windows.py writes them."""
    if not _TABLE.search(text):
        return text
    most = iter([of_axis.most for of_axis in windows_of(windows) if of_axis is not None and of_axis.is_table])
    return _TABLE.sub(lambda found: b"r%sw%d" % (found[1], next(most)), text) + b"\n" + windows.encode()


@cached
def find_plan_of_text(context: Context, device: int, text: bytes) -> tuple[PlanOwner, int]:
    """The plan of a problem on packed tensors, and the bytes of its workspace."""
    problem = c.Problem()
    fields, _, windows = text.partition(b"\n")
    c.check(c.lib.nhood_problem_parse_sized(fields, ctypes.byref(problem), ctypes.sizeof(problem)))
    _fill_windows(problem, windows_of(windows.decode()))
    owner = _create(context, device, problem)
    return owner, c.lib.nhood_plan_workspace_bytes(owner.handle)


@cached
def find_plan(
    context: Context, device: int, request: Request, layouts: tuple[Optional[Layout], ...]
) -> Plan:
    """The plan for a request on arrays of these layouts, made if it is not in the cache."""
    problem, sizes = _problem(request, layouts)
    operation = request.operation
    owner = _create(context, device, problem, lambda text: _words.of_problem(text, request, layouts))
    outputs = _outputs(request, problem, sizes)
    given = [tensor.slot for tensor, layout in zip(operation.inputs, layouts) if layout is not None]
    wanted_slots = [tensor.slot for tensor, output in zip(operation.outputs, outputs) if output]
    slots = (*given, *wanted_slots)
    return Plan(owner, owner.handle, c.lib.nhood_plan_workspace_bytes(owner.handle), outputs, slots)


def flops(request: Request, layouts: Sequence[Optional[Layout]]) -> float:
    """Useful floating-point operations of a request, 2 per multiply-add."""
    count = ctypes.c_double()
    c.check(c.lib.nhood_problem_cost(_problem(request, layouts)[0], ctypes.byref(count), None))
    return count.value


class _Scratch:
    """An io struct and the workspace in it, for one call at a time."""

    __slots__ = ("data", "io", "reference", "slots", "workspace")

    def __init__(self) -> None:
        self.io = c.Io(struct_size=ctypes.sizeof(c.Io))
        self.reference = ctypes.byref(self.io)
        self.data = self.io.data
        self.slots: Optional[tuple[int, ...]] = ()
        """all that are not NULL; None: not known"""
        self.workspace: Any = None

    def reserve(self, size: int) -> None:
        """Any line may be the last one, by a MemoryError or a KeyboardInterrupt: a workspace is there only once its size
        is set, and that is taken back before the memory goes."""
        self.io.workspace_bytes = 0
        self.io.workspace = None
        self.workspace = None  # frees the old one before the new one is allocated
        self.workspace = aligned_bytes(size)
        self.io.workspace = self.workspace.ctypes.data
        self.io.workspace_bytes = size

    def use(self, slots: tuple[int, ...]) -> None:
        """Makes all others NULL."""
        self.slots = None
        self.data[:] = _NO_POINTERS
        self.slots = slots


_NO_POINTERS = [None] * c.TENSOR_SLOTS

_idle: list[_Scratch] = []  # append and pop are atomic


def clear_cache() -> None:
    """Forgets all plans and frees all workspaces. Running calls keep what they use."""
    for cache in _caches:
        cache.cache_clear()
    _quick.forget()
    _idle.clear()
    _idle_io.clear()


def take_scratch() -> _Scratch:
    """From the pool, to which give_back returns it."""
    try:
        return _idle.pop()
    except IndexError:
        return _Scratch()


give_back = _idle.append


def execute(plan: Plan, addresses: Sequence[int]) -> None:
    """Runs a plan on the CPU, in a workspace from the pool. The addresses are those of the plan's slots."""
    scratch = take_scratch()
    try:
        if scratch.io.workspace_bytes < plan.workspace_bytes:
            scratch.reserve(plan.workspace_bytes)
        slots, data = plan.slots, scratch.data
        if scratch.slots is not slots:
            scratch.use(slots)
        for slot, address in zip(slots, addresses):
            data[slot] = address
        status = _execute(plan.handle, scratch.reference)
        if status:
            _words.check_call(status)
    finally:
        _idle.append(scratch)


_execute = c.lib.nhood_plan_execute

_idle_io: list[c.Io] = []  # of CUDA calls; append and pop are atomic


def enqueue(plan: Plan, addresses: Sequence[int], workspace: Optional[int], stream: int) -> None:
    """Enqueues a plan of a CUDA device."""
    try:
        io = _idle_io.pop()
    except IndexError:
        io = c.Io(struct_size=ctypes.sizeof(c.Io))
    io.workspace, io.workspace_bytes, io.stream = workspace, plan.workspace_bytes, stream
    data = io.data
    data[:] = _NO_POINTERS
    for slot, address in zip(plan.slots, addresses):
        data[slot] = address
    status = _execute(plan.handle, ctypes.byref(io))
    _idle_io.append(io)
    _words.check_call(status)
