"""An exception at every place of the package where one can come up: a KeyboardInterrupt may come between any two
bytecodes of the main thread, a MemoryError wherever something is made."""

import sys
from itertools import count
from pathlib import Path

import nhood
from nhood import _plans

_PACKAGE = str(Path(nhood.__file__).parent)


class _Countdown:
    """A trace function that raises `error` before the bytecode number `number` of the package."""

    def __init__(self, error, number):
        self.error, self.left = error, number

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise self.error
        return self


def at_every_bytecode(error, call, step=1):
    """Calls `call` again and again, with `error` raised one bytecode later each time (`step` bytecodes later), until it
    comes through; yields after each time. So that nothing stays undone, what it calls must be cold each time."""
    for number in count(0, step):
        before = sys.gettrace()
        sys.settrace(_Countdown(error, number))
        try:
            call()
            return
        except error:
            pass
        finally:
            sys.settrace(before)
        yield number


def assert_workspaces_are_owned():
    """No io struct of the pool has the address of memory that is not the pool's, or more of it than there is."""
    for scratch in _plans._idle:
        if scratch.io.workspace_bytes:
            assert scratch.io.workspace == scratch.workspace.ctypes.data
            assert scratch.io.workspace_bytes <= scratch.workspace.nbytes
