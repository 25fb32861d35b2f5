"""Version: that of NATTEN, and behind the + that of nhood. Nothing is written into the source tree but build/."""

import re
from pathlib import Path

from setuptools import setup

SOURCE = Path(__file__).resolve().parents[2]
HEADER = (SOURCE / "include" / "nhood.h").read_text()
PACKAGE = SOURCE / "bindings" / "python" / "nhood" / "compat" / "natten"
NUMBERS = dict(re.findall(r"^#define NHOOD_VERSION_(MAJOR|MINOR|PATCH) (\d+)", HEADER, re.MULTILINE))
NATTEN = re.search(r'^__version__ = "(.+)"', (PACKAGE / "version.py").read_text(), re.MULTILINE).group(1)

scratch = SOURCE / "build" / "natten"
scratch.mkdir(parents=True, exist_ok=True)
setup(
    version=NATTEN + "+nhood.{MAJOR}.{MINOR}.{PATCH}".format(**NUMBERS),
    options={"build": {"build_base": str(scratch)}, "egg_info": {"egg_base": str(scratch)}},
)
