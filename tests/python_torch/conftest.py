"""Fixtures of all tests here."""

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import nhood
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def same_numbers():
    """Whatever ran before: a comparison within tolerances that holds once holds always."""
    torch.manual_seed(0)


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Iterator[Callable[..., Ended]]:
    """Runs one of the repository's programs in this process: importing torch once more takes seconds."""
    threads = torch.get_num_threads()

    def run(path: str, *arguments: object) -> Ended:
        program = ROOT / path
        monkeypatch.chdir(ROOT)
        monkeypatch.syspath_prepend(str(program.parent))
        monkeypatch.setattr(sys, "argv", [str(program), *map(str, arguments)])
        code = None
        try:
            runpy.run_path(str(program), run_name="__main__")
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        if isinstance(code, str):  # the interpreter would write it, and return 1
            return Ended(1, said.out, f"{said.err}{code}\n")
        return Ended(code or 0, said.out, said.err)

    yield run
    torch.set_num_threads(threads)
    nhood.configure()
