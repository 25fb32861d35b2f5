"""Errors in the words of the caller: no field of nhood.h, but the argument that it was filled from, and the function called."""

import re
import subprocess
import sys
from pathlib import Path

import nhood
import numpy as np
import pytest
from nhood import _words

ROOT = Path(__file__).resolve().parents[2]
GRID = np.zeros((1, 7, 9, 4, 8), np.float32)
HEADS_FIRST = np.zeros((1, 4, 56, 57, 32), np.float32)
HINT = r"; if query is \[B, H, X0, X1, D\], with the heads before the grid, move its axis 1 to -2, and so in the other arrays$"


def test_every_field_that_the_library_refuses_has_an_argument():
    source = (ROOT / "src/core/problem.c").read_text()
    of_axes = set(re.findall(r'"axis\[%d\]\.(\w+) ', source))
    assert of_axes == {*_words._OF_AXES, "length"}
    scalars = set(re.findall(r'nh_check_range\("(\w+)"', source)) | set(re.findall(r'"problem\.(\w+) =', source))
    filled_by_the_package = {"op", "dtype", "rank", "flags", "has_bias", "struct_size"}
    assert scalars - filled_by_the_package == {*_words._LETTERS, "scale"}


@pytest.mark.parametrize(
    "call, text",
    [
        (dict(kernel_size=7), r"^kernel_size = 7 exceeds the 4 tokens of axis 0"),
        (dict(kernel_size=3, grouped=2), r"^key.shape = \(1, 2, 56, 57, 32\): the length of axis 0 is 2, expected 4"),
        (dict(kernel_size=3, bias=np.zeros((4, 5, 5), np.float32)), r"^bias.shape = .*: the number of query heads is 4, expected 57"),
    ],
)
def test_a_layout_with_the_heads_before_the_grid(call, text):
    kv_heads = call.pop("grouped", 4)
    key = HEADS_FIRST[:, :kv_heads]
    with pytest.raises(ValueError, match=text + HINT):
        nhood.na2d(HEADS_FIRST, key, key, **call)
    query, key = np.moveaxis(HEADS_FIRST, 1, -2), np.moveaxis(key, 1, -2)
    assert nhood.na2d(query, key, key, **call).shape == (1, 56, 57, 4, 32)
    with pytest.raises(ValueError) as caught:  # it would not help here
        nhood.na2d(HEADS_FIRST, HEADS_FIRST, HEADS_FIRST, 60)
    assert "heads before the grid" not in str(caught.value)


@pytest.mark.parametrize("name", ("query", "key", "value"))
def test_one_array_with_the_heads_before_the_grid(name):
    arrays = dict.fromkeys(("query", "key", "value"), np.moveaxis(HEADS_FIRST, 1, -2))
    with pytest.raises(ValueError) as caught:
        nhood.na2d(**{**arrays, name: HEADS_FIRST}, kernel_size=7)
    hint = f"; if {name} is [B, H, X0, X1, D], with the heads before the grid, move its axis 1 to -2"
    assert str(caught.value).endswith(hint)


@pytest.mark.parametrize("function", (nhood.na2d, nhood.na2d_qk, nhood.na2d_backward, nhood.na1d_in))
def test_wrong_calls_name_the_function(function):
    for arguments, named, text in (
        ((), dict(window=3), "got an unexpected keyword argument|missing a required argument"),
        ((GRID,), {}, r"missing a required argument: '\w+'"),
        ((GRID,) * 30, {}, "too many positional arguments"),
    ):
        with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) ({text})"):
            function(*arguments, **named)
    assert nhood.na2d(GRID, GRID, GRID, 3).shape == GRID.shape


def test_norm_rope():
    x = np.zeros((1, 4, 2, 7), np.float32)
    with pytest.raises(ValueError, match=r"^x.shape = \(1, 4, 2, 7\): the head dim, 7, is not even$"):
        nhood.norm_rope(x)
    with pytest.raises(ValueError, match=r"^eps = -1 is not in \[0, infinity\)$"):
        nhood.norm_rope(x[..., :6], eps=-1.0)
    with pytest.raises(ValueError, match=r"^scale = inf is not finite$"):
        nhood.norm_rope(x[..., :6], scale=float("inf"))


def test_the_environment_is_named_as_it_was_given():
    def import_with(**environment):
        code = "import nhood; nhood.devices()"
        environment = {"NHOOD_LIBRARY": str(nhood.library_path), "PYTHONPATH": str(Path(nhood.__file__).parent.parent), **environment}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stderr

    assert "ValueError: NHOOD_ISA = 'mmx' is not one of" in import_with(NHOOD_ISA="mmx")
    assert "ValueError: bundle '/nowhere' of NHOOD_BUNDLE: No such file" in import_with(NHOOD_BUNDLE="/nowhere")


@pytest.mark.parametrize("module", ("torch", "torch.distributed", "models", "compat.natten", "integrations.diffusers", "jax", "jax.sharded"))
def test_what_to_install(module):
    package = "jax" if module.startswith("jax") else "torch"
    code = f"import sys; sys.modules['{package}'] = None; import nhood.{module}"
    environment = {"NHOOD_LIBRARY": str(nhood.library_path), "PYTHONPATH": str(Path(nhood.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith(f"ModuleNotFoundError: nhood.{package} needs ")
    assert f"pip install 'nhood[{package}]'" in done.stderr
