"""Calls that end by an exception of Python: what follows computes right values, in memory that is still there."""

import nhood
import numpy as np
import pytest
from interrupts import assert_workspaces_are_owned, at_every_bytecode
from nhood import _arrays, _dlpack, _memory, _plans

SMALL = np.random.default_rng(0).standard_normal((3, 1, 16, 1, 8)).astype(np.float32)
LARGE = np.random.default_rng(1).standard_normal((3, 1, 300, 2, 32)).astype(np.float32)


def backward(arrays, window):
    out, lse = nhood.na1d(*arrays, window, return_lse=True)
    return nhood.na1d_backward(out, *arrays, out, lse, window)


@pytest.fixture(autouse=True)
def one_thread(long_way):
    """With the workspaces of the pool; test_quick.py has the calls that need none."""
    nhood.configure(threads=1)
    yield
    nhood.configure()


def assert_equal(got, expected):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("error", (KeyboardInterrupt, MemoryError))
@pytest.mark.parametrize("step, cold", ((1, False), (37, True)))
def test_errors_between_any_two_bytecodes(error, step, cold):
    """In a call that needs a larger workspace than the pool has, with its plan in the cache and without."""
    expected = backward(SMALL, 3), backward(LARGE, 101)
    assert_workspaces_are_owned()
    largest = max(scratch.io.workspace_bytes for scratch in _plans._idle)
    places = 0

    def grow():
        _plans._idle.clear()
        backward(SMALL, 3)
        assert _plans._idle[0].io.workspace_bytes < largest
        if cold:
            nhood.clear_cache()

    grow()
    for _ in at_every_bytecode(error, lambda: backward(LARGE, 101), step):
        assert_workspaces_are_owned()
        assert_equal(backward(SMALL, 3), expected[0])
        grow()
        places += 1
    assert places > 100
    assert_equal(backward(LARGE, 101), expected[1])


def test_every_allocation_fails(monkeypatch):
    """Those of results and workspaces, which are the ones that ask for more than some objects."""
    expected = backward(SMALL, 3), backward(LARGE, 101)
    empty = np.empty

    class Failing:
        def __init__(self, left):
            self.left = left

        def __getattr__(self, name):
            return getattr(np, name)

        def empty(self, *arguments):
            self.left -= 1
            if self.left == -1:
                raise MemoryError
            return empty(*arguments)

    for number in range(100):
        _plans._idle.clear()
        backward(SMALL, 3)
        with monkeypatch.context() as patch:
            failing = Failing(number)
            for module in (_arrays, _memory):
                patch.setattr(module, "np", failing)
            try:
                backward(LARGE, 101)
                break
            except MemoryError:
                pass
        assert_workspaces_are_owned()
        assert_equal(backward(SMALL, 3), expected[0])
    assert number >= 6  # out, lse, three gradients, and a workspace
    assert_equal(backward(LARGE, 101), expected[1])


def test_a_workspace_that_cannot_be_had():
    """The memory that a pooled io struct pointed to is gone by then."""
    code = """if True:
        import numpy as np, nhood
        nhood.configure(threads=1)
        x = np.random.default_rng(0).standard_normal((1, 600, 1, 32)).astype(np.float32)
        expected = nhood.na1d(x, x, x, 501)
        from nhood import _plans
        (scratch,) = _plans._idle
        assert scratch.io.workspace_bytes > 0
        try:
            scratch.reserve(1 << 60)
            raise SystemExit("the memory was there")
        except MemoryError:
            pass
        assert scratch.workspace is None and scratch.io.workspace_bytes == 0
        for _ in range(20):
            assert np.array_equal(nhood.na1d(x, x, x, 501), expected)
    """
    from test_runtime import run_python

    done = run_python(code)
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_a_capsule_that_cannot_be_made_holds_nothing(monkeypatch):
    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(_dlpack, "_new_capsule", fails)
    before = dict(_dlpack._exported)
    with pytest.raises(MemoryError):
        _dlpack.capsule_of(64, (2, 3), 2, (2, 0), object(), None)
    assert _dlpack._exported == before


def test_contexts_and_plans_that_were_not_made():
    """Their finalizers find no handle and say nothing."""
    for kind in (_plans.Context, _plans.PlanOwner):
        kind.__del__(kind.__new__(kind))
