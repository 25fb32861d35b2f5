"""Calls that come again, past most of this package: by the module nhood_quick (native/quick.c), which is optional.

A call is remembered by all its arguments once it has been computed the long way. `call` then executes one that is the same
but for the memory of its arrays. Without the module every call goes the long way.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.machinery
import importlib.util
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from . import _library as c
from . import _words
from ._operations import Operation

_FILE = "nhood_quick.abi3.so"
_MOST_WORKSPACE = 1 << 20  # bytes: the module keeps one, and a call that needs more takes long anyway


def _load() -> Any:
    """The module; None where there is none, or the interpreter takes none of this ABI: PyPy, and Pythons without a global
    lock."""
    file = c.compiled(_FILE)
    if ".abi3.so" not in importlib.machinery.EXTENSION_SUFFIXES or not file.exists():
        return None
    loader = importlib.machinery.ExtensionFileLoader("nhood_quick", str(file))
    spec = importlib.util.spec_from_loader("nhood_quick", loader)
    try:
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        loader.exec_module(module)
    except ImportError:
        return None
    names = ("nhood_plan_execute", "nhood_plan_execute_group", "nhood_plan_create_group", "nhood_plan_workspace_bytes")
    addresses = tuple([ctypes.cast(getattr(c.lib, name), ctypes.c_void_p).value for name in names])
    if not module.start(addresses, object.__basicsize__, _words.check_call):
        return None
    tried = np.empty((3, 5))[:, 1:4]
    return module if module.add_type(tried, None, tried.ctypes.data, tried.shape, tried.strides) else None


_module = _load()

interrupted: Optional[int] = None
"""The address of what contexts ask during long calls, so that Ctrl-C ends them; None without the module."""
keep_log: Optional[int] = None
"""The address of what contexts write their log to; None without the module."""
taken_log: Callable[[], list[tuple[int, bytes]]] = list
"""The lines since the last call: level and text"""
if _module:
    keep_log, taken_log = _module.keep_log(), _module.taken_log
    interrupted = _module.watch_signals(threading.main_thread().ident)
    c.taken_exception = _module.taken_exception


class Call(NamedTuple):
    """A call on its long way."""

    generation: int
    arguments: tuple[Any, ...]
    names: tuple[str, ...]
    """of the parameters that the arguments are for"""
    keywords: tuple[str, ...]
    """the last of these names, given with the arguments"""
    contents: tuple[int, ...] = ()
    """the places of arguments that are tensors of int64 in CPU memory, of which it counts what they hold"""


Maker = tuple[Callable[..., Any], tuple[Any, ...]]
"""what makes a result, and the arguments to that"""


class Launch(NamedTuple):
    """How a plan of a CUDA device is enqueued."""

    stream: Callable[[int], int]
    """of the device's ordinal; its address"""
    workspace: Optional[Maker]
    setting: Optional[Callable[[], Any]]
    """on which the plan depends"""
    expected: Any
    """what that was"""


def no_call(*_: Any, **__: Any) -> bool:
    return False


call: Callable[..., Any] = _module.call if _module else no_call
"""(*arguments, **named) -> the results, one alone or a tuple of several; None if such a call is not remembered, False if it
cannot be"""

execute: Callable[..., Any] = _module.execute if _module else no_call
"""(*arguments) -> the same of calls that only execute, whatever gradients are recorded"""

knows: Callable[..., bool] = _module.knows if _module else no_call
"""(*arguments) -> whether `execute` would execute such a call"""


def nothing(*_: Any) -> None:
    return None


group_table: Callable[..., Optional[tuple[bytearray, int]]] = _module.group_table if _module else nothing
"""(layouts, kernel_size, kernel_sizes, stride, strides, dilation, dilations, is_causal) -> the table of these samples, and the words of
a row; None for what is unusual, or wrong"""

group_plan: Callable[..., Any] = _module.group_plan if _module else nothing
"""(blank, table, words, tensors, queries, keys, whole, addresses of context, device's number, of options and of what the plan is written to)
-> status, offsets, number of problems, bytes of the workspace, whether all queries and all keys are attended; None for what is unusual,
or wrong. Without the last four the problems come in the status's place (nhood/_groups.py)."""

group_bytes: Callable[..., Optional[tuple[bytes, int]]] = _module.group_bytes if _module else nothing
"""(table) -> what it holds, and the words of a row; None for what is no tensor of int64 [rows, words] in CPU memory, contiguous"""


def run_group(plan: Any, makers: Sequence[Maker], launch: Optional[Launch], arrays: tuple[Any, ...]) -> Any:
    """Executes the plan of a group; the results, one alone or a tuple. None if the module does not."""
    if _module is None or launch is None and plan.workspace_bytes > _MOST_WORKSPACE:
        return None
    made = (plan.owner, plan.handle.value, plan.workspace_bytes, plan.slots, makers, launch, plan.count, plan.offsets)
    return _module.run_group(*made, arrays)


if _module:
    atexit.register(_module.forget)  # plans go before the library


def begin(
    arguments: tuple[Any, ...], named: dict[str, Any], parameters: tuple[str, ...], contents: tuple[int, ...] = ()
) -> Call:
    """What `call` did not know. parameters: names of the first arguments at least, those of arrays as in the operation's
    inputs. Made before the call looks at the context: one that changes meanwhile makes it void."""
    names = (*parameters[: len(arguments)], *named)
    return Call(_module.generation(), (*arguments, *named.values()), names, tuple(named), contents)


def remember(
    begun: Call,
    operation: Operation,
    plan: Any,
    makers: Sequence[Maker],
    launch: Optional[Launch] = None,
    offsets: Optional[bytes] = None,
) -> None:
    """That the call is the execution of a plan on its arrays, with results by `makers`, in the order of the outputs.

    launch: None for plans of the CPU, with workspaces of the module's own. offsets: of the plan of a group, where its members
    begin in each array, as GroupPlan has them."""
    if launch is None and plan.workspace_bytes > _MOST_WORKSPACE:
        return
    slot_of = {tensor.name: tensor.slot for tensor in operation.inputs}
    given = zip(begun.names, begun.arguments)
    slots = [slot_of[name] for name, argument in given if name in slot_of and argument is not None]
    slots += plan.slots[len(slots) :]
    group = None
    if offsets is not None:
        group = plan.count, offsets
        if tuple(slots) != plan.slots:
            columns = [plan.slots.index(slot) for slot in slots]
            group = plan.count, np.ascontiguousarray(plan.offset_array[:, columns]).tobytes()
    handle = plan.handle.value
    _module.remember(
        begun.generation,
        begun.arguments,
        begun.keywords,
        plan.owner,
        handle,
        plan.workspace_bytes,
        tuple(slots),
        tuple(makers),
        launch,
        begun.contents,
        group,
    )


class Execution(NamedTuple):
    """What computes a call that gradients are recorded for."""

    first: tuple[Any, ...]
    """of its arguments for `execute`, the first; those of the call's tensors come next"""
    last: tuple[Any, ...]
    """the others"""
    results: int
    """the place among the rest of a function's arguments where its results are wanted"""


def remember_function(
    begun: Call,
    function: Callable[..., Any],
    names: Sequence[str],
    rest: tuple[Any, ...],
    execution: Execution,
    of_group: bool = False,
) -> None:
    """That where gradients are recorded for it the call is one of `function`: with its arguments of these names, None for those
    that it has not, and then the rest. If `execute` remembers the execution, that comes first, and the function gets its results
    in place of one of the rest. A tuple of one result is taken for that alone."""
    place_of = {name: place for place, name in enumerate(begun.names)}
    given = tuple([place_of.get(name, -1) for name in names])
    missing = (None,) * len(names)
    first, last, results = execution
    _module.remember_function(
        begun.generation,
        begun.arguments,
        begun.keywords,
        function,
        (*missing, *rest),
        (*given, *[-1] * len(rest)),
        (*first, *missing, *last),
        (*[-1] * len(first), *given, *[-1] * len(last)),
        len(names) + results,
        begun.contents,
        of_group,
    )


def forget() -> None:
    if _module is not None:
        _module.forget()


def add_type(array: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Makes tensors of torch's type known if it has DLPack's table of C functions, and that reads `array` as it lies; after
    tensors_are_plain."""
    capsule = getattr(type(array), "__dlpack_c_exchange_api__", None)
    if _module is not None and capsule is not None:
        _module.add_type(array, capsule, address, shape, strides)


def add_sequence(kind: type) -> None:
    """Takes objects of a subclass of tuple for the tuples that they are."""
    if _module is not None:
        _module.add_sequence(kind)


def tensors_are_plain(
    kind: type, samples: Sequence[tuple[Any, int, int]], plain: tuple[int, ...], grad_mode: Callable[[], bool]
) -> Optional[Callable[..., bool]]:
    """(without_gradients, *arguments) -> whether all tensors among the arguments have plain dispatch keys and, without
    gradients, none is recorded for them; None if the module does not find where tensors of torch have their keys.

    kind: their type; samples: some with the addresses and keys that torch tells of them; grad_mode: whether gradients are
    recorded at all."""
    if _module is None or not _module.learn_keys(kind, kind.__basicsize__, tuple(samples), plain, grad_mode):
        return None
    return _module.are_plain
