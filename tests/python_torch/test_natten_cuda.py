"""NATTEN's interface on CUDA tensors against plain torch in f64, on the device it is run on."""

import nhood.compat.natten
import plain_torch
import pytest
import torch
from natten_inputs import qkv, randn

nhood.compat.natten.install()

import natten  # noqa: E402
from natten import functional  # noqa: E402
from natten.backends import get_compatible_backends, get_compatible_fmha_backends  # noqa: E402
from natten.utils.device import get_device_cc  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

# Shares of the largest magnitude of an expected result: NATTEN's own tests allow 1e-2 and more.
LIMITS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = pytest.mark.parametrize("dtype", LIMITS, ids=str)


def on_cuda(*tensors, dtype):
    """The same values on the device, and in f64 on the CPU."""
    ours = [t.detach().to("cuda", dtype).requires_grad_() for t in tensors]
    return ours, [t.detach().double().cpu().requires_grad_() for t in ours]


def assert_agree(results, expected, inputs, exact_inputs, dtype):
    """Results, and gradients of a random combination of them."""
    weights = [randn(*r.shape) for r in expected]
    got = torch.autograd.grad(
        sum((r.double() * w.cuda()).sum() for r, w in zip(results, weights)), inputs, retain_graph=True
    )
    wanted = torch.autograd.grad(sum((r * w).sum() for r, w in zip(expected, weights)), exact_inputs)
    for ours, exact in zip((*results, *got), (*expected, *wanted)):
        error = (ours.detach().double().cpu() - exact.detach()).abs().max()
        assert error <= LIMITS[dtype] * exact.detach().abs().max(), f"{error} of {exact.detach().abs().max()}"


CASES = [
    ((33,), dict(kernel_size=7, stride=2, dilation=2)),
    ((33,), dict(kernel_size=33, is_causal=True)),
    ((14, 17), dict(kernel_size=7)),
    ((16, 18), dict(kernel_size=(4, 6), stride=(2, 3), dilation=(2, 1))),
    ((6, 9, 8), dict(kernel_size=(2, 3, 4), is_causal=(True, False, False))),
]


@DTYPES
@pytest.mark.parametrize("heads_kv, dim", ((4, 32), (2, 64)))
@pytest.mark.parametrize("extra", (0, 5))
@pytest.mark.parametrize("shape, axes", CASES, ids=str)
def test_neighborhood_attention(shape, axes, extra, heads_kv, dim, dtype):
    inputs = qkv(shape, heads=4, heads_kv=heads_kv, dim=dim)
    if extra:
        inputs += tuple(randn(2, extra, heads_kv, dim) for _ in "kv")
    ours, exact = on_cuda(*inputs, dtype=dtype)
    added = dict(zip(("additional_keys", "additional_values"), ours[3:]))
    results = functional.neighborhood_attention_generic(*ours[:3], return_lse=True, **axes, **added)
    expected = plain_torch.neighborhood_attention(
        *exact[:3],
        axes["kernel_size"],
        axes.get("stride", 1),
        axes.get("dilation", 1),
        axes.get("is_causal", False),
        None,
        None,
        *exact[3:],
    )
    assert results[0].dtype == dtype and results[1].dtype == torch.float32
    assert_agree(results, expected, ours, exact, dtype)


@DTYPES
def test_unfused_with_bias(dtype):
    ours, exact = on_cuda(*qkv((14, 15), dim=32), randn(2, 9, 9), dtype=dtype)
    query, key, value = (t.movedim(-2, 1) for t in ours[:3])
    attn = functional.natten2dqkrpb(32**-0.5 * query, key, ours[3], 5, 2)
    out = functional.natten2dav(attn.softmax(-1), value, 5, 2).movedim(1, -2)
    expected, _ = plain_torch.neighborhood_attention(*exact[:3], 5, 1, 2, rpb=exact[3])
    assert_agree([out], [expected], ours, exact, dtype)


@DTYPES
@pytest.mark.parametrize("causal", (False, True))
def test_attention_of_packed_sequences(causal, dtype):
    lengths_q, lengths_kv = [40, 3, 21], [17, 30, 21]
    ours, exact = on_cuda(randn(1, 64, 4, 32), *(randn(1, sum(lengths_kv), 2, 32) for _ in "kv"), dtype=dtype)
    tables = [torch.tensor(lengths, dtype=torch.int32, device="cuda") for lengths in (lengths_q, lengths_kv)]
    results = natten.attention(*ours, causal, seqlens_Q=tables[0], seqlens_KV=tables[1], return_lse=True)
    pieces = zip(exact[0].split(lengths_q, 1), exact[1].split(lengths_kv, 1), exact[2].split(lengths_kv, 1))
    expected = [torch.cat(parts, 1) for parts in zip(*(plain_torch.attention(*p, causal) for p in pieces))]
    assert_agree(results, expected, ours, exact, dtype)


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
def test_packed_sequences_compiled_do_not_wait(backend):
    """In a compiled graph their places are not read from the device."""
    starts = torch.tensor([0, 40, 43, 64], dtype=torch.int32, device="cuda")
    tables = dict(cumulative_seqlen_Q=starts, cumulative_seqlen_KV=starts, max_seqlen_Q=40, max_seqlen_KV=40)
    inputs, _ = on_cuda(*(randn(1, 64, 4, 64) for _ in "qkv"), dtype=torch.bfloat16)

    def attend(query, key, value):
        return natten.attention(query, key, value, is_causal=True, return_lse=True, **tables)

    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, backend=backend)
    weights = [torch.randn_like(r) for r in compiled(*inputs)]  # plans and compiles
    torch.autograd.grad(compiled(*inputs), inputs, weights)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = compiled(*inputs)
        gradients = torch.autograd.grad(results, inputs, weights)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = attend(*inputs)
    for got, wanted in zip(
        (*results, *gradients), (*expected, *torch.autograd.grad(expected, inputs, weights))
    ):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)


@DTYPES
def test_merge_attentions(dtype):
    ours, exact = on_cuda(*(randn(2, 24, 2, 32) for _ in range(5)), dtype=dtype)
    query, keys, values = ours[0], ours[1:3], ours[3:]
    outputs, lses = zip(*(natten.attention(query, k, v, return_lse=True) for k, v in zip(keys, values)))
    results = natten.merge_attentions(list(outputs), list(lses))
    expected = plain_torch.attention(exact[0], torch.cat(exact[1:3], 1), torch.cat(exact[3:], 1))
    assert_agree(results, expected, ours, exact, dtype)


def test_every_compatible_backend_gives_the_same():
    assert natten.HAS_LIBNATTEN and natten.has_cuda()
    inputs = [t.half().cuda() for t in qkv((16, 16), dim=64)]
    names = get_compatible_backends(*inputs, torch_compile=False)
    capability = get_device_cc(inputs[0].device)
    assert ("hopper-fna" in names) == (capability == 90) and "flex-fna" in names and "cutlass-fna" in names
    expected = natten.na2d(*inputs, 5)
    for name in names:
        assert torch.equal(natten.na2d(*inputs, 5, backend=name), expected)
    for q, kv in natten.get_configs_for_cutlass_fna(*inputs)[:3]:
        got = natten.na2d(*inputs, 5, backend="cutlass-fna", q_tile_shape=q, kv_tile_shape=kv)
        assert torch.equal(got, expected)
    flat = [t.flatten(1, 2) for t in inputs]
    names = get_compatible_fmha_backends(*flat, is_causal=True, is_varlen=False, torch_compile=False)
    assert "cutlass-fmha" in names and "flex-fmha" not in names
    if capability < 100:
        with pytest.raises(RuntimeError, match="capability"):
            natten.na2d(*inputs, 5, backend="blackwell-fna")


def test_layer_under_autocast():
    torch.manual_seed(0)
    layer = natten.NeighborhoodAttention2D(64, 2, 7, rel_pos_bias=True).cuda()
    x = torch.randn(2, 14, 14, 64, device="cuda", requires_grad=True)
    expected = layer(x)
    with torch.autocast("cuda", dtype=torch.float16):
        out = layer(x)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-2)
    out.float().sum().backward()
    assert layer.rpb.grad.dtype == torch.float32 and layer.rpb.grad.abs().sum() > 0


def test_calls_do_not_wait_for_the_device():
    packed = torch.randn(2, 16, 16, 3, 2, 32, device="cuda", dtype=torch.half, requires_grad=True)

    def step():
        out = natten.na2d(*packed.unbind(3), 5, is_causal=(True, False))
        torch.autograd.grad(out.sum(), packed)

    step()  # plans and compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
