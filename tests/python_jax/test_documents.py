"""What docs/jax.md shows runs."""

from documents import run_blocks


def test_python_in_documents(tmp_path):
    run_blocks("docs/jax.md", tmp_path)
