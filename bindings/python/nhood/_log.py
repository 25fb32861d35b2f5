"""The library's log on its way to Python's: the logger "nhood".

The library writes lines while it holds locks, so they are kept by nhood_quick and handed on by the call that caused them. NHOOD_LOG
sets the logger's level, and shows its records on stderr if the program has set up no handler.
"""

from __future__ import annotations

import logging
import os

from . import _library as c
from . import _quick

LOGGER = logging.getLogger("nhood")
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO)
_NAMES = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


def _set_level() -> None:
    level = _NAMES.get(os.environ.get("NHOOD_LOG", ""))
    if level is None:  # the library says so if it is none of the names
        return
    LOGGER.setLevel(level)
    if not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("nhood: %(levelname)s: %(message)s"))
        LOGGER.addHandler(handler)


_set_level()


def hand_on() -> None:
    """Called after what may write to the log."""
    for level, line in _quick.taken_log():
        LOGGER.log(_LEVELS[level], "%s", c.text(line))
