"""Runs the C tool in the place of this process. Imports nothing of the package, so that the command `nhood` starts at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Optional

_WINDOWS = os.name == "nt"
_FILE = "nhood.exe" if _WINDOWS else "nhood"
_ELF = b"\x7fELF"  # how programs begin, but not the command of a wheel, which runs this


def _find(library: Optional[Path]) -> Optional[Path]:
    package = Path(__file__).resolve().parent
    places = [library.with_name(_FILE)] if library else []
    places.append(package / _FILE)
    if len(package.parents) > 2 and (package.parents[2] / "include" / "nhood.h").exists():
        places.append(package.parents[2] / "build" / _FILE)  # a source tree
    if not _WINDOWS:
        places.append(Path(sys.prefix, "bin", _FILE))  # conda's
        places.append(Path(shutil.which(_FILE) or _FILE))  # a distribution's
    for place in places:
        if place.is_file():
            with place.open("rb") as file:
                if _WINDOWS or file.read(len(_ELF)) == _ELF:
                    return place
    return None


def run(arguments: Sequence[str], library: Optional[Path] = None) -> NoReturn:
    """Ends this process as the tool ends. library: the one in use, beside which the tool is looked for first."""
    tool = _find(library)
    if tool is None:
        sys.exit(f"nhood: the tool is not installed: no {_FILE} beside the library nor on the path")
    if _WINDOWS:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tool receives it, too, and ends
        sys.exit(subprocess.call([str(tool), *arguments]))
    # Python ignores these, and a program that is executed inherits that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    sys.stdout.flush()
    os.execv(tool, [_FILE, *arguments])
