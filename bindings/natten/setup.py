"""Version: nhood's own, from the header. Nothing is written into the source tree but build/."""

import re
from pathlib import Path

from setuptools import setup

SOURCE = Path(__file__).resolve().parents[2]
HEADER = (SOURCE / "include" / "nhood.h").read_text()
NUMBERS = dict(re.findall(r"^#define NHOOD_VERSION_(MAJOR|MINOR|PATCH) (\d+)", HEADER, re.MULTILINE))

scratch = SOURCE / "build" / "natten"
scratch.mkdir(parents=True, exist_ok=True)
setup(
    version="{MAJOR}.{MINOR}.{PATCH}".format(**NUMBERS),
    options={"build": {"build_base": str(scratch)}, "egg_info": {"egg_base": str(scratch)}},
)
