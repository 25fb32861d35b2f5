"""Threads, processes, settings, caches, and finding the library."""

import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nhood
import numpy as np
import pytest
from nhood import _arrays, _calls, _plans


@pytest.fixture(autouse=True)
def default_settings():
    yield
    nhood.configure()


def problem(i=0, tokens=64, dtype=np.float32):
    return np.random.default_rng(i).standard_normal((3, 1, tokens, 2, 16)).astype(dtype)


def run_python(code, **environment):
    """A fresh interpreter with the package of this one."""
    package = Path(nhood.__file__).parent.parent
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(package), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_module_says_what_is_in_use():
    code = "import runpy; runpy.run_module('nhood', run_name='__main__')"
    done = run_python(code, NHOOD_LIBRARY=str(nhood.library_path), NHOOD_THREADS="3", NHOOD_ISA="generic")
    assert done.returncode == 0, done.stderr
    assert f"nhood    {nhood.version()}, {nhood.library_path}" in done.stdout
    assert re.search(r"^device   cpu +.*generic, 3 threads$", done.stdout, re.MULTILINE)


def test_many_threads_get_the_same_results():
    inputs = [problem(i, tokens=40 + 8 * (i % 5)) for i in range(20)]
    expected = [nhood.na1d(*arrays, 5 + i % 3) for i, arrays in enumerate(inputs)]
    nhood.clear_cache()

    def work(_):
        return [nhood.na1d(*arrays, 5 + i % 3) for i, arrays in enumerate(inputs)]

    with ThreadPoolExecutor(8) as pool:
        for results in pool.map(work, range(40)):
            for result, one in zip(results, expected):
                np.testing.assert_array_equal(result, one)


def test_errors_belong_to_their_thread():
    arrays = problem()

    def work(window):
        for _ in range(50):
            with pytest.raises(ValueError, match=rf"kernel_size = {window} exceeds the 64 tokens of axis 0"):
                nhood.na1d(*arrays, window)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(65, 81)))


def turns_while_a_call_computes(arrays):
    """How often this thread comes to its turn meanwhile."""
    started, done = threading.Event(), threading.Event()

    def work():
        started.set()
        nhood.na2d(*arrays, 31)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    turns = 0
    while not done.is_set():
        time.sleep(0.001)
        turns += 1
    thread.join()
    return turns


def test_interpreter_runs_on_while_a_call_computes():
    """One or two turns, before and after, would come without. A machine that does other things may give fewer than it could,
    and a fast one needs longer calls."""
    nhood.configure(threads=1)
    turns = []
    for batch in (1, 1, 1, 4, 16):
        turns.append(turns_while_a_call_computes(np.zeros((3, batch, 128, 128, 4, 32))))
        if turns[-1] >= 5:
            return
    raise AssertionError(f"{turns} turns")


def test_results_do_not_depend_on_the_number_of_threads():
    arrays = problem(tokens=300)
    results = []
    for threads in (1, 2, 5):
        nhood.configure(threads=threads)
        assert nhood.threads() == threads
        results.append(nhood.na1d(*arrays, 21))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_instruction_set_and_solver():
    arrays = problem()
    expected = nhood.na1d(*arrays, 7)
    nhood.configure(isa="generic")
    assert "generic" in nhood.devices()[0].description
    np.testing.assert_allclose(nhood.na1d(*arrays, 7), expected, rtol=1e-4, atol=1e-6)
    nhood.configure(solver="reference")
    np.testing.assert_allclose(nhood.na1d(*arrays, 7), expected, rtol=1e-4, atol=1e-6)
    for wrong in ("abacus", "", "cpu.Fused"):
        with pytest.raises(ValueError, match=f"solver = '{wrong}' is not one of .*cpu.fused.*reference|reference.*cpu.fused"):
            nhood.configure(solver=wrong)


def test_bundles(tmp_path, monkeypatch):
    """The kernels of a bundle are used by the emulated device in tests/emulator/bundle; here, that it arrives."""
    tool = Path(nhood.library_path).parent / "nhood"
    first, second = tmp_path / "first", tmp_path / "second"
    if compiler := next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1[0-9]"), None):
        monkeypatch.setenv("NHOOD_NVRTC", str(compiler))  # pip's, which the library finds beside itself in a wheel only
    made = subprocess.run(
        [tool, "bundle", "--arch", "h100", "--solver", "cuda.naive", "--output", first, "fwd:f32:b1h1d8:64:w7"],
        capture_output=True,
        text=True,
    )
    if "NVRTC was not found" in made.stderr:
        pytest.skip("no NVRTC")
    assert made.returncode == 0, made.stderr
    shutil.copyfile(first, second)
    for given, used in (
        (first, [first]),
        (str(first), [first]),
        ([first, str(second)], [first, second]),
        ("", []),
        ([], []),
    ):
        monkeypatch.setenv("NHOOD_BUNDLE", str(second))
        nhood.configure(bundle=given)
        assert re.findall(r"bundle (\S+) \(1 kernels", nhood.notes()) == [str(path) for path in used]
    nhood.configure()
    assert f"bundle {second} (1 kernels" in nhood.notes()
    second.write_text("Dear reader,")
    for wrong, text in (
        ("/nowhere/bundle", "bundle '/nowhere/bundle' of bundle: No such file"),
        (second, "not a bundle that nhood wrote"),
        ([first, ""], "the path '', which is empty"),
        (["a:b", "c"], "the path 'a:b', which is empty or has a ':'"),
        ("a\0", r"the path 'a\\x00', which"),
    ):
        with pytest.raises(ValueError, match=text):
            nhood.configure(bundle=wrong)
    for wrong in (1, [1], True):
        with pytest.raises(TypeError, match="is neither a path nor a sequence of paths"):
            nhood.configure(bundle=wrong)
    assert f"bundle {second}" in nhood.notes(), "a refused setting changes nothing"


def test_a_refused_setting_changes_nothing():
    nhood.configure(threads=2)
    for settings, text in (
        (dict(threads=1025), r"^threads = 1025 is not in \[0, 1024\]"),
        (dict(threads=-1), r"^threads = -1"),
        (dict(threads=2**32 + 1), r"threads = 4294967297 does not fit 32 bits"),
        (dict(isa="mmx"), "^isa = 'mmx' is not one of "),
        (dict(isa="avx2\0"), r"isa = 'avx2\\x00' has a NUL character at index 4"),
        (dict(solver="reference\0"), "NUL character at index 9"),
    ):
        with pytest.raises(ValueError, match=text):
            nhood.configure(**settings)
    assert nhood.threads() == 2


def test_information():
    assert re.fullmatch(r"\d+\.\d+\.\d+", nhood.version()) and nhood.__version__ == nhood.version()
    cpu = nhood.devices()[0]
    assert (cpu.kind, cpu.name, cpu.ordinal) == ("cpu", "cpu", 0) and cpu.workers >= 1 and cpu.description
    assert isinstance(nhood.notes(), str)
    ceilings = nhood.measure("float32")
    assert ceilings.flops_per_s > 1e8 and ceilings.bytes_per_s > 1e8
    with pytest.raises(ValueError, match="dtype = 'int8' is not one of float64"):
        nhood.measure("int8")


def test_plan_cache_is_used_and_bounded(long_way):
    nhood.clear_cache()
    arrays = problem()
    for _ in range(10):
        nhood.na1d(*arrays, 7)
    info = _calls._prepare_numpy.cache_info()
    assert (info.misses, info.hits) == (1, 9) and _plans.find_plan.cache_info().misses == 1
    for tokens in range(8, 8 + _plans.PLAN_CACHE_SIZE + 50):
        nhood.na1d(*np.zeros((3, 1, tokens, 1, 1), np.float32), 3)
    assert _plans.find_plan.cache_info().currsize == _plans.PLAN_CACHE_SIZE
    assert _calls._prepare_numpy.cache_info().currsize == _plans.PLAN_CACHE_SIZE


def test_results_left_out_are_null_again(long_way):
    """io structs are used again by plans of fewer tensors."""
    query, key, value = problem()
    expected = nhood.na1d(query, key, value, 5)
    bias = np.zeros((2, 9), np.float32)
    for _ in range(3):
        out, lse = nhood.na1d(query, key, value, 5, bias=bias, return_lse=True)
        before = lse.copy()
        np.testing.assert_array_equal(nhood.na1d(-query, key, value, 5), nhood.na1d(-query, key, value, 5))
        np.testing.assert_array_equal(lse, before)
        np.testing.assert_array_equal(nhood.na1d(query, key, value, 5), expected)
        (scratch,) = _plans._idle
        assert [slot for slot in range(_plans.c.TENSOR_SLOTS) if scratch.data[slot]] == [0, 1, 2, 3]


def test_addresses_of_arrays():
    whole = np.zeros((5, 7), np.float32)
    read_only = whole.copy()
    read_only.flags.writeable = False
    for array in (whole, whole[1:, 2:], whole[::-1], whole[:0], np.zeros(()), read_only, np.broadcast_to(whole, (3, 5, 7))):
        assert _arrays.address_of_numpy(array) == array.ctypes.data


def test_everything_that_matters_is_in_the_key():
    query, key, value = problem()
    calls = [
        dict(kernel_size=5),
        dict(kernel_size=7),
        dict(kernel_size=7, stride=2),
        dict(kernel_size=7, dilation=2),
        dict(kernel_size=7, is_causal=True),
        dict(kernel_size=7, scale=1.0),
        dict(kernel_size=7, scale=2),
        dict(kernel_size=7, bias=np.ones((2, 13), np.float32) * np.arange(13, dtype=np.float32)),
    ]
    results = [nhood.na1d(query, key, value, **call) for call in calls]
    for i, one in enumerate(results):
        for other in results[:i]:
            assert not np.array_equal(one, other)
    for call, result in zip(calls, results):
        np.testing.assert_array_equal(nhood.na1d(query, key, value, **call), result)


def test_repeated_calls_need_no_more_memory():
    """It runs on two threads: of many, some get their first work, and the memory for it, late."""
    nhood.configure(threads=2)
    nhood.clear_cache()
    small, large = problem(tokens=64), problem(tokens=512)

    def calls(count):
        for _ in range(count):
            for arrays in (small, large):
                out, lse = nhood.na1d(*arrays, 9, return_lse=True)
                nhood.na1d_backward(out, *arrays, out, lse, 9)

    calls(20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls(500)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(_plans._idle) == 1
    assert after - before < 2048, f"{after - before} KiB more"


def test_plans_and_contexts_are_released():
    code = """if True:
        import os, resource, numpy as np, nhood
        others = len(os.listdir("/proc/self/task"))
        arrays = np.zeros((3, 1, 16, 1, 8), np.float32)
        def turn(i):
            nhood.configure(threads=2 + i % 2)
            nhood.na1d(*arrays, 3)
        for i in range(50): turn(i)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(1000): turn(i)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2048
        assert len(os.listdir("/proc/self/task")) - others == nhood.threads() - 1
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_forked_processes():
    arrays = problem(tokens=300)
    nhood.configure(threads=2)
    expected = nhood.na1d(*arrays, 21)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(nhood.na1d(*arrays, 21), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_library_is_found(tmp_path):
    code = "import nhood; print(nhood.library_path)"
    library = tmp_path / "elsewhere.so"
    shutil.copy(nhood.library_path, library)
    assert run_python(code, NHOOD_LIBRARY=str(library)).stdout.strip() == str(library)
    missing = run_python(code, NHOOD_LIBRARY=str(tmp_path / "no.so"))
    assert "ImportError" in missing.stderr and "no.so; build it" in missing.stderr
    library.write_bytes(b"not a library")
    broken = run_python(code, NHOOD_LIBRARY=str(library))
    assert "ImportError" in broken.stderr and "elsewhere.so cannot be used" in broken.stderr


def test_library_of_the_distribution_is_found(tmp_path):
    shutil.copytree(Path(nhood.__file__).parent, tmp_path / "nhood")
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libnhood.so.0"
    shutil.copy(nhood.library_path, library)
    code = "import nhood; print(nhood.library_path)"
    done = run_python(code, PYTHONPATH=str(tmp_path), LD_LIBRARY_PATH=str(library.parent), NHOOD_LIBRARY="")
    assert done.stdout.strip() == str(library), done.stderr


def test_environment_is_read_when_the_first_context_is_made():
    code = "import nhood; print(nhood.threads(), nhood.devices()[0].description)"
    done = run_python(code, NHOOD_THREADS="3", NHOOD_ISA="generic", NHOOD_LIBRARY=str(nhood.library_path))
    assert done.stdout.startswith("3 ") and "generic" in done.stdout, done.stderr
    wrong = run_python(code, NHOOD_THREADS="0", NHOOD_LIBRARY=str(nhood.library_path))
    assert "ValueError: NHOOD_THREADS = '0' is not in [1, 1024]" in wrong.stderr
