"""NATTEN 0.21.9's varlen, as the programs that ask for it call it, and dense attention of packed sequences in one call."""

import nhood.compat.natten
import pytest
import torch
from nhood import torch as nt
from nhood._operations import BACKWARD, FORWARD
from nhood.torch import _tensors
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

nhood.compat.natten.install()

import natten  # noqa: E402
from natten.utils.varlen import generate_varlen_parameters  # noqa: E402
from natten.varlen import configure_varlen, neighborhood_attention_varlen  # noqa: E402

LAYOUTS = [(2, 6, 5), (1, 9, 8), (3, 4, 4)]
TOKENS = 60 + 72 + 48


def drawn(requires_grad=False):
    torch.manual_seed(1)
    return [torch.randn(1, TOKENS, heads, 16, requires_grad=requires_grad) for heads in (4, 2, 2)]


def by_sample(tensors, windows, strides, dilations, causal=False):
    parts, at = [], 0
    for layout, *one in zip(LAYOUTS, windows, strides, dilations):
        count = torch.tensor(layout).prod().item()
        own = [x[:, at : at + count].unflatten(1, layout) for x in tensors]
        parts.append(nt.na3d(*own, *one, is_causal=causal, return_lse=True))
        at += count
    return [torch.cat([part.flatten(1, 3) for part in of], 1) for of in zip(*parts)]


def configured(**named):
    return configure_varlen(LAYOUTS, 16, torch.device("cpu"), torch.float32, True, **named)


def test_version():
    nhood.compat.natten.install("0.21.9.dev0")
    try:
        assert natten.__version__ == "0.21.9.dev0" and natten.varlen.configure_varlen is configure_varlen
    finally:
        nhood.compat.natten.install()


@pytest.mark.parametrize("causal", [False, (True, False, False)])
def test_lists(causal):
    """Windows as large as the sample, and of 1 where an axis has one token, as block masks ask for."""
    windows, strides, dilations = [(2, 6, 5), (1, 3, 5), (3, 2, 2)], [(1, 1, 1), (1, 2, 1), (1, 1, 1)], [(1, 1, 1), (1, 3, 1), (1, 1, 2)]
    metadata = configured(kernel_size_list=windows, stride_list=strides, dilation_list=dilations, is_causal=causal, backend=None)
    tensors = drawn(True)
    out, lse = neighborhood_attention_varlen(*tensors, metadata=metadata, return_lse=True)
    expected = by_sample(tensors, windows, strides, dilations, causal)
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
    found, wanted = (torch.autograd.grad(x.square().sum(), tensors) for x in (out, expected[0]))
    torch.testing.assert_close(found, wanted)


def test_one_for_all_and_scale():
    metadata = configured(kernel_size=(1, 4, 3), stride=None, dilation=None)
    query, key, value = drawn()
    out = neighborhood_attention_varlen(query, key, value, metadata=metadata, scale=0.5, run_persistent_kernel=True)
    assert torch.equal(out, by_sample((query * (0.5 * 4), key, value), [(1, 4, 3)] * 3, [1] * 3, [1] * 3)[0])


def test_deterministic_and_compiled():
    metadata = configured(kernel_size=(1, 4, 3))
    tensors = drawn()
    expected = neighborhood_attention_varlen(*tensors, metadata)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(neighborhood_attention_varlen(*tensors, metadata), expected)
    finally:
        torch.use_deterministic_algorithms(False)
    compiled = torch.compile(neighborhood_attention_varlen, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*tensors, metadata), expected)


@pytest.mark.parametrize(
    "call, kind, text",
    [
        (lambda: configured(kernel_size=(2, 4, 4)), ValueError, "member 1: kernel_size = 2 exceeds the 1 token of axis 0"),
        (lambda: configured(), ValueError, "kernel_size = None and kernel_sizes = None"),
        (lambda: configured(kernel_size=(1, 3, 3), kernel_size_list=[1] * 3), ValueError, "give one of them"),
        (lambda: configured(kernel_size=(1, 3, 3), tile=3), TypeError, "unknown arguments"),
        (
            lambda: neighborhood_attention_varlen(*[x[:, 1:] for x in drawn()], configured(kernel_size=(1, 3, 3))),
            ValueError,
            "layouts have 180 tokens, query has 179",
        ),
        (
            lambda: neighborhood_attention_varlen(*[x[..., :8] for x in drawn()], configured(kernel_size=(1, 3, 3))),
            ValueError,
            "query has head dim 8, metadata is of head_dim = 16",
        ),
    ],
)
def test_illegal(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_new_lengths_of_sequences_recompile_nothing():
    compiles = CompileCounter()

    @torch.compile(backend=compiles, fullgraph=True)
    def attend(x, starts, longest):
        return natten.attention(
            x,
            x,
            x,
            cumulative_seqlen_Q=starts,
            cumulative_seqlen_KV=starts,
            max_seqlen_Q=longest,
            max_seqlen_KV=longest,
        )

    x = torch.randn(1, 40, 3, 8)
    for lengths in ([10, 10, 20], [1, 38, 1], [13, 13, 14], [5, 30, 5]):
        starts = torch.tensor([0, *lengths]).cumsum(0).int()
        expected = torch.cat([nt.attention(*[part] * 3) for part in x.split(lengths, 1)], 1)
        torch.testing.assert_close(attend(x, starts, 38), expected)
    assert compiles.frame_count == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_new_numbers_of_sequences_recompile_nothing(backend, monkeypatch):
    """Each call runs one attention forward and one backward, and none where there is nothing."""
    ran = []
    execute = _tensors.launch
    monkeypatch.setattr(_tensors, "launch", lambda call, *rest: ran.append(call.asked.operation) or execute(call, *rest))
    compiles = CompileCounterWithBackend(backend)

    @torch.compile(backend=compiles, fullgraph=True)
    def attend(query, key, value, starts_q, starts_kv, longest):
        return natten.attention(
            query,
            key,
            value,
            cumulative_seqlen_Q=starts_q,
            cumulative_seqlen_KV=starts_kv,
            max_seqlen_Q=longest,
            max_seqlen_KV=longest,
        )

    for lengths in ([10, 30], [12, 8, 20], [40], [1, 2, 3, 4, 30], [5] * 8):
        query, key, value = (torch.randn(1, 40, heads, 8, requires_grad=True) for heads in (4, 2, 2))
        sizes = torch.tensor(lengths, dtype=torch.int32)
        starts_q, starts_kv, *_ = generate_varlen_parameters(query, key, value, sizes, sizes)
        ran.clear()
        out = attend(query, key, value, starts_q, starts_kv, 40)
        out.square().sum().backward()
        assert ran == [FORWARD, BACKWARD]
        parts = [x.detach().split(lengths, 1) for x in (query, key, value)]
        expected = torch.cat([nt.attention(*own) for own in zip(*parts)], 1)
        torch.testing.assert_close(out, expected)
    assert compiles.frame_count == 1
    ran.clear()
    for tokens in (0, 7):  # which no sequence has
        nothing = [x[:, :tokens].detach().requires_grad_() for x in (query, key, value)]
        out = attend(*nothing, torch.zeros_like(starts_q), torch.zeros_like(starts_kv), 0)
        out.sum().backward()
        assert out.shape == nothing[0].shape and not out.any() and not any(x.grad.any() for x in nothing)
    assert not ran


def test_new_numbers_of_samples_recompile_nothing():
    compiles = CompileCounterWithBackend("aot_eager")

    @torch.compile(backend=compiles, fullgraph=True)
    def attend(x, table):
        return nt.neighborhood_attention_varlen(x, 2 * x, 3 * x, table=table)

    for layouts in ([(4, 6), (6, 6)], [(5, 4), (5, 8)], [(3, 4), (6, 4), (4, 6)], [(6, 10)], [(3, 4)] * 5):
        x = torch.randn(1, 60, 4, 8, requires_grad=True)
        out = attend(x, nt.varlen_table(layouts, 3))
        assert torch.equal(out, nt.neighborhood_attention_varlen(x, 2 * x, 3 * x, 3, layouts=layouts))
        out.sum().backward()
    assert compiles.frame_count == 1
