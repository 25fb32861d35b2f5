#!/usr/bin/env python3
"""What a call of nhood.torch costs on the smallest problem, and on what the time goes: 1x7x7 tokens, 1 head,
dim 32, window 3x3, f32, one thread; on the CPU, and where there is a CUDA device there too.

Lines are timed as in python_overhead.py. On CUDA they are what the CPU does until the call returns. Needs the
package and torch: installed, or PYTHONPATH=bindings/python in a source tree that is built.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Sequence
from typing import Any, Callable

import nhood
import nhood.torch
import torch
from nhood import _library, _plans
from nhood.torch import _dispatch, _functions, _ops, _tensors
from python_overhead import SHAPE, print_times

AXES = ((3, 3), (1, 1), (1, 1), (False, False))


class Keeping(torch.autograd.Function):
    """What every attention with gradients does beside computing."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = arguments[0].detach(), arguments[1].detach()
        ctx.save_for_backward(*arguments[:6], out, lse)
        ctx.set_materialize_grads(False)
        ctx.parameters = arguments[6:]
        return out, lse


def parts(device: str) -> dict[str, Callable[[], Any]]:
    query, key, value = torch.randn(3, *SHAPE, device=device).unbind()
    inputs = (query, key, value, None, None, None)
    arguments = (*inputs, *AXES, None, False, False)
    trained = [t.clone().requires_grad_() for t in (query, key, value)]
    request, _ = _ops._ask_na(*arguments)
    seen = [t if t is None else (t.shape, t.stride(), t.dtype) for t in inputs]
    context = _plans.current_context()
    number = _plans.CPU if device == "cpu" else context.cuda_device(query.get_device())
    call = _tensors._prepare(context, number, request, *seen)
    lines = {
        f"na2d(query, key, value, 3) on {device}": lambda: nhood.torch.na2d(query, key, value, 3),
        "· arguments to axes": lambda: _functions._axes(2, 3, 1, 1, False),
        "· autocast or not": lambda: _functions.autocast(query, key, value, None, None, None),
        "· past the dispatcher or not": lambda: _dispatch.only_implementation(inputs),
        "· implementation": lambda: _ops._na(*arguments),
        "· · arguments to a request": lambda: _ops._ask_na(*arguments),
        "· · torch's settings": lambda: _tensors._settings(request, query, 0),
        "· · request, shapes, strides and dtypes to a plan": lambda: _tensors._prepare(
            context, number, request, *seen
        ),
        "· · a result tensor": lambda: query.new_empty(SHAPE),
        "· · nhood_plan_execute, through ctypes": execution(call, inputs),
        "through the dispatcher: torch.ops.nhood.na": lambda: torch.ops.nhood.na.default(*arguments),
        "na2d on tensors that require gradients": lambda: nhood.torch.na2d(*trained, 3),
        "· torch's part: a Function that only keeps its tensors": lambda: Keeping.apply(
            *trained, None, None, None, AXES, None, False
        ),
    }
    sequences = [t.reshape(1, 1, 49, 32) for t in (query, key, value)]
    mask = torch.ones(49, 49, dtype=torch.bool, device=device)
    attention = torch.nn.functional.scaled_dot_product_attention
    lines["torch attention with a mask"] = lambda: attention(*sequences, attn_mask=mask)
    return lines


def execution(call: Any, inputs: Sequence[Any]) -> Callable[[], Any]:
    """The C call alone."""
    plan, first = call.plan, inputs[0]
    addresses = [None if t is None else t.data_ptr() for t in inputs]
    results = _tensors._allocate(call, first, addresses)
    workspace = torch.empty(plan.workspace_bytes + 64, dtype=torch.uint8, device=first.device)
    io = _library.Io(struct_size=ctypes.sizeof(_library.Io), workspace_bytes=plan.workspace_bytes)
    io.workspace = -(-workspace.data_ptr() // 64) * 64
    for slot, address in zip(plan.slots, addresses):
        io.data[slot] = address
    execute, handle, reference = _library.lib.nhood_plan_execute, plan.handle, ctypes.byref(io)
    memory = (plan, inputs, results, workspace)  # kept alive with the function
    return lambda memory=memory: execute(handle, reference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15, help="per line of the table (default 15)")
    options = parser.parse_args()
    nhood.configure(threads=1)
    torch.set_num_threads(1)
    for device in ["cpu"] + (["cuda"] if torch.cuda.is_available() else []):
        print(f"\nnhood {nhood.version()}, {nhood.devices()[0].description}, torch {torch.__version__}\n")
        print_times(parts(device), options.turns)


if __name__ == "__main__":
    main()
