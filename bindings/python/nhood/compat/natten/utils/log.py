"""NATTEN's loggers: NATTEN_LOG_LEVEL sets the level, NATTEN_LOG_PIPE the stream or file. Silent while torch
compiles, where a log call would break the graph."""

import logging
import sys
from typing import IO, Union

from .environment import is_torch_compiling, parse_env_str

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
log_format = "| %(asctime)s | [[ %(name)s ]] [ %(levelname)s ]: %(message)s"


def _get_log_level() -> int:
    return _LEVELS.get(parse_env_str("NATTEN_LOG_LEVEL", "").lower(), logging.INFO)


def _get_log_pipe() -> Union[IO, str, None]:
    """stdout, stderr, the name of a file that can be appended to, or None: nothing is logged."""
    pipe = parse_env_str("NATTEN_LOG_PIPE", "stdout")
    if pipe == "/dev/null":
        return None
    if pipe.lower() in ("stdout", "stderr"):
        return getattr(sys, pipe.lower())
    try:
        open(pipe, "a").close()
    except OSError:
        return None
    return pipe


def _handler() -> logging.Handler:
    pipe = _get_log_pipe()
    if pipe is None:
        return logging.NullHandler()
    return logging.FileHandler(pipe) if isinstance(pipe, str) else logging.StreamHandler(pipe)


class NattenLogger:
    def __init__(self, name: str):
        self.logger = logging.getLogger(name)
        self.log_level = _get_log_level()
        self.formatter = logging.Formatter(log_format)
        self.handler = _handler()
        self.handler.setFormatter(self.formatter)
        self.handler.setLevel(self.log_level)
        self.logger.setLevel(self.log_level)
        self.logger.addHandler(self.handler)

    def is_safe_to_log(self) -> bool:
        return not is_torch_compiling()

    def _log(self, level: int, args: tuple, kwargs: dict) -> None:
        if self.is_safe_to_log():
            self.logger.log(level, *args, **kwargs)

    def debug(self, *args, **kwargs) -> None:
        self._log(logging.DEBUG, args, kwargs)

    def info(self, *args, **kwargs) -> None:
        self._log(logging.INFO, args, kwargs)

    def warning(self, *args, **kwargs) -> None:
        self._log(logging.WARNING, args, kwargs)

    def error(self, *args, **kwargs) -> None:
        self._log(logging.ERROR, args, kwargs)


def get_logger(name: str) -> NattenLogger:
    return NattenLogger(name)
