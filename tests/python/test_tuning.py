"""Measuring and wisdom from Python."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import nhood
import numpy as np
import pytest
from nhood import _plans, _tuning

PROBLEM = "fwd:f32:b1h2d16:12x12:w5x5"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NHOOD_CACHE", str(tmp_path / "cache"))
    nhood.configure()
    yield tmp_path / "cache"
    monkeypatch.undo()
    nhood.configure()


def arrays():
    return np.random.default_rng(1).standard_normal((3, 1, 12, 12, 2, 16)).astype(np.float32)


def description(request_of):
    """The description of the plan that a call used: the only one in the cache."""
    found = []
    original = _plans.c.lib.nhood_plan_create
    try:
        _plans.c.lib.nhood_plan_create = lambda *given: (original(*given), found.append(given[-1]))[0]
        request_of()
    finally:
        _plans.c.lib.nhood_plan_create = original
    (plan,) = found
    return _plans.c.lib.nhood_plan_description(plan._obj).decode()


def test_tune_tells_and_remembers(own_cache):
    (line,) = nhood.tune(PROBLEM, budget=0.02)
    assert re.fullmatch(rf"{PROBLEM} on cpu: cpu\.fused .* ms expected, by \d+ samples?", line)
    assert (own_cache / "wisdom").read_text() == nhood.export_wisdom()
    assert nhood.tune(PROBLEM, budget=0.02) == [line]
    nhood.configure()  # a new context reads the file
    assert nhood.tune(PROBLEM, budget=0) == [line]


@pytest.fixture(params=["under a file", "not to be made", "of others", "no home"])
def bad_cache(request, tmp_path, monkeypatch):
    """The reason that the warning gives."""
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    folder, reason = {
        "under a file": (tmp_path / "file" / "cache", "cache/wisdom: Not a directory"),
        "not to be made": ("/proc/nhood/cache", "/proc/nhood/cache/wisdom: No such file or directory"),
        "of others": (tmp_path / "open", "it must be of user"),
        "no home": (None, "neither XDG_CACHE_HOME nor HOME is an absolute path"),
    }[request.param]
    for name in ("NHOOD_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if folder:
        monkeypatch.setenv("NHOOD_CACHE", str(folder))
    nhood.configure()
    return reason


def test_a_cache_that_cannot_be_written_is_a_warning(bad_cache, tmp_path):
    with pytest.warns(RuntimeWarning, match=rf"could not be saved: .*{bad_cache}"):
        lines = nhood.tune(PROBLEM, budget=0.02)
    assert len(lines) == 1 and "sample" in lines[0]
    with pytest.warns(RuntimeWarning, match="could not be saved") as warned, nhood.tuning(0.02):
        out = nhood.na2d(*arrays(), 5)
    assert out.shape == (1, 12, 12, 2, 16) and len(warned) == 1
    with pytest.raises(ZeroDivisionError), pytest.warns(RuntimeWarning), nhood.tuning(0.02):
        raise ZeroDivisionError
    assert not list((tmp_path / "open").iterdir())


def test_no_cache_is_no_warning(monkeypatch, recwarn):
    monkeypatch.setenv("NHOOD_CACHE", "")
    nhood.configure()
    assert len(nhood.tune(PROBLEM, budget=0.02)) == 1
    with nhood.tuning(0.02):
        nhood.na2d(*arrays(), 5)
    assert not recwarn.list


def test_a_tilde_stands_for_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NHOOD_CACHE", "~/of nhood")
    nhood.configure()
    nhood.tune(PROBLEM, budget=0.02)
    assert (tmp_path / "of nhood" / "wisdom").exists() and not Path("~").exists()
    monkeypatch.setenv("NHOOD_CACHE", "~someone/cache")
    with pytest.raises(ValueError, match="NHOOD_CACHE = '~someone/cache': only '~' alone"):
        nhood.configure()


def test_calls_use_what_was_tuned():
    call = lambda: nhood.na2d(*arrays(), 5)  # noqa: E731
    assert description(call).endswith("by estimate")
    (line,) = nhood.tune(PROBLEM, budget=0.02)
    assert description(call) == line


def test_tuning_measures_the_calls_within(own_cache):
    expected = nhood.na2d(*arrays(), 5)
    with nhood.tuning(budget=0.02):
        inside = description(lambda: np.testing.assert_allclose(nhood.na2d(*arrays(), 5), expected, atol=1e-5))
    assert re.search(r"by \d+ samples?$", inside)
    assert PROBLEM in (own_cache / "wisdom").read_text()
    nhood.forget_wisdom()
    nhood.clear_cache()
    assert description(lambda: nhood.na2d(*arrays(), 5)).endswith("by estimate")


def test_tuning_ends_with_an_exception():
    with pytest.raises(KeyError), nhood.tuning(budget=0.02):
        raise KeyError
    assert description(lambda: nhood.na2d(*arrays(), 5)).endswith("by estimate")


def test_tuning_ends_where_an_interrupt_comes_before_its_body(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_tuning, "clear_cache", interrupt)
        with pytest.raises(KeyboardInterrupt), nhood.tuning(budget=0.02):
            pass
    assert description(lambda: nhood.na2d(*arrays(), 5)).endswith("by estimate")


def test_overlapping_blocks_of_tuning():
    first, second = nhood.tuning(budget=0.02), nhood.tuning(budget=0.03)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    inside = description(lambda: nhood.na2d(*arrays(), 5))
    assert re.search(r"by \d+ samples?$", inside)
    second.__exit__(None, None, None)
    nhood.forget_wisdom()
    assert description(lambda: nhood.na2d(*arrays(), 5)).endswith("by estimate")


def test_groups_are_tuned_member_by_member():
    group = "fwd:f32:b1h2d16; 12x12:w5x5;9x7:w3x3 ; b2h1d8:12x12:w5x5; 9x7:w3x3"
    lines = nhood.tune(group, budget=0.02)
    members = [PROBLEM, "fwd:f32:b1h2d16:9x7:w3x3", "fwd:f32:b2h1d8:12x12:w5x5"]
    assert [line.split(" on ")[0] for line in lines] == members
    assert nhood.tune(*members, budget=0.02) == lines and nhood.tune(group, budget=0.02) == lines
    known = len(nhood.export_wisdom().splitlines()) - 1
    nhood.tune("pn:f32:b1h1d8:40:w5", budget=0.02)
    assert nhood.forget_wisdom(group) == known and nhood.forget_wisdom() > 0


def test_an_interrupted_tune_keeps_what_it_measured(own_cache):
    code = f"""if True:
        import nhood, sys
        from nhood import _tuning
        line = _tuning._plan_line
        def and_say(*given):
            try:
                return line(*given)
            finally:
                print("measured", flush=True)
        _tuning._plan_line = and_say
        nhood.tune('{PROBLEM}', *['fwd:f32:b1h4d64:200x200:w%dx%d' % (w, w) for w in range(3, 60)], budget=1)
    """
    package = Path(nhood.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(package)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "measured\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors
    assert PROBLEM in (own_cache / "wisdom").read_text()


def test_wisdom_travels_as_text():
    (line,) = nhood.tune(PROBLEM, budget=0.02)
    text = nhood.export_wisdom()
    lines = len(text.splitlines()) - 1
    assert lines > 0
    assert nhood.forget_wisdom("fwd:f32:b1h2d16:12x12:w7x7") == 0
    assert nhood.forget_wisdom(PROBLEM) == lines
    assert nhood.export_wisdom() == "nhood-wisdom 1\n"
    assert nhood.import_wisdom(text + "nonsense\n") == lines
    assert nhood.export_wisdom() == text
    assert nhood.tune(PROBLEM) == [line]
    assert nhood.forget_wisdom() == lines


def test_processes_tune_at_once(own_cache):
    code = f"import nhood; nhood.tune('{PROBLEM}', 'pn:f32:b1h1d8:40:w5', budget=0.02); print(nhood.export_wisdom(), end='')"
    package = Path(nhood.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(package)}
    processes = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    nhood.configure()
    lines = set(nhood.export_wisdom().splitlines()[1:])
    known = {" ".join(line.split()[:4]) for line in lines}
    assert len(known) == len(lines), "two lines about one candidate"
    assert any(known >= {" ".join(line.split()[:4]) for line in text.splitlines()[1:]} for text in outputs)


def test_processes_given_the_same_wisdom_make_the_same_plans(tmp_path):
    nhood.tune(PROBLEM, budget=0.02)
    head, *lines = nhood.export_wisdom().splitlines()
    slowest = max(lines, key=lambda line: int(line.split()[4]))
    lines = [line for line in lines if line != slowest] + [" ".join([*slowest.split()[:4], "1", "9"])]
    code = f"import nhood, sys; nhood.import_wisdom(sys.stdin.read()); print(nhood.tune('{PROBLEM}', budget=0)[0])"
    package = Path(nhood.__file__).parent.parent
    plans = []
    for number, order in enumerate((lines, lines[::-1])):  # processes without a file in common
        environment = {**os.environ, "PYTHONPATH": str(package), "NHOOD_CACHE": str(tmp_path / str(number))}
        text = "\n".join([head, *order, ""])
        done = subprocess.run([sys.executable, "-c", code], env=environment, input=text, capture_output=True, text=True)
        plans.append(done.stdout)
    assert plans[0] == plans[1] and slowest.split()[3] in plans[0] and "by 9 samples" in plans[0]


def test_without_a_cache_folder(monkeypatch):
    monkeypatch.setenv("NHOOD_CACHE", "")
    nhood.configure()
    (line,) = nhood.tune(PROBLEM, budget=0.02)
    assert "sample" in line


def test_threads_tune_at_once():
    lines = []
    workers = [threading.Thread(target=lambda: lines.extend(nhood.tune(PROBLEM, budget=0.02))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(lines) == 4 and len(set(lines)) == 1


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: nhood.tune("fwd:f32:b1h1d8:2:w3"), "axis[0].window = 3 exceeds length 2"),
        (lambda: nhood.tune("nonsense"), "column 1"),
        (lambda: nhood.tune("fwd:a" + "ü" * 400), "column 5"),
        (lambda: nhood.tune("fwd:f" + "ü" * 400), "column 5"),
        (lambda: nhood.tune("fwd:f32:\udc80"), "column"),
        (lambda: nhood.tune(PROBLEM + "\0:nonsense"), "NUL character at index 26"),
        (lambda: nhood.import_wisdom("nhood-wisdom 1\n\0"), "NUL character at index 15"),
        (lambda: nhood.forget_wisdom("\0"), "NUL character at index 0"),
        (lambda: nhood.tune(PROBLEM, budget=10**400), "budget = 1000"),
        (lambda: nhood.tune(PROBLEM, device="tpu:0"), "device = 'tpu:0' is not one of cpu"),
        (lambda: nhood.tune(PROBLEM, budget=-1), "budget = -1"),
        (lambda: nhood.tune(PROBLEM, budget=float("nan")), "budget = nan"),
        (lambda: nhood.import_wisdom("no wisdom"), "does not start with the line"),
        (lambda: nhood.forget_wisdom("nonsense"), "column 1"),
        (lambda: nhood.tune("fwd:f32:b1h2d16; 12x12:w5x5; 4x4:w5x5"), "member 1: axis[0].window = 5 exceeds length 4"),
        (lambda: nhood.tune("fwd:f32:b1h2d16;"), "member 0: "),
        (lambda: nhood.tune(f"{PROBLEM}; 9x7:w3x3"), "the head of a group is <op>:<dtype>:b<B>h<H>"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: nhood.tune([PROBLEM]),
        lambda: nhood.import_wisdom(None),
        lambda: nhood.tune(PROBLEM, budget="1"),
        lambda: nhood.tune(PROBLEM, budget=True),
        lambda: nhood.tune(PROBLEM.encode()),
    ],
)
def test_wrong_types(call):
    with pytest.raises(TypeError, match="is not a"):
        call()


FORKS = """
import os, signal, threading
import nhood, numpy as np

def call(tokens):
    x = np.ones((1, tokens, 1, 8), np.float32)
    assert (nhood.na1d(x, x, x, 3) == 1).all()

def measure(first):
    for tokens in range(first, first + 100000, 2):
        if stop.is_set():
            return
        call(tokens)

stop = threading.Event()
with nhood.tuning(0.02):
    threads = [threading.Thread(target=measure, args=(10 + i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(12):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                call(200001 + number)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, f"child {number} hangs or fails"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
"""


def test_children_of_a_process_that_measures():
    environment = dict(os.environ, NHOOD_CACHE="", PYTHONWARNINGS="ignore")
    subprocess.run([sys.executable, "-c", FORKS], env=environment, check=True, timeout=600)
