"""What type checkers are told of functions whose results depend on an argument, against their true signatures."""

import inspect
import sys
import typing

import nhood
import pytest
from nhood import _types


def assert_overloads_are_of(protocol, functions):
    """Each has the parameters of the functions, in their order, with their kinds and defaults; only return_lse tells them apart."""
    overloads = typing.get_overloads(protocol.__call__)
    assert [str(inspect.signature(overload).return_annotation) for overload in overloads] == ["T", "tuple[T, T]", "Union[T, tuple[T, T]]"]
    annotations = ["Literal[False]", "Literal[True]", "bool"]
    for overload, annotation in zip(overloads, annotations):
        declared = dict(list(inspect.signature(overload).parameters.items())[1:])
        assert declared["return_lse"].annotation == annotation
        for function in functions:
            true = inspect.signature(function).parameters
            assert list(declared) == list(true)
            for name, parameter in true.items():
                assert declared[name].kind == parameter.kind
                if name != "return_lse" or annotation == "Literal[False]":
                    assert declared[name].default == parameter.default, name


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.get_overloads is new in 3.11")
def test_functions_of_arrays():
    assert_overloads_are_of(_types.ArrayAttention, (nhood.na1d, nhood.na2d, nhood.na3d))
