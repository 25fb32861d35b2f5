"""Errors in the words of the caller, of calls that torch's ways of calling make different."""

import inspect
import re
import sys

import nhood
import nhood.torch as nt
import nhood.torch.distributed
import numpy as np
import pytest
import torch
from nhood import _types, models
from nhood.models.classifiers import HierarchicalClassifier
from test_types import assert_functions_are_typed

X = torch.zeros(1, 9, 2, 8)
HEADS_FIRST = torch.zeros(1, 2, 9, 8)


@pytest.mark.parametrize("device", ("cpu", "meta"))
@pytest.mark.parametrize("function", (nt.na1d, nt.neighborhood_attention, torch.compile(nt.na1d, backend="eager")))
def test_values(function, device):
    x, heads_first = X.to(device), HEADS_FIRST.to(device)
    with pytest.raises(Exception, match="kernel_size = 11 exceeds the 9 tokens of axis 0"):
        function(x, x, x, 11)
    with pytest.raises(Exception, match=r"kernel_size = 3 exceeds the 2 tokens .* if query is \[B, H, X0, D\]"):
        function(heads_first, heads_first, heads_first, 3)


def test_wrong_calls_name_the_function():
    for function in (nt.na1d, nt.na1d_qk, nt.na1d_av):
        with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) got an unexpected keyword argument 'window'"):
            function(*[X] * (3 if function is nt.na1d else 2), 3, window=3)
        with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) missing a required argument: 'kernel_size'"):
            function(*[X] * (3 if function is nt.na1d else 2))


def test_arrays_of_others():
    layer = nt.NeighborhoodAttention1D(8, 2, 3)
    for name, call in (
        ("key", lambda x: nt.na1d(X, x, X, 3)),
        ("query", lambda x: nt.neighborhood_attention(x, X, X, 3)),
        ("value", lambda x: nt.attention(X, X, x)),
        ("x", lambda x: nt.norm_rope(x)),
        ("x", layer),
    ):
        with pytest.raises(TypeError, match=f"^{name} is a numpy.ndarray, not a torch.Tensor; functions of nhood itself take"):
            call(np.zeros((1, 9, 8) if call is layer else X.shape, np.float32))


def test_programs_of_fx():
    def graph(function):
        return [node.target for node in torch.fx.symbolic_trace(function).graph.nodes if node.op == "call_function"]

    assert nt.attention in graph(lambda x: nt.attention(x, x, x))
    assert nt.merge_attentions in graph(lambda x, lse: nt.merge_attentions([x, x], [lse, lse]))
    program = torch.fx.symbolic_trace(lambda x: nt.attention(x, x, x, is_causal=True))
    x = torch.rand(1, 9, 2, 8)
    torch.testing.assert_close(program(x), nt.attention(x, x, x, is_causal=True))
    with pytest.raises(TypeError, match="query is a torch.fx.proxy.Proxy, a value that torch.fx traces: only nhood.torch takes it"):
        graph(lambda x: nhood.na1d(x, x, x, 3))
    with pytest.raises(TypeError, match="whose number of axes is not known: call na1d, na2d or na3d"):
        graph(lambda x: nt.neighborhood_attention(x, x, x, 3))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.get_overloads is new in 3.11")
def test_types():
    functions = ["na1d", "na2d", "na3d", "neighborhood_attention", "attention", "neighborhood_attention_varlen"]
    assert_functions_are_typed(nt, [*functions, "StreamingNeighborhoodAttention"], _types.TorchAttention)
    assert [getattr(nt, name).__name__ for name in functions] == functions
    assert_functions_are_typed(nhood.torch.distributed, ["neighborhood_attention"])


def test_models_document_what_they_take():
    """By name, without arguments that are passed on unseen."""
    for name in models.__all__:
        model = getattr(models, name)
        if not isinstance(model, type) or model is models.Classifier:
            continue
        parameters = list(inspect.signature(model).parameters.values())
        assert all(parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) for parameter in parameters), name
        if model is models.GlobalAttention2D or model is models.HydraNeighborhoodAttention2D:
            continue  # as NeighborhoodAttention2D
        missing = [parameter.name for parameter in parameters if not re.search(rf"\b{parameter.name}\b[^.]*:", model.__doc__)]
        assert not missing, (name, missing)
    for model in (models.NAT, models.DiNATs):
        own = list(inspect.signature(model).parameters)
        assert own[: len(own) - (model is models.DiNATs)] == list(inspect.signature(HierarchicalClassifier).parameters)[2:]
