"""Lengths in device memory on a GPU: one CUDA graph, forward and backward, replayed with other lengths."""

import pytest
import torch
from cuda_graphs import capture
from nhood import torch as nt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

BOUND, TOKENS = (40, 48), 3000
BATCHES = [[(14, 14), (0, 0), (31, 20), (9, 47)], [(40, 48), (7, 7), (0, 0), (0, 0)], [(30, 30), (8, 40), (12, 12), (20, 33)]]
TOLERANCE = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def within(tensors, lengths):
    return nt.neighborhood_attention_varlen(*tensors, (5, 7), layouts=lengths, dilation=(1, 1), bound=BOUND, return_lse=True)


def with_gradients(tensors, lengths):
    leaves = [x.detach().requires_grad_() for x in tensors]
    out, lse = within(leaves, lengths)
    return [out, lse, *torch.autograd.grad(out, leaves, torch.ones_like(out))]


def expected(tensors, batch):
    tokens = sum(x * y for x, y in batch)
    leaves = [x[:, :tokens].double().cpu().detach().requires_grad_() for x in tensors]
    layouts = [of for of in batch if 0 not in of]
    out, lse = nt.neighborhood_attention_varlen(*leaves, (5, 7), layouts=layouts, return_lse=True)
    return [out, lse, *torch.autograd.grad(out, leaves, torch.ones_like(out))]


def drawn(dtype, heads=(4, 2, 2)):
    torch.manual_seed(5)
    return [torch.randn(1, TOKENS, count, 32).to("cuda", dtype) for count in heads]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_one_graph_serves_all_lengths(dtype, kind):
    tensors, lengths = drawn(dtype), torch.zeros(4, 2, dtype=kind, device="cuda")
    graph, results = capture(lambda: with_gradients(tensors, lengths))
    for batch in BATCHES:
        lengths.copy_(torch.tensor(batch))
        graph.replay()
        for i, (found, want) in enumerate(zip(results, expected(tensors, batch))):
            tokens = want.shape[1]
            atol = TOLERANCE[dtype] * want.abs().max().item()
            torch.testing.assert_close(found[:, :tokens].double().cpu(), want, rtol=0, atol=atol)
            assert (found[:, tokens:] == (-torch.inf if i == 1 else 0)).all()


def test_lengths_that_are_not_legal_give_nan():
    tensors, lengths = drawn(torch.bfloat16), torch.tensor([[14, 14], [4, 20], [9, 9]], device="cuda")
    results = with_gradients(tensors, lengths)
    for found in results:
        assert not found[:, :196].isnan().any() and found[:, 196:].isnan().all()
    lengths.copy_(torch.tensor([[14, 14], [40, 48], [40, 48]]))  # the last one ends behind the tensors
    for found in with_gradients(tensors, lengths):
        assert not found[:, :2116].isnan().any() and found[:, 2116:].isnan().all()


def test_compiled():
    tensors, lengths = drawn(torch.bfloat16), torch.tensor(BATCHES[0], device="cuda")
    compiled = torch.compile(within, backend="aot_eager", fullgraph=True)
    for found, want in zip(compiled(tensors, lengths), within(tensors, lengths)):
        torch.testing.assert_close(found, want)
