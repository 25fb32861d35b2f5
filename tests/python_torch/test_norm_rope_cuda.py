"""RMS norm and rotary positions on CUDA tensors: against float64, streams, graphs, the compiler, run to run."""

import nhood.torch as nt
import plain_norm_rope as plain
import pytest
import torch
from cuda_graphs import capture
from test_norm_rope import ROUNDING, near

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def make(shape, dtype, norm="head"):
    batch, frames, rows, columns, heads, dim = shape
    joined = torch.randn(batch, frames, rows, columns, 3, heads, dim, device="cuda").to(dtype)
    along = dim // 6 * 2  # rows and columns have as many channels each, frames the rest; all are even
    dims = (dim - 2 * along, along, along)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    tables = nt.rotary_tables((frames + 1, rows, columns), dims, device="cuda", dtype=wide)
    channels = dim if norm == "head" else heads * dim
    weight = None if norm is None else (torch.rand(channels, device="cuda") + 0.5).to(dtype).requires_grad_()
    return joined[..., 1, :, :].requires_grad_(), tables, weight


@pytest.mark.parametrize("pairs", ["interleaved", "halves"])
@pytest.mark.parametrize("norm", ["head", "token", None])
@pytest.mark.parametrize("shape", [(2, 5, 7, 9, 4, 64), (1, 3, 6, 8, 24, 128), (1, 2, 5, 300, 3, 40)], ids=str)
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_values_and_gradients(dtype, shape, norm, pairs):
    x, tables, weight = make(shape, dtype, norm)
    named = dict(norm=norm, pairs=pairs, scale=0.3, offset=(1, 0, 0))
    inputs = [t for t in (x, weight) if t is not None]
    out, expected = nt.norm_rope(x, tables, weight, **named), plain.norm_rope(x, tables, weight, **named)
    near(out, expected)
    d_out = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, d_out, retain_graph=True)
    for got, exact in zip(found, torch.autograd.grad(expected, inputs, d_out.double())):
        near(got, exact)
    again = torch.autograd.grad(out, inputs, d_out)
    assert all(torch.equal(a, b) for a, b in zip(found, again))


def test_unaligned():
    x, tables, weight = make((1, 2, 3, 5, 2, 32), torch.bfloat16)
    memory = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")
    shifted = memory[1:].view(x.shape).copy_(x.detach())
    assert torch.equal(nt.norm_rope(shifted, tables, weight), nt.norm_rope(x, tables, weight))


def test_graph_and_stream():
    """Captured with other numbers than those that the graph then runs on."""
    x, tables, weight = (t.detach() if isinstance(t, torch.Tensor) else t for t in make((1, 4, 6, 8, 4, 64), torch.bfloat16))
    d_out = torch.randn_like(x)

    def both():
        leaf, of_weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        out = nt.norm_rope(leaf, tables, of_weight)
        return out, *torch.autograd.grad(out, (leaf, of_weight), d_out)

    graph, captured = capture(both)
    x.copy_(torch.randn_like(x))
    graph.replay()
    for got, expected in zip(captured, both()):
        assert torch.equal(got, expected)


def test_compiled():
    def layer(x, weight):
        tables = nt.rotary_tables(x.shape[1:-2], (16, 24, 24), device=x.device)
        return nt.norm_rope(x, tables, weight, scale=0.5) * 2

    x, _, weight = make((1, 3, 4, 5, 2, 64), torch.bfloat16)
    compiled = torch.compile(layer, fullgraph=True)
    out, expected = compiled(x, weight), layer(x, weight)
    near(out, expected)
    found, exact = (torch.autograd.grad(y.sum(), (x, weight)) for y in (out, expected))
    for got, other in zip(found, exact):
        near(got, other)


def test_beyond_int32():
    """More elements than 32 bits count: the last tokens are right."""
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GiB of memory")
    x = torch.randn(1, 130, 256, 256, 4, 64, device="cuda", dtype=torch.bfloat16)
    assert x.numel() > 2**31
    tables = nt.rotary_tables(x.shape[1:4], (16, 24, 24), device="cuda")
    out = nt.norm_rope(x, tables)
    last = slice(None), slice(129, 130)
    near(out[last], plain.norm_rope(x[last], tables, offset=(129, 0, 0)))


def test_mixed_devices():
    x, tables, weight = make((1, 2, 3, 5, 2, 32), torch.float32)
    with pytest.raises(ValueError, match="weight is on cpu, x on cuda:0"):
        nt.norm_rope(x, tables, weight.cpu())
    with pytest.raises(ValueError, match=r"tables\[0\] is on cpu, x on cuda:0"):
        nt.norm_rope(x, [t.cpu() for t in tables], weight)
