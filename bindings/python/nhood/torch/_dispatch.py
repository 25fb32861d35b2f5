"""Past torch's dispatcher, where that would do nothing but call the implementation, and take 4 µs for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad


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


def _is_plain_thread() -> bool:
    if torch.compiler.is_compiling() or not _PLAIN_THREADS:
        return False
    return not _profiling() and not _function_modes() and _thread_keys().raw_repr() in _PLAIN_THREADS


def only_implementation(tensors: Sequence[Optional[Tensor]]) -> bool:
    """Whether nothing but the implementation would take notice of a call with these tensors."""
    if not _is_plain_thread():
        return False
    for tensor in tensors:
        if tensor is not None and _tensor_keys(tensor).raw_repr() not in _PLAIN_TENSORS:
            return False
    return True


_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def only_inference(arguments: Iterable[Any]) -> bool:
    """Whether a call with these arguments, tensors and others, is nothing but the implementation on the tensors as they are:
    without autocast, gradients and forward-mode differentiation too. Said of few calls that it is not, of none that it is."""
    if not _is_plain_thread() or _any_autocast() or forward_ad._current_level >= 0:
        return False
    with_gradients = torch.is_grad_enabled()
    for argument in arguments:
        if type(argument) is Tensor:
            if with_gradients and argument.requires_grad:
                return False
            if _tensor_keys(argument).raw_repr() not in _PLAIN_TENSORS:
                return False
        elif isinstance(argument, Tensor):
            return False
    return True


def directly(operator: Any, implementation: Callable[..., Any], tensors: int) -> Callable[..., Any]:
    """Calls `operator`, whose first arguments are `tensors` tensors, past the dispatcher where that is the same."""

    def call(*arguments: Any) -> Any:
        plain = only_implementation(arguments[:tensors])
        return implementation(*arguments) if plain else operator(*arguments)

    return call
