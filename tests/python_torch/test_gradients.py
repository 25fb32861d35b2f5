"""Derivatives: reverse and forward mode, second ones, of every tensor and of the log-sum-exp."""

import nhood.torch as nt
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

CALLS = {
    "1d": ((7,), dict(kernel_size=4, stride=3)),
    "causal": ((9,), dict(kernel_size=4, stride=2, dilation=2, is_causal=True)),
    "2d gqa": ((4, 5), dict(kernel_size=(3, 2), stride=(2, 1), dilation=(1, 2)), dict(kv_heads=1)),
    "bias": ((4, 5), dict(kernel_size=(3, 4)), dict(bias=True)),
    "additional": ((6,), dict(kernel_size=3, is_causal=True), dict(extra=2, kv_heads=1)),
    "3d": ((3, 2, 3), dict(kernel_size=(3, 2, 2), is_causal=(False, True, False)), dict(extra=1)),
}
HEADS, DIM, DIM_V = 2, 3, 2


def inputs(shape, axes, kv_heads=HEADS, bias=False, extra=0, dtype=torch.float64, batch=2):
    torch.manual_seed(0)

    def tensor(*extents):
        return torch.randn(*extents, dtype=dtype, requires_grad=True)

    tensors = {
        "query": tensor(batch, *shape, HEADS, DIM),
        "key": tensor(batch, *shape, kv_heads, DIM),
        "value": tensor(batch, *shape, kv_heads, DIM_V),
    }
    if bias:
        tensors["bias"] = tensor(HEADS, *(2 * k - 1 for k in axes["kernel_size"]))
    if extra:
        tensors["additional_keys"] = tensor(batch, extra, kv_heads, DIM)
        tensors["additional_values"] = tensor(batch, extra, kv_heads, DIM_V)
    return tensors


def function(axes, names, **more):
    def call(*tensors):
        return nt.neighborhood_attention(**dict(zip(names, tensors)), **axes, **more)

    return call


@pytest.mark.parametrize("name", CALLS)
def test_attention(name):
    shape, axes, *rest = CALLS[name]
    tensors = inputs(shape, axes, **(rest[0] if rest else {}))
    call = function(axes, tensors, return_lse=True)
    assert gradcheck(call, tuple(tensors.values()), check_forward_ad=True)


@pytest.mark.parametrize("name", ["causal", "2d gqa", "bias", "additional"])
def test_attention_twice(name):
    shape, axes, *rest = CALLS[name]
    tensors = inputs(shape, axes, **(rest[0] if rest else {}))
    with_lse = function(axes, tensors, return_lse=True)
    assert gradgradcheck(with_lse, tuple(tensors.values()), fast_mode=True, check_fwd_over_rev=True)
    assert gradgradcheck(function(axes, tensors), tuple(tensors.values()), fast_mode=True)


def of(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def part(query, key, value, bias=None, **more):
    """Some queries have no key, some a part of their window."""
    return nt.na1d(query, key, value, 3, grid=12, query_offset=0, key_offset=3, bias=bias, **more)


@pytest.mark.parametrize(
    "call, tensors",
    [
        (part, lambda: (of(1, 6, 2, 3), of(1, 4, 1, 3), of(1, 4, 1, 2))),
        (part, lambda: (of(1, 6, 2, 3), of(1, 4, 2, 3), of(1, 4, 2, 2), of(2, 5))),
        (
            lambda q, k, v, keys, values: part(q, k, v, additional_keys=keys, additional_values=values),
            lambda: (of(1, 6, 2, 3), of(1, 4, 1, 3), of(1, 4, 1, 2), of(1, 2, 1, 3), of(1, 2, 1, 2)),
        ),
        (lambda *x: nt.na1d(*x, 3, is_periodic=True, return_lse=True), lambda: [of(1, 6, 2, 3) for _ in range(3)]),
        (lambda *x: nt.attention(*x, return_lse=True), lambda: (of(1, 4, 2, 3), of(1, 5, 1, 3), of(1, 5, 1, 2))),
        (lambda *x: nt.attention(*x, is_causal=True), lambda: (of(1, 6, 2, 3), of(1, 4, 1, 3), of(1, 4, 1, 2))),
    ],
    ids=["part", "part with bias", "part and additional", "periodic", "dense", "dense, causal"],
)
def test_parts_and_dense_twice(call, tensors):
    torch.manual_seed(0)
    given = tensors()
    assert gradcheck(call, given, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(call, given, check_fwd_over_rev=True, fast_mode=True)


def test_one_tensor_for_all():
    x = torch.randn(1, 4, 5, 2, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: nt.na2d(x, x, x, 3), x, check_forward_ad=True)
    assert gradgradcheck(lambda x: nt.na2d(x, x, x, 3), x)
    assert gradgradcheck(lambda x: nt.na2d_qk(x, x, 3), x)


def test_third_derivative():
    x = torch.randn(1, 4, 1, 2, dtype=torch.float64, requires_grad=True)

    def second(x):
        first = torch.autograd.grad(nt.na1d(x, x.sin(), x, 3).square().sum(), x, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), x, create_graph=True)[0]

    assert gradcheck(second, x)


def test_some_inputs_only():
    shape, axes, more = CALLS["additional"]
    tensors = inputs(shape, axes, **more)
    full = torch.autograd.grad(function(axes, tensors)(*tensors.values()).sum(), tuple(tensors.values()))
    for i, name in enumerate(tensors):
        alone = {n: t.detach().requires_grad_(n == name) for n, t in tensors.items()}
        gradient = torch.autograd.grad(function(axes, alone)(*alone.values()).sum(), alone[name])[0]
        torch.testing.assert_close(gradient, full[i])


def test_log_sum_exp_alone():
    shape, axes, more = CALLS["2d gqa"]
    tensors = inputs(shape, axes, **more)
    call = function(axes, tensors, return_lse=True)
    assert gradcheck(lambda *t: call(*t)[1], tuple(tensors.values())[:2] + (tensors["value"].detach(),))
    d_value = torch.autograd.grad(call(*tensors.values())[1].sum(), tensors["value"])[0]
    assert torch.equal(d_value, torch.zeros_like(d_value))


@pytest.mark.parametrize("name", ["1d", "causal", "2d gqa", "bias"])
def test_unfused(name):
    """With one batch, whose Jacobians have a quarter of the elements; test_fused_is_unfused has two."""
    shape, axes, *rest = CALLS[name]
    tensors = inputs(shape, axes, **(rest[0] if rest else {}), batch=1)
    rank = len(shape)
    qk, av = getattr(nt, f"na{rank}d_qk"), getattr(nt, f"na{rank}d_av")

    def logits(query, key, bias=None):
        attn = qk(query, key, **axes, scale=0.7, bias=bias)
        return torch.where(attn.isinf(), 0, attn)  # slots that causal windows leave unused have no derivative

    arguments = tuple(tensors[n] for n in ("query", "key", "bias") if n in tensors)
    assert gradcheck(logits, arguments, check_forward_ad=True)
    assert gradgradcheck(logits, arguments, fast_mode=True)
    attn = logits(*arguments).detach().requires_grad_()

    def values(attn, value):
        return av(attn, value, **axes)

    assert gradcheck(values, (attn, tensors["value"]), check_forward_ad=True)
    assert gradgradcheck(values, (attn, tensors["value"]), fast_mode=True, check_fwd_over_rev=True)


def test_fused_is_unfused():
    shape, axes, more = CALLS["bias"]
    tensors = inputs(shape, axes, **more, dtype=torch.float32)
    query, key, value, bias = tensors.values()
    fused = nt.na2d(query, key, value, **axes, bias=bias)
    attn = nt.na2d_qk(query, key, **axes, scale=DIM**-0.5, bias=bias).softmax(-1)
    unfused = nt.na2d_av(attn, value, **axes)
    torch.testing.assert_close(fused, unfused)
    d_out = torch.randn_like(fused)
    for one, other in zip(
        torch.autograd.grad(fused, tuple(tensors.values()), d_out),
        torch.autograd.grad(unfused, tuple(tensors.values()), d_out),
    ):
        torch.testing.assert_close(one, other)


def test_any_gradient_layout():
    """Gradients arrive as other functions leave them: broadcast, or not contiguous on the last axis."""
    query = torch.randn(2, 6, 5, 2, 8, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(nt.na2d(query, query, query, 3), query, torch.ones(2, 6, 5, 2, 8).double())[0]
    broadcast = torch.autograd.grad(nt.na2d(query, query, query, 3).sum(), query)[0]
    channels_first = torch.ones(2, 8, 6, 5, 2).double().movedim(1, -1)
    permuted = torch.autograd.grad(nt.na2d(query, query, query, 3), query, channels_first)[0]
    assert torch.equal(expected, broadcast) and torch.equal(expected, permuted)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    shape, axes, more = CALLS["bias"]
    tensors = inputs(shape, axes, **more)
    call = function(axes, tensors)
    expected = torch.autograd.grad(call(*tensors.values()).square().sum(), tuple(tensors.values()))
    checkpoint(call, *tensors.values(), use_reentrant=reentrant).square().sum().backward()
    for tensor, gradient in zip(tensors.values(), expected):
        assert torch.equal(tensor.grad, gradient)


def test_no_graph_without_gradients():
    query, key, value = (torch.randn(1, 9, 2, 8, requires_grad=True) for _ in range(3))
    with torch.no_grad():
        assert nt.na1d(query, key, value, 3).grad_fn is None
    with torch.inference_mode():
        assert nt.na1d(query, key, value, 3).is_inference()
    assert nt.na1d(query.detach(), key.detach(), value.detach(), 3).grad_fn is None
