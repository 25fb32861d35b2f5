"""Layers, attention without neighborhoods, and merging."""

import pickle

import nhood.torch as nt
import pytest
import torch
from nhood import models
from nhood.compat.natten import _v015, _v017, modules
from torch.nn.functional import scaled_dot_product_attention

LAYERS = {1: nt.NeighborhoodAttention1D, 2: nt.NeighborhoodAttention2D, 3: nt.NeighborhoodAttention3D}
SHAPES = {1: (9,), 2: (6, 7), 3: (4, 5, 3)}


@pytest.mark.parametrize("rank", LAYERS)
def test_layer_is_its_parts(rank):
    torch.manual_seed(0)
    layer = LAYERS[rank](24, 4, 3, stride=2, qk_scale=0.4, rel_pos_bias=True, num_kv_heads=2)
    assert set(layer.state_dict()) == {"qkv.weight", "qkv.bias", "rpb", "proj.weight", "proj.bias"}
    x = torch.randn(2, *SHAPES[rank], 24)
    query, key, value = layer.qkv(x).split([24, 12, 12], dim=-1)
    heads = [t.unflatten(-1, (-1, 6)) for t in (query, key, value)]
    out = nt.neighborhood_attention(*heads, 3, 2, scale=0.4, bias=layer.rpb)
    torch.testing.assert_close(layer(x), layer.proj(out.flatten(-2)))
    layer(x).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_layer_options():
    layer = nt.NeighborhoodAttention2D(16, 2, (3, 5), dilation=(2, 1), is_causal=(True, False), qkv_bias=False)
    assert layer.qkv.bias is None and layer.rpb is None
    assert layer(torch.randn(1, 6, 6, 16)).shape == (1, 6, 6, 16)
    assert "kernel_size=(3, 5)" in repr(layer)
    half = nt.NeighborhoodAttention1D(16, 2, 3, dtype=torch.bfloat16)
    assert half(torch.randn(1, 6, 16).bfloat16()).dtype == torch.bfloat16


def test_dropout_of_results():
    """A dropout of 0 may be left out, unless somebody would notice."""
    layer = nt.NeighborhoodAttention1D(16, 2, 3)
    x = torch.randn(1, 9, 16)
    expected = layer(x)
    seen = []
    for register in (layer.proj_drop.register_forward_hook, layer.proj_drop.register_forward_pre_hook):
        handle = register(lambda *arguments: seen.append(len(arguments)))
        assert torch.equal(layer(x), expected)
        handle.remove()
    handle = layer.proj_drop.register_full_backward_hook(lambda *arguments: seen.append("backward"))
    layer(x).sum().backward()
    handle.remove()
    assert seen == [3, 2, "backward"]
    layer.proj_drop.p = 1.0
    assert not layer(x).any() and torch.equal(layer.eval()(x), expected)
    layer.train().proj_drop = torch.nn.Tanh()
    assert torch.equal(layer(x), expected.tanh())
    assert "proj_drop" in str(torch.fx.symbolic_trace(nt.NeighborhoodAttention1D(16, 2, 3)).graph)


def test_attention_dropout():
    torch.manual_seed(0)
    layer = nt.NeighborhoodAttention1D(32, 2, 5, rel_pos_bias=True, attn_drop=0.5)
    x = torch.randn(2, 40, 32)
    evaluated = layer.eval()(x)
    assert torch.equal(layer(x), evaluated)
    layer.train()
    samples = torch.stack([layer(x) for _ in range(100)])
    assert not torch.equal(samples[0], samples[1])
    error = (samples.mean(0) - evaluated).abs() / (samples.std(0) / 10)  # in standard errors of the mean
    assert error.max() < 6
    layer(x).sum().backward()
    assert layer.rpb.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(embed_dim=10, num_heads=4), "embed_dim = 10 is not a multiple of num_heads = 4"),
        (dict(num_heads=0), "num_heads = 0 is less than 1"),
        (dict(embed_dim=0), "embed_dim = 0 is not a multiple of num_heads = 4"),
        (dict(num_kv_heads=3), "num_kv_heads = 3 does not divide num_heads = 4"),
        (dict(kernel_size=(3, 3, 3)), r"kernel_size = \(3, 3, 3\) has 3 entries, not 2"),
        (dict(kernel_size=(3, 0)), r"kernel_size = \(3, 0\): 0 is less than 1"),
        (dict(dilation=-1), r"dilation = \(-1, -1\): -1 is less than 1"),
        (dict(stride=(1, 4)), r"stride = \(1, 4\): 4 exceeds kernel_size 3"),
        (dict(rel_pos_bias=True, is_causal=True), "rel_pos_bias"),
    ],
)
def test_layer_refuses(arguments, text):
    with pytest.raises(ValueError, match=text):
        nt.NeighborhoodAttention2D(**{**dict(embed_dim=16, num_heads=4, kernel_size=3), **arguments})


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_traced_layer():
    layer = nt.NeighborhoodAttention2D(16, 4, 3, rel_pos_bias=True).eval()
    x, larger = torch.randn(1, 6, 6, 16), torch.randn(2, 9, 7, 16)
    with torch.no_grad():
        traced = torch.jit.trace(layer, x)
        assert torch.equal(traced(x), layer(x))
        assert torch.equal(traced(larger), layer(larger))


def test_layer_refuses_input():
    with pytest.raises(ValueError, match=r"x.shape = \(6, 6, 16\) has 3 axes, not 4"):
        nt.NeighborhoodAttention2D(16, 4, 3)(torch.zeros(6, 6, 16))
    with pytest.raises(ValueError, match=r"x.shape = \(1, 16, 6, 6\): 6 channels on the last axis, expected 16; if .* x.movedim\(1, -1\)$"):
        nt.NeighborhoodAttention2D(16, 4, 3)(torch.zeros(1, 16, 6, 6))
    with pytest.raises(ValueError, match=r"^kernel_size = 7 exceeds the 6 tokens of axis 0$"):
        nt.NeighborhoodAttention2D(16, 4, 7)(torch.zeros(1, 6, 6, 16))


def dense(query, key, value, is_causal, scale):
    """out and lse, plainly."""
    group = query.shape[2] // key.shape[2]
    query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    key, value = (t.repeat_interleave(group, 1) for t in (key, value))
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
    return (logits.softmax(-1) @ value).transpose(1, 2), logits.logsumexp(-1).transpose(1, 2)


@pytest.mark.parametrize("queries, keys", [(9, 9), (5, 12), (12, 5), (1, 7), (6, 1)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [None, 3.0])
def test_attention(queries, keys, is_causal, scale):
    torch.manual_seed(0)
    query = torch.randn(2, queries, 4, 8, dtype=torch.float64, requires_grad=True)
    key = torch.randn(2, keys, 2, 8, dtype=torch.float64, requires_grad=True)
    value = torch.randn(2, keys, 2, 6, dtype=torch.float64, requires_grad=True)
    got = nt.attention(query, key, value, is_causal, scale, return_lse=True)
    expected = dense(query, key, value, is_causal, scale)
    for one, other in zip(got, expected):
        torch.testing.assert_close(one, other)
    grads = [torch.randn_like(t) for t in got]
    for one, other in zip(*(torch.autograd.grad(r, (query, key, value), grads) for r in (got, expected))):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_attention_with_large_logits(dtype):
    """The token that other lengths put into a window stays without weight."""
    query, key, value = 50 * torch.randn(1, 40, 2, 16), 50 * torch.randn(1, 30, 2, 16), torch.randn(1, 30, 2, 16)
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    out = nt.attention(query, key, value)
    expected = scaled_dot_product_attention(*(t.transpose(1, 2).float() for t in (query, key, value)))
    torch.testing.assert_close(out.float(), expected.transpose(1, 2), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("size", [300, 2e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_attention_with_low_logits(dtype, size, is_causal):
    """The logits are -360,000 and -1.6e9, which leave room for no other key."""
    query, key = size * (torch.rand(1, 9, 2, 16) + 1), -size * (torch.rand(1, 5, 2, 16) + 1)
    inputs = [t.to(dtype).requires_grad_() for t in (query, key, torch.randn(1, 5, 2, 6))]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    got = nt.attention(*inputs, is_causal, return_lse=True)
    expected = dense(*exact, is_causal, 0.25)
    d_out = torch.randn_like(expected[0])
    got = [*got, torch.autograd.grad(got[0], inputs[2], d_out.to(dtype))[0]]
    expected = [*expected, torch.autograd.grad(expected[0], exact[2], d_out)[0]]
    # Sums of products of 16-bit numbers are exact in f32 up to 2^-24 of the logits.
    limit = 1e-6 if dtype == torch.float64 else 2e-2
    for one, other in zip(got, expected):
        torch.testing.assert_close(one.double(), other, rtol=limit, atol=limit)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_merge_attentions(parts):
    torch.manual_seed(0)
    query = torch.randn(2, 7, 2, 8, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(2, 12, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    pieces = [
        nt.attention(query, k, v, return_lse=True) for k, v in zip(key.chunk(parts, 1), value.chunk(parts, 1))
    ]
    got = nt.merge_attentions(*zip(*pieces))
    expected = nt.attention(query, key, value, return_lse=True)
    for one, other in zip(got, expected):
        torch.testing.assert_close(one, other)
    grads = [torch.randn_like(t) for t in got]
    for one, other in zip(*(torch.autograd.grad(r, (query, key, value), grads) for r in (got, expected))):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_merging_rows_without_keys(dtype):
    """Whatever stands in their outputs, they count for nothing and get gradients of 0."""
    of_lse = torch.float64 if dtype == torch.float64 else torch.float32
    outputs = [torch.randn(2, 8, 3, 4).to(dtype) for _ in range(3)]
    lses = [torch.randn(2, 8, 3).to(of_lse) for _ in range(3)]
    absent = (torch.arange(8)[:, None] >> torch.arange(3)) % 2 == 1  # [token, part]: every subset of the parts
    for part, (out, lse) in enumerate(zip(outputs, lses)):
        nothing = torch.tensor([torch.nan, torch.inf, 1e30, -torch.inf]).to(dtype)
        out[:, absent[:, part]] = nothing
        lse[:, absent[:, part]] = -torch.inf
    inputs = [t.requires_grad_() for t in (*outputs, *lses)]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    got = nt.merge_attentions(outputs, lses)
    d_out, d_lse = torch.randn(got[0].shape, dtype=torch.float64), torch.randn(got[1].shape, dtype=torch.float64)
    d_out[:, -1], d_lse[:, -1] = torch.nan, torch.nan  # of rows that no part has keys for
    gradients = torch.autograd.grad(got, inputs, [d_out.to(dtype), d_lse.to(of_lse)])
    limit = dict(rtol=3e-2, atol=3e-2) if dtype == torch.bfloat16 else {}
    for token in range(8):
        there = [part for part in range(3) if not absent[token, part]]
        for part in set(range(3)) - set(there):
            assert (gradients[part][:, token] == 0).all() and (gradients[3 + part][:, token] == 0).all()
        if not there:
            assert (got[0][:, token] == 0).all() and (got[1][:, token] == -torch.inf).all()
            continue
        own = [exact[part] for part in there] + [exact[3 + part] for part in there]
        sums = sum(lse[:, token].exp() for lse in own[len(there) :])
        out = sum(
            (lse[:, token].exp() / sums)[..., None] * out[:, token] for out, lse in zip(own, own[len(there) :])
        )
        torch.testing.assert_close(got[0][:, token].double(), out, check_dtype=False, **(limit or dict(rtol=1e-5, atol=1e-5)))
        torch.testing.assert_close(got[1][:, token].double(), sums.log(), rtol=1e-5, atol=1e-5)
        wanted = torch.autograd.grad([out, sums.log()], own, [d_out[:, token], d_lse[:, token]])
        mine = [gradients[part] for part in there] + [gradients[3 + part] for part in there]
        for one, other in zip(mine, wanted):
            torch.testing.assert_close(one[:, token].double(), other[:, token], **(limit or dict(rtol=1e-4, atol=1e-5)))


def test_merging_is_additional_tokens():
    query, key, value = torch.randn(3, 1, 6, 7, 2, 16)
    text_keys, text_values = torch.randn(2, 1, 5, 2, 16)
    window = nt.na2d(query, key, value, 3, return_lse=True)
    text = nt.attention(query.flatten(1, 2), text_keys, text_values, return_lse=True)
    text = [t.unflatten(1, (6, 7)) for t in text]
    out, lse = nt.merge_attentions(*zip(window, text))
    expected = nt.na2d(
        query, key, value, 3, additional_keys=text_keys, additional_values=text_values, return_lse=True
    )
    torch.testing.assert_close(out, expected[0])
    torch.testing.assert_close(lse, expected[1])


def test_merge_refuses():
    out = torch.zeros(1, 4, 1, 2)
    with pytest.raises(ValueError, match="1 output and 2 entries of lse_tensors"):
        nt.merge_attentions([out], [out[..., 0]] * 2)
    with pytest.raises(ValueError, match="one or more pairs"):
        nt.merge_attentions([], [])


KINDS = {
    "1d": lambda **on: nt.NeighborhoodAttention1D(16, 2, 3, rel_pos_bias=True, **on),
    "2d": lambda **on: nt.NeighborhoodAttention2D(16, 2, 3, num_kv_heads=1, qkv_bias=False, **on),
    "3d": lambda **on: nt.NeighborhoodAttention3D(16, 2, 3, **on),
    "hydra": lambda: models.HydraNeighborhoodAttention2D(16, 2, (3, 5), (1, 1)),
    "nat": lambda: models.NAT(16, 1, (1, 1), 2.0, kernel_size=3, num_classes=2, layer_scale=0.5),
    "dinats": lambda: models.DiNATs(16, 1, (1, 1), 2.0, kernel_size=3, num_classes=2),
    "stylenat": lambda: models.Generator(8, style_dim=16),
    **{
        f"natten {era.__name__[-4:]} {rank}d": lambda era=era, rank=rank: getattr(era, f"NeighborhoodAttention{rank}D")(
            16, 2, 3, **{"bias" if era is _v015 else "rel_pos_bias": True}
        )
        for era in (modules, _v017, _v015)
        for rank in (1, 2, 3)
    },
    "global": lambda: models.IsotropicClassifier(16, 2, 1, kernel_size=None, img_size=32, patch_size=8, num_classes=2),
}


@pytest.mark.parametrize("name", KINDS)
def test_reset_parameters(name):
    """What was made without memory, given some and reset is as new; a layer, of the same random numbers."""
    with torch.device("meta"):
        made = KINDS[name]()
    made.to_empty(device="cpu")
    for tensor in made.state_dict().values():
        tensor.fill_(77)
    torch.manual_seed(3)
    made.reset_parameters()
    torch.manual_seed(3)
    new = KINDS[name]()
    for key, tensor in new.state_dict().items():
        got = made.state_dict()[key]
        if key.endswith(("index", "kernel", "_float_tensor")) or name.endswith("d") or name == "hydra":
            assert torch.equal(got, tensor), key
        else:
            assert (got != 77).all() and got.std(correction=0) <= 2 * tensor.std(correction=0), key


def test_all_modules_reset_what_is_their_own():
    """No module with parameters or buffers lacks the method, and all that the packages show are among those that are tested."""
    made = [part for make in KINDS.values() for part in make().modules()]
    for part in made:
        if type(part).__module__.startswith("nhood.") and [*part.parameters(recurse=False), *part.buffers(recurse=False)]:
            assert hasattr(part, "reset_parameters"), type(part)
    shown = [getattr(package, name) for package in (nt, models, modules, _v017, _v015) for name in dir(package)]
    for kind in shown:
        if isinstance(kind, type) and issubclass(kind, torch.nn.Module) and kind.__module__.startswith("nhood."):
            assert any(isinstance(part, kind) for part in made), kind


def test_fx_traces_layers_as_calls():
    layer = nt.NeighborhoodAttention2D(16, 2, 3, rel_pos_bias=True)
    model, x = torch.nn.Sequential(torch.nn.Linear(16, 16), layer), torch.randn(2, 4, 5, 16)
    traced = torch.fx.symbolic_trace(model)
    assert [(node.op, node.target) for node in traced.graph.nodes if node.op == "call_module"] == [
        ("call_module", "0"),
        ("call_module", "1"),
    ]
    assert torch.equal(traced(x), model(x))
    alone = torch.fx.symbolic_trace(layer)
    assert nt.na2d in {node.target for node in alone.graph.nodes} and torch.equal(alone(x), layer(x))
    whole = models.NAT(16, 1, (1, 1), 2.0, kernel_size=3, num_classes=2).eval()
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(torch.fx.symbolic_trace(whole)(images), whole(images))


def test_fx_traces_functions_as_calls():
    class Called(torch.nn.Module):
        def forward(self, q):
            weights = nt.na1d_qk(q, q, 3).softmax(-1)
            return nt.na1d_av(weights, nt.norm_rope(q), 3) + nt.na1d(q, q, value=q, kernel_size=3)

    q = torch.randn(2, 7, 2, 8)
    traced = pickle.loads(pickle.dumps(torch.fx.symbolic_trace(Called())))
    assert torch.equal(traced(q), Called()(q))
