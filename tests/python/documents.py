"""The Python in a document: its blocks, run one after another as a reader would, in a process of their own."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_blocks(name, folder, before=""):
    """Runs all ```python blocks of a document after `before`, which defines what they take for granted."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), flags=re.M | re.S)
    assert blocks, f"{name} has no Python"
    environment = {**os.environ, "NHOOD_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([before, *blocks])],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{name}:\n{done.stderr}"
