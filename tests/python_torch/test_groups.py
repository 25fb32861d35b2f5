"""Samples of different sizes in packed tensors, and windows by sets of heads: each member as a call of its own computes it."""

import json
from collections.abc import Callable
from pathlib import Path

import nhood
import numpy as np
import pytest
import torch
from nhood import torch as nt
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


KINDS = [pytest.param(packed, of_samples, by_sample, id="samples"), pytest.param(heads, of_sets, by_set, id="sets")]


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
    compiles = 0

    def backend(graph, _):
        nonlocal compiles
        compiles += 1
        return graph

    @torch.compile(backend=backend, fullgraph=True, dynamic=True)
    def program(x, table):
        query, key, value = (x * s for s in (1.0, 2.0, 3.0))
        return nt.neighborhood_attention_varlen(query, key, value, table=table)

    for layouts in ([(5, 6), (7, 8)], [(9, 9), (4, 5)], [(3, 3), (8, 4), (6, 6)], [(20, 20), (3, 4)]):
        x = torch.randn(1, sum(a * b for a, b in layouts), 5, 8)
        table = nt.varlen_table(layouts, 3)
        expected = nt.neighborhood_attention_varlen(x, 2 * x, 3 * x, 3, layouts=layouts)
        assert torch.equal(program(x, table), expected)
    assert compiles == 1


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
