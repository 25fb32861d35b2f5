"""Tensors that stand for others or are no plain arrays: right results or an error that names the argument, from the
functions of arrays and from those of torch."""

import nhood
import nhood.torch as nt
import numpy as np
import pytest
import torch
from interrupts import assert_workspaces_are_owned, at_every_bytecode
from nhood import _plans, _quick
from torch._subclasses.fake_tensor import FakeTensorMode

X = torch.randn(1, 16, 2, 8, generator=torch.Generator().manual_seed(0))
BOTH = pytest.mark.parametrize("na1d", (nhood.na1d, nt.na1d), ids=("arrays", "torch"))


class Wrapper(torch.Tensor):
    """Has no memory; what it stands for is another tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, strides=inner.stride())

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*[x.inner if isinstance(x, cls) else x for x in args], **(kwargs or {}))


@BOTH
def test_lazily_negated(na1d):
    conjugate = torch.complex(X, X + 1).conj()
    for lazy in (torch._neg_view(X), conjugate.imag, conjugate.imag[:, :, :, ::1], conjugate.real):
        plain = torch.from_numpy(lazy.resolve_neg().numpy().copy())
        for at in range(3):
            inputs = [lazy.contiguous() if i == at else X for i in range(3)]
            views = [lazy if i == at and lazy.stride(-1) == 1 else x for i, x in enumerate(inputs)]
            expected = na1d(*[plain if i == at else X for i in range(3)], 3)
            assert torch.equal(na1d(*views, 3), expected)
    assert torch._neg_view(X).is_neg() and conjugate.imag.is_neg()


def test_lazily_negated_beside_numpy():
    lazy = torch._neg_view(X)
    got = nhood.na1d(X.numpy(), lazy, X, 3)
    np.testing.assert_array_equal(got, nhood.na1d(X.numpy(), -X.numpy(), X.numpy(), 3))


@BOTH
def test_strides_of_0(na1d):
    expanded = X[:, :1].expand(X.shape)
    assert torch.equal(na1d(expanded, X, expanded, 3), na1d(expanded.clone(), X, expanded.clone(), 3))


def test_no_plain_arrays():
    fake = FakeTensorMode().from_tensor(X)
    nested = torch.nested.nested_tensor([X[0], X[0]])
    emptied = X.clone()
    emptied.untyped_storage().resize_(0)
    for wrong, text in (
        (X.clone().requires_grad_(), "key requires a gradient"),
        (X.to_sparse(), "key has layout torch.sparse_coo"),
        (X[0, :, 0].to_sparse_csr(), "key has layout torch.sparse_csr"),
        (torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), "key has dtype torch.qint8"),
        (X.to(torch.complex64), "key has dtype torch.complex64"),
        (X.to("meta"), "key is on device meta"),
        (nested, "key is a nested tensor"),
        (fake, "key has no memory of its own"),
        (Wrapper(X), "key has no memory of its own"),
        (torch._efficientzerotensor(X.shape), "key has no memory of its own"),
        (emptied, "key has no memory of its own"),
    ):
        with pytest.raises(ValueError, match=text):
            nhood.na1d(X, wrong, X, 3)
    with pytest.raises(ValueError, match="query has no memory of its own"):
        torch.vmap(lambda x: nhood.na1d(x, x, x, 3))(X[None])
    with pytest.raises(TypeError, match="kernel_size = tensor.True. is not an integer"):
        nhood.na1d(X, X, X, torch.tensor(True))


def test_tensors_that_stand_for_others_in_torch():
    expected = nt.na1d(X, X, X, 3)
    assert torch.equal(nt.na1d(Wrapper(X), X, X, 3), expected)
    zeros = torch._efficientzerotensor(X.shape)
    assert torch.equal(nt.na1d(X, X, zeros, 3), torch.zeros_like(X))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(X)
        assert nt.na1d(fake, fake, fake, 3).shape == X.shape
    with pytest.raises(NotImplementedError, match="nhood::na.*Sparse"):
        nt.na1d(X.to_sparse(), X, X, 3)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(is_causal="no"), "is_causal = 'no' is not a bool"),
        (dict(kernel_size=True), "kernel_size = True is not an integer"),
        (dict(kernel_size=3.0), "kernel_size = 3.0 is not an integer"),
        (dict(scale="1"), "scale = '1' is not a number"),
        (dict(return_lse=None), "return_lse = None is not a bool"),
        (dict(clamp_window=2), "clamp_window = 2 is not a bool"),
    ],
)
def test_types_of_arguments(arguments, text):
    with pytest.raises(TypeError, match=text):
        nt.na1d(X, X, X, **{"kernel_size": 3, **arguments})


def test_interrupts(monkeypatch):
    """As in tests/python: by torch, calls on the CPU take their workspaces from the same pool, where nothing is remembered."""
    monkeypatch.setattr(_quick, "call", _quick.no_call)
    nhood.configure(threads=1)
    try:
        large = torch.randn(3, 1, 300, 2, 32, generator=torch.Generator().manual_seed(1))
        expected = nt.na1d(X, X, X, 3), nt.na1d(*large, 101)
        places = 0
        _plans._idle.clear()
        for _ in at_every_bytecode(KeyboardInterrupt, lambda: nt.na1d(*large, 101)):
            assert_workspaces_are_owned()
            assert torch.equal(nt.na1d(X, X, X, 3), expected[0])
            _plans._idle.clear()
            places += 1
        assert places > 100 and torch.equal(nt.na1d(*large, 101), expected[1])
    finally:
        nhood.configure()


def test_tangents_are_not_lost_by_functions_of_arrays():
    """Those have no rule of forward mode, and say so."""
    forward_ad = torch.autograd.forward_ad
    out, lse = nhood.na1d(X, X, X, 3, return_lse=True)
    table = torch.randn(16, 2, 2)
    with forward_ad.dual_level():
        dual, of_table = forward_ad.make_dual(X, X.clone()), forward_ad.make_dual(table, table.clone())
        attn = nhood.na1d_qk(X, X, 3)
        attn = forward_ad.make_dual(attn, attn.clone())
        for name, call in (
            ("query", lambda: nhood.na1d(dual, X, X, 3)),
            ("value", lambda: nhood.na1d(X, X, dual, 3)),
            ("bias", lambda: nhood.na1d(X, X, X, 3, bias=forward_ad.make_dual(table[:2, 0, :1], table[:2, 0, :1]))),
            ("key", lambda: nhood.na1d(X.numpy(), dual, X.numpy(), 3)),
            ("key", lambda: nhood.na1d_qk(X, dual, 3)),
            ("attn", lambda: nhood.na1d_av(attn, X, 3)),
            ("d_out", lambda: nhood.na1d_backward(dual, X, X, X, out, lse, 3)),
            ("x", lambda: nhood.norm_rope(dual)),
            ("d_out", lambda: nhood.norm_rope_backward(dual, X)),
            ("tables.0.", lambda: nhood.norm_rope(X, [of_table])),
        ):
            with pytest.raises(ValueError, match=f"{name} has a tangent, which would be lost: call nhood.torch"):
                call()
        assert torch.equal(nhood.na1d(X, X, X, 3), out)
    with pytest.raises(ValueError, match="query has a tangent"):
        torch.func.jvp(lambda q: nhood.na1d(q, X, X, 3), (X,), (X,))


@pytest.mark.filterwarnings("ignore")  # of torch, on nested tensors
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested(layout):
    nested = torch.nested.nested_tensor([X[0], X[0, :5]], layout=layout)
    channels = torch.nested.nested_tensor([X[0].flatten(1), X[0, :5].flatten(1)], layout=layout)
    for name, call in (
        ("query", lambda: nt.na1d(nested, nested, nested, 3)),
        ("key", lambda: nt.na1d(X, nested, X, 3)),
        ("query", lambda: nt.neighborhood_attention(nested, nested, nested, 3)),
        ("query", lambda: nt.na1d_qk(nested, nested, 3)),
        ("value", lambda: nt.na1d_av(nt.na1d_qk(X, X, 3), nested, 3)),
        ("key", lambda: nt.attention(X, nested, nested)),
        ("x", lambda: nt.norm_rope(nested)),
        ("x", lambda: nt.NeighborhoodAttention1D(16, 2, 3)(channels)),
    ):
        with pytest.raises(TypeError, match=rf"^{name} is a nested tensor.*pass each of {name}.unbind\(\)"):
            call()
    with pytest.raises(ValueError, match=r"key is a nested tensor.*pass each of key.unbind\(\)"):
        nhood.na1d(X, nested, X, 3)
