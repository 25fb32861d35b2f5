"""Fixtures of several tests."""

import pytest
from nhood import _quick


@pytest.fixture
def long_way(monkeypatch):
    """Nothing is remembered by nhood_quick, as where that module cannot be loaded."""
    monkeypatch.setattr(_quick, "call", _quick.no_call)
