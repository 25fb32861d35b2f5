"""Calls on CPU tensors take as many threads as torch's own, unless nhood was told how many."""

import os

import nhood
import nhood.torch as nt
import pytest
import torch
from nhood import _plans

X = torch.rand(1, 96, 96, 4, 32, dtype=torch.float64)


def threads_used(call):
    """By the time that threads of this process other than the calling one computed; and the result."""
    others = {name for name in os.listdir("/proc/self/task") if int(name) != os.getpid()}

    def ticks():
        total = 0
        for name in others:
            with open(f"/proc/self/task/{name}/schedstat") as file:
                total += int(file.read().split()[0])
        return total

    before = ticks()
    result = call()
    return 2 if ticks() - before > 5_000_000 else 1, result


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    nhood.configure()


@pytest.mark.skipif(os.cpu_count() < 2, reason="one CPU")
def test_torchs_number(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("NHOOD_THREADS", raising=False)
    nhood.configure()
    if nhood.threads() < 2:
        pytest.skip("one CPU")
    assert _plans.current_context().threads_origin not in ("options.threads", "NHOOD_THREADS")
    results = []
    for number, used in ((1, 1), (2, 2), (1, 1)):
        torch.set_num_threads(number)
        nt.na2d(X, X, X, 21)
        for call in (lambda: nt.na2d(X, X, X, 21), lambda: nhood.na2d(X, X, X, 21)):
            got, result = threads_used(call)
            assert got == used, number
            results.append(result)
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_number_for_nhood_counts_more():
    nhood.configure(threads=2)
    torch.set_num_threads(1)
    nt.na2d(X, X, X, 21)
    used, _ = threads_used(lambda: nt.na2d(X, X, X, 21))
    assert nhood.threads() == used == 2
