"""What the documents show runs, and gives the results that it says are equal."""

import shutil
import subprocess
import sys

import pytest
from documents import blocks_of, run_blocks, run_documents

NAMES = [
    "docs/groups.md",
    "docs/migrating-from-natten.md",
    "docs/models.md",
    "docs/regions.md",
    "docs/windows.md",
]


def test_python_in_documents(tmp_path):
    run_documents(NAMES, ["README.md", "docs/how-do-i.md"], tmp_path)


def test_python_that_compiles(tmp_path):
    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler")
    run_blocks("docs/pytorch.md", tmp_path)


def test_distributed(tmp_path):
    """By two processes, as torchrun starts them."""
    program = tmp_path / "this.py"
    program.write_text("\n".join(blocks_of("docs/distributed.md")))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launch, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
