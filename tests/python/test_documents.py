"""What the documents show runs."""

import pytest
from documents import run_blocks

BEFORE = {
    "docs/python.md": """
import numpy as np, nhood
d_out = np.ones((1, 56, 56, 4, 32), np.float32)
image = d_out[:, :9, :9]
def model(image):
    nhood.na2d(image, image, image, 3)
""",
}


@pytest.mark.parametrize("name", BEFORE)
def test_python_in_documents(name, tmp_path):
    run_blocks(name, tmp_path, BEFORE[name])
