"""The library's log in Python's: level and text, of the call that caused it; NHOOD_LOG."""

import logging
import subprocess
import sys
from pathlib import Path

import nhood
import pytest
from nhood import _quick

pytestmark = pytest.mark.skipif(_quick._module is None, reason="the module nhood_quick is not there")


@pytest.fixture(autouse=True)
def default_settings():
    yield
    nhood.configure()


def test_warnings(caplog, monkeypatch, tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    (folder / "wisdom").write_text("no wisdom")
    monkeypatch.setenv("NHOOD_CACHE", str(folder))
    with caplog.at_level(logging.INFO, logger="nhood"):
        nhood.configure()
        (record,) = caplog.records
        assert record.name == "nhood" and record.levelno == logging.WARNING
        assert record.getMessage().startswith("wisdom is not used: ")
        caplog.clear()
        nhood.import_wisdom("nhood-wisdom 1\nno line of wisdom\n")
        assert [r.levelname for r in caplog.records] == ["WARNING"] and "left out" in caplog.text


def run(code, **environment):
    paths = {"NHOOD_LIBRARY": str(nhood.library_path), "PYTHONPATH": str(Path(nhood.__file__).parent.parent)}
    return subprocess.run([sys.executable, "-c", code], env={**paths, **environment}, capture_output=True, text=True).stderr


def test_levels_of_the_environment():
    damaged = "import nhood; nhood.import_wisdom('nhood-wisdom 1\\nno line of wisdom\\n')"
    assert "left out" in run(damaged, NHOOD_CACHE="")
    assert "nhood: WARNING: " in run(damaged, NHOOD_CACHE="", NHOOD_LOG="info")
    assert run(damaged, NHOOD_CACHE="", NHOOD_LOG="error") == ""
    assert "ValueError: NHOOD_LOG = 'loud' is not one of error, warning, info" in run("import nhood; nhood.devices()", NHOOD_LOG="loud")


def test_programs_without_a_log_of_their_own():
    code = """
import ctypes, os
lib = ctypes.CDLL(os.environ["NHOOD_LIBRARY"])
context = ctypes.c_void_p()
assert lib.nhood_context_create(None, ctypes.byref(context)) == 0
lib.nhood_wisdom_import(context, b"nhood-wisdom 1\\nno line of wisdom\\n", None)
"""
    assert run(code, NHOOD_CACHE="") == ""
    assert run(code, NHOOD_CACHE="", NHOOD_LOG="error") == ""
    for level in ("warning", "info"):
        line = run(code, NHOOD_CACHE="", NHOOD_LOG=level)
        assert line.startswith("nhood: warning: ") and "left out" in line and line.count("\n") == 1
