"""The Python in a document: its blocks, run as a reader would, in a process of their own."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FRAGMENT = re.compile(r"\s*# fragment\b")


def blocks_of(name):
    """The ```python blocks of a document, but for those whose first line says that they are no whole."""
    found = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), flags=re.M | re.S)
    blocks = [block for block in found if not FRAGMENT.match(block)]
    assert blocks, f"{name} has no Python"
    return blocks


def run(name, folder, program):
    environment = {**os.environ, "NHOOD_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{name}:\n{done.stderr}"


def run_blocks(name, folder):
    """One after the other, as each may use what is above it."""
    run(name, folder, "\n".join(blocks_of(name)))


def run_each_block(name, folder):
    """Each with no names but its own."""
    run(name, folder, "\n".join(f"exec({block!r}, {{}})" for block in blocks_of(name)))
