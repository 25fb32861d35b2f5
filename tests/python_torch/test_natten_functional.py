"""NATTEN's functions of 0.20 and later against plain torch: values, gradients, refusals."""

import nhood.compat.natten
import plain_torch
import pytest
import torch
from natten_inputs import assert_gradients_agree, qkv, randn
from versions import needs_flex

nhood.compat.natten.install()

import natten  # noqa: E402
import natten.functional  # noqa: E402
from natten.backends import get_compatible_backends, get_compatible_fmha_backends  # noqa: E402
from natten import varlen_attention  # noqa: E402
from nhood.compat.natten import _v017  # noqa: E402
from natten.utils.varlen import generate_varlen_parameters  # noqa: E402

FUNCTIONS = {1: natten.na1d, 2: natten.na2d, 3: natten.na3d}


CASES = [
    dict(shape=(11,), kernel_size=3),
    dict(shape=(16,), kernel_size=(4,), stride=(2,), dilation=(2,), is_causal=(True,)),
    dict(shape=(9,), kernel_size=9),
    dict(shape=(9,), kernel_size=9, is_causal=True),
    dict(shape=(8, 9), kernel_size=(5, 4), stride=(1, 2)),
    dict(shape=(7, 10), kernel_size=3, dilation=(2, 3), is_causal=(False, True)),
    dict(shape=(5, 6), kernel_size=(5, 6)),
    dict(shape=(4, 5, 6), kernel_size=(2, 3, 4), stride=(2, 1, 1), is_causal=(True, False, False)),
    dict(shape=(4, 6, 5), kernel_size=2, dilation=2, stride=None),
    dict(shape=(8, 8), kernel_size=3, dilation=None, is_causal=None, scale=0.3),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("extra", (0, 3))
@pytest.mark.parametrize("heads_kv, dim_v", ((2, 8), (1, 6)))
def test_values_and_gradients(case, extra, heads_kv, dim_v):
    case = dict(case)
    shape, window = case.pop("shape"), case.pop("kernel_size")
    query, key, value = inputs = qkv(shape, heads_kv=heads_kv, dim_v=dim_v, grad=True)
    if extra:
        inputs += (randn(2, extra, heads_kv, 8, grad=True), randn(2, extra, heads_kv, dim_v, grad=True))
    added = dict(zip(("additional_keys", "additional_values"), inputs[3:]))
    results = FUNCTIONS[len(shape)](query, key, value, window, return_lse=True, **case, **added)
    expected = plain_torch.neighborhood_attention(
        query,
        key,
        value,
        window,
        case.get("stride") or 1,
        case.get("dilation") or 1,
        case.get("is_causal") or False,
        case.get("scale"),
        None,
        *inputs[3:],
    )
    torch.testing.assert_close(results, expected)
    assert_gradients_agree(results, expected, inputs)
    alone = FUNCTIONS[len(shape)](query, key, value, window, **case, **added)
    assert torch.equal(alone, results[0])


@pytest.mark.parametrize(
    "dtype, tolerance", ((torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2))
)
def test_dtypes(dtype, tolerance):
    query, key, value = qkv((9, 10), dtype=dtype)
    out, lse = natten.na2d(query, key, value, 5, return_lse=True)
    assert out.dtype == dtype and lse.dtype == torch.float32
    expected, expected_lse = plain_torch.neighborhood_attention(query.double(), key.double(), value.double(), 5)
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-4, atol=1e-4)


def test_positional_order():
    """query, key, value, kernel_size, stride, dilation, is_causal, scale, additional_keys, additional_values"""
    query, key, value = qkv((12,))
    extra = randn(2, 3, 2, 8), randn(2, 3, 2, 8)
    got = natten.na1d(query, key, value, 4, 2, 3, True, 0.7, *extra)
    expected, _ = plain_torch.neighborhood_attention(query, key, value, 4, 2, 3, True, 0.7, None, *extra)
    torch.testing.assert_close(got, expected)


def test_rank_is_that_of_the_tensors():
    query, key, value = qkv((6, 7))
    assert torch.equal(natten.na1d(query, key, value, 3), natten.na2d(query, key, value, 3))
    assert torch.equal(
        natten.functional.neighborhood_attention_generic(query, key, value, 3),
        natten.na2d(query, key, value, 3),
    )


def test_scale_of_zero_is_the_default():
    query, key, value = qkv((9,))
    assert torch.equal(natten.na1d(query, key, value, 3, scale=0.0), natten.na1d(query, key, value, 3))


def test_bias_of_earlier_versions():
    query, key, value = qkv((7, 8), grad=True)
    rpb = randn(2, 5, 9, grad=True)
    results = natten.na2d(query, key, value, (3, 5), rpb=rpb, return_lse=True)
    expected = plain_torch.neighborhood_attention(query, key, value, (3, 5), rpb=rpb)
    torch.testing.assert_close(results, expected)
    assert_gradients_agree(results, expected, (query, key, value, rpb))
    with pytest.raises(NotImplementedError, match="rpb"):
        natten.na2d(query, key, value, (3, 5), is_causal=(True, False), rpb=rpb)


def test_strided_slices_are_taken_as_they_are():
    packed = randn(2, 7, 7, 3, 2, 8)
    query, key, value = packed.unbind(3)
    expected, _ = plain_torch.neighborhood_attention(query, key, value, 3)
    torch.testing.assert_close(natten.na2d(query, key, value, 3), expected)


def shapes_that_do_not_fit():
    query, key, value = qkv((8, 8))
    yield "rank", (query[0, 0], key[0, 0], value[0, 0])
    yield "ranks", (query, key[:, 0], value)
    yield "batch", (query, key[:1], value)
    yield "layouts", (query, key[:, :7], value)
    yield "head dim", (query, key[..., :4], value)
    yield "heads", (query, key[..., :1, :], value)
    yield "heads", (query[..., :1, :], key, value)
    yield "dtype", (query, key.float(), value)


@pytest.mark.parametrize("words, tensors", list(shapes_that_do_not_fit()))
def test_tensors_refused(words, tensors):
    with pytest.raises(ValueError, match=words):
        natten.na2d(*tensors, 3)


@pytest.mark.parametrize(
    "words, arguments",
    (
        ("kernel_size = 1", dict(kernel_size=1)),
        ("kernel_size", dict(kernel_size=(3, 1))),
        ("kernel_size", dict(kernel_size=(3, 3, 3))),
        ("kernel_size", dict(kernel_size=3.0)),
        ("stride = 0", dict(kernel_size=3, stride=0)),
        ("stride = 4 exceeds kernel_size = 3", dict(kernel_size=3, stride=(1, 4))),
        ("dilation = 0", dict(kernel_size=3, dilation=0)),
        (r"3 \* 3 exceeds the length 8 of axis 1", dict(kernel_size=3, dilation=(1, 3))),
        ("9 .* exceeds the length 8", dict(kernel_size=9)),
        ("is_causal = 1", dict(kernel_size=3, is_causal=1)),
        ("kernel_schedule", dict(kernel_size=3, kernel_schedule="fast")),
        ("both or neither", dict(kernel_size=3, additional_keys=torch.zeros(2, 3, 2, 8).double())),
    ),
)
def test_arguments_refused(words, arguments):
    with pytest.raises(ValueError, match=words):
        natten.na2d(*qkv((8, 8)), **arguments)


@pytest.mark.parametrize("moved", ((0, 1, 2), (0,), (1,), (2,)))
def test_heads_before_the_grid(moved):
    right = qkv((9, 8), heads=2)
    wrong = [t.movedim(-2, 1) if i in moved else t for i, t in enumerate(right)]
    name, others = ("query", "key", "value")[moved[0]], ", and so in the other tensors" * (len(moved) > 1)
    hint = rf"; if {name} is \[B, H, X0, X1, D\], with the heads before the grid, move its axis 1 to -2{others}$"
    with pytest.raises(ValueError, match=("exceeds the length 2" if 0 in moved and others else "differ") + ".*" + hint):
        natten.na2d(*wrong, 3)
    if others:
        with pytest.raises(RuntimeError, match="exceeds the length 2.*" + hint):
            _v017.na2d(*wrong, 3)
        with pytest.raises(ValueError, match=r"length 2 .*query is \[B, H, X0, D\]"):
            natten.na1d(*[t.movedim(-2, 1) for t in qkv((9,), heads=2)], 3)
    with pytest.raises(ValueError) as caught:  # it would not help here
        natten.na2d(*wrong, 10)
    assert "heads before the grid" not in str(caught.value)


def test_additional_tokens_refused():
    query, key, value = qkv((8,))
    for keys, values in (
        (randn(2, 3, 1, 8), randn(2, 3, 1, 8)),
        (randn(1, 3, 2, 8), randn(1, 3, 2, 8)),
        (randn(2, 3, 2, 4), randn(2, 3, 2, 8)),
        (randn(2, 3, 2, 8), randn(2, 4, 2, 8)),
        (randn(2, 2, 8), randn(2, 2, 8)),
    ):
        with pytest.raises(ValueError, match="additional"):
            natten.na1d(query, key, value, 3, additional_keys=keys, additional_values=values)


def test_fp8_refused():
    tensors = [t.to(torch.float8_e4m3fn) for t in qkv((8,))]
    with pytest.raises(ValueError, match="float8"):
        natten.na1d(*tensors, 3)


def test_sparse_and_nested_tensors_refused():
    query, key, value = qkv((8,))
    with pytest.raises(NotImplementedError, match="sparse"):
        natten.na1d(query.to_sparse(), key, value, 3)
    nested = torch.nested.nested_tensor([query[0], query[1]])
    with pytest.raises(NotImplementedError, match="nested"):
        natten.na1d(nested, nested, nested, 3)


# Attention


@pytest.mark.parametrize("length, length_kv", ((7, 7), (5, 9), (9, 4)))
@pytest.mark.parametrize("causal", (False, True))
def test_attention(length, length_kv, causal):
    query = randn(2, length, 4, 8, grad=True)
    key, value = randn(2, length_kv, 2, 8, grad=True), randn(2, length_kv, 2, 6, grad=True)
    results = natten.attention(query, key, value, is_causal=causal, return_lse=True)
    expected = plain_torch.attention(query, key, value, causal)
    torch.testing.assert_close(results, expected)
    assert_gradients_agree(results, expected, (query, key, value))
    scaled = natten.attention(query, key, value, causal, 0.5)
    torch.testing.assert_close(scaled, plain_torch.attention(query, key, value, causal, 0.5)[0])


def packed(lengths_q, lengths_kv, **options):
    query = randn(1, sum(lengths_q), 2, 8, **options)
    key, value = (randn(1, sum(lengths_kv), 2, 8, **options) for _ in "kv")
    return query, key, value


@pytest.mark.parametrize("causal", (False, True))
def test_attention_of_packed_sequences(causal):
    lengths_q, lengths_kv = [4, 1, 6], [3, 5, 6]
    query, key, value = packed(lengths_q, lengths_kv, grad=True)
    tables = [torch.tensor(lengths, dtype=torch.int32) for lengths in (lengths_q, lengths_kv)]
    results = natten.attention(
        query, key, value, causal, seqlens_Q=tables[0], seqlens_KV=tables[1], return_lse=True
    )
    pieces = zip(query.split(lengths_q, 1), key.split(lengths_kv, 1), value.split(lengths_kv, 1))
    expected = [torch.cat(parts, 1) for parts in zip(*(plain_torch.attention(*p, causal) for p in pieces))]
    torch.testing.assert_close(results, tuple(expected))
    assert_gradients_agree(results, expected, (query, key, value))

    starts_q, starts_kv, longest_q, longest_kv = generate_varlen_parameters(query, key, value, *tables)
    assert starts_q.tolist() == [0, 4, 5, 11] and starts_kv.tolist() == [0, 3, 8, 14]
    assert (longest_q, longest_kv) == (6, 6) and starts_q.dtype == torch.int32
    again = natten.attention(
        query,
        key,
        value,
        causal,
        cumulative_seqlen_Q=starts_q,
        cumulative_seqlen_KV=starts_kv,
        max_seqlen_Q=longest_q,
        max_seqlen_KV=longest_kv,
    )
    assert torch.equal(again, results[0])


def test_packed_sequences_without_keys_or_queries():
    query, key, value = packed([2, 3, 1], [0, 4, 2])
    starts = dict(
        cumulative_seqlen_Q=torch.tensor([0, 2, 5, 5], dtype=torch.int32),
        cumulative_seqlen_KV=torch.tensor([0, 0, 4, 6], dtype=torch.int32),
        max_seqlen_Q=3,
        max_seqlen_KV=4,
    )
    out, lse = natten.attention(query, key, value, return_lse=True, **starts)
    expected, expected_lse = plain_torch.attention(query[:, 2:5], key[:, :4], value[:, :4])
    torch.testing.assert_close(out[:, 2:5], expected)
    torch.testing.assert_close(lse[:, 2:5], expected_lse)
    nobody = [0, 1, 5]
    assert (out[:, nobody] == 0).all() and (lse[:, nobody] == -torch.inf).all()
    none = torch.zeros(2, dtype=torch.int32)
    out, lse = natten.attention(query, key, value, seqlens_Q=none, seqlens_KV=none, return_lse=True)
    assert out.shape == query.shape and (out == 0).all() and (lse == -torch.inf).all()


# Inductor, which compiles C++ for each, gets one: the others differ from it in arguments of the same operators.
@pytest.mark.parametrize(
    "causal, scale, dtype, backend",
    (
        (False, 0.5, torch.float64, "aot_eager"),
        (True, None, torch.float64, "aot_eager"),
        (False, -0.3, torch.float64, "aot_eager"),
        (True, None, torch.float16, "inductor"),
    ),
)
def test_packed_sequences_compiled(causal, scale, dtype, backend):
    """Without graph breaks; some tokens are in no sequence, some sequences have no keys or no queries."""
    query, key, value = (
        t.detach().to(dtype).requires_grad_() for t in packed([2, 3, 1, 4, 3], [1, 4, 2, 3, 3])
    )
    starts = dict(
        cumulative_seqlen_Q=torch.tensor([1, 3, 6, 6, 10], dtype=torch.int32),
        cumulative_seqlen_KV=torch.tensor([0, 0, 4, 7, 12], dtype=torch.int32),
        max_seqlen_Q=4,
        max_seqlen_KV=5,
    )

    def attend(query, key, value):
        return natten.attention(query, key, value, causal, scale, return_lse=True, **starts)

    torch.compiler.reset()
    results = torch.compile(attend, fullgraph=True, backend=backend)(query, key, value)
    expected = attend(query, key, value)
    tolerance = {} if dtype == torch.float64 else dict(rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(results, expected, **tolerance)
    weights = [randn(*r.shape).to(r.dtype) for r in results]
    weights[1].masked_fill_(results[1] == -torch.inf, 0)
    for got, wanted in zip(
        *(torch.autograd.grad(rs, (query, key, value), weights) for rs in (results, expected))
    ):
        torch.testing.assert_close(got, wanted, **tolerance)


@pytest.mark.parametrize("causal, scale, dtype", ((False, 0.5, torch.float64), (True, -0.3, torch.float64), (True, None, torch.float16)))
def test_packed_sequences_padded(causal, scale, dtype, monkeypatch):
    """As graphs compiled for CUDA compute them, beside one call for all."""
    inputs = [t.detach().to(dtype).requires_grad_() for t in packed([2, 3, 1, 4, 3], [1, 4, 2, 3, 3])]
    starts = dict(
        cumulative_seqlen_Q=torch.tensor([1, 3, 6, 6, 10], dtype=torch.int32),
        cumulative_seqlen_KV=torch.tensor([0, 0, 4, 7, 12], dtype=torch.int32),
        max_seqlen_Q=4,
        max_seqlen_KV=5,
    )
    expected = natten.attention(*inputs, causal, scale, return_lse=True, **starts)
    monkeypatch.setattr(varlen_attention, "_is_for_cuda_graphs", lambda query: True)
    results = natten.attention(*inputs, causal, scale, return_lse=True, **starts)
    tolerance = {} if dtype == torch.float64 else dict(rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(results, expected, **tolerance)
    weights = [randn(*r.shape).to(r.dtype) for r in results]
    weights[1].masked_fill_(results[1] == -torch.inf, 0)
    for got, wanted in zip(*(torch.autograd.grad(rs, inputs, weights) for rs in (results, expected))):
        torch.testing.assert_close(got, wanted, **tolerance)


@pytest.mark.parametrize(
    "dtype, causal, large",
    (
        (torch.float64, True, False),
        (torch.float64, False, True),
        (torch.float32, False, False),
        (torch.bfloat16, True, True),
        (torch.float16, False, True),
        (torch.float16, True, False),
    ),
)
def test_packed_sequences_compiled_apart(dtype, causal, large):
    """Nothing of what no query attends reaches a result or a gradient: between the sequences, in those without queries or keys,
    and behind the causal windows. Nor do logits of -100,000 let padding in."""
    query, key, value = (t.detach() for t in packed([2, 3, 1, 4, 3], [1, 4, 2, 3, 3]))
    if large:
        query, key = 200 + query, -200 - key
    query, key, value = (t.to(dtype) for t in (query, key, value))
    sequences = ((3, 6, 0, 3 if causal else 4), (6, 10, 7, 11 if causal else 12))  # [first, end) of queries and of keys
    for tensor, spans in ((query, [s[:2] for s in sequences]), *((t, [s[2:] for s in sequences]) for t in (key, value))):
        attended = torch.zeros(tensor.shape[1], dtype=torch.bool)
        for first, end in spans:
            attended[first:end] = True
        unused = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=dtype).repeat(5)[: (~attended).sum()]
        tensor[:, ~attended] = unused[:, None, None]
    inputs = [t.requires_grad_() for t in (query, key, value)]
    starts = dict(
        cumulative_seqlen_Q=torch.tensor([1, 3, 6, 6, 10], dtype=torch.int32),
        cumulative_seqlen_KV=torch.tensor([0, 0, 4, 7, 12], dtype=torch.int32),
        max_seqlen_Q=4,
        max_seqlen_KV=5,
    )

    def attend(query, key, value):
        return natten.attention(query, key, value, causal, return_lse=True, **starts)

    exact = [t.detach().double().requires_grad_() for t in inputs]
    expected = [torch.zeros(query.shape, dtype=torch.float64), torch.full(query.shape[:-1], -torch.inf, dtype=torch.float64)]
    for first, end, first_kv, end_kv in sequences:
        own = exact[0][:, first:end], exact[1][:, first_kv:end_kv], exact[2][:, first_kv:end_kv]
        for whole, part in zip(expected, plain_torch.attention(*own, causal)):
            whole[:, first:end] = part
    weights = [randn(*r.shape) for r in expected]
    weights[1].masked_fill_(expected[1] == -torch.inf, 0)
    wanted = torch.autograd.grad(expected, exact, weights)
    torch.compiler.reset()
    limit = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
    limit *= 1e3 if large and dtype != torch.bfloat16 else 1  # a rounding error of a logit is one of its weight
    for function in (torch.compile(attend, fullgraph=True, backend="aot_eager"), attend):
        results = function(*inputs)
        gradients = torch.autograd.grad(results, inputs, [w.to(r.dtype) for w, r in zip(weights, results)])
        for got, right in zip((*results, *gradients), (*expected, *wanted)):
            right = right.detach()
            largest = float(right[right.isfinite()].abs().max())
            torch.testing.assert_close(got.double(), right, rtol=0, atol=limit * max(1, largest))


def test_packed_sequences_refused():
    query, key, value = packed([4, 4], [4, 4])
    lengths = torch.tensor([4, 4], dtype=torch.int32)
    starts = torch.tensor([0, 4, 8], dtype=torch.int32)
    whole = dict(cumulative_seqlen_Q=starts, cumulative_seqlen_KV=starts, max_seqlen_Q=4, max_seqlen_KV=4)

    def refused(words, **arguments):
        with pytest.raises(ValueError, match=words):
            natten.attention(query, key, value, **arguments)

    refused("both", seqlens_Q=lengths)
    refused("int32", seqlens_Q=lengths.long(), seqlens_KV=lengths.long())
    refused("all four", **{**whole, "max_seqlen_KV": None})
    refused("expected an int", **{**whole, "max_seqlen_Q": torch.tensor(4)})
    refused("0..8", **{**whole, "max_seqlen_Q": 9})
    refused("both or neither", **{**whole, "max_seqlen_Q": 0})
    refused("at least 2", **{**whole, "cumulative_seqlen_Q": starts[:1], "cumulative_seqlen_KV": starts[:1]})
    refused("entries", **{**whole, "cumulative_seqlen_Q": starts[:2]})
    refused("rank", **{**whole, "cumulative_seqlen_Q": starts[None]})
    with pytest.raises(ValueError, match="one batch entry"):
        natten.attention(*qkv((8,)), **whole)


def test_attention_refused():
    query, key, value = qkv((8,))
    for words, tensors in (
        ("rank", qkv((4, 4))),
        ("lengths of key and value", (query, key, value[:, :4])),
        ("head dim", (query, key[..., :4], value)),
        ("heads", (query, key[..., :1, :], value)),
    ):
        with pytest.raises(ValueError, match=words):
            natten.attention(*tensors)
    with pytest.raises(NotImplementedError, match="backend"):
        natten.attention(query, key, value, backend="cutlass-fna")


# Merging


@pytest.mark.parametrize("parts", (2, 3))
def test_merge_attentions(parts):
    query = randn(2, 6, 2, 8, grad=True)
    keys, values = ([randn(2, 5, 2, 8, grad=True) for _ in range(parts)] for _ in "kv")
    outputs, lses = zip(*(natten.attention(query, k, v, return_lse=True) for k, v in zip(keys, values)))
    results = natten.merge_attentions(list(outputs), list(lses), torch_compile=False, use_autograd_fix=True)
    expected = plain_torch.attention(query, torch.cat(keys, 1), torch.cat(values, 1))
    torch.testing.assert_close(results, expected)
    assert_gradients_agree(results, expected, (query, *keys, *values))


def test_merge_attentions_refused():
    out, lse = randn(2, 6, 2, 8), randn(2, 6, 2)
    for outputs, lses in (
        ([out], [lse]),
        ([out, out], [lse]),
        ([out, out[:, :5]], [lse, lse]),
        ([out, out], [lse, lse[:, :5]]),
        ([out[0], out[0]], [lse[0], lse[0]]),
        ([out, out.clone().requires_grad_()], [lse, lse]),
    ):
        with pytest.raises(ValueError):
            natten.merge_attentions(outputs, lses)


# Backends, on a machine without CUDA


@needs_flex
def test_backends_on_the_cpu():
    tensors = qkv((8, 8), dtype=torch.float32)
    assert get_compatible_backends(*tensors, torch_compile=False) == ["flex-fna"]
    flat = qkv((8,), dtype=torch.float32)
    assert get_compatible_fmha_backends(*flat, False, False, False) == ["flex-fmha"]
    assert get_compatible_fmha_backends(*flat, True, False, False) == []
    expected = natten.na2d(*tensors, 3)
    for name in ("flex-fna", "reference"):
        assert torch.equal(natten.na2d(*tensors, 3, backend=name), expected)
    for name in ("cutlass-fna", "hopper-fna", "blackwell-fna"):
        with pytest.raises(RuntimeError, match="CUDA"):
            natten.na2d(*tensors, 3, backend=name)
    with pytest.raises(NotImplementedError, match="backend = 'fast'"):
        natten.na2d(*tensors, 3, backend="fast")
    for name in ("cutlass-fmha", "hopper-fmha", "blackwell-fmha"):
        with pytest.raises(RuntimeError, match="CUDA"):
            natten.attention(*flat, backend=name)
    with pytest.raises(RuntimeError, match="causal"):
        natten.attention(*flat, is_causal=True, backend="flex-fmha")


@needs_flex
def test_what_flex_refuses():
    with pytest.raises(ValueError, match="power of 2"):
        natten.na1d(*qkv((8,), dim=12, dtype=torch.float32), 3, backend="flex-fna")
    with pytest.raises(ValueError, match="float64"):
        natten.na1d(*qkv((8,)), 3, backend="flex-fna")
    with pytest.raises(ValueError, match="one head dim"):
        natten.na1d(*qkv((8,), dim_v=16, dtype=torch.float32), 3, backend="flex-fna")
    with pytest.raises(RuntimeError, match="compiled"):
        natten.na1d(*qkv((8,), dtype=torch.float32), 3, backend="flex-fna", torch_compile=True)


def test_what_no_backend_of_natten_takes_is_computed_all_the_same():
    tensors = qkv((8,), dim=12)
    assert get_compatible_backends(*tensors, torch_compile=False) == []
    with pytest.raises(NotImplementedError, match="no backend"):
        natten.backends.choose_backend(*tensors, torch_compile=False)
    torch.testing.assert_close(natten.na1d(*tensors, 3), plain_torch.neighborhood_attention(*tensors, 3)[0])


@needs_flex
def test_attention_kwargs():
    tensors = qkv((8,), dtype=torch.float32)
    extra = dict(additional_keys=randn(2, 3, 2, 8, dtype=torch.float32))
    extra["additional_values"] = randn(2, 3, 2, 8, dtype=torch.float32)
    given = {"backend": "flex-fmha"}
    out = natten.na1d(*tensors, 3, attention_kwargs=given, **extra)
    assert torch.equal(out, natten.na1d(*tensors, 3, **extra)) and given == {"backend": "flex-fmha"}
    for window, more in ((3, extra), (8, {}), (8, extra)):
        with pytest.raises(NotImplementedError, match="backend"):
            natten.na1d(*tensors, window, attention_kwargs={"backend": "flex-fna"}, **more)
        with pytest.raises(TypeError, match="attention_kwargs"):
            natten.na1d(*tensors, window, attention_kwargs={"scale": 1.0}, **more)
    # Where no attention is called, nobody looks at them.
    natten.na1d(*tensors, 3, attention_kwargs={"backend": "flex-fna"})


def test_compiled_without_graph_breaks():
    def step(query, key, value):
        out = natten.na2d(query, key, value, kernel_size=(3, 5), dilation=(2, 1), is_causal=(False, True))
        return natten.attention(out.flatten(1, 2), key.flatten(1, 2), value.flatten(1, 2), return_lse=True)

    inputs = qkv((8, 8), dtype=torch.float32, grad=True)
    results = torch.compile(step, fullgraph=True, backend="aot_eager")(*inputs)
    expected = step(*inputs)
    torch.testing.assert_close(results, expected)
    for got, wanted in zip(*(torch.autograd.grad(r[0].sum(), inputs) for r in (results, expected))):
        torch.testing.assert_close(got, wanted)
