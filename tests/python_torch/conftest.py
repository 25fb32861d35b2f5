"""Fixtures of all tests here."""

import pytest
import torch


@pytest.fixture(autouse=True)
def same_numbers():
    """Whatever ran before: a comparison within tolerances that holds once holds always."""
    torch.manual_seed(0)
