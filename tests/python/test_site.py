"""What the documents' site is made of: links and pictures, the notebook before it is executed, references without torch and JAX."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import nhood

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))
import pages  # noqa: E402


def test_pictures_that_are_drawn_twice_are_shown_by_scheme():
    picture = '<picture>\n  <source srcset="docs/speed-dark.svg">\n  <img alt="words" src="docs/speed.svg">\n</picture>'
    expected = "![words](speed.svg#only-light)![words](speed-dark.svg#only-dark)"
    assert pages.inside(picture, ROOT / "README.md") == expected
    assert pages.inside("![words](speed.svg)", ROOT / "docs" / "performance.md") == expected
    assert pages.inside("![words](sharded.svg)", ROOT / "docs" / "distributed.md") == "![words](sharded.svg)"


def test_links_are_to_pages_of_the_site():
    assert pages.inside("[words](examples/first_hour.py)", ROOT / "README.md") == "[words](first-hour.md)"
    assert pages.inside("[docs/python.md](docs/python.md#calls)", ROOT / "README.md") == "[The Python package](python.md#calls)"
    assert pages.inside("[the script](scripts/setup)", ROOT / "README.md") == "the script"


def test_notebook_without_results_has_all_cells():
    source = pages.NOTEBOOK.read_text()
    page = pages.from_source(source)
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    assert len(blocks) == len(re.findall(r"^# %%$", source, flags=re.M)) and "# %%" not in page
    assert ast.dump(ast.parse("\n".join(blocks))) == ast.dump(ast.parse(source))
    assert page.startswith("# A first hour with nhood\n")


def test_references_need_no_framework(tmp_path):
    names = ["nhood.torch", "nhood.torch.distributed", "nhood.models"]
    if (Path(nhood.library_path).parent / "nhood_xla.so").exists():
        names.append("nhood.jax")
    program = f"import sys; sys.argv[1:] = {[str(tmp_path), *names]}; import python_reference; python_reference.main()"
    paths = os.pathsep.join([str(ROOT / "docs/site"), str(ROOT / "bindings/python")])
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": paths}, check=True)
    page = (tmp_path / "reference-nhood-torch.md").read_text()
    assert "## `na1d`, `na2d`, `na3d`" in page and "dtype: torch.dtype = torch.float32" in page
    assert all("object at 0x" not in path.read_text() for path in tmp_path.iterdir())
