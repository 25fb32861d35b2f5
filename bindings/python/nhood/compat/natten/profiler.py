"""Times neighborhood attention as NATTEN's profiler does: python -m natten.profiler -i 56 56 -w 7 7 -n 4 -d 32

The options are NATTEN's. Those that choose a backend or a tile are checked as functions check them; nhood chooses
by itself, so --optimize has nothing left to try.
"""

import argparse
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _choice, _tiles
from .context import allow_flex_compile
from .functional import neighborhood_attention_generic
from .types import SCHEDULE_NAMES
from .utils import checks

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FP8 = ("e4m3", "e5m2")
SDPA = {"xformers": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION", "fav2": "FLASH_ATTENTION"}
_LEAST_SECONDS = 0.2


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m natten.profiler", description=__doc__)
    add = parser.add_argument
    add("-b", "--batch-size", type=int, default=1)
    add("-n", "--heads", type=int, default=1)
    add("--heads-kv", type=int, help="of key and value; default: --heads")
    add("-d", "--dim", type=int, default=64, help="head dim")
    add("--dim-value", type=int, help="head dim of value; default: --dim")
    add("-i", "--input-size", type=int, nargs="+", required=True, help="tokens on each axis")
    add("-w", "--window-size", type=int, nargs="*", help="default: --input-size, self attention")
    add("-s", "--stride", type=int, nargs="*")
    add("--dilation", type=int, nargs="*")
    add("-c", "--causal", type=int, nargs="*", help="0 or 1 for each axis")
    add("--dtype", choices=[*DTYPES, *FP8], default="fp16")
    add("--backprop", action="store_true", help="time the backward, too")
    add("--add-kv", type=int, default=0, help="additional tokens that every query attends")
    add("--backend", choices=[*_choice.FNA_BACKENDS, *SDPA])
    add("--fmha-backend", choices=_choice.FMHA_BACKENDS)
    for tile in ("--q-tile", "--kv-tile", "--backward-q-tile", "--backward-kv-tile"):
        add(tile, type=int, nargs="*")
    add("--schedule", choices=SCHEDULE_NAMES)
    add("--persistent", action="store_true", help="checked nowhere: nhood schedules its kernels")
    add("--compile", action="store_true", help="allow what --backend flex-fna would compile")
    add("--warmup-steps", type=int, default=10)
    add("--dry-run", action="store_true", help="list backends and their tiles for the problem, and exit")
    add("--max-configs", type=int, default=10, help="of --dry-run; 0: all")
    add("--optimize", action="store_true", help="nothing to do: nhood plans every problem")
    add("--optimize-warmup-steps", type=int, default=5)
    return parser


def _random(shape: Sequence[int], args: argparse.Namespace, device: torch.device) -> Tensor:
    return torch.randn(tuple(shape), dtype=DTYPES[args.dtype], device=device, requires_grad=args.backprop)


def _tensors(args: argparse.Namespace, device: torch.device) -> List[Tensor]:
    """query, key, value, and the two additional tensors if there are such tokens."""
    heads_kv, dim_value = args.heads_kv or args.heads, args.dim_value or args.dim
    tokens = (args.batch_size, *args.input_size)
    shapes: List[Tuple[int, ...]] = [
        (*tokens, args.heads, args.dim),
        (*tokens, heads_kv, args.dim),
        (*tokens, heads_kv, dim_value),
    ]
    if args.add_kv:
        shapes += [(args.batch_size, args.add_kv, heads_kv, dim) for dim in (args.dim, dim_value)]
    return [_random(shape, args, device) for shape in shapes]


def _tuning(args: argparse.Namespace) -> Dict[str, Any]:
    tiles = {
        f"{name}_shape": tuple(getattr(args, name))
        for name in ("q_tile", "kv_tile", "backward_q_tile", "backward_kv_tile")
        if getattr(args, name)
    }
    attention_kwargs = {"backend": args.fmha_backend} if args.fmha_backend else None
    return dict(
        tiles,
        backend=args.backend,
        kernel_schedule=args.schedule,
        torch_compile=args.compile,
        attention_kwargs=attention_kwargs,
    )


def _sdpa(args: argparse.Namespace, tensors: List[Tensor]) -> Callable[[], Tensor]:
    """torch's attention, of self attention only."""
    if args.window_size != args.input_size or any(args.causal) or args.add_kv:
        raise SystemExit(
            f"--backend {args.backend} is torch's attention: no windows, causal axes or additional tokens"
        )
    query, key, value = (t.flatten(1, -3).transpose(1, 2) for t in tensors)
    backend = getattr(torch.nn.attention.SDPBackend, SDPA[args.backend])
    grouped: Any = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}

    def call() -> Tensor:
        with torch.nn.attention.sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, **grouped)

    return call


def _operation(args: argparse.Namespace, tensors: List[Tensor]) -> Callable[[], Any]:
    if args.backend in SDPA:
        return _sdpa(args, tensors)
    query, key, value, *additional = tensors
    named = dict(zip(("additional_keys", "additional_values"), additional), **_tuning(args))
    axes = (args.window_size, args.stride, args.dilation, args.causal)
    return lambda: neighborhood_attention_generic(query, key, value, *axes, **named)


def _seconds(call: Callable[[], Any], warmup_steps: int, device: torch.device) -> float:
    """Mean of enough calls to fill a measurable time."""

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(warmup_steps):
        call()
    calls = 1
    while True:
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        elapsed = time.perf_counter() - start
        if elapsed >= _LEAST_SECONDS:
            return elapsed / calls
        calls *= 2


def _times(args: argparse.Namespace, device: torch.device) -> List[Tuple[str, float]]:
    tensors = _tensors(args, device)
    call = _operation(args, tensors)
    forward = _seconds(call, args.warmup_steps, device)
    if not args.backprop:
        return [("forward", forward)]
    out = call()
    d_out = torch.randn_like(out)
    backward = _seconds(
        lambda: torch.autograd.grad(out, tensors, d_out, retain_graph=True), args.warmup_steps, device
    )
    return [("forward", forward), ("backward", backward), ("total", forward + backward)]


def _print_configurations(args: argparse.Namespace, tensors: List[Tensor]) -> None:
    query, key, value = tensors[:3]
    for name in _choice.get_compatible_backends(query, key, value, args.compile):
        family, kind = name.split("-")
        for direction, configs in zip(("forward", "backward"), _tiles.OF_FAMILY[family, kind]):
            if direction == "backward" and not args.backprop:
                continue
            found = configs(query)
            shown = found[: args.max_configs] if args.max_configs else found
            print(f"{name} {direction}: {len(found)} pairs of query and key/value tiles")
            for config in shown:
                print(f"  {config}")


def _complete(args: argparse.Namespace) -> Optional[str]:
    """Fills in the defaults that depend on other options; returns what is wrong with them."""
    if args.dtype in FP8:
        return f"--dtype {args.dtype}: nhood has no FP8"
    if args.dry_run and args.optimize:
        return "--dry-run and --optimize exclude each other"
    if len(args.input_size) > 3:
        return f"--input-size has {len(args.input_size)} axes, expected 1 to 3"
    causal = [bool(c) for c in args.causal or [0] * len(args.input_size)]
    try:
        args.window_size, args.stride, args.dilation, args.causal = checks.check_all_args(
            len(args.input_size),
            args.window_size or args.input_size,
            args.stride or 1,
            args.dilation or 1,
            causal,
        )
    except ValueError as error:
        return str(error)
    args.input_size = tuple(args.input_size)
    return None


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = _arguments()
    args = parser.parse_args(arguments)
    wrong = _complete(args)
    if wrong:
        parser.error(wrong)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if args.compile:
        allow_flex_compile(True, True)
    if args.dry_run:
        _print_configurations(args, _tensors(args, device))
        return
    if args.optimize:
        print("--optimize: nhood plans every problem by itself, nothing to try")
    print(f"{args.backend or 'nhood'} on {device}, {args.dtype}")
    for name, seconds in _times(args, device):
        print(f"  {name:<10}{1e3 * seconds:12.3f} ms")


if __name__ == "__main__":
    main()
