"""Samples of different sizes in packed tensors, and windows by sets of heads: each member as a call of its own computes it."""

import json
from collections.abc import Callable
from pathlib import Path

import nhood
import numpy as np
import pytest
import torch
from nhood import Windows
from nhood import torch as nt
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

LAYOUTS = [(14, 9), (0, 7), (6, 30), (7, 9), (14, 9)]
DILATIONS = [1, 1, (1, 3), 1, (2, 1)]
TOKENS = sum(x * y for x, y in LAYOUTS)
VARLEN = dict(kernel_size=(5, 7), layouts=LAYOUTS, dilations=DILATIONS)
WINDOWS, SET_DILATIONS = [[7, 7], [3, 5]], [[1, 1], [4, 2]]


def drawn(*shape, dtype=torch.float64, grad=True):
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


def packed(dtype=torch.float64, grad=True):
    torch.manual_seed(7)
    return drawn(1, TOKENS, 4, 16, dtype=dtype, grad=grad), *[drawn(1, TOKENS, 2, d, dtype=dtype, grad=grad) for d in (16, 12)]


def by_sample(query, key, value):
    parts, at = [], 0
    for (x, y), dilation in zip(LAYOUTS, DILATIONS):
        if x * y:
            own = [t[:, at : at + x * y].unflatten(1, (x, y)) for t in (query, key, value)]
            parts.append(nt.na2d(*own, (5, 7), dilation=dilation, return_lse=True))
            at += x * y
    return tuple(torch.cat([part.flatten(1, 2) for part in of], 1) for of in zip(*parts))


def of_samples(query, key, value):
    return nt.neighborhood_attention_varlen(query, key, value, **VARLEN, return_lse=True)


def heads():
    torch.manual_seed(8)
    return drawn(2, 12, 11, 6, 8), drawn(2, 12, 11, 3, 8), drawn(2, 12, 11, 3, 4), drawn(2, 13, 13), drawn(4, 5, 9)


def of_sets(query, key, value, *tables):
    return nt.na2d(query, key, value, WINDOWS, dilation=[[1, 1], [3, 2]], bias=list(tables), return_lse=True)


def by_set(query, key, value, *tables):
    """Two query heads for each key/value head, of which the first set has one and the second two."""
    parts = []
    for q, kv, window, dilation, table in zip((slice(0, 2), slice(2, 6)), (slice(0, 1), slice(1, 3)), WINDOWS, ([1, 1], [3, 2]), tables):
        own = query[..., q, :], key[..., kv, :], value[..., kv, :]
        parts.append(nt.na2d(*own, window, dilation=dilation, bias=table, return_lse=True))
    return torch.cat([out for out, _ in parts], -2), torch.cat([lse for _, lse in parts], -1)


BY_TABLE = [(6, 9), (0, 4), (5, 7), (5, 7), (8, 3)]
BLOCKS = (3, Windows.blocks(7, 3, 1))
SIZES = [(Windows.resampled(6, 4, 3), 5), 3, BLOCKS, BLOCKS, (Windows.cut(8, 5), Windows([(0, 2), (2, 0), (2, 3)], keys=5))]
KEYS = [(4, 9), (0, 4), (5, 7), (5, 7), (8, 5)]


def packed_by_table():
    """Some of the queries have no key: their log-sum-exps are -infinity."""
    torch.manual_seed(11)
    queries, keys = (sum(x * y for x, y in of) for of in (BY_TABLE, KEYS))
    return drawn(1, queries, 4, 8), drawn(1, keys, 2, 8), drawn(1, keys, 2, 6)


def of_tables(query, key, value):
    out, lse = nt.neighborhood_attention_varlen(query, key, value, layouts=BY_TABLE, kernel_sizes=SIZES, return_lse=True)
    return out, lse.where(lse > -torch.inf, 0)


def by_table(query, key, value):
    parts, q, k = [], 0, 0
    for layout, keys, size in zip(BY_TABLE, KEYS, SIZES):
        count, key_count = layout[0] * layout[1], keys[0] * keys[1]
        if count:
            own = [t[:, k : k + key_count].unflatten(1, keys) for t in (key, value)]
            parts.append(nt.na2d(query[:, q : q + count].unflatten(1, layout), *own, size, return_lse=True))
        q, k = q + count, k + key_count
    out, lse = [torch.cat([part.flatten(1, 2) for part in of], 1) for of in zip(*parts)]
    return out, lse.where(lse > -torch.inf, 0)


KINDS = [
    pytest.param(packed, of_samples, by_sample, id="samples"),
    pytest.param(packed_by_table, of_tables, by_table, id="windows"),
    pytest.param(heads, of_sets, by_set, id="sets"),
]


@pytest.mark.parametrize("inputs, one, many", KINDS)
def test_results_and_derivatives(inputs, one, many):
    given = inputs()
    results, expected = one(*given), many(*given)
    assert all(torch.equal(got, want) for got, want in zip(results, expected))
    weights = [torch.randn_like(of) for of in results]

    def gradients(found):
        total = sum((of * weight).sum() for of, weight in zip(found, weights))
        return torch.autograd.grad(total, given, create_graph=True)

    first, first_expected = gradients(results), gradients(expected)
    torch.testing.assert_close(first, first_expected, rtol=1e-11, atol=1e-11)
    second, second_expected = (
        torch.autograd.grad(sum(of.square().sum() for of in found), given) for found in (first, first_expected)
    )
    torch.testing.assert_close(second, second_expected, rtol=1e-8, atol=1e-8)
    tangents = tuple(torch.randn_like(of) for of in given)
    along, along_expected = (torch.func.jvp(function, given, tangents)[1] for function in (one, many))
    torch.testing.assert_close(along, along_expected, rtol=1e-9, atol=1e-9)

    def of_gradients(function):
        return lambda *at: torch.func.vjp(function, *at)[1](tuple(weights))

    forward, forward_expected = (torch.func.jvp(of_gradients(function), given, tangents)[1] for function in (one, many))
    torch.testing.assert_close(forward, forward_expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("inputs, one, many", KINDS)
def test_vmap(inputs, one, many):
    query, *others = inputs()
    queries = torch.stack([query, 2 * query]).detach()
    mapped = torch.vmap(lambda x: one(x, *others)[0])(queries)
    torch.testing.assert_close(mapped, torch.stack([many(x, *others)[0] for x in queries]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_of_a_projection(dtype):
    """Read as they lie; a query that is not contiguous on its last axis is copied."""
    torch.manual_seed(9)
    qkv = torch.randn(1, TOKENS, 3, 2, 16, dtype=dtype)
    query, key, value = qkv.unbind(2)
    out = nt.neighborhood_attention_varlen(query, key, value, **VARLEN)
    assert torch.equal(out, nt.neighborhood_attention_varlen(*[x.contiguous() for x in (query, key, value)], **VARLEN))
    across = query.transpose(-1, -2).contiguous().transpose(-1, -2)
    assert torch.equal(out, nt.neighborhood_attention_varlen(across, key, value, **VARLEN))


def test_one_and_three_axes():
    torch.manual_seed(10)
    recordings = [(50,), (8,), (200,)]
    query, key, value = torch.randn(3, 1, 258, 2, 8)
    out = nt.neighborhood_attention_varlen(query, key, value, 7, layouts=recordings, is_causal=True)
    ends = np.cumsum([n for (n,) in recordings])
    parts = [nt.na1d(*[x[:, end - n : end] for x in (query, key, value)], 7, is_causal=True) for (n,), end in zip(recordings, ends)]
    assert torch.equal(out, torch.cat(parts, 1))
    clips = [(3, 4, 5), (2, 9, 11)]
    out = nt.neighborhood_attention_varlen(query, key, value, layouts=clips, kernel_sizes=[(3, 3, 5), (1, 9, 2)])
    first = nt.na3d(*[x[:, :60].unflatten(1, clips[0]) for x in (query, key, value)], (3, 3, 5))
    second = nt.na3d(*[x[:, 60:].unflatten(1, clips[1]) for x in (query, key, value)], (1, 9, 2))
    assert torch.equal(out, torch.cat([first.flatten(1, 3), second.flatten(1, 3)], 1))


def test_tables_and_tensors_of_layouts():
    query, key, value = packed(torch.float32, grad=False)
    out = nt.neighborhood_attention_varlen(query, key, value, **VARLEN)
    table = nt.varlen_table(LAYOUTS, (5, 7), dilations=DILATIONS)
    assert torch.equal(out, nt.neighborhood_attention_varlen(query, key, value, table=table))
    dilations = torch.tensor([[d, d] if isinstance(d, int) else d for d in DILATIONS])
    again = nt.neighborhood_attention_varlen(query, key, value, (5, 7), layouts=torch.tensor(LAYOUTS), dilations=dilations)
    assert torch.equal(out, again)


def test_tables_of_windows():
    """One for all samples, one for each, as a table, and with layouts in a tensor."""
    given = [x.detach() for x in packed_by_table()]
    out = of_tables(*given)[0]
    table = nt.varlen_table(BY_TABLE, kernel_sizes=SIZES)
    assert torch.equal(out, nt.neighborhood_attention_varlen(*given, table=table))
    assert torch.equal(table, nt.varlen_table(torch.tensor(BY_TABLE), kernel_sizes=SIZES))
    x = torch.randn(1, 3 * 35, 2, 8)
    one = nt.neighborhood_attention_varlen(x, x, x, (Windows.cut(5, 3), 5), layouts=[(5, 7)] * 3)
    each = nt.neighborhood_attention_varlen(x, x, x, layouts=[(5, 7)] * 3, kernel_sizes=[(Windows.cut(5, 3), 5)] * 3)
    first = x[:, :35].unflatten(1, (5, 7))
    assert torch.equal(one, each)
    assert torch.equal(one[:, :35].unflatten(1, (5, 7)), nt.na2d(first, first, first, (Windows.cut(5, 3), 5)))
    again = nt.neighborhood_attention_varlen(x, x, x, (Windows.cut(5, 3), 5), layouts=torch.tensor([(5, 7)] * 3))
    assert torch.equal(one, again)


def test_no_samples_and_samples_without_tokens():
    for layouts in ([], [(0, 7), (3, 0)]):
        query = torch.zeros(1, 0, 2, 8, requires_grad=True)
        out, lse = nt.neighborhood_attention_varlen(query, query, query, 3, layouts=layouts, return_lse=True)
        assert out.shape == (1, 0, 2, 8) and lse.shape == (1, 0, 2)
        out.sum().backward()
        assert query.grad.shape == query.shape


ILLEGAL = [
    (dict(kernel_size=(5, 8), layouts=[(14, 9), (6, 30), (9, 7), (14, 9)]), "member 2: kernel_size = 8 exceeds the 7 tokens of axis 1"),
    (dict(kernel_size=3, layouts=LAYOUTS[:-1]), f"layouts have {TOKENS - 126} tokens, query has {TOKENS}"),
    (dict(kernel_size=3, layouts=[*LAYOUTS, (1, 1)]), f"layouts have {TOKENS + 1} tokens, query has {TOKENS}"),
    (dict(kernel_size=3, dilations=[1, 1, 1, 1, 5], layouts=LAYOUTS), "member 4: kernel_size = 3 times dilation 5 exceeds the 14 tokens of axis 0"),
    (dict(kernel_size=3, stride=4, layouts=LAYOUTS), "member 0: stride = 4 exceeds kernel_size 3 of axis 0"),
    (dict(kernel_size=3, kernel_sizes=[3] * 5, layouts=LAYOUTS), "kernel_size = 3 and kernel_sizes: give one of them"),
    (dict(layouts=LAYOUTS), "kernel_size = None and kernel_sizes = None: give one of them"),
    (dict(kernel_sizes=[3, 3], layouts=LAYOUTS), "kernel_sizes has 2 entries, layouts 5"),
    (dict(kernel_size=3, layouts=[(14, 9), (5,)]), "layouts[1] = (5,) has 1 axes, expected 2"),
    (dict(kernel_size=3, layouts=[(14, -9)]), "layouts[0] = (14, -9): -9 is less than 0"),
    (dict(kernel_size=3), "layouts = None and table = None: give one of them"),
    (dict(kernel_size=3, table=torch.zeros(1, 16, dtype=torch.int64)), "table and layouts, windows, strides or dilations"),
    (dict(table=torch.zeros(1, 15, dtype=torch.int64)), "table has rows of 15 words"),
    (
        dict(layouts=LAYOUTS, kernel_sizes=[3, 3, (3, Windows.cut(29, 5)), 3, 3]),
        "member 2: kernel_size[1] = Windows.cut(length=29, size=5) has 29 queries, axis 1 has 30",
    ),
    (
        dict(layouts=LAYOUTS, kernel_sizes=[3, 3, (3, Windows.resampled(30, 10, 5)), 3, 3]),
        f"layouts and windows have {TOKENS - 120} tokens, key has {TOKENS}",
    ),
    (
        dict(layouts=LAYOUTS, kernel_sizes=[3, 3, (3, Windows.cut(30, 5)), 3, 3], dilation=2),
        "member 2: dilation[1] = 2: it must be 1 where kernel_size[1] = Windows.cut",
    ),
]


@pytest.mark.parametrize("named, text", ILLEGAL)
@pytest.mark.parametrize("where", ["cpu", "meta", "fake"])
def test_illegal_samples(named, text, where):
    if where == "fake" and "table" in named:
        pytest.skip("a fake table has no values")
    given = [x.to("meta" if where == "meta" else "cpu") for x in packed(torch.float32, grad=False)]
    if where == "fake":
        with FakeTensorMode() as mode:
            given = [mode.from_tensor(x) for x in given]
            with pytest.raises(ValueError) as error:
                nt.neighborhood_attention_varlen(*given, **named)
    else:
        with pytest.raises(ValueError) as error:
            nt.neighborhood_attention_varlen(*given, **named)
    assert text in str(error.value)


def test_tables_whose_records_are_wrong():
    x = torch.zeros(1, 20, 1, 8)
    table = nt.varlen_table([(10,), (10,)], Windows([(0, 3)] * 10, keys=10))
    nt.neighborhood_attention_varlen(x, x, x, table=table)
    for row, column, word, text in (
        (0, 9, 100, "member 0: the table has no record of the windows of axis 0 at word 100"),
        (1, 9, -1, "member 1: the table has no record"),
        (1, 8, 11, "member 1: the table has no record"),
        (1, 7, 9, "member 1: the table has no record"),
        (0, 2, 11, "member 0: kernel_size[0] = Windows(<10 ranges of 3 keys>, keys=10) has 10 queries, axis 0 has 11"),
        (2, 1, 77, "kind = 77"),
        (3, 1, 99, "table[3] = (99, 0) is not a range of 10 keys"),
    ):
        wrong = table.clone()
        wrong[row, column] = word
        with pytest.raises(ValueError) as error:
            nt.neighborhood_attention_varlen(x, x, x, table=wrong)
        assert text in str(error.value)
    short = nt.varlen_table([(10,)], Windows([(0, 3)] * 10, keys=10))[:-1]
    with pytest.raises(ValueError, match="no record"):
        nt.neighborhood_attention_varlen(x[:, :10], x[:, :10], x[:, :10], table=short)


def test_tables_that_overlap():
    query = torch.zeros(1, 20, 1, 8)
    table = nt.varlen_table([(10,), (10,)], 3)
    table[1, :2] = 5
    with pytest.raises(ValueError, match="member 1 has the tokens 5 .. 15 of query: they overlap those before it"):
        nt.neighborhood_attention_varlen(query, query, query, table=table)
    table[1, :2] = 15
    with pytest.raises(ValueError, match="member 1 has the tokens 15 .. 25 of query: they overlap .* or reach beyond 20"):
        nt.neighborhood_attention_varlen(query, query, query, table=table)


SET_ERRORS = [
    (dict(kernel_size=[[7, 7], [3, 3]], dilation=[[1, 1]] * 3), ValueError, "kernel_size is of 2 sets of heads, dilation of 3"),
    (dict(kernel_size=[[3, 3]] * 4), ValueError, "of 4 sets of heads, there are 3 key/value heads"),
    (dict(kernel_size=[[7, 7], [3, 12]]), ValueError, "member 1: kernel_size = 12 exceeds the 11 tokens of axis 1"),
    (dict(kernel_size=[[7, 7], [3]]), ValueError, "kernel_size = [3] has 1 entry, not 2"),
    (dict(kernel_size=[[7, 7], [3, 3]], grid=(12, 11)), NotImplementedError, "grid with windows per set of heads"),
    (dict(kernel_size=[[7, 7], [3, 3]], bias=torch.zeros(6, 13, 13)), ValueError, "bias: give a list of 2 tables"),
    (
        dict(kernel_size=[[7, 7], [3, 3]], bias=[torch.zeros(2, 13, 13), torch.zeros(4, 5, 9)]),
        ValueError,
        "bias[1].shape = (4, 5, 9), expected (4, 5, 5)",
    ),
]


@pytest.mark.parametrize("named, kind, text", SET_ERRORS)
def test_illegal_sets(named, kind, text):
    query, key, value = (x.detach() for x in heads()[:3])
    for device in ("cpu", "meta"):
        moved = {k: [t.to(device) for t in v] if k == "bias" and isinstance(v, list) else v for k, v in named.items()}
        with pytest.raises(kind) as error:
            nt.na2d(*[x.to(device) for x in (query, key, value)], **moved)
        assert text in str(error.value)


def test_numpy_computes_the_same():
    query, key, value = packed(torch.float32, grad=False)
    out, lse = nt.neighborhood_attention_varlen(query, key, value, **VARLEN, return_lse=True)
    arrays = [x.numpy() for x in (query, key, value)]
    result = nhood.neighborhood_attention_varlen(*arrays, **VARLEN, return_lse=True)
    assert np.array_equal(result[0], out.numpy()) and np.array_equal(result[1], lse.numpy())
    d_out = np.ones_like(result[0])
    leaves = [x.clone().requires_grad_() for x in (query, key, value)]
    nt.neighborhood_attention_varlen(*leaves, **VARLEN).sum().backward()
    found = nhood.neighborhood_attention_varlen_backward(d_out, *arrays, *result, **VARLEN)
    assert all(np.array_equal(got, leaf.grad.numpy()) for got, leaf in zip(found, leaves))


def test_numpy_computes_the_same_by_table():
    leaves = [x.detach().float().requires_grad_() for x in packed_by_table()]
    named = dict(layouts=BY_TABLE, kernel_sizes=SIZES)
    out, lse = nt.neighborhood_attention_varlen(*leaves, **named, return_lse=True)
    arrays = [x.detach().numpy() for x in leaves]
    result = nhood.neighborhood_attention_varlen(*arrays, **named, return_lse=True)
    assert np.array_equal(result[0], out.detach().numpy()) and np.array_equal(result[1], lse.detach().numpy())
    out.sum().backward()
    found = nhood.neighborhood_attention_varlen_backward(np.ones_like(result[0]), *arrays, *result, **named)
    assert all(np.array_equal(got, leaf.grad.numpy()) for got, leaf in zip(found, leaves))


def test_numpy_windows_by_sets():
    *inputs, first, second = [x.detach().float() for x in heads()]
    arrays, tables = [x.numpy() for x in inputs], [first.numpy(), second.numpy()]
    named = dict(dilation=[[1, 1], [3, 2]], bias=tables)
    out, lse = nhood.na2d(*arrays, WINDOWS, return_lse=True, **named)
    leaves = [x.clone().requires_grad_() for x in (*inputs, first, second)]
    expected = of_sets(*leaves)
    assert np.array_equal(out, expected[0].detach().numpy()) and np.array_equal(lse, expected[1].detach().numpy())
    expected[0].sum().backward()
    found = nhood.na2d_backward(np.ones_like(out), *arrays, out, lse, WINDOWS, **named)
    assert all(np.array_equal(got, leaf.grad.numpy()) for got, leaf in zip([*found[:3], *found[3]], leaves))


def test_flops():
    query, key, value = packed(torch.float32)
    with FlopCounterMode(display=False) as counter:
        nt.neighborhood_attention_varlen(query, key, value, **VARLEN).sum().backward()
    assert counter.get_total_flops() == 3.5 * 2 * TOKENS * 4 * 35 * (16 + 12)
    with FlopCounterMode(display=False) as counter:
        of_tables(*[x.detach() for x in packed_by_table()])
    pairs = 54 * 3 * 5 + 2 * 5 * 3 * (2 * 2 + 3 * 3 + 2 * 2) + (3 + 4 + 4 * 5 + 4 + 3) * (2 + 3)
    assert counter.get_total_flops() == 2 * 4 * (8 + 6) * pairs
    given = heads()
    with FlopCounterMode(display=False) as counter:
        of_sets(*given)[0].sum().backward()
    assert counter.get_total_flops() == 3.5 * 2 * 2 * 132 * (2 * 49 + 4 * 15) * (8 + 4)


def test_autocast():
    query, key, value = packed(torch.float32, grad=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = nt.neighborhood_attention_varlen(query, key, value, **VARLEN)
    assert torch.equal(out, nt.neighborhood_attention_varlen(*[x.bfloat16() for x in (query, key, value)], **VARLEN))


def test_compiled_without_recompiling():
    """New lengths compile nothing where the table is a tensor; the number of samples becomes a symbol once."""
    compiles = CompileCounter()

    @torch.compile(backend=compiles, fullgraph=True, dynamic=True)
    def program(x, table):
        query, key, value = (x * s for s in (1.0, 2.0, 3.0))
        return nt.neighborhood_attention_varlen(query, key, value, table=table)

    for layouts in ([(5, 6), (7, 8)], [(9, 9), (4, 5)], [(3, 3), (8, 4), (6, 6)], [(20, 20), (3, 4)]):
        x = torch.randn(1, sum(a * b for a, b in layouts), 5, 8)
        table = nt.varlen_table(layouts, 3)
        expected = nt.neighborhood_attention_varlen(x, 2 * x, 3 * x, 3, layouts=layouts)
        assert torch.equal(program(x, table), expected)
    assert compiles.frame_count == 1


def test_new_windows_by_table_compile_nothing():
    compiles = CompileCounter()

    @torch.compile(backend=compiles, fullgraph=True, dynamic=True)
    def program(query, key, table):
        return nt.neighborhood_attention_varlen(query, key, 2 * key, table=table)

    for size in (Windows.resampled(12, 20, 3), Windows.cut(12, 5), Windows([(i // 2, 3) for i in range(12)], keys=9)):
        query, key = torch.randn(1, 36, 3, 8), torch.randn(1, 3 * size.keys, 3, 8)
        expected = nt.neighborhood_attention_varlen(query, key, 2 * key, size, layouts=[(12,)] * 3)
        assert torch.equal(program(query, key, nt.varlen_table([(12,)] * 3, size)), expected)
    assert compiles.frame_count == 1


@pytest.mark.parametrize("inputs, one, many", KINDS)
def test_compiled_gradients_and_export(inputs, one, many):
    given = [x.detach().requires_grad_() for x in inputs()]
    compiled = torch.compile(one, backend="aot_eager", fullgraph=True)
    results, expected = compiled(*given), many(*given)
    torch.testing.assert_close(results, expected)
    found, wanted = (torch.autograd.grad(sum(of.sin().sum() for of in x), given) for x in (results, expected))
    torch.testing.assert_close(found, wanted)

    class Program(torch.nn.Module):
        def forward(self, *given):
            return one(*given)

    plain = tuple(x.detach() for x in given)
    exported = torch.export.export(Program(), plain).module()(*plain)
    torch.testing.assert_close(exported, [of.detach() for of in expected] if isinstance(exported, list) else expected)


def test_layers_take_windows_by_sets():
    torch.manual_seed(3)
    layer = nt.NeighborhoodAttention2D(24, 4, kernel_size=[[3, 3], [5, 5]], dilation=[[1, 1], [2, 2]], rel_pos_bias=True)
    x = torch.randn(2, 11, 12, 24, requires_grad=True)
    heads = layer.qkv(x).unflatten(-1, (3, 4, 6))
    parts = [
        nt.na2d(*heads[..., first : first + 2, :].unbind(3), k, dilation=d, scale=layer.scale, bias=layer.rpb[i])
        for i, (first, k, d) in enumerate([(0, 3, 1), (2, 5, 2)])
    ]
    expected = layer.proj(torch.cat(parts, -2).flatten(-2))
    out = layer(x)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert "kernel_size=((3, 3), (5, 5))" in repr(layer)
    layer.reset_parameters()
    with pytest.raises(ValueError, match="kernel_size is of 2 sets of heads, dilation of 3"):
        nt.NeighborhoodAttention2D(24, 4, kernel_size=[[3, 3], [5, 5]], dilation=[[1, 1]] * 3)
    with pytest.raises(NotImplementedError, match="attn_drop with windows per set of heads"):
        nt.NeighborhoodAttention2D(24, 4, kernel_size=[[3, 3], [5, 5]], attn_drop=0.1)


def test_example(run_program: Callable) -> None:
    """It checks that it has learnt, and that images by themselves give the same."""
    ended = run_program("examples/packed_images.py", "--steps", 40, "--images", 16)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_benchmark(run_program: Callable, tmp_path: Path) -> None:
    ended = run_program("bench/gpu/groups.py", "--device", "cpu", "--small", "--turns", 1, "--json", tmp_path / "times.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = json.loads((tmp_path / "times.json").read_text())["rows"]
    assert [row["row"] for row in rows] == ["images", "clips", "recordings", "sets of heads"]
    assert all({"group", "loop"} <= row[what].keys() for row in rows for what in ("forward", "with gradients"))
