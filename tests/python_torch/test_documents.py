"""What the documents show runs, and gives the results that it says are equal."""

import shutil

import pytest
from documents import run_blocks

BEFORE = {
    "README.md": "",
    "docs/migrating-from-natten.md": "",
    "docs/models.md": """
from nhood import models
checkpoint = models.create("dinat_tiny", num_classes=10).state_dict()
""",
    "docs/pytorch.md": "",
    "docs/regions.md": "",
}


@pytest.mark.parametrize("name", BEFORE)
def test_python_in_documents(name, tmp_path):
    if name == "docs/pytorch.md" and not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler")
    run_blocks(name, tmp_path, BEFORE[name])
