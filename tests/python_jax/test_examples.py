"""The example programs, cut short."""

import re
import runpy
import sys
from pathlib import Path

import jax
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example in this process, in float32; its exit status and what it prints."""

    def run(name, *arguments):
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        status = 0
        with jax.enable_x64(False):
            try:
                runpy.run_path(str(EXAMPLES / name), run_name="__main__")
            except SystemExit as ended:
                status = ended.code
        return status, capsys.readouterr().out

    return run


def test_digits(run):
    """After one epoch it is good, but not perfect, which is an error if it should be."""
    status, printed = run("jax_digits.py", "--epochs", "1", "--expect", "1")
    assert status == 1 and float(re.search(r"accuracy ([\d.]+)", printed).group(1)) > 0.8


def test_globe(run):
    status, printed = run("jax_globe.py")
    assert status == 0
    periodic, bounded = (re.findall(r"0\.\d+", line) for line in printed.splitlines())
    assert float(bounded[0]) > 4 * float(periodic[0]), printed


def test_packed_images(run):
    """Packed and one by one alike, by programs that are compiled once; after few steps not all images are told right."""
    status, printed = run("jax_packed_images.py", "--steps", "40")
    assert status == 0, printed
    right = [float(x) for x in re.findall(r"([\d.]+)% of", printed)]
    status, printed = run("jax_packed_images.py", "--steps", "1")
    assert status == 1 and float(re.search(r"([\d.]+)% of", printed).group(1)) < right[0]


@pytest.mark.parametrize("name, module", [("jax_flax.py", "flax"), ("jax_equinox.py", "equinox")])
def test_layers(run, name, module):
    pytest.importorskip(module)
    status, printed = run(name)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert status == 0 and losses[2] < losses[1] < losses[0]
