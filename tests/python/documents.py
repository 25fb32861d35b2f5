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
    return done.stdout


def run_blocks(name, folder):
    """One after the other, as each may use what is above it."""
    run(name, folder, "\n".join(blocks_of(name)))


def run_documents(names, each_block, folder):
    """Several documents in one process, as importing torch takes most of one's time: each has no names but its own, and of those in
    each_block every block. An error's traceback names the document, and the block's number."""
    programs = [(name, "\n".join(blocks_of(name))) for name in names]
    programs += [(f"{name}, block {i}", block) for name in each_block for i, block in enumerate(blocks_of(name), 1)]
    lines = [f"exec(compile({program!r}, {name!r}, 'exec'), {{'__name__': '__main__'}})" for name, program in programs]
    said = run("documents", folder, "\n".join([*lines, "print('all of them')"]))
    assert said.endswith("all of them\n")  # none has ended the process
