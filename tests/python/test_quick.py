"""nhood_quick: calls that come again give what they gave the long way, and whatever differs goes the long way."""

import ctypes
import gc
import inspect
import itertools
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nhood
import numpy as np
import pytest
from interrupts import at_every_bytecode
from nhood import _plans, _quick
from nhood._operations import FORWARD

pytestmark = pytest.mark.skipif(_quick._module is None, reason="nhood_quick is not built")
SHAPE = (1, 7, 7, 2, 8)
ENTRIES = 128  # of the table


@pytest.fixture(autouse=True)
def nothing_remembered():
    nhood.clear_cache()
    yield
    nhood.configure()


@pytest.fixture
def counted(monkeypatch):
    """How many calls were known."""
    known = []

    def call(*arguments, **named):
        result = _quick._module.call(*arguments, **named)
        known.append(result is not None and result is not False)
        return result

    monkeypatch.setattr(_quick, "call", call)
    return known


def arrays(seed=0, shape=SHAPE, dtype=np.float32):
    return [array for array in np.random.default_rng(seed).standard_normal((3, *shape)).astype(dtype)]


def assert_same(got, expected):
    got, expected = [x if isinstance(x, tuple) else (x,) for x in (got, expected)]
    assert len(got) == len(expected)
    for one, other in zip(got, expected):
        assert type(one) is np.ndarray and one.dtype == other.dtype and one.flags.c_contiguous
        np.testing.assert_array_equal(one, other)


def every_function():
    query, key, value = arrays()
    out, lse = nhood.na2d(query, key, value, 3, return_lse=True)
    attn = nhood.na2d_qk(query, key, 3)
    bias = np.random.default_rng(3).standard_normal((2, 5, 5)).astype(np.float32)
    extra = np.random.default_rng(4).standard_normal((2, 1, 3, 2, 8)).astype(np.float32)
    more = dict(additional_keys=extra[0], additional_values=extra[1])
    return [
        (nhood.na2d, (query, key, value, 3), {}),
        (nhood.na2d, (query, key, value, 3), dict(return_lse=True)),
        (nhood.na2d, (query, key, value), dict(kernel_size=3, dilation=(2, 1))),
        (nhood.na2d, (query, key, value), dict(dilation=(2, 1), kernel_size=3)),
        (nhood.na2d, (query, key, value, (3, 5), (1, 2), 1, (True, False), 0.3), {}),
        (nhood.na2d, (query, key, value, 3), dict(bias=bias)),
        (nhood.na2d, (query, key, value, 3), dict(return_lse=True, **more)),
        (nhood.na2d, (query, key, value, 9), dict(clamp_window=True)),
        (nhood.na2d, (query, key, value, 3), dict(is_periodic=(True, False))),
        (nhood.na2d, (query, key, value, 3), dict(grid=(9, 8), query_offset=1, key_offset=[1, 0])),
        (nhood.na1d, (query[0], key[0], value[0], 3), {}),
        (nhood.na3d, (query[:, None], key[:, None], value[:, None], (1, 3, 3)), {}),
        (nhood.na2d_backward, (out, query, key, value, out, lse, 3), {}),
        (nhood.na2d_qk, (query, key, 3), {}),
        (nhood.na2d_qk, (query, key, 3), dict(is_causal=True, zero_fill=True)),
        (nhood.na2d_av, (attn, value, 3), {}),
        (nhood.na2d_in, (attn, out, 3), dict(kv_heads=1)),
    ]


def test_every_function_comes_again(counted):
    calls = every_function()
    nhood.clear_cache()
    del counted[:]
    expected = [function(*given, **named) for function, given, named in calls]
    assert not any(counted)
    for _ in range(3):
        del counted[:]
        for (function, given, named), results in zip(calls, expected):
            assert_same(function(*given, **named), results)
        assert all(counted), [call[0].__name__ for call, known in zip(calls, counted) if not known]


def test_one_array_for_several_arguments():
    """Which is which is told by their names, not by the objects."""
    query, key, value = arrays()
    expected = nhood.na2d(query, key, value, [3, 3]), nhood.na2d(value, key, query, [3, 3])
    nhood.na2d(query, query, query, 3)
    assert_same(nhood.na2d(query, key, value, 3), expected[0])
    nhood.na2d(value=query, key=query, query=query, kernel_size=3)
    assert_same(nhood.na2d(value=query, key=key, query=value, kernel_size=3), expected[1])


def test_memory_may_differ_and_layouts_may_not(counted):
    first = arrays()
    nhood.na2d(*first, 3)
    for seed in range(4):
        query, key, value = arrays(seed)
        expected = nhood.na2d(query, key, value, [3, 3])
        known = len(counted)
        assert_same(nhood.na2d(query, key, value, 3), expected)
        assert counted[known]
    query, key, value = first
    wide = np.zeros((1, 7, 7, 2, 16), np.float32)
    wide[..., :8] = query
    offset = np.zeros(query.nbytes + 4, np.uint8)[4:].view(np.float32).reshape(SHAPE)
    offset[:] = query
    expected = nhood.na2d(query, key, value, 3)
    assert_same(nhood.na2d(offset, key, value, 3), expected)
    assert counted[-1]  # where the memory begins is free
    for other in (wide[..., :8], query[:, ::-1].copy()[:, ::-1], query.transpose(0, 2, 1, 3, 4)):
        known = len(counted)
        nhood.na2d(other, key, value, 3)
        assert counted[known:] == [False]
    assert_same(nhood.na2d(wide[..., :8], key, value, 3), expected)
    assert counted[-1]


def test_values_of_other_types_are_other_arguments():
    """1 == True == 1.0, but only the first is a kernel size."""
    given = arrays()
    nhood.na2d(*given, 3, 1, 1, False, 1.0)
    nhood.na2d(*given, (3, 1))
    for wrong in (3.0, True, (3, True), (3, 1.0), "3"):
        with pytest.raises(TypeError, match="kernel_size|is not an integer"):
            nhood.na2d(*given, wrong)
    with pytest.raises(TypeError, match="is_causal = 0 is not a bool"):
        nhood.na2d(*given, 3, 1, 1, 0, 1.0)
    with pytest.raises(TypeError, match="scale = True"):
        nhood.na2d(*given, 3, 1, 1, False, True)


@pytest.mark.parametrize("name", ("na2d", "na2d_backward", "na2d_qk", "na2d_av", "na2d_in"))
def test_every_argument_is_looked_at(name):
    """Also those that functions may get later: a wrong one is found after a right call too."""
    function = getattr(nhood, name)
    given, named = next((given, named) for f, given, named in every_function() if f is function)
    bound = inspect.signature(function).bind(*given, **named)
    right = bound.arguments
    function(**right)
    function(**right)
    for parameter in inspect.signature(function).parameters:
        with pytest.raises((TypeError, ValueError)):
            function(**{**right, parameter: object()})
        function(**right)


def test_lists_may_change(counted):
    query, key, value = arrays()
    window = [3, 3]
    for known in (False, True):
        small = nhood.na2d(query, key, value, window)
        assert counted[-1] == known
    window[0] = 5
    large = nhood.na2d(query, key, value, window)
    assert_same(large, nhood.na2d(query, key, value, (5, 3)))
    assert not np.array_equal(large, small)
    window[0] = True
    with pytest.raises(TypeError, match="kernel_size = True is not an integer"):
        nhood.na2d(query, key, value, window)


def test_arrays_that_change_shape_in_place():
    query, key, value = arrays()
    nhood.na2d(query, key, value, 3)
    for array in (query, key, value):
        array.shape = (1, 49, 1, 2, 8)
    with pytest.raises(ValueError, match=r"kernel_size = 3 exceeds the 1 token of axis 1"):
        nhood.na2d(query, key, value, 3)


def test_subclasses_and_other_dtypes_go_the_long_way(counted):
    class Sub(np.ndarray):
        pass

    query, key, value = arrays()
    expected = nhood.na2d(query, key, value, 3)
    assert_same(nhood.na2d(query.view(Sub), key, value, 3), expected)
    assert not counted[-1]
    with pytest.raises(TypeError, match="query has a mask"):
        nhood.na2d(np.ma.masked_array(query), key, value, 3)
    with pytest.raises(ValueError, match="query has dtype >f4"):
        nhood.na2d(query.astype(">f4"), key, value, 3)
    for dtype in (np.float64, np.float16):
        again = arrays(dtype=dtype)
        assert nhood.na2d(*again, 3).dtype == dtype
        assert nhood.na2d(*again, 3).dtype == dtype
        assert counted[-2:] == [False, True]


def test_errors_are_those_of_the_library():
    """Memory that is not aligned is refused by the library itself."""
    query, key, value = arrays()
    odd = np.zeros(query.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(SHAPE)
    texts = []
    for clear in (True, False):
        if clear:
            nhood.clear_cache()
        else:
            nhood.na2d(query, key, value, 3)
        with pytest.raises(ValueError, match=r"^query is at 0x[0-9a-f]+, which is not aligned to 4 bytes$") as raised:
            nhood.na2d(odd, key, value, 3)
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


def test_table_is_bounded_and_lets_go():
    query, key, value = arrays()
    nhood.na2d(query, key, value, 3)
    for i in range(3 * ENTRIES):
        nhood.na2d(query, key, value, 3, scale=1 + i / 8)
    assert _quick._module.call("na2d", query, key, value, 3) is None  # its place went to a later call
    kept = [array.copy() for array in (query, key, value)]
    watched = [weakref.ref(array) for array in kept]
    nhood.na2d(*kept, 5)
    del kept
    gc.collect()
    assert [one() for one in watched] == [None] * 3  # arrays are not held


class OwnPlan:
    """As much of a plan as is remembered of one."""

    def __init__(self, slots):
        self.owner, self.handle, self.workspace_bytes, self.slots = OwnPlan, ctypes.c_void_p(1), 0, slots


def remember(plan, makers, *arguments):
    names = ("", "query", "key", "value")
    _quick.remember(_quick.begin(arguments, {}, names), FORWARD, plan, makers)


def plan_of(query, key, value):
    """The plan of na2d(query, key, value, 3)."""
    request = _plans.Request(FORWARD, (3, 3), (1, 1), (1, 1), (False, False), None, 0, (True, False))
    layouts = [(array.shape, array.strides, _plans.c.DTYPE_F32) for array in (query, key, value)]
    return _plans.find_plan(_plans.current_context(), _plans.CPU, request, (*layouts, None, None, None))


OUT = (SHAPE, np.dtype(np.float32))


def test_plans_are_released():
    released = []

    class Owner:
        def __del__(self):
            released.append(self)

    plan = OwnPlan((3,))
    plan.owner = Owner()
    remember(plan, [(np.empty, OUT)], "own")
    plan.owner = None
    assert not released
    nhood.clear_cache()
    assert len(released) == 1


def test_what_was_begun_before_all_was_forgotten_is_not_remembered():
    given = arrays()
    expected = nhood.na2d(*given, 3)
    begun = _quick.begin(("own", *given), {}, ("", "query", "key", "value"))
    nhood.clear_cache()
    _quick.remember(begun, FORWARD, plan_of(*given), [(np.empty, OUT)])
    assert _quick.call("own", *given) is None
    remember(plan_of(*given), [(np.empty, OUT)], "own", *given)
    assert_same(_quick.call("own", *given), expected)


def test_settings_apply_to_calls_that_come_again():
    given = arrays()
    nhood.configure(solver="reference")
    reference = nhood.na2d(*given, 3), nhood.na2d(*given, 3)
    nhood.configure(isa="generic", threads=1)
    generic = nhood.na2d(*given, 3), nhood.na2d(*given, 3)
    assert_same(*reference)
    assert_same(*generic)
    assert not np.array_equal(reference[0], generic[0])


def test_many_threads():
    nhood.configure(threads=1)
    cases = [(arrays(i, (1, 5 + i % 4, 7, 2, 8)), 3 + 2 * (i % 2)) for i in range(16)]
    expected = [nhood.na2d(*given, window) for given, window in cases]
    stop = threading.Event()

    def work(number):
        for i in itertools.chain(*[range(len(cases))] * 20):
            i = (i * 7 + number) % len(cases)
            assert_same(nhood.na2d(*cases[i][0], cases[i][1]), expected[i])

    def disturb():
        while not stop.is_set():
            nhood.clear_cache()

    other = threading.Thread(target=disturb)
    other.start()
    try:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
    finally:
        stop.set()
        other.join()


@pytest.mark.parametrize("error", (KeyboardInterrupt, MemoryError))
def test_errors_between_any_two_bytecodes(error):
    given, others = arrays(), arrays(1, (1, 9, 9, 2, 8))
    expected = nhood.na2d(*given, 3), nhood.na2d(*others, 5, return_lse=True)
    places = 0

    def twice():
        for _ in range(2):
            nhood.na2d(*given, 3)

    nhood.clear_cache()
    for _ in at_every_bytecode(error, twice, step=11):
        assert_same(nhood.na2d(*given, 3), expected[0])
        assert_same(nhood.na2d(*others, 5, return_lse=True), expected[1])
        nhood.clear_cache()
        places += 1
    assert places > 50


def test_results_that_cannot_be_made():
    def fails(*_):
        raise MemoryError("no room")

    plan = OwnPlan((3, 4))
    remember(plan, [(np.empty, OUT), (fails, ())], "fails")
    with pytest.raises(MemoryError, match="no room"):
        _quick.call("fails")
    remember(plan, [(np.empty, OUT), (str, ())], "no array")
    with pytest.raises(RuntimeError, match="no array in memory of its device"):
        _quick.call("no array")


def test_allocations_may_run_code_that_calls_nhood():
    """Finalizers, for example: the table changes while a call is made from it."""
    given = arrays()
    expected = nhood.na2d(*given, 3)

    def disturbing(*arguments):
        nhood.clear_cache()
        for i in range(ENTRIES + 5):
            nhood.na2d(*given, 3, scale=2 + i / 8)
        return np.empty(*arguments)

    remember(plan_of(*given), [(disturbing, OUT)], "own", *given)
    assert_same(_quick.call("own", *given), expected)


def test_forked_children_go_on():
    given = arrays()
    expected = nhood.na2d(*given, 3)
    child = os.fork()
    if not child:
        right = all(np.array_equal(nhood.na2d(*given, 3), expected) for _ in range(5))
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_second_copy_of_the_package_does_without():
    """As in another interpreter of the process: the table is the first one's."""
    assert _quick._load() is None
    given = arrays()
    assert_same(nhood.na2d(*given, 3), nhood.na2d(*given, 3))


def test_the_package_does_without(tmp_path):
    """A library that has nothing beside it; and something that is no module."""
    code = """if True:
        import numpy as np, nhood
        from nhood import _quick
        assert _quick._module is None
        x = np.random.default_rng(0).standard_normal((3, 1, 7, 7, 1, 8)).astype(np.float32)
        results = [nhood.na2d(*x, 3) for _ in range(3)]
        assert np.array_equal(results[0], results[2])
        nhood.clear_cache()
    """
    copy = tmp_path / "libnhood.so"
    copy.write_bytes(Path(nhood.library_path).read_bytes())
    environment = {**os.environ, "NHOOD_LIBRARY": str(copy), "PYTHONPATH": str(Path(nhood.__file__).parents[1])}
    for content in (None, b"no module"):
        if content:
            (copy.parent / "nhood_quick.abi3.so").write_bytes(content)
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
