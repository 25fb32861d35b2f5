"""The operators under what traces, counts and compiles torch programs."""

import nhood
import nhood.torch as nt
import pytest
import torch
from nhood.torch import _ops, _tensors
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode
from versions import needs_errors_of_traced_code, needs_flop_counts

AXES = ((3, 4), (2, 1), (1, 2), (False, False))
CAUSAL = ((3, 4), (2, 1), (1, 2), (True, False))


def tensors(requires_grad=False):
    torch.manual_seed(0)
    query = torch.randn(2, 7, 9, 4, 8, requires_grad=requires_grad)
    key = torch.randn(2, 7, 9, 2, 8, requires_grad=requires_grad)
    value = torch.randn(2, 7, 9, 2, 6, requires_grad=requires_grad)
    return query, key, value


def operator_calls():
    query, key, value = tensors()
    bias = torch.randn(4, 5, 7)
    extra = torch.randn(2, 3, 2, 8), torch.randn(2, 3, 2, 6)
    nothing = (None, None, None)
    out, lse = _ops.na(query, key, value, bias, *extra, *AXES, None, False, True)
    attn = _ops.na_qk(query, key, None, *AXES, None, False, False)
    clamped = ((30, 4), *AXES[1:])
    ops = torch.ops.nhood
    return {
        "na": (ops.na.default, (query, key, value, *nothing, *CAUSAL, 0.5, False, False)),
        "na with all": (ops.na.default, (query, key, value, bias, *extra, *AXES, None, False, True)),
        "na_backward": (
            ops.na_backward.default,
            (query, key, value, bias, *extra, out, lse, out, lse, *AXES, None, False, [True] * 6),
        ),
        "na_backward of some": (
            ops.na_backward.default,
            (query, key, value, bias, *extra, out, lse, out, None, *AXES, None, False)
            + ([False, True, False, False, False, True],),
        ),
        "na_qk": (ops.na_qk.default, (query, key, bias, *AXES, 2.0, False, False)),
        "na_qk clamped": (ops.na_qk.default, (query, key, None, *clamped, None, True, True)),
        "na_av": (ops.na_av.default, (attn, value, *AXES, False)),
        "na_in": (ops.na_in.default, (attn, query, *AXES, 2, False)),
    }


@pytest.mark.parametrize("name", operator_calls())
def test_opcheck(name):
    opcheck(*operator_calls()[name])


def loss(query, key, value, bias):
    out, lse = nt.na2d(query, key, value, (3, 4), (2, 1), (1, 2), bias=bias, return_lse=True)
    attn = nt.na2d_qk(query, key, 3, bias=bias[:, :5, 1:6]).softmax(-1)
    return (out * nt.na2d_av(attn, value, 3)).sum() + lse.sin().sum()


@pytest.fixture(autouse=True)
def nothing_compiled_yet():
    torch.compiler.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(backend, dynamic):
    compiled = torch.compile(loss, fullgraph=True, backend=backend, dynamic=dynamic)
    for batch, length in ((2, 7), (3, 8)) if dynamic else ((2, 7),):
        arrays = [torch.randn(batch, length, 9, heads, 8, requires_grad=True) for heads in (4, 2, 2)]
        arrays.append(torch.randn(4, 5, 7, requires_grad=True))
        expected = torch.autograd.grad(loss(*arrays), arrays)
        got = torch.autograd.grad(compiled(*arrays), arrays)
        for one, other in zip(got, expected):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dim", [5, 33, 136])
def test_compile_at_odd_head_dims(dim):
    def step(qkv):
        query, key, value = (2 * qkv).unbind(2)
        return nt.na1d(query, key, value + 1, 5)

    qkv = torch.randn(2, 11, 3, 2, dim, requires_grad=True)
    got, expected = torch.compile(step, fullgraph=True)(qkv), step(qkv)
    d_out = torch.randn_like(expected)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(out, qkv, d_out)[0] for out in (got, expected)))


def test_compile_of_one_tensor_for_all():
    def loss(x):
        return nt.na2d(x, x, x, 3).square().sum() + nt.na2d_qk(x, x, 3).sin().sum()

    x = torch.randn(2, 4, 5, 2, 8, requires_grad=True)
    got = torch.compile(loss, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(torch.autograd.grad(got, x), torch.autograd.grad(loss(x), x))


def test_compile_takes_every_argument():
    def call(query, key, value, extra_keys, extra_values):
        return nt.neighborhood_attention(
            query,
            key,
            value,
            kernel_size=[30, 4],
            dilation=2,
            is_causal=[True, False],
            scale=1,
            additional_keys=extra_keys,
            additional_values=extra_values,
            clamp_window=True,
        )

    arrays = (*tensors(), torch.randn(2, 3, 2, 8), torch.randn(2, 3, 2, 6))
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*arrays), call(*arrays))


def test_compile_under_autocast():
    compiled = torch.compile(lambda *arrays: nt.na2d(*arrays, 3), fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        out = compiled(*tensors())
        assert out.dtype == torch.bfloat16 and torch.equal(out, nt.na2d(*tensors(), 3))


def test_compile_of_layers():
    model = nt.NeighborhoodAttention2D(32, 4, (3, 5), dilation=(2, 1), rel_pos_bias=True, num_kv_heads=2)
    x = torch.randn(2, 7, 9, 32)
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_layers_read_the_packed_projection_in_place(backend, monkeypatch):
    nhood.clear_cache()  # calls that are remembered are not prepared
    read, prepare = [], _tensors._prepare

    def noted(context, device, request, *seen):
        read.extend(strides for _, strides, _ in seen[:3])
        return prepare(context, device, request, *seen)

    monkeypatch.setattr(_tensors, "_prepare", noted)
    layer = nt.NeighborhoodAttention2D(32, 4, 3)
    torch.compile(layer, fullgraph=True, backend=backend)(torch.randn(2, 7, 9, 32)).sum().backward()
    slices = [(7 * 9 * 96, 9 * 96, 96, 8, 1)] * 3
    assert read == slices * 2, "query, key, value of the forward call and of the backward one"


def test_export():
    model = nt.NeighborhoodAttention1D(16, 2, 5)
    x = torch.randn(2, 9, 16)
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x))


@needs_errors_of_traced_code
def test_wrong_arguments_fail_while_tracing():
    def call(query, key, value):
        return nt.na2d(query, key, value, (3, 4, 5))

    with pytest.raises(Exception, match="has 3 entries, not 2"):
        torch.compile(call, fullgraph=True, backend="eager")(*tensors())


def test_meta_tensors():
    query = torch.empty(2, 7, 9, 4, 8, device="meta")
    out, lse = nt.na2d(query, query, query[..., :6], 3, return_lse=True)
    assert (out.shape, lse.shape, out.device.type) == ((2, 7, 9, 4, 6), (2, 7, 9, 4), "meta")


@needs_flop_counts
def test_flops():
    query, key, value = tensors(requires_grad=True)
    extra = torch.randn(2, 3, 2, 8), torch.randn(2, 3, 2, 6)
    with FlopCounterMode(display=False) as counter:
        nt.na2d(query, key, value, (3, 4), 1, (1, 2), additional_keys=extra[0], additional_values=extra[1])
    attended = 2 * 7 * 9 * 4 * (12 + 3)
    forward = attended * 2 * (8 + 6)
    assert counter.get_total_flops() == forward
    with FlopCounterMode(display=False) as counter:
        nt.na2d(query, key, value, 3).sum().backward()
        nt.na2d_av(nt.na2d_qk(query, key, 3), value, 3)
    counts = counter.get_flop_counts()["Global"]
    dense = 2 * 7 * 9 * 4 * 9
    assert counts[torch.ops.nhood.na] == dense * 2 * (8 + 6)
    assert counts[torch.ops.nhood.na_backward] == 2.5 * dense * 2 * (8 + 6)
    assert counts[torch.ops.nhood.na_qk] == dense * 2 * 8
    assert counts[torch.ops.nhood.na_av] == dense * 2 * 6


def test_threads_of_python():
    from concurrent.futures import ThreadPoolExecutor

    nhood.clear_cache()
    query, key, value = tensors()
    expected = nt.na2d(query, key, value, 3)
    with ThreadPoolExecutor(4) as pool:
        for out in pool.map(lambda _: nt.na2d(query, key, value, 3), range(64)):
            assert torch.equal(out, expected)
