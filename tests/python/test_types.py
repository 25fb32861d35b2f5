"""What type checkers are told of functions whose results depend on an argument, against their true signatures."""

import inspect
import sys
import typing

import nhood
import pytest
from nhood import _types


def assert_overloads_are_of(overloads, function):
    """They have the parameters of the function, in their order, with their kinds and defaults; only return_lse tells them apart."""
    results = [inspect.signature(overload).return_annotation for overload in overloads]
    one = results[0]
    assert results == [one, f"tuple[{one}, {one}]", f"Union[{one}, tuple[{one}, {one}]]"]
    true = _parameters(function)
    for overload, annotation in zip(overloads, ("Literal[False]", "Literal[True]", "bool")):
        declared = _parameters(overload)
        assert list(declared) == list(true)
        assert declared["return_lse"].annotation == annotation
        for name, parameter in true.items():
            assert declared[name].kind == parameter.kind
            if name != "return_lse" or annotation == "Literal[False]":
                assert declared[name].default == parameter.default, name


def _parameters(function):
    return {name: parameter for name, parameter in inspect.signature(function).parameters.items() if name != "self"}


def assert_functions_are_typed(module, expected, protocol=None):
    """Every public function of the module that takes return_lse, or instance of a class of it, has overloads: its own, or those of
    the protocol that it is annotated with. `expected` are their names."""
    found = []
    for name in module.__all__:
        public = getattr(module, name)
        function = public.__call__ if inspect.isclass(public) else public
        if not inspect.isroutine(function) or isinstance(function, type(object.__call__)):
            continue
        if "return_lse" not in inspect.signature(function).parameters:
            continue
        found.append(name)
        overloads = typing.get_overloads(function) or typing.get_overloads(protocol.__call__)
        assert_overloads_are_of(overloads, function)
    assert sorted(found) == sorted(expected)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.get_overloads is new in 3.11")
def test_functions_of_arrays():
    assert_functions_are_typed(nhood, ["na1d", "na2d", "na3d", "neighborhood_attention_varlen"], _types.ArrayAttention)
