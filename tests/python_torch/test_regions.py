"""Parts of a grid and periodic axes: derivatives, transforms, the compiler, autocast, merging, layers."""

import nhood.torch as nt
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

PERIODIC = dict(kernel_size=(3, 4), stride=(1, 2), is_periodic=(True, True))
BOXES = dict(
    kernel_size=(4, 2), stride=(3, 1), is_causal=(True, False), grid=(9, 5), query_offset=(4, 1), key_offset=(3, 0)
)
NO_KEYS = dict(kernel_size=3, grid=9, query_offset=0, key_offset=4)
CALLS = {  # query and key extents, arguments
    "periodic with bias": ((3, 4), (3, 4), PERIODIC, "bias"),
    "boxes": ((4, 3), (5, 4), BOXES, ""),
    "boxes with bias": (
        (2, 4),
        (4, 3),
        dict(kernel_size=(3, 3), grid=(6, 6), is_periodic=(False, True), query_offset=(1, 4), key_offset=(2, 5)),
        "bias",
    ),
    "queries without keys": ((6,), (4,), NO_KEYS, ""),
    "additional keys alone": ((6,), (4,), NO_KEYS, "additional"),
}


def inputs(query_lengths, key_lengths, axes, kind, dtype=torch.float64, heads=2, batch=2):
    torch.manual_seed(0)

    def tensor(*extents):
        return torch.randn(*extents, dtype=dtype, requires_grad=True)

    tensors = {
        "query": tensor(batch, *query_lengths, heads, 3),
        "key": tensor(batch, *key_lengths, 1, 3),
        "value": tensor(batch, *key_lengths, 1, 2),
    }
    if kind == "bias":
        tensors["bias"] = tensor(heads, *(2 * k - 1 for k in axes["kernel_size"]))
    if kind == "additional":
        tensors["additional_keys"], tensors["additional_values"] = tensor(batch, 1, 1, 3), tensor(batch, 1, 1, 2)
    return tensors


def function(tensors, axes):
    """Attention as a function of its tensors alone. Log-sum-exps of rows without keys, which nothing changes, are left out,
    as differences of infinities are no numbers."""

    def call(*given):
        out, lse = nt.neighborhood_attention(**dict(zip(tensors, given)), **axes, return_lse=True)
        return out, torch.where(lse == -torch.inf, 0, lse)

    return call


@pytest.mark.parametrize("name", CALLS)
def test_derivatives(name):
    *extents, axes, kind = CALLS[name]
    tensors = inputs(*extents, axes, kind, batch=1)
    call = function(tensors, axes)
    assert gradcheck(call, tuple(tensors.values()), fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(call, tuple(tensors.values()), fast_mode=True, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", ["periodic with bias", "boxes with bias"])
def test_derivatives_of_unfused_operators(name):
    *extents, axes, kind = CALLS[name]
    tensors = inputs(*extents, axes, kind, batch=1)

    def call(query, key, value, bias):
        attn = nt.na2d_qk(query, key, bias=bias, zero_fill=True, **axes)
        return attn, nt.na2d_av(attn.tanh(), value, **axes)

    assert gradcheck(call, tuple(tensors.values()), fast_mode=True, check_forward_ad=True)


def test_rows_without_keys():
    *extents, axes, kind = CALLS["queries without keys"]
    query, key, value = tensors = tuple(inputs(*extents, axes, kind).values())
    out, lse = nt.na1d(*tensors, **axes, return_lse=True)
    empty = torch.tensor([True] * 3 + [False] * 3)  # the window of query 3 ends at key 4
    assert torch.equal((lse == -torch.inf).all(-1).all(0), empty) and torch.equal(
        out[:, empty], torch.zeros_like(out[:, empty])
    )
    d_query, d_key, d_value = torch.autograd.grad((out, lse), tensors, (torch.ones_like(out), torch.ones_like(lse)))
    assert not d_query[:, empty].any() and all(torch.isfinite(d).all() for d in (d_query, d_key, d_value))


def test_a_region_is_a_crop_of_the_whole():
    query, key, value = torch.randn(3, 1, 12, 10, 2, 8, dtype=torch.float64)
    arguments = dict(kernel_size=(5, 4), stride=(2, 1), dilation=(2, 2))
    whole, whole_lse = nt.na2d(query, key, value, **arguments, return_lse=True)
    out, lse = nt.na2d(
        query[:, 7:10, 2:9], key, value, **arguments, grid=(12, 10), query_offset=(7, 2), return_lse=True
    )
    torch.testing.assert_close(out, whole[:, 7:10, 2:9])
    torch.testing.assert_close(lse, whole_lse[:, 7:10, 2:9])


def test_periodic_is_circular_padding():
    x = torch.randn(3, 1, 5, 12, 2, 8, dtype=torch.float64)
    out = nt.na2d(*x, (3, 4), dilation=(1, 2), is_periodic=(False, True))
    left, right = 2 * 2, 1 * 2  # of window 4 with dilation 2
    padded = torch.cat([x[:, :, :, -left:], x, x[:, :, :, :right]], dim=3)
    torch.testing.assert_close(out, nt.na2d(*padded, (3, 4), dilation=(1, 2))[:, :, left:-right])


def parts(query, key, value, axes, cuts):
    """Results over the keys of each part of axis 0."""
    bounds = [0, *cuts, key.shape[1]]
    return zip(
        *(
            nt.na1d(
                query,
                key[:, low:high],
                value[:, low:high],
                **axes,
                grid=key.shape[1],
                key_offset=low,
                return_lse=True,
            )
            for low, high in zip(bounds, bounds[1:])
        )
    )


@pytest.mark.parametrize(
    "axes",
    [dict(kernel_size=5, dilation=2), dict(kernel_size=6, is_causal=True), dict(kernel_size=4, is_periodic=True)],
)
def test_merging_disjoint_key_boxes(axes):
    tensors = [x.requires_grad_() for x in torch.randn(3, 1, 15, 2, 4, dtype=torch.float64)]
    whole = nt.na1d(*tensors, **axes, return_lse=True)
    merged = nt.merge_attentions(*parts(*tensors, axes, (3, 4, 11)))
    for got, expected in zip(merged, whole):
        torch.testing.assert_close(got, expected)
    directions = [torch.randn_like(x) for x in whole]
    for got, expected in zip(
        torch.autograd.grad(merged, tensors, directions), torch.autograd.grad(whole, tensors, directions)
    ):
        torch.testing.assert_close(got, expected)


def test_merging_rows_that_no_part_has_a_key_for():
    tensors = [x.requires_grad_() for x in torch.randn(3, 1, 9, 2, 4, dtype=torch.float64)]
    query, key, value = tensors
    results = [
        nt.na1d(query, key[:, low : low + 2], value[:, low : low + 2], 3, key_offset=low, return_lse=True)
        for low in (0, 2)
    ]
    out, lse = nt.merge_attentions(*zip(*results))
    assert (lse[:, 6:] == -torch.inf).all() and not out[:, 6:].any() and torch.isfinite(lse[:, :5]).all()
    for gradient in torch.autograd.grad((out, lse), tensors, (torch.ones_like(out), torch.ones_like(lse))):
        assert torch.isfinite(gradient).all()


def test_vmap():
    *extents, axes, kind = CALLS["boxes"]
    query, key, value = inputs(*extents, axes, kind).values()
    out = torch.vmap(lambda q, k, v: nt.na2d(q[None], k[None], v[None], **axes)[0])(query, key, value)
    torch.testing.assert_close(out, nt.na2d(query, key, value, **axes))

    def loss(query, key, value):
        return nt.na2d(query[None], key[None], value[None], **axes).square().sum()

    tensors = tuple(x.detach() for x in (query, key, value))
    gradients = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*tensors)
    expected = torch.autograd.grad(nt.na2d(query, key, value, **axes).square().sum(), (query, key, value))
    for got, one in zip(gradients, expected):
        torch.testing.assert_close(got, one)


def test_autocast():
    *extents, axes, kind = CALLS["boxes"]
    tensors = inputs(*extents, axes, kind, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = nt.na2d(**tensors, **axes)
    assert out.dtype == torch.bfloat16
    expected = nt.na2d(*(x.bfloat16() for x in tensors.values()), **axes)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("name", ["boxes", "boxes with bias", "periodic with bias"])
def test_operators_are_registered_right(name):
    *extents, axes, kind = CALLS[name]
    query, key, value, *bias = (x.detach() for x in inputs(*extents, axes, kind).values())
    bias = bias[0] if bias else None
    rank = len(extents[0])
    as_passed = nt._functions._axes(
        rank,
        axes["kernel_size"],
        axes.get("stride", 1),
        1,
        axes.get("is_causal", False),
        axes.get("is_periodic", False),
        axes.get("grid"),
        axes.get("query_offset"),
        axes.get("key_offset"),
    )
    four, place, ops = as_passed[:4], as_passed.place, torch.ops.nhood
    out, lse = ops.na(query, key, value, bias, None, None, *four, None, False, True, *place)
    attn = ops.na_qk(query, key, bias, *four, 1.0, True, False, *place)
    calls = {
        ops.na: (query, key, value, bias, None, None, *four, None, False, True, *place),
        ops.na_backward: (
            *(query, key, value, bias, None, None, out, lse, out, None),
            *(*four, None, False, [True] * 3 + [bias is not None, False, False], *place),
        ),
        ops.na_qk: (query, key, bias, *four, 1.0, True, False, *place),
        ops.na_av: (attn, value, *four, False, *place),
        ops.na_in: (attn, out, *four, 1, False, *place, extents[1]),
    }
    for operator, arguments in calls.items():
        torch.library.opcheck(operator.default, arguments, test_utils=("test_schema", "test_faketensor"))


def test_compiled():
    torch._dynamo.reset()
    query, key, value = torch.randn(3, 1, 12, 2, 8)
    made = 0

    def backend(graph, _):
        nonlocal made
        made += 1
        return graph.forward

    def step(query, key, value, at):
        return nt.na1d(query, key, value, 5, grid=12, query_offset=at)

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=backend)
    for at in (2, 3, 5, 7):
        torch.testing.assert_close(
            compiled(query[:, at : at + 4], key, value, at), step(query[:, at : at + 4], key, value, at)
        )
    assert made <= 2  # offsets are symbols

    leaf = [x.clone().requires_grad_() for x in (query, key, value)]
    compiled = torch.compile(
        lambda *x: nt.na1d(*x, 4, is_periodic=True).square().sum(), fullgraph=True, backend="aot_eager"
    )
    got = torch.autograd.grad(compiled(*leaf), leaf)
    for one, other in zip(got, torch.autograd.grad(nt.na1d(*leaf, 4, is_periodic=True).square().sum(), leaf)):
        torch.testing.assert_close(one, other)


def test_layers_are_periodic():
    torch.manual_seed(0)
    layer = nt.NeighborhoodAttention2D(16, 2, 3, is_periodic=(False, True), rel_pos_bias=True)
    assert "is_periodic=(False, True)" in repr(layer)
    x = torch.randn(1, 5, 8, 16)
    torch.testing.assert_close(layer(x.roll(3, 2)), layer(x).roll(3, 2))  # nothing is special about a seam
    plain = nt.NeighborhoodAttention2D(16, 2, 3, rel_pos_bias=True)
    plain.load_state_dict(layer.state_dict())
    assert (plain(x.roll(3, 2)) - plain(x).roll(3, 2)).abs().max() > 1e-3
    dropping = nt.NeighborhoodAttention2D(16, 2, 3, is_periodic=(False, True), rel_pos_bias=True, attn_drop=1e-9)
    dropping.load_state_dict(layer.state_dict())
    torch.testing.assert_close(dropping(x), layer(x))
    with pytest.raises(ValueError, match=r"is_periodic = \(True, False\) with is_causal = \(True, False\)"):
        nt.NeighborhoodAttention2D(16, 2, 3, is_causal=(True, False), is_periodic=(True, False))
