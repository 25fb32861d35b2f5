"""CUDA tensors: results against the f64 ones of the CPU, streams, graphs, and what a call must not do."""

import nhood
import nhood.torch as nt
import numpy as np
import pytest
import torch
from cases import CASES, PARTS, assert_near
from cuda_graphs import capture
from nhood import _plans, _quick
from torch.library import opcheck

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}


def tensors(case, dtype):
    return {
        name: torch.from_numpy(array).to("cuda", DTYPES[dtype]).requires_grad_()
        for name, array in case.arrays(np.dtype(np.float64)).items()
    }


def on_cpu(arrays):
    """The same values in f64."""
    return {name: array.detach().double().cpu().requires_grad_() for name, array in arrays.items()}


def call(case, arrays):
    return nt.neighborhood_attention(**arrays, **case.axes, scale=case.scale, return_lse=True)


def near(got, expected, roundings, dtype, scale=1):
    assert got.device.type == "cuda"
    assert_near(got.detach().double().cpu().numpy(), expected.detach().numpy(), roundings, dtype, scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES + PARTS, ids=str)
def test_attention(case, dtype):
    arrays = tensors(case, dtype)
    exact = on_cpu(arrays)
    (out, lse), (exact_out, exact_lse) = call(case, arrays), call(case, exact)
    near(out, exact_out, 32, dtype)
    near(lse, exact_lse, 256, "float64" if dtype == "float64" else "float32")
    d_out, d_lse = torch.randn_like(out), torch.randn_like(lse)
    gradients = torch.autograd.grad((out, lse), tuple(arrays.values()), (d_out, d_lse))
    exact_gradients = torch.autograd.grad(
        (exact_out, exact_lse), tuple(exact.values()), (d_out.double().cpu(), d_lse.double().cpu())
    )
    for name, got, expected in zip(arrays, gradients, exact_gradients):
        # all queries add to the gradients of extra tokens, which are less than their parts
        parts = lse.numel() if name.startswith("additional") and dtype == "float32" else 1
        near(got, expected, 64, dtype, scale=parts**0.5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", [case for case in CASES[1:13:2] + PARTS if not case.extra], ids=str)
def test_unfused(case, dtype):
    arrays = tensors(case, dtype)
    exact = on_cpu(arrays)
    results = []
    for a in (arrays, exact):
        qk, av = getattr(nt, f"na{case.rank}d_qk"), getattr(nt, f"na{case.rank}d_av")
        attn = qk(a["query"], a["key"], **case.axes, scale=0.3, bias=a.get("bias"), zero_fill=True)
        out = av(attn, a["value"], **case.axes)
        d_out = torch.ones_like(out)
        results.append((attn, out, *torch.autograd.grad(out, tuple(a.values()), d_out)))
    for got, expected in zip(*results):
        near(got, expected, 128, dtype)


@pytest.mark.skipif(
    _quick._module is None or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="nhood_quick is not built, or torch has no table of C functions for DLPack",
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_calls_come_again(dtype, monkeypatch):
    """By the module nhood_quick, with other values each time."""
    known = []

    def noting(function):
        def call(name, *arguments, **named):
            result = function(name, *arguments, **named)
            known.extend([name] * (result is not None and result is not False))
            return result

        return call

    nhood.clear_cache()
    monkeypatch.setattr(_quick, "call", noting(_quick.call))
    monkeypatch.setattr(_quick, "execute", noting(_quick.execute))

    def results(tensors):
        with torch.no_grad():
            alone = nt.na2d(*tensors, 5)
        out = nt.na2d(*tensors, 5)
        return alone, out, *torch.autograd.grad(out, tensors, torch.ones_like(out))

    for turn in range(3):
        torch.manual_seed(turn)
        given = [torch.randn(2, 12, 12, 4, 32, device="cuda", dtype=DTYPES[dtype]).requires_grad_() for _ in range(3)]
        known.clear()
        got = results(given)
        assert known == (["torch.na2d", "torch.na2d", "na_backward"] if turn else [])
        for one, right in zip(got, results([x.detach().double().cpu().requires_grad_() for x in given])):
            near(one, right, 64, dtype)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if before == "highest" else "highest")
    try:
        known.clear()
        nt.na2d(*[x.detach() for x in given], 5)
        assert known == ([] if dtype == "float32" else ["torch.na2d"]), "only f32 depends on TF32"
    finally:
        torch.set_float32_matmul_precision(before)


def small(**options):
    torch.manual_seed(0)
    return torch.randn(3, 2, 12, 12, 4, 32, device="cuda", **options).unbind()


def test_packed_and_misaligned_views():
    qkv = torch.randn(2, 12, 12, 3, 4, 32, device="cuda", dtype=torch.bfloat16)
    exact = nt.na2d(*qkv.double().cpu().unbind(3), 5)
    near(nt.na2d(*qkv.unbind(3), 5), exact, 32, "bfloat16")
    shifted = torch.empty(qkv.numel() + 1, device="cuda", dtype=torch.bfloat16)[1:].view(qkv.shape).copy_(qkv)
    assert shifted.data_ptr() % 16
    near(nt.na2d(*shifted.unbind(3), 5), exact, 32, "bfloat16")
    assert torch.equal(qkv, shifted), "inputs are only read"


def test_slices_of_a_projection_are_not_copied():
    qkv = torch.randn(2, 12, 12, 3, 4, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    d_out = torch.randn(2, 12, 12, 4, 32, device="cuda", dtype=torch.bfloat16)
    query, key, value = qkv.unbind(3)
    torch.autograd.grad(nt.na2d(query, key, value, 5), (query, key, value), d_out)  # plans are made
    torch.cuda.synchronize()
    with torch.no_grad():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = nt.na2d(query, key, value, 5)
        grown = torch.cuda.max_memory_allocated() - before
    assert out.nbytes <= grown < 2 * out.nbytes, "the result, and no copy of an input"


def test_current_stream():
    query, key, value = small()
    expected = nt.na2d(query, key, value, 5)
    stream = torch.cuda.Stream()
    late = torch.empty_like(query)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # cycles; a call on another stream would read `late` before it is written
        late.copy_(query)
        out = nt.na2d(late, key, value, 5)
    stream.synchronize()
    assert torch.equal(out, expected)


def test_no_synchronisation():
    query, key, value = (t.requires_grad_() for t in small())
    nt.na2d(query, key, value, 5).sum().backward()  # plans are made
    torch.cuda.set_sync_debug_mode("error")
    try:
        nt.na2d(query, key, value, 5).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    end = torch.cuda.Event()
    torch.cuda._sleep(200_000_000)
    nt.na2d(query, key, value, 5)
    end.record()
    assert not end.query(), "the call waited for the device"


def test_graph():
    query, key, value = (t.requires_grad_() for t in small())
    d_out = torch.randn_like(query)

    def step():
        out = nt.na2d(query, key, value, 5)
        return (out, *torch.autograd.grad(out, (query, key, value), d_out))

    graph, captured = capture(step)
    with torch.no_grad():
        query.copy_(torch.randn_like(query))
    graph.replay()
    for got, expected in zip(captured, step()):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("window, stride, block", [(4, 1, 1), (4, 2, 1), (5, 1, 3)])
def test_graphs_of_a_stream(window, stride, block):
    """A period of calls is captured once; replayed, it goes on with the tokens that are then in the captured tensors."""
    frames = [torch.randn(3, 1, block, 8, 2, 32, device="cuda") for _ in range(40)]
    arguments = dict(kernel_size=(window, 3), stride=(stride, 1))
    stream, eager = (nt.StreamingNeighborhoodAttention(**arguments, block=block) for _ in range(2))
    period = stream.period
    warm = -(-(window + stride) // (block * period)) * period  # full windows
    for frame in frames[: warm + period]:
        stream(*frame)
    inputs = [torch.empty_like(frames[0]) for _ in range(period)]
    graphs, outs = [], []
    for tensors in inputs:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            outs.append(stream(*tensors))
    expected = [eager(*frame) for frame in frames]
    for at in range(warm + period, len(frames) - period + 1, period):
        for i in range(period):
            inputs[i].copy_(frames[at + i])
            graphs[i].replay()
            torch.testing.assert_close(outs[i], expected[at + i])


def test_repeated_calls_keep_no_memory():
    query, key, value = (t.requires_grad_() for t in small())

    def step():
        torch.autograd.grad(nt.na2d(query, key, value, 5).sum(), (query, key, value))

    step()
    torch.cuda.synchronize()
    before, plans = torch.cuda.memory_allocated(), _plans.find_plan.cache_info().currsize
    for _ in range(50):
        step()
    torch.cuda.synchronize()
    one_step = 3 * query.nbytes  # autograd's thread may still hold the gradients of the last one
    assert torch.cuda.memory_allocated() - before <= one_step
    assert _plans.find_plan.cache_info().currsize == plans


def test_plans_that_share_a_kernel():
    """The levels of a model: what the last one needs does not become the limit of those before."""
    levels = [torch.randn(2, length, length, 2, 32, device="cuda") for length in (56, 28, 14, 7)]
    exact = [nt.na2d(*[query.double().cpu()] * 3, 7) for query in levels]
    nhood.configure(solver="cuda.naive")  # its blocks need as much shared memory as their halos
    try:
        for query, expected in zip(levels * 2, exact * 2):
            near(nt.na2d(query, query, query, 7), expected, 32, "float32")
    finally:
        nhood.configure()


def test_deterministic():
    query, key, value = (t.requires_grad_() for t in small(dtype=torch.bfloat16))
    torch.use_deterministic_algorithms(True)
    try:
        first, *others = (
            torch.autograd.grad(nt.na2d(query, key, value, 7).float().square().sum(), (query, key, value))
            for _ in range(5)
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other))


def test_autocast():
    query, key, value = (t.requires_grad_() for t in small())
    with torch.autocast("cuda", torch.float16):
        out = nt.na2d(query, key, value, 5)
    assert out.dtype == torch.float16
    out.sum().backward()
    assert query.grad.dtype == torch.float32


def test_tf32():
    query, key, value = small()
    exact = nt.na2d(query.double(), key.double(), value.double(), 5)
    errors = []
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        try:
            errors.append((nt.na2d(query, key, value, 5) - exact).abs().max().item())
        finally:
            torch.set_float32_matmul_precision("highest")
    assert errors[0] < 2e-5
    assert errors[1] < 2e-2


@pytest.mark.parametrize("options", [dict(backend="aot_eager"), dict(), dict(mode="reduce-overhead")], ids=str)
def test_compile(options):
    def loss(query, key, value):
        return nt.na2d(query * 2, key, value, 5).square().mean()

    arrays = [t.requires_grad_() for t in small()]
    expected = torch.autograd.grad(loss(*arrays), arrays)
    compiled = torch.compile(loss, fullgraph=True, **options)
    for _ in range(4):  # CUDA graphs are recorded by the second call and replayed from the third on
        for got, other in zip(torch.autograd.grad(compiled(*arrays), arrays), expected):
            torch.testing.assert_close(got, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dim", [20, 33, 136])
def test_compile_at_odd_head_dims(dim):
    """What the compiler hands over may lie in padded memory or start anywhere."""

    def step(qkv, bias):
        query, key, value = (2 * qkv).unbind(3)
        return nt.na2d(query, key, value + 1, 5, bias=bias.cos())

    torch.manual_seed(0)
    arrays = [
        torch.randn(*shape, device="cuda", dtype=torch.float16, requires_grad=True)
        for shape in ((2, 9, 10, 3, 2, dim), (2, 9, 9))
    ]
    exact = [t.detach().double().cpu().requires_grad_() for t in arrays]
    torch.compiler.reset()
    got, expected = torch.compile(step, fullgraph=True)(*arrays), step(*exact)
    d_out = torch.randn_like(got)
    near(got, expected, 64, "float16")
    for one, other in zip(
        torch.autograd.grad(got, arrays, d_out), torch.autograd.grad(expected, exact, d_out.double().cpu())
    ):
        near(one, other, 128, "float16")


def test_opcheck():
    query, key, value = small()
    axes = ((5, 5), (1, 1), (1, 1), (False, False))
    opcheck(torch.ops.nhood.na.default, (query, key, value, None, None, None, *axes, None, False, True))


def test_derivatives():
    query, key, value = (
        torch.randn(1, 4, 5, 2, 3, device="cuda", dtype=torch.float64, requires_grad=True) for _ in range(3)
    )
    bias = torch.randn(2, 5, 5, device="cuda", dtype=torch.float64, requires_grad=True)

    def call(*arrays):
        return nt.na2d(*arrays[:3], 3, bias=arrays[3], return_lse=True)

    arguments = (query, key, value, bias)
    assert torch.autograd.gradcheck(call, arguments, check_forward_ad=True, nondet_tol=1e-9)
    assert torch.autograd.gradgradcheck(call, arguments, fast_mode=True, nondet_tol=1e-9)


@pytest.mark.parametrize("with_bias", [False, True])
def test_gradients_per_sample(with_bias):
    query, key, value = (t[:, None] for t in small(dtype=torch.bfloat16))
    bias = torch.randn(4, 9, 9, device="cuda", dtype=torch.bfloat16) if with_bias else None

    def loss(query, key, value, bias):
        return nt.na2d(query, key, value, 5, bias=bias).float().square().sum()

    argnums = (0, 1, 2, 3) if with_bias else (0, 1, 2)
    gradients = torch.func.grad(loss, argnums)
    got = torch.vmap(gradients, (0, 0, 0, None))(query, key, value, bias)
    for i in range(len(query)):
        exact = [None if t is None else t.double().cpu() for t in (query[i], key[i], value[i], bias)]
        for one, other in zip(got, gradients(*exact)):
            near(one[i], other, 128, "bfloat16")


def test_devices_are_not_mixed():
    query, key, value = small()
    with pytest.raises(ValueError, match="value is on cpu, query on cuda:0"):
        nt.na2d(query, key, value.cpu(), 5)
    with pytest.raises(ValueError, match="not in CPU memory"):
        nhood.na2d(query, key, value, 5)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_second_device():
    arrays = [t.requires_grad_() for t in small()]
    expected = nt.na2d(*arrays, 5)
    there = [t.detach().to("cuda:1").requires_grad_() for t in arrays]
    out = nt.na2d(*there, 5)
    assert out.device.index == 1 and torch.cuda.current_device() == 0
    torch.testing.assert_close(out.cpu(), expected.cpu())
    out.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(there[0].grad.cpu(), arrays[0].grad.cpu())


POISONED = {
    # axes, window, head dim, dtype
    "tiles": ((24, 24), 9, 128, "bfloat16"),
    "long": ((40, 40), 24, 64, "float16"),
    "line": ((300,), 150, 128, "bfloat16"),
    "exact": ((40,), 7, 24, "float32"),
}


@pytest.mark.parametrize("poisoned", ["key", "value", "d_out"])
@pytest.mark.parametrize("name", POISONED)
def test_nan_stays_in_its_windows(name, poisoned):
    """A NaN reaches exactly the elements that it reaches on the CPU, where nothing outside a window is read."""
    axes, window, dim, dtype = POISONED[name]
    generator = torch.Generator().manual_seed(1)
    arrays = {
        tensor: torch.randn(1, *axes, 2, dim, generator=generator).to(DTYPES[dtype])
        for tensor in ("query", "key", "value", "d_out")
    }
    arrays[poisoned][(0, *(length // 2 for length in axes), 1, 3)] = float("nan")

    def results(device, dtype):
        moved = {tensor: array.to(device, dtype) for tensor, array in arrays.items()}
        d_out = moved.pop("d_out")
        inputs = [moved[tensor].requires_grad_() for tensor in ("query", "key", "value")]
        out = nt.neighborhood_attention(*inputs, (window,) * len(axes))
        return [out.detach(), *torch.autograd.grad(out, inputs, d_out)]

    for got, expected in zip(results("cuda", DTYPES[dtype]), results("cpu", torch.float64)):
        assert torch.equal(got.double().cpu().isnan(), expected.isnan())
        near(got.nan_to_num(), expected.nan_to_num(), 64, dtype)
