"""What NATTEN's own programs and tests ask of the build and the environment."""

from ._libnatten import HAS_LIBNATTEN
from .utils.environment import (
    _IS_CUDA_AVAILABLE,
    _IS_TORCH_COMPILE_SUPPORTED,
    _TORCH_VERSION,
    parse_env_flag,
    parse_env_int,
)

_RUN_EXTENDED_TESTS = parse_env_flag("NATTEN_RUN_EXTENDED_TESTS", False)
_RUN_FLEX_TESTS = parse_env_flag("NATTEN_RUN_FLEX_TESTS", True)
_RUN_ADDITIONAL_KV_TESTS = parse_env_flag("NATTEN_RUN_ADDITIONAL_KV_TESTS", True)
_NUM_RAND_SWEEP_TESTS = parse_env_int("NATTEN_RAND_SWEEP_TESTS", 1000)
DISABLE_TQDM = parse_env_flag("NATTEN_DISABLE_TQDM", False)

__all__ = [
    "DISABLE_TQDM",
    "HAS_LIBNATTEN",
    "_IS_CUDA_AVAILABLE",
    "_IS_TORCH_COMPILE_SUPPORTED",
    "_NUM_RAND_SWEEP_TESTS",
    "_RUN_ADDITIONAL_KV_TESTS",
    "_RUN_EXTENDED_TESTS",
    "_RUN_FLEX_TESTS",
    "_TORCH_VERSION",
]
