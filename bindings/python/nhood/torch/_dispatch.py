"""Past torch's dispatcher, where that would do nothing but call the implementation, and take 4 µs for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _quick
from ._transforms import formulas


def _keys(*names: str) -> int:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, names[0]))
    for name in names[1:]:
        keys = keys.add(getattr(torch._C.DispatchKey, name))
    return keys.raw_repr()


def _plain_tensors(backend: str) -> set[int]:
    in_inference_mode = (backend, f"Autocast{backend}")
    return {_keys(*in_inference_mode), _keys(*in_inference_mode, f"Autograd{backend}", "ADInplaceOrView")}


# The dispatcher goes by keys of the calling thread and of the tensors. With these it finds the implementation at
# once; all others are those of modes, tracers, transforms, other backends and tensors that stand for another
# (fake, meta, subclass, lazily negated ..).
try:
    _thread_keys, _tensor_keys = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_keys
    _profiling, _function_modes = torch._C._autograd._profiler_enabled, torch._C._len_torch_function_stack
    _PLAIN_THREADS = {_keys("BackendSelect"), _keys("BackendSelect", "ADInplaceOrView")}
    _PLAIN_TENSORS = _plain_tensors("CPU") | _plain_tensors("CUDA")
except AttributeError:  # a torch that does not tell: always through the dispatcher
    _PLAIN_THREADS = set()
    _profiling = _function_modes = lambda: True

_excluded, _AUTOGRAD = torch._C._dispatch_tls_is_dispatch_key_excluded, torch._C.DispatchKey.AutogradFunctionality
_grad_mode = torch.is_grad_enabled


def _recording() -> bool:
    """Whether this thread records gradients: kernels of the dispatcher below autograd do not, whatever the mode is."""
    return _grad_mode() and not _excluded(_AUTOGRAD)


# Dynamo traces these calls; export and make_fx have keys of their own in the thread.
_traced = torch.compiler.is_dynamo_compiling


def _is_plain_thread() -> bool:
    return not (_traced() or _profiling() or _function_modes()) and _thread_keys().raw_repr() in _PLAIN_THREADS


def _ask_torch(without_gradients: bool, *arguments: Any) -> bool:
    """Whether all tensors among the arguments have such keys and, without gradients, none is recorded for them."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            if without_gradients and argument.requires_grad and _recording():
                return False
            if _tensor_keys(argument).raw_repr() not in _PLAIN_TENSORS:
                return False
    return True


def _samples() -> Iterable[tuple[Tensor, int, int]]:
    """Tensors of all kinds of keys, their addresses and their keys."""
    plain = torch.empty(2, device="cpu")
    with torch.inference_mode():
        in_inference_mode = torch.empty(2, device="cpu")
    for tensor in (plain, in_inference_mode, plain.to("meta"), torch._neg_view(plain), plain.to_sparse()):
        yield tensor, tensor._cdata, _tensor_keys(tensor).raw_repr()


def _asking() -> Callable[..., bool]:
    """_ask_torch, or the same by the module nhood_quick in a tenth of the time, if that reads the keys of samples right."""
    if not _PLAIN_THREADS:
        return _ask_torch
    known = _quick.tensors_are_plain(Tensor, list(_samples()), tuple(_PLAIN_TENSORS), _recording)
    if known is None:
        return _ask_torch
    tried = torch.empty(3, 5, device="cpu")[:, 1:4]
    for array in (tried, torch.nn.Parameter(tried)):
        _quick.add_type(array, array.data_ptr(), tuple(array.shape), array.stride())
    _quick.add_sequence(torch.Size)
    return known


are_plain = _asking()
"""(without_gradients, *arguments) -> whether it is so of them"""


_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def only_inference_here() -> bool:
    """Whether calls in this thread are nothing but the implementation on the tensors as they are, if those are plain and nothing
    is recorded for gradients: without autocast and forward-mode differentiation too. Said of few threads that it is not so."""
    if _traced() or _profiling() or _function_modes() or _any_autocast() or forward_ad._current_level >= 0:
        return False
    return _thread_keys().raw_repr() in _PLAIN_THREADS


def directly(name: str, operator: Any, implementation: Callable[..., Any], tensors: int) -> Callable[..., Any]:
    """Calls `operator`, whose first arguments are `tensors` tensors, past the dispatcher where that is the same: its
    implementation or, where gradients are recorded, its formula."""

    def call(*arguments: Any) -> Any:
        if not _is_plain_thread() or forward_ad._current_level >= 0:
            return operator(*arguments)
        given = arguments[:tensors]
        if are_plain(True, *given):
            return implementation(*arguments)
        if not are_plain(False, *given):
            return operator(*arguments)
        return formulas[name].apply(*given, arguments[tensors:], implementation, False)

    return call
