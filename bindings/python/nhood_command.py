"""The command `nhood` that wheels install. It does not import the package: that takes longer than most of what the tool does."""

import importlib.util
import runpy
import sys
from pathlib import Path


def main() -> None:
    package = importlib.util.find_spec("nhood").submodule_search_locations[0]
    runpy.run_path(str(Path(package, "_tool.py")))["run"](sys.argv[1:])
