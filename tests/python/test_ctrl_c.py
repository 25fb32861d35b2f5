"""Ctrl-C ends a long call within a second of computing, by KeyboardInterrupt, and the library is usable afterwards."""

import subprocess
import sys
from pathlib import Path

import nhood
import pytest
from nhood import _quick

pytestmark = pytest.mark.skipif(_quick._module is None, reason="the module nhood_quick is not there")

PROGRAM = """
import os, signal, sys, threading, time
import numpy as np, nhood

arrays = np.ones((3, 8, 128, 128, 4, 32), np.float32)
small = np.random.default_rng(0).standard_normal((3, 1, 64, 2, 16)).astype(np.float32)
nhood.configure(threads=2)
expected = nhood.na1d(*small, 7)

def press():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)

class Alarm(Exception):
    pass

def handler(*_):
    raise Alarm

calls = {
    "call": lambda: nhood.na2d(*arrays, 127),
    "tune": lambda: nhood.tune("fwd:f32:b8h4d32:128x128:w127x127", budget=0),
}
for name, error in (("call", KeyboardInterrupt), ("tune", KeyboardInterrupt), ("call", Alarm)):
    if error is Alarm:
        signal.signal(signal.SIGINT, handler)
    threading.Thread(target=press).start()
    start = time.process_time()
    try:
        calls[name]()
        sys.exit(name + " ended by itself")
    except error as caught:
        assert type(caught) is error
    taken = time.process_time() - start
    assert taken < 4, (name, taken)
    assert np.array_equal(nhood.na1d(*small, 7), expected)
print("done")
"""


def run(program):
    environment = {"NHOOD_LIBRARY": str(nhood.library_path), "PYTHONPATH": str(Path(nhood.__file__).parent.parent), "NHOOD_CACHE": ""}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)


def test_long_calls_end():
    done = run(PROGRAM)
    assert done.stdout == "done\n", done.stderr


def test_handlers_that_raise_nothing_let_calls_end():
    """They run while the call goes on, whose result is right."""
    done = run(
        """
import os, signal, threading, time
import numpy as np, nhood
came = []
signal.signal(signal.SIGUSR1, lambda *_: came.append(time.monotonic()))
arrays = np.random.default_rng(0).standard_normal((3, 1, 96, 96, 4, 32)).astype(np.float64)
nhood.configure(threads=1)
def press():
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGUSR1)
first = nhood.na2d(*arrays, 41)
threading.Thread(target=press).start()
second = nhood.na2d(*arrays, 41)
end = time.monotonic()
assert len(came) == 1 and came[0] < end and np.array_equal(first, second)
print("done")
"""
    )
    assert done.stdout == "done\n", done.stderr
