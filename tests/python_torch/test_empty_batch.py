"""A batch of no samples: empty results, and gradients of zeros for what all samples share."""

import nhood.models as models
import nhood.torch as nt
import pytest
import torch

AXES = ((3, 3), (1, 1), (1, 1), (False, False))


def empty(*shape, dtype=torch.float32):
    return torch.empty(0, *shape, dtype=dtype, requires_grad=True)


def query(dtype=torch.float32):
    return empty(5, 6, 4, 8, dtype=dtype)


BIAS = torch.randn(4, 5, 5, requires_grad=True)
CALLS = {
    "na2d": lambda: (nt.na2d(query(), empty(5, 6, 2, 8), empty(5, 6, 2, 6), 3), (5, 6, 4, 6)),
    "na1d in bfloat16": lambda: (nt.na1d(*[empty(7, 2, 8, dtype=torch.bfloat16)] * 3, 3, is_causal=True), (7, 2, 8)),
    "na3d": lambda: (nt.na3d(*[empty(3, 4, 5, 2, 8)] * 3, 3), (3, 4, 5, 2, 8)),
    "lse": lambda: (nt.na2d(*[query()] * 3, 3, return_lse=True)[1], (5, 6, 4)),
    "lse of float64": lambda: (nt.na2d(*[query(torch.float64)] * 3, 3, return_lse=True)[1], (5, 6, 4)),
    "additional": lambda: (
        nt.na2d(*[query()] * 3, 3, additional_keys=empty(3, 4, 8), additional_values=empty(3, 4, 8)),
        (5, 6, 4, 8),
    ),
    "a part": lambda: (nt.na1d(empty(3, 2, 8), *[empty(9, 2, 8)] * 2, 3, grid=9, query_offset=2), (3, 2, 8)),
    "qk": lambda: (nt.na2d_qk(query(), query(), 3), (5, 6, 4, 9)),
    "av": lambda: (nt.na2d_av(empty(5, 6, 4, 9), query(), 3), (5, 6, 4, 8)),
    "attention": lambda: (nt.attention(*[empty(7, 2, 8)] * 3), (7, 2, 8)),
    "attention of other lengths": lambda: (nt.attention(empty(7, 2, 8), *[empty(5, 2, 8)] * 2), (7, 2, 8)),
    "merged": lambda: (nt.merge_attentions([empty(7, 2, 8)] * 2, [empty(7, 2)] * 2)[0], (7, 2, 8)),
    "norm_rope": lambda: (nt.norm_rope(empty(7, 2, 8)), (7, 2, 8)),
}


def both(call):
    yield call
    torch.compiler.reset()
    yield torch.compile(call, backend="aot_eager")


@pytest.mark.parametrize("name", CALLS)
def test_functions(name):
    for call in both(CALLS[name]):
        out, shape = call()
        assert out.shape == (0, *shape)
        out.sum().backward()


def test_gradients():
    tensors = [query(), query(), query(), BIAS]
    for call in both(lambda q, k, v, bias: nt.na2d(q, k, v, 3, bias=bias, return_lse=True)):
        out, lse = call(*tensors)
        found = torch.autograd.grad(out.sum() + lse.sum(), tensors)
        assert [x.shape for x in found] == [x.shape for x in tensors]
        assert torch.equal(found[3], torch.zeros_like(BIAS))
    first = torch.autograd.grad(nt.na2d(*tensors[:3], 3, bias=BIAS).square().sum(), tensors, create_graph=True)
    second = torch.autograd.grad(sum(x.sum() for x in first), tensors)
    assert [x.shape for x in second] == [x.shape for x in tensors]
    assert torch.equal(second[3], torch.zeros_like(BIAS))
    logits = nt.na2d_qk(tensors[0], tensors[1], 3, bias=BIAS)
    assert torch.equal(torch.autograd.grad(logits.sum(), BIAS)[0], torch.zeros_like(BIAS))


def test_operators():
    q, lse = query().detach(), torch.empty(0, 5, 6, 4)
    nothing, ops = (None, None, None), torch.ops.nhood
    found = ops.na_backward(q, q, q, *nothing, q, lse, q, lse, *AXES, None, False, [True] * 3 + [False] * 3)
    assert [x.shape for x in found] == [q.shape] * 3
    assert ops.na_in(torch.empty(0, 5, 6, 4, 9), q, *AXES, 2, False).shape == (0, 5, 6, 2, 8)


def test_refused_as_others_are():
    with pytest.raises(ValueError, match="kernel_size = 9 exceeds the 7 tokens"):
        nt.na1d(*[empty(7, 2, 8)] * 3, 9)
    with pytest.raises(ValueError, match=r"key.shape = \(1, 7, 2, 8\): the batch is 1, expected 0"):
        nt.na1d(empty(7, 2, 8), torch.randn(1, 7, 2, 8), empty(7, 2, 8), 3)
    with pytest.raises(ValueError, match="the batch is 0"):
        nt.na1d(torch.randn(1, 7, 2, 8), empty(7, 2, 8), empty(7, 2, 8), 3)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_layers(rank):
    """As a process of a job that has no samples for this step: all parameters get gradients."""
    lengths = (4, 5, 6)[:rank]
    layer = getattr(nt, f"NeighborhoodAttention{rank}D")(16, 2, 3, rel_pos_bias=True, num_kv_heads=1)
    for call in both(layer):
        layer.zero_grad()
        out = call(torch.empty(0, *lengths, 16))
        assert out.shape == (0, *lengths, 16)
        out.sum().backward()
        for name, parameter in layer.named_parameters():
            assert torch.equal(parameter.grad, torch.zeros_like(parameter)), name
    layer.attn_drop.p = 0.5
    assert layer(torch.empty(0, *lengths, 16)).shape == (0, *lengths, 16)


def test_exported():
    layer = nt.NeighborhoodAttention1D(16, 2, 3)
    sizes = ({0: torch.export.Dim("batch", min=0, max=9)},)
    program = torch.export.export(layer, (torch.randn(2, 7, 16),), dynamic_shapes=sizes).module()
    assert program(torch.empty(0, 7, 16)).shape == (0, 7, 16)


@pytest.mark.parametrize(
    "make",
    [
        lambda: models.NAT(16, 2, (1, 1), 2.0, kernel_size=3, num_classes=3, layer_scale=0.5),
        lambda: models.DiNATs(16, 2, (1, 1), 2.0, kernel_size=3, num_classes=3),
        lambda: models.IsotropicClassifier(16, 2, 1, 2.0, kernel_size=3, patch_size=8, num_classes=3),
    ],
)
def test_models(make):
    model = make()
    out = model(torch.empty(0, 3, 32, 32))
    assert out.shape == (0, 3)
    out.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_streams():
    """Batches of no samples, and calls with no tokens."""
    stream = nt.StreamingNeighborhoodAttention(3)
    for _ in range(5):
        assert stream(*[torch.empty(0, 1, 2, 8)] * 3).shape == (0, 1, 2, 8)
    stream, whole = nt.StreamingNeighborhoodAttention(3, block=2), []
    tokens = torch.randn(3, 2, 9, 2, 8)
    for first, count in ((0, 0), (0, 4), (4, 0), (4, 5), (9, 0)):
        out, lse = stream(*tokens[:, :, first : first + count], return_lse=True)
        assert out.shape == (2, count, 2, 8) and lse.shape == (2, count, 2)
        whole.append(out)
    torch.testing.assert_close(torch.cat(whole, 1), nt.na1d(*tokens, 3, is_causal=True))
    assert stream.tokens == 9


def test_flops():
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        nt.na2d(*[query().detach()] * 3, 3)
    assert counter.get_total_flops() == 0
