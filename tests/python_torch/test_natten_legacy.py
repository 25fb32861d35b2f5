"""NATTEN 0.14 to 0.17 against plain torch: unfused functions, fused ones with a bias, layers, switches."""

import nhood.compat.natten
import plain_torch
import pytest
import torch
from natten_inputs import assert_gradients_agree, qkv, randn
from torch.utils._python_dispatch import TorchDispatchMode

nhood.compat.natten.install()

import natten  # noqa: E402
from natten import functional  # noqa: E402


@pytest.fixture
def version():
    """Sets the version of NATTEN that is followed; today's again at the end."""
    yield nhood.compat.natten.install
    nhood.compat.natten.install()


def heads_first(*tensors):
    return [t.movedim(-2, 1) for t in tensors]


def unfused(query, key, value, window, dilation=1, causal=False, rpb=None):
    """Logits and output, heads first, of heads-last tensors; the query is scaled by the caller."""
    attn = plain_torch.logits(query, key, window, 1, dilation, causal, 1.0, rpb)
    out = plain_torch.weighted_sum(attn.softmax(-1), value, window, 1, dilation, causal)
    return heads_first(attn, out)


CASES = [
    ((9,), 3, 2, False),
    ((11,), (5,), (1,), (True,)),
    ((7, 8), 3, 2, False),
    ((7, 9), (3, 5), (2, 1), (False, True)),
    ((4, 5, 6), 3, 1, False),
    ((3, 5, 6), (3, 5, 3), (1, 1, 2), (True, False, False)),
]


@pytest.mark.parametrize("shape, window, dilation, causal", CASES)
def test_qk_and_av(shape, window, dilation, causal):
    rank = len(shape)
    qk, av = getattr(functional, f"na{rank}d_qk"), getattr(functional, f"na{rank}d_av")
    inputs = qkv(shape, grad=True)
    query, key, value = heads_first(*inputs)
    attn = qk(query, key, window, dilation, is_causal=causal)
    out = av(attn.softmax(-1), value, window, dilation, is_causal=causal)
    expected_attn, expected_out = unfused(*inputs, window, dilation, causal)
    torch.testing.assert_close(attn, expected_attn)
    torch.testing.assert_close(out, expected_out)
    assert_gradients_agree([out], [expected_out], inputs)


@pytest.mark.parametrize("shape, window, dilation", [case[:3] for case in CASES if case[3] is False])
def test_qk_with_rpb(shape, window, dilation):
    rank = len(shape)
    inputs = qkv(shape, grad=True)
    query, key, _ = heads_first(*inputs)
    rpb = randn(2, *(2 * k - 1 for k in plain_torch.per_axis(window, rank)), grad=True)
    attn = getattr(functional, f"na{rank}d_qk")(query, key, window, dilation, rpb=rpb)
    expected, _ = unfused(*inputs, window, dilation, rpb=rpb)
    torch.testing.assert_close(attn, expected)
    assert_gradients_agree([attn], [expected], (*inputs[:2], rpb))
    # 0.17's order: kernel_size, dilation, additional_keys, is_causal, rpb
    assert torch.equal(
        attn, getattr(functional, f"na{rank}d_qk")(query, key, window, dilation, None, False, rpb)
    )


def test_additional_tokens():
    inputs = qkv((5, 6), grad=True)
    extra = randn(2, 4, 2, 8, grad=True), randn(2, 4, 2, 8, grad=True)
    query, key, value = heads_first(*inputs)
    extra_keys, extra_values = heads_first(*extra)
    attn = functional.na2d_qk(query, key, 3, additional_keys=extra_keys)
    assert attn.shape == (2, 2, 5, 6, 9 + 4)
    out = functional.na2d_av(attn.softmax(-1), value, 3, 1, extra_values)
    expected, _ = plain_torch.neighborhood_attention(*inputs, 3, 1, 1, False, 1.0, None, *extra)
    torch.testing.assert_close(out, heads_first(expected)[0])
    assert_gradients_agree([out], heads_first(expected), (*inputs, *extra))
    with pytest.raises(ValueError, match="additional_keys"):
        functional.na2d_qk(query, key, 3, additional_keys=extra_keys[:, :1])
    with pytest.raises(ValueError, match="weights per query"):
        functional.na2d_av(attn, value, 3)


@pytest.mark.parametrize("with_kernel_size", (True, False))
@pytest.mark.parametrize("rank", (1, 2))
def test_natten_0_14(rank, with_kernel_size):
    """natten2dqkrpb and natten2dav, also as called before they took a kernel_size."""
    qkrpb, av = getattr(functional, f"natten{rank}dqkrpb"), getattr(functional, f"natten{rank}dav")
    inputs = qkv((10,) * rank, grad=True)
    query, key, value = heads_first(*inputs)
    rpb = randn(2, *(9,) * rank, grad=True)
    size = (5,) if with_kernel_size else ()
    attn = qkrpb(query, key, rpb, *size, 2)
    out = av(attn.softmax(-1), value, *size, 2)
    expected_attn, expected_out = unfused(*inputs, 5, 2, rpb=rpb)
    torch.testing.assert_close(attn, expected_attn)
    torch.testing.assert_close(out, expected_out)
    assert_gradients_agree([out], [expected_out], (*inputs, rpb))
    plain, _ = unfused(*inputs, 5, 2)
    torch.testing.assert_close(getattr(functional, f"natten{rank}dqk")(query, key, 5, 2), plain)
    torch.testing.assert_close(qkrpb(query, key, None, kernel_size=5, dilation=2), plain)
    torch.testing.assert_close(
        getattr(functional, f"na{rank}d_qk_with_bias")(query, key, rpb, 5, 2), expected_attn
    )


def test_natten_0_14_without_a_kernel_size_to_infer():
    query, key, value = heads_first(*qkv((6, 6)))
    with pytest.raises(TypeError, match="kernel_size"):
        functional.natten2dqkrpb(query, key, None, 1)
    with pytest.raises(ValueError, match="square"):
        functional.natten2dav(randn(2, 2, 6, 6, 10), value, 1)


def test_three_axes_of_0_15(version):
    """The first axis has a window and a dilation of its own."""
    inputs = qkv((6, 5, 5))
    query, key, value = heads_first(*inputs)
    rpb = randn(2, 5, 9, 9)
    axes = (3, 5, 2, 1)
    expected_attn, expected_out = unfused(*inputs, (3, 5, 5), (2, 1, 1), rpb=rpb)
    plain, _ = unfused(*inputs, (3, 5, 5), (2, 1, 1))
    attn = functional.natten3dqkrpb(query, key, rpb, *axes)
    torch.testing.assert_close(attn, expected_attn)
    torch.testing.assert_close(functional.natten3dav(attn.softmax(-1), value, *axes), expected_out)
    torch.testing.assert_close(functional.natten3dqk(query, key, *axes), plain)
    version("0.15.1")
    torch.testing.assert_close(functional.na3d_qk(query, key, *axes), plain)
    torch.testing.assert_close(functional.na3d_qk_with_bias(query, key, rpb, *axes), expected_attn)
    torch.testing.assert_close(functional.na3d_av(attn.softmax(-1), value, *axes), expected_out)


def test_forward_mode():
    """0.17 had it for the unfused functions."""
    query, key, value = heads_first(*qkv((6, 6)))
    rpb, direction = randn(2, 5, 5), randn(2, 5, 5)

    def out(bias):
        return functional.na2d_av(functional.na2d_qk(query, key, 3, rpb=bias).softmax(-1), value, 3)

    with torch.autograd.forward_ad.dual_level():
        dual = out(torch.autograd.forward_ad.make_dual(rpb, direction))
        tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
    step = 1e-5
    difference = (out(rpb + step * direction) - out(rpb - step * direction)) / (2 * step)
    torch.testing.assert_close(tangent, difference, rtol=1e-6, atol=1e-8)


def test_unfused_refused():
    query, key, value = heads_first(*qkv((8, 8)))
    attn = randn(2, 2, 8, 8, 9)
    for error, words, call in (
        (RuntimeError, "even", lambda: functional.na2d_qk(query, key, 4)),
        (RuntimeError, "exceeds the length 8", lambda: functional.na2d_qk(query, key, 3, 3)),
        (
            RuntimeError,
            "exceeds the length 8",
            lambda: functional.natten2dqkrpb(query, key, randn(2, 17, 17), 9, 1),
        ),
        (ValueError, "kernel_size = 1", lambda: functional.na2d_qk(query, key, 1)),
        (ValueError, "dilation = 0", lambda: functional.na2d_qk(query, key, 3, 0)),
        (RuntimeError, "rank 5", lambda: functional.na2d_qk(query[0], key[0], 3)),
        (RuntimeError, "differ in shape", lambda: functional.na2d_qk(query, key[:, :1], 3)),
        (RuntimeError, "rpb is", lambda: functional.na2d_qk(query, key, 3, rpb=randn(2, 7, 5))),
        (
            NotImplementedError,
            "causal",
            lambda: functional.na2d_qk(query, key, 3, is_causal=True, rpb=randn(2, 5, 5)),
        ),
        (RuntimeError, "even", lambda: functional.na2d_av(randn(2, 2, 8, 8, 16), value, 4)),
        (ValueError, "weights per query", lambda: functional.na2d_av(attn, value, 5)),
        (RuntimeError, "differ before", lambda: functional.na2d_av(attn[:, :1], value, 3)),
    ):
        with pytest.raises(error, match=words):
            call()


def test_weights_of_another_dtype():
    """Under autocast, softmax gives float32 for values of 16 bits."""
    query, key, value = heads_first(*qkv((9,), dtype=torch.bfloat16))
    attn = functional.na1d_qk(query, key, 3).float().softmax(-1)
    out = functional.na1d_av(attn, value, 3)
    assert torch.equal(out, functional.na1d_av(attn.bfloat16(), value, 3))
    assert functional.na1d_qk(query, key, 3, rpb=torch.ones(2, 5)).dtype == torch.bfloat16


def test_nested_tensors():
    from natten.nested import na2d_av_nested, na2d_qk_nested

    parts = [heads_first(*qkv(shape)) for shape in ((5, 6), (7, 4))]
    rpb = randn(2, 5, 5)
    query, key, value = (torch.nested.nested_tensor(list(t)) for t in zip(*parts))
    attn = functional.na2d_qk(query, key, 3, rpb=rpb)
    out = functional.na2d_av(attn, value, 3)
    for (q, k, v), a, o in zip(parts, attn.unbind(), out.unbind()):
        torch.testing.assert_close(a, functional.na2d_qk(q, k, 3, rpb=rpb))
        torch.testing.assert_close(o, functional.na2d_av(a, v, 3))
    assert torch.equal(na2d_qk_nested(query, key, rpb, 3, 1).unbind()[1], attn.unbind()[1])
    assert torch.equal(na2d_av_nested(attn, value, 3, 1).unbind()[1], out.unbind()[1])
    with pytest.raises(ValueError, match="nested"):
        functional.na2d_qk(query, parts[0][1], 3)


# Fused functions and layers


def test_fused_0_17(version):
    version("0.17.5")
    assert natten.__version__ == "0.17.5"
    query, key, value = inputs = qkv((8, 9), grad=True)
    rpb = randn(2, 7, 7, grad=True)
    out = natten.functional.na2d(query, key, value, 4, 2, False, rpb, 0.3)
    expected, _ = plain_torch.neighborhood_attention(*inputs, 4, 1, 2, False, 0.3, rpb)
    torch.testing.assert_close(out, expected)
    assert_gradients_agree([out], [expected], (*inputs, rpb))
    extra = randn(2, 3, 2, 8), randn(2, 3, 2, 8)
    got = natten.functional.na2d(
        query, key, value, 3, additional_keys=extra[0], additional_values=extra[1], xformers_kwargs={"op": None}
    )
    torch.testing.assert_close(
        got, plain_torch.neighborhood_attention(*inputs, 3, extra_keys=extra[0], extra_values=extra[1])[0]
    )
    with pytest.raises(NotImplementedError, match="rpb"):
        natten.functional.na2d(query, key, value, 3, 1, True, rpb)
    with pytest.raises(RuntimeError, match="exceeds the length 8"):
        natten.functional.na2d(query, key, value, 3, 3)
    with pytest.raises(RuntimeError, match="exceeds the length 8"):
        natten.NeighborhoodAttention2D(16, 2, 9)(torch.rand(1, 8, 9, 16))
    nested = torch.nested.nested_tensor([query[0].detach()])
    with pytest.raises(NotImplementedError, match="nested"):
        natten.functional.na2d(nested, nested, nested, 3)
    from natten.experimental import na2d

    torch.testing.assert_close(na2d(query, key, value, 4, 2, False, rpb, 0.3), expected)


def layer_in_plain_torch(layer, x, padded=None):
    """What the layer should compute, from its parameters."""
    shape = x.shape[1:-1]
    padded = padded or shape
    x = torch.nn.functional.pad(x, [0, 0] + [n for p, s in zip(padded[::-1], shape[::-1]) for n in (0, p - s)])
    query, key, value = layer.qkv(x).unflatten(-1, (3, layer.num_heads, -1)).unbind(-3)
    axes = layer.kernel_size, layer.stride, layer.dilation, layer.is_causal
    out, _ = plain_torch.neighborhood_attention(query, key, value, *axes, layer.scale, layer.rpb)
    return layer.proj(out.flatten(-2))[(slice(None), *map(slice, shape))]


@pytest.mark.parametrize(
    "layer, shape",
    (
        (lambda: natten.NeighborhoodAttention1D(16, 2, 3, 2, 2, True, False, 0.4), (9,)),
        (
            lambda: natten.NeighborhoodAttention2D(embed_dim=16, num_heads=2, kernel_size=(3, 4), stride=2),
            (7, 8),
        ),
        (lambda: natten.NeighborhoodAttention3D(16, 4, (2, 3, 2), is_causal=(True, False, False)), (4, 4, 5)),
        (
            lambda: natten.NeighborhoodAttention2D(
                dim=16, num_heads=2, kernel_size=3, dilation=2, rel_pos_bias=True
            ),
            (7, 8),
        ),
        (lambda: natten.NeighborhoodAttention1D(dim=16, num_heads=2, kernel_size=3, bias=True), (7,)),
    ),
)
def test_layers(layer, shape):
    layer = layer().double()
    x = randn(2, *shape, 16, grad=True)
    out, expected = layer(x), layer_in_plain_torch(layer, x)
    torch.testing.assert_close(out, expected)
    assert_gradients_agree([out], [expected], (x, *layer.parameters()))
    assert set(layer.state_dict()) - {"qkv.bias", "rpb"} == {"qkv.weight", "proj.weight", "proj.bias"}


def test_layers_refused(version):
    with pytest.raises(ValueError, match="num_heads"):
        natten.NeighborhoodAttention2D(16, 3, 3)
    with pytest.raises(ValueError, match="kernel_size"):
        natten.NeighborhoodAttention2D(16, 2, 1)
    layer = natten.NeighborhoodAttention2D(16, 2, 5)
    with pytest.raises(ValueError, match="rank 4"):
        layer(torch.zeros(1, 8, 16))
    with pytest.raises(ValueError, match="embedding dimension"):
        layer(torch.zeros(1, 8, 8, 8))
    with pytest.raises(ValueError, match="exceeds the length 4"):
        layer(torch.zeros(1, 8, 4, 16))
    with pytest.raises(TypeError):
        natten.NeighborhoodAttention2D(16, 2, 5, backend="cutlass-fna")
    version("0.17.5")
    with pytest.raises(NotImplementedError, match="causal"):
        natten.NeighborhoodAttention2D(16, 2, 3, is_causal=True, rel_pos_bias=True)
    version("0.15.1")
    with pytest.raises(AssertionError, match="odd"):
        natten.NeighborhoodAttention2D(16, 2, 4)


def test_layers_0_17(version):
    """dim, num_heads, kernel_size, dilation, is_causal, rel_pos_bias, qkv_bias, qk_scale, attn_drop, proj_drop"""
    version("0.17.5")
    from natten.na2d import NeighborhoodAttention2D

    layer = NeighborhoodAttention2D(16, 2, 3, 2, False, True, False, 0.3, 0.0, 0.0).double()
    assert natten.NeighborhoodAttention2D is NeighborhoodAttention2D
    assert layer.dilation == (2, 2) and layer.qkv.bias is None and layer.rpb.shape == (2, 5, 5)
    x = randn(2, 7, 8, 16)
    torch.testing.assert_close(layer(x), layer_in_plain_torch(layer, x))
    assert natten.NeighborhoodAttention1D(16, 2, 3).rpb is None


def test_layers_0_15_pad_small_inputs(version):
    version("0.14.6")
    from natten.natten2d import NeighborhoodAttention2D

    layer = NeighborhoodAttention2D(16, 2, 7, 2).double()
    assert layer.rpb is not None and layer.rpb.std() > 0
    x = randn(2, 9, 16, 16)
    torch.testing.assert_close(layer(x), layer_in_plain_torch(layer, x, (14, 16)))
    x = randn(2, 15, 14, 16)
    torch.testing.assert_close(layer(x), layer_in_plain_torch(layer, x))
    deep = natten.NeighborhoodAttention3D(
        16, 2, 3, kernel_size_d=5, dilation_d=1, dilation=2, bias=False
    ).double()
    assert deep.kernel_size == (5, 3, 3) and deep.dilation == (1, 2, 2) and deep.rpb is None
    x = randn(1, 4, 6, 5, 16)
    torch.testing.assert_close(deep(x), layer_in_plain_torch(deep, x, (5, 6, 6)))
    with pytest.raises(ValueError, match="rank 4"):
        layer(torch.zeros(1, 8, 16).double())


def test_checkpoints_fit_between_versions(version):
    old = natten.NeighborhoodAttention2D(16, 2, 3, rel_pos_bias=True)
    version("0.14.6")
    new = natten.NeighborhoodAttention2D(16, 2, 3)
    assert type(old) is not type(new)
    new.load_state_dict(old.state_dict())
    x = torch.rand(1, 6, 6, 16)
    assert torch.equal(old(x), new(x))


def test_attention_dropout():
    torch.manual_seed(0)
    layer = natten.NeighborhoodAttention2D(16, 2, 3, attn_drop=0.9)
    x = torch.rand(1, 6, 6, 16)
    expected = layer.eval()(x)
    layer.train()
    assert not torch.allclose(layer(x), expected)
    natten.use_fused_na(True)
    try:
        torch.testing.assert_close(layer(x), expected)
    finally:
        natten.use_fused_na(False)


class Operators(TorchDispatchMode):
    """The names of all operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(operator.name())
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("options", ({}, {"rel_pos_bias": True}, {"is_causal": True, "dilation": 2}), ids=str)
def test_layers_copy_nothing(options):
    """Query, key and value are views of the packed projection, and go into the library as they are."""
    layer = natten.NeighborhoodAttention2D(16, 2, 3, **options)
    x = torch.rand(2, 7, 8, 16)
    with Operators() as ran:
        layer(x).sum().backward()
    copies = {"aten::clone", "aten::copy_", "aten::contiguous", "aten::_to_copy"}
    assert "nhood::na" in ran.names and "nhood::na_backward" in ran.names
    forward = ran.names[: ran.names.index("nhood::na") + 1]
    assert not copies & set(forward), forward


def test_unknown_versions(version):
    for wrong in ("0.13.0", "newest"):
        with pytest.raises(ValueError, match="version"):
            version(wrong)


# Modules of 0.17


def test_flex_functions():
    from natten.flex import can_run_flex_attention, flex_na2d

    query, key, value = qkv((16, 16), dim=16)
    extra = randn(2, 3, 2, 16), randn(2, 3, 2, 16)
    out = flex_na2d(query, key, value, (5, 3), 2, (True, False), *extra)
    expected, _ = plain_torch.neighborhood_attention(
        query, key, value, (5, 3), 1, 2, (True, False), None, None, *extra
    )
    torch.testing.assert_close(out, expected)
    assert can_run_flex_attention(query.shape) and not can_run_flex_attention((1, 130, 2, 16))
    for wrong in ((query[:, :15], key[:, :15], value[:, :15]), (query, key[:1], value), (query[0], key[0], value[0])):
        with pytest.raises(ValueError, match="expected"):
            flex_na2d(*wrong, 3)


def test_compute_delta_of_libnatten():
    from natten.libnatten import compute_delta

    out, d_out, delta = torch.randn(2, 9, 4), torch.randn(2, 9, 4), torch.empty(2, 9)
    compute_delta(out, d_out, delta)
    torch.testing.assert_close(delta, torch.einsum("bnd,bnd->bn", out, d_out))


def test_arguments_are_checked_without_a_stride(version):
    version("0.17.5")
    from natten.utils import check_all_args

    assert check_all_args(2, 3, (1, 2), True) == ((3, 3), (1, 2), (True, True))
    version("0.20.1")
    from natten.utils import check_all_args

    assert check_all_args(1, 3, 2, 4, False) == ((3,), (2,), (4,), (False,))


def test_decorators_of_tests():
    import unittest

    from natten.utils import testing

    on_cuda = ("gemm_is_not_supported", "gemm_does_not_support_double_precision", "fna_is_not_supported")
    on_cuda += ("triton_is_not_supported", "torch_compile_is_not_supported")
    anywhere = ("nested_is_not_supported", "experimental_ops_are_not_supported")
    anywhere += ("torch_flop_count_is_not_supported",)
    for names, runs in ((on_cuda, torch.cuda.is_available()), (anywhere, True)):
        for name in names:
            ran = []
            decorator = getattr(testing, f"skip_if_{name}")()
            case = type("Case", (unittest.TestCase,), {"runTest": decorator(lambda self: ran.append(True))})
            case().run()
            assert bool(ran) == runs, name
    assert testing.fna_supports_additional_kv(48)
