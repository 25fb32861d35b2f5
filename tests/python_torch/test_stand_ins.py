"""Meta and fake tensors are refused where real ones are, with the same words."""

import nhood.torch as nt
import pytest
import torch
from nhood.torch import _ops
from torch._subclasses.fake_tensor import FakeTensorMode

Q1, Q2 = (2, 7, 4, 8), (2, 5, 6, 4, 8)
AXES = ((3, 3), (1, 1), (1, 1), (False, False))
NOTHING = (None, None, None)


def backward(make, d_out=Q2, lse=Q2[:-1], lse_dtype=torch.float32):
    q = make(*Q2)
    tensors = (q, q, q, *NOTHING, q, make(*lse, dtype=lse_dtype), make(*d_out), None)
    return _ops.na_backward(*tensors, *AXES, None, False, [True] * 3 + [False] * 3)


CALLS = {
    "window beyond the axis": lambda make: nt.na1d(make(*Q1), make(*Q1), make(*Q1), 9),
    "dilated window beyond the axis": lambda make: nt.na2d(make(*Q2), make(*Q2), make(*Q2), 3, dilation=2),
    "window of 0": lambda make: nt.na1d(make(*Q1), make(*Q1), make(*Q1), 0),
    "stride above the window": lambda make: nt.na1d(make(*Q1), make(*Q1), make(*Q1), 3, 4),
    "head dims": lambda make: nt.na1d(make(*Q1), make(2, 7, 4, 6), make(*Q1), 3),
    "heads": lambda make: nt.na1d(make(*Q1), make(2, 7, 3, 8), make(2, 7, 3, 8), 3),
    "heads of key and value": lambda make: nt.na1d(make(*Q1), make(2, 7, 2, 8), make(*Q1), 3),
    "batches": lambda make: nt.na1d(make(*Q1), make(1, 7, 4, 8), make(*Q1), 3),
    "an empty batch beside another": lambda make: nt.na1d(make(0, 7, 4, 8), make(*Q1), make(*Q1), 3),
    "lengths": lambda make: nt.na1d(make(*Q1), make(2, 6, 4, 8), make(2, 6, 4, 8), 3),
    "no tokens": lambda make: nt.na1d(*[make(2, 0, 4, 8)] * 3, 3),
    "number of axes": lambda make: nt.na2d(make(*Q1), make(*Q1), make(*Q1), 3),
    "axes of the key": lambda make: nt.na1d(make(*Q1), make(*Q2), make(*Q1), 3),
    "dtypes": lambda make: nt.na1d(make(*Q1), make(*Q1, dtype=torch.float16), make(*Q1), 3),
    "integers": lambda make: nt.na1d(*[make(*Q1, dtype=torch.int32)] * 3, 3),
    "bias shape": lambda make: nt.na1d(make(*Q1), make(*Q1), make(*Q1), 3, bias=make(4, 6)),
    "bias heads": lambda make: nt.na1d(make(*Q1), make(*Q1), make(*Q1), 3, bias=make(2, 5)),
    "bias on a causal axis": lambda make: nt.na1d(*[make(*Q1)] * 3, 3, is_causal=True, bias=make(4, 5)),
    "additional tokens": lambda make: nt.na1d(
        *[make(*Q1)] * 3, 3, additional_keys=make(2, 3, 4, 8), additional_values=make(2, 2, 4, 8)
    ),
    "a region beyond the grid": lambda make: nt.na1d(*[make(*Q1)] * 3, 3, grid=9, query_offset=3),
    "an offset below 0": lambda make: nt.na1d(*[make(*Q1)] * 3, 3, grid=9, key_offset=-1),
    "periodic and causal": lambda make: nt.na1d(*[make(*Q1)] * 3, 3, is_causal=True, is_periodic=True),
    "periodic, not divided": lambda make: nt.na1d(*[make(*Q1)] * 3, 3, dilation=2, is_periodic=True),
    "an infinite scale": lambda make: nt.na1d(*[make(*Q1)] * 3, 3, scale=float("inf")),
    "logits: window": lambda make: nt.na2d_qk(make(*Q2), make(*Q2), 7),
    "logits: head dims": lambda make: nt.na2d_qk(make(*Q2), make(2, 5, 6, 4, 7), 3),
    "weights: slots": lambda make: nt.na2d_av(make(2, 5, 6, 4, 8), make(*Q2), 3),
    "weights: batch": lambda make: nt.na2d_av(make(1, 5, 6, 4, 9), make(*Q2), 3),
    "inverse: slots": lambda make: _ops.na_in(make(2, 5, 6, 4, 8), make(*Q2), *AXES, 4, False),
    "inverse: heads": lambda make: _ops.na_in(make(2, 5, 6, 4, 9), make(*Q2), *AXES, 3, False),
    "backward: d_out": lambda make: backward(make, d_out=(2, 5, 6, 4, 7)),
    "backward: lse": lambda make: backward(make, lse=(2, 5, 6, 3)),
    "backward: dtype of lse": lambda make: backward(make, lse_dtype=torch.float64),
    "dense: head dims": lambda make: nt.attention(make(*Q1), make(2, 7, 4, 6), make(*Q1)),
    "norm: odd channels": lambda make: nt.norm_rope(make(2, 7, 4, 7)),
    "norm: eps": lambda make: nt.norm_rope(make(*Q1), eps=-1.0),
    "norm: dtype": lambda make: nt.norm_rope(make(*Q1, dtype=torch.int32)),
    "norm: table": lambda make: nt.norm_rope(make(*Q1), [make(6, 2, 2)]),
    "norm: weight": lambda make: nt.norm_rope(make(*Q1), None, make(9)),
    "norm: channels": lambda make: nt.norm_rope(make(1, 1, 17, 1024), norm="token"),
    "norm: d_out": lambda make: torch.ops.nhood.norm_rope_backward(
        make(*Q1), None, *NOTHING, make(2, 6, 4, 8), "head", "halves", 1e-6, 1.0, (0,), (True, False)
    ),
}


def error_of(call, make):
    with pytest.raises(Exception) as raised:
        call(make)
    return type(raised.value), str(raised.value)


def empty_on(device):
    return lambda *shape, dtype=torch.float32: torch.empty(shape, dtype=dtype, device=device)


@pytest.mark.parametrize("name", CALLS)
def test_refused_alike(name):
    real = error_of(CALLS[name], empty_on("cpu"))
    assert error_of(CALLS[name], empty_on("meta")) == real
    with FakeTensorMode():
        assert error_of(CALLS[name], empty_on("cpu")) == real
    assert issubclass(real[0], ValueError)


@pytest.mark.parametrize("devices", [("meta", "cpu"), ("cpu", "meta")])
def test_devices_are_not_mixed(devices):
    first, second = (empty_on(device) for device in devices)
    x, y = first(*Q1), second(*Q1)
    with pytest.raises(ValueError, match=f"key is on {devices[1]}, query on {devices[0]}"):
        nt.na1d(x, y, x, 3)
    with pytest.raises(ValueError, match=f"key is on {devices[1]}, query on {devices[0]}"):
        nt.na1d_qk(x, y, 3)
    with pytest.raises(ValueError, match=f"weight is on {devices[1]}, x on {devices[0]}"):
        nt.norm_rope(x, None, second(8))


def test_not_exported():
    layer = nt.NeighborhoodAttention1D(16, 2, 9)
    for strict in (False, True):
        with pytest.raises(Exception, match="kernel_size = 9 exceeds the 5 tokens"):
            torch.export.export(layer, (torch.randn(2, 5, 16),), strict=strict)


def test_symbols_stay_symbols():
    """Checks look at examples, and bind no size."""
    torch.compiler.reset()
    compiled = torch.compile(lambda q: nt.na1d(q, q, q, 3), fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (5, 6, 9):
        with torch.compiler.set_stance("fail_on_recompile" if length > 5 else "default"):
            assert compiled(torch.randn(length - 2, length, 2, 4)).shape == (length - 2, length, 2, 4)
    with pytest.raises(ValueError, match="kernel_size = 3 exceeds the 2 tokens"):
        compiled(torch.randn(4, 2, 2, 4))
