"""What the documents show runs."""

import pytest
from documents import run_blocks


@pytest.mark.parametrize("name", ["docs/python.md", "bindings/python/README.md"])
def test_python_in_documents(name, tmp_path):
    run_blocks(name, tmp_path)
