"""Environment variables, and what this torch can do."""

import os

import torch

from .device import get_device_cc


def parse_env_flag(env_var: str, default: bool) -> bool:
    return {"0": False, "1": True}.get(os.getenv(env_var, "").strip(), default)


def parse_env_int(env_var: str, default: int) -> int:
    try:
        return int(os.getenv(env_var, ""))
    except ValueError:
        return default


def parse_env_str(env_var: str, default: str) -> str:
    return os.getenv(env_var, str(default))


_IS_CUDA_AVAILABLE = torch.cuda.is_available()
_TORCH_VERSION = [int(part) for part in torch.__version__.split(".")[:2]]
_IS_TORCH_COMPILE_SUPPORTED = _TORCH_VERSION >= [2, 6] and get_device_cc() >= 70
DISABLE_TORCH_OPS = parse_env_flag("NATTEN_DISABLE_TORCH_OPS", False)


def is_torch_compiling() -> bool:
    return torch.compiler.is_compiling()
