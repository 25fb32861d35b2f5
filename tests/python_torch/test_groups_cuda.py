"""Groups on CUDA: samples of different sizes and windows by sets of heads against the same on the CPU in float64, in CUDA graphs, and
deterministic where that is asked for."""

import pytest
import torch
from nhood import torch as nt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

LAYOUTS = [(14, 14), (31, 20), (0, 5), (9, 47), (14, 14)]
DILATIONS = [1, (2, 1), 1, (1, 3), 2]
TOKENS = sum(x * y for x, y in LAYOUTS)
TOLERANCE = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def of_samples(query, key, value):
    return nt.neighborhood_attention_varlen(query, key, value, (5, 7), layouts=LAYOUTS, dilations=DILATIONS)


def of_sets(query, key, value):
    return nt.na2d(query, key, value, [[7, 7], [5, 3]], dilation=[[1, 1], [3, 4]])


KINDS = [
    pytest.param(of_samples, [(1, TOKENS, 4, 32), (1, TOKENS, 2, 32), (1, TOKENS, 2, 32)], id="samples"),
    pytest.param(of_sets, [(2, 30, 28, 6, 64)] * 3, id="sets"),
]


def drawn(shapes, dtype):
    torch.manual_seed(2)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def with_gradients(function, tensors):
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)]


def agree(found, wanted, tolerance):
    for got, want in zip(found, wanted):
        scale = want.abs().max().item()
        torch.testing.assert_close(got.cpu().double(), want.double(), rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("function, shapes", KINDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_as_on_the_cpu(function, shapes, dtype):
    tensors = drawn(shapes, dtype)
    expected = with_gradients(function, [x.double() for x in tensors])
    agree(with_gradients(function, [x.cuda() for x in tensors]), expected, TOLERANCE[dtype])


@pytest.mark.parametrize("function, shapes", KINDS)
def test_deterministic(function, shapes):
    tensors = [x.cuda() for x in drawn(shapes, torch.bfloat16)]
    torch.use_deterministic_algorithms(True)
    try:
        first = with_gradients(function, tensors)
        for _ in range(3):
            assert all(torch.equal(a, b) for a, b in zip(with_gradients(function, tensors), first))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("function, shapes", KINDS)
def test_in_a_cuda_graph(function, shapes):
    """Forward and backward, replayed on other values."""
    tensors = [x.cuda().requires_grad_() for x in drawn(shapes, torch.float16)]

    def step():
        out = function(*tensors)
        return [out, *torch.autograd.grad(out, tensors, torch.ones_like(out))]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for x in tensors:
            x.copy_(torch.randn_like(x))
    graph.replay()
    agree(captured, [x.detach().cpu() for x in step()], 2e-3)


def test_tokens_that_start_anywhere():
    """Head dims whose rows are not multiples of 16 bytes, in a slice of a larger tensor."""
    torch.manual_seed(4)
    whole = torch.randn(1, TOKENS, 3, 3, 20, device="cuda", dtype=torch.float16)
    query, key, value = whole[..., 1:].unbind(2)
    expected = of_samples(*[x.double().cpu() for x in (query, key, value)])
    agree([of_samples(query, key, value)], [expected], 1e-2)


def test_packed_sequences():
    """Sequences of queries and of keys that differ in length, tokens outside of all."""
    from nhood.torch._groups import na_varlen, sequence_table

    query, key, value = [x.cuda() for x in drawn([(1, 60, 4, 64), (1, 90, 2, 64), (1, 90, 2, 64)], torch.float16)]
    starts_q = torch.tensor([2, 20, 20, 41, 58], dtype=torch.int32, device="cuda")
    starts_kv = torch.tensor([0, 40, 50, 50, 90], dtype=torch.int32, device="cuda")
    out, lse = na_varlen(query, key, value, sequence_table(starts_q, starts_kv, False), None, False, True)
    for q, kv in ((slice(2, 20), slice(0, 40)), (slice(41, 58), slice(50, 90))):
        own = [x[:, at].double().cpu() for x, at in ((query, q), (key, kv), (value, kv))]
        wanted = nt.attention(*own, return_lse=True)
        agree([out[:, q], lse[:, q]], wanted, 1e-2)
    for nobody in (slice(0, 2), slice(20, 41), slice(58, 60)):
        assert (out[:, nobody] == 0).all() and (lse[:, nobody] == -torch.inf).all()
