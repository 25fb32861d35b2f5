"""Marks for tests of what older versions of torch lack."""

import nhood.torch  # noqa: F401  registers the operators
import pytest
import torch
import torch._functorch.config
from nhood.compat.natten.backends.flex import _FLEX_SUPPORTED
from nhood.torch import _dispatch
from torch.utils.flop_counter import flop_registry


def needs(there: bool, what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not there, reason=f"torch {torch.__version__} has no {what}")


needs_flex = needs(_FLEX_SUPPORTED, "FlexAttention that NATTEN would take")
needs_flop_counts = needs(torch.ops.nhood.na in flop_registry, "FLOP counter that sees operators of others")
needs_keys_of_dispatch = needs(bool(_dispatch._PLAIN_THREADS), "way to tell whether the dispatcher can be left out")
needs_precisions = needs(hasattr(torch.backends, "fp32_precision"), "precisions by name")
needs_kept_graphs = needs(getattr(torch._functorch.config, "enable_autograd_cache", False), "cache of AOTAutograd that is on by itself")
needs_errors_of_traced_code = needs(torch.__version__ >= "2.5", "texts of traced errors in those of Dynamo")
