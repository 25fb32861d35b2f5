"""Windows of an axis that are no formula: values and derivatives of all modes against dense attention under masks, programs."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import nhood
import nhood.torch as nt
import pytest
import torch
from dense import axis_window
from nhood.torch import Windows
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, jvp, vmap

RAGGED = [(0, 0), (0, 2), (1, 1), (1, 3), (4, 0)]
HEADS, DIM, DIM_V = 2, 3, 2

CASES = {
    "table": (Windows(RAGGED, 6),),
    "finer": (Windows.resampled(7, 3, 2),),
    "coarser": (Windows.resampled(3, 7, 4),),
    "cut": (Windows.cut(6, 3).valid(4),),
    "blocks and causal": (Windows.blocks(5, 3, 1), dict(size=2, causal=True)),
    "strided and finer": (dict(size=3, stride=2), Windows.resampled(5, 3, 2)),
    "dilated and periodic": (dict(size=2, dilation=2), Windows(RAGGED, 6), dict(size=2, periodic=True)),
    "three": (Windows.cut(3, 2), Windows.resampled(2, 3, 2), Windows.blocks(3, 2)),
}


def lengths(case, side):
    return [axis.ranges.shape[0] if side == 0 else axis.keys for axis in whole(case)]


def whole(case):
    """Formula axes as windows by table, too, where the order of keys allows it; only their lengths count here."""
    return [axis if isinstance(axis, Windows) else Windows.cut(4, 1) for axis in case]


def mask_of(case):
    """[queries, keys] of all axes, by each range and by the definition of windows by formula."""
    mask = np.ones((1, 1), int)
    for axis in case:
        if isinstance(axis, Windows):
            own = [[first <= j < first + count for j in range(axis.keys)] for first, count in axis.ranges]
        else:
            options = [axis.get(name, usual) for name, usual in (("stride", 1), ("dilation", 1), ("causal", False))]
            own = np.zeros((4, 4), int)
            for i in range(4):
                own[i, [j % 4 for j in axis_window(4, axis["size"], *options, i, axis.get("periodic", False))]] = 1
        mask = np.kron(mask, np.array(own, int))
    return torch.from_numpy(mask.astype(bool))


def axes_of(case):
    def of(name, usual):
        return tuple(usual if isinstance(axis, Windows) else axis.get(name, usual) for axis in case)

    return dict(
        kernel_size=tuple(axis if isinstance(axis, Windows) else axis["size"] for axis in case),
        stride=of("stride", 1),
        dilation=of("dilation", 1),
        is_causal=of("causal", False),
        is_periodic=of("periodic", False),
    )


def made(case, extra=0, kv_heads=1, dtype=torch.float64, batch=1):
    shapes = [
        (batch, *lengths(case, 0), HEADS, DIM),
        (batch, *lengths(case, 1), kv_heads, DIM),
        (batch, *lengths(case, 1), kv_heads, DIM_V),
    ]
    if extra:
        shapes += [(batch, extra, kv_heads, DIM), (batch, extra, kv_heads, DIM_V)]
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)


def dense(query, key, value, keys=None, values=None, mask=None):
    """out and lse of the same, row by row."""
    shape = query.shape
    query, key, value = (x.flatten(1, -3) for x in (query, key, value))
    share = query.shape[2] // key.shape[2]
    key, value = key.repeat_interleave(share, 2), value.repeat_interleave(share, 2)
    logits = torch.einsum("bnhd,bmhd->bhnm", query, key) * shape[-1] ** -0.5
    logits = logits.masked_fill(~mask, -torch.inf)
    if keys is not None:
        keys, values = keys.repeat_interleave(share, 2), values.repeat_interleave(share, 2)
        logits = torch.cat([logits, torch.einsum("bnhd,bmhd->bhnm", query, keys) * shape[-1] ** -0.5], -1)
        value = torch.cat([value, values], 1)
    empty = (logits == -torch.inf).all(-1, keepdim=True)
    logits = logits.masked_fill(empty, 0)
    weights = logits.softmax(-1).masked_fill(empty, 0)
    lse = logits.logsumexp(-1).masked_fill(empty[..., 0], -torch.inf)
    out = torch.einsum("bhnm,bmhd->bnhd", weights, value)
    return out.reshape(*shape[:-1], -1), lse.movedim(1, 2).reshape(shape[:-1])


def attend(case, **more):
    def call(query, key, value, *extra):
        keys, values = extra or (None, None)
        return nt.neighborhood_attention(
            query, key, value, **axes_of(case), additional_keys=keys, additional_values=values, **more
        )

    return call


def test_the_same_class():
    assert nt.Windows is nhood.Windows


@pytest.mark.parametrize("extra", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, extra):
    case, mask = CASES[name], mask_of(CASES[name])
    tensors = made(case, extra, batch=2)
    found, expected = attend(case, return_lse=True)(*tensors), dense(*tensors, mask=mask)
    seen = expected[1].detach() > -torch.inf
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other)
    weights = torch.randn_like(found[0]), torch.randn_like(found[1])

    def total(results):
        return (results[0] * weights[0]).sum() + (results[1].masked_fill(~seen, 0) * weights[1]).sum()

    for one, other in zip(torch.autograd.grad(total(found), tensors), torch.autograd.grad(total(expected), tensors)):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name, extra", [*[(name, 0) for name in CASES], ("table", 2), ("strided and finer", 1)])
def test_first_derivatives(name, extra):
    case = CASES[name]
    tensors = made(case, extra)
    assert gradcheck(attend(case), tensors, check_forward_ad=True, check_batched_grad=True)
    if extra or mask_of(case).any(1).all():  # a log-sum-exp of -infinity has no differences
        assert gradcheck(attend(case, return_lse=True), tensors, check_forward_ad=True)


@pytest.mark.parametrize("name, extra", [("table", 0), ("table", 1), ("coarser", 0), ("strided and finer", 0)])
def test_second_derivatives(name, extra):
    tensors = made(CASES[name], extra)
    assert gradgradcheck(attend(CASES[name]), tensors, fast_mode=True, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", ["table", "blocks and causal", "strided and finer"])
def test_unfused(name):
    """softmax(qk) times values is attention, and both operators have derivatives."""
    case, axes = CASES[name], axes_of(CASES[name])
    query, key, value = made(case)
    rank = len(case)
    logits_of, sum_of = (getattr(nt, f"na{rank}d_{suffix}") for suffix in ("qk", "av"))
    logits = logits_of(query, key, **axes)
    most = [axis.most if isinstance(axis, Windows) else axis["size"] for axis in case]
    assert logits.shape[-1] == np.prod(most)
    weights = (logits * DIM**-0.5).masked_fill((logits == -torch.inf).all(-1, keepdim=True), 0).softmax(-1)
    torch.testing.assert_close(sum_of(weights, value, **axes), nt.neighborhood_attention(query, key, value, **axes))
    weights = weights.detach().requires_grad_()
    zero_filled = lambda q, k: logits_of(q, k, **axes, zero_fill=True)
    assert gradcheck(zero_filled, (query, key), check_forward_ad=True)
    assert gradgradcheck(zero_filled, (query, key), fast_mode=True)
    assert gradcheck(lambda a, v: sum_of(a, v, **axes), (weights, value), check_forward_ad=True)
    assert gradgradcheck(lambda a, v: sum_of(a, v, **axes), (weights, value), fast_mode=True)


def test_nobody_sees_and_sees_nobody():
    windows = Windows([(1, 0), (1, 2), (1, 2)], 5)
    query, key, value = made((windows,))
    with torch.no_grad():
        key[:, [0, 3, 4]] = value[:, [0, 3, 4]] = torch.nan
    out, lse = nt.na1d(query, key, value, windows, return_lse=True)
    assert not out[:, 0].any() and (lse[:, 0] == -torch.inf).all()
    assert out.isfinite().all() and lse[:, 1:].isfinite().all()
    grads = torch.autograd.grad(out.sum(), (query, key, value))
    assert not grads[0][:, 0].any()
    assert all(not x[:, [0, 3, 4]].any() and x.isfinite().all() for x in grads[1:])


def test_functional_transforms():
    case = CASES["strided and finer"]
    tensors = [x.detach() for x in made(case, batch=3)]
    call = attend(case)
    one_by_one = torch.stack([call(*[x[i : i + 1] for x in tensors]) for i in range(3)])
    mapped = vmap(call)(*[x.unsqueeze(1) for x in tensors])
    torch.testing.assert_close(mapped, one_by_one)
    per_sample = vmap(grad(lambda *x: call(*x).square().sum(), argnums=(0, 1, 2)))(*[x.unsqueeze(1) for x in tensors])
    whole = grad(lambda *x: call(*x).square().sum(), argnums=(0, 1, 2))(*tensors)
    for one, other in zip(per_sample, whole):
        torch.testing.assert_close(one.squeeze(1), other)
    _, tangent = jvp(call, tuple(tensors), tuple(tensors))
    _, expected = jvp(lambda *x: dense(*x, mask=mask_of(case))[0], tuple(tensors), tuple(tensors))
    torch.testing.assert_close(tangent, expected)


def test_operator_is_checked_by_torch():
    windows = Windows(RAGGED, 6)
    query, key, value = made((windows,), dtype=torch.float32)
    arguments = (query, key, value, None, None, None, [1], [1], [1], [0], None, False, True, [], [], [], [], windows._text)
    torch.library.opcheck(torch.ops.nhood.na.default, arguments)
    attn = torch.ops.nhood.na_qk(query, key, None, *arguments[6:10], None, True, False, [], [], [], [], windows._text)
    torch.library.opcheck(
        torch.ops.nhood.na_in.default,
        (attn.detach(), query.detach(), *arguments[6:10], 2, False, [], [], [], [], [], windows._text),
    )


class Counting:
    """A compiler that counts."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph


@pytest.mark.parametrize("name", ["table", "strided and finer"])
def test_compiled(name):
    torch._dynamo.reset()
    case = CASES[name]
    tensors = made(case, dtype=torch.float32)
    compiled = torch.compile(attend(case, return_lse=True), fullgraph=True, backend="aot_eager")
    expected = attend(case, return_lse=True)(*tensors)
    found = compiled(*tensors)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other)
    grads = torch.autograd.grad(found[0].sum(), tensors), torch.autograd.grad(expected[0].sum(), tensors)
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other)


def test_equal_windows_compile_once():
    torch._dynamo.reset()
    counting = Counting()

    @torch.compile(fullgraph=True, backend=counting)
    def call(query, key, value, windows):
        return nt.na1d(query, key, value, windows)

    query, key, value = [x.detach() for x in made((Windows.cut(6, 3),))]
    for windows in (Windows.cut(6, 3), Windows.cut(6, 3), copy.deepcopy(Windows.cut(6, 3))):
        torch.testing.assert_close(call(query, key, value, windows), nt.na1d(query, key, value, windows))
    assert counting.graphs == 1
    other = Windows.cut(6, 3).valid(2)
    torch.testing.assert_close(call(query, key, value, other), nt.na1d(query, key, value, other))
    assert counting.graphs == 2


def test_exported_programs(tmp_path):
    class Upsample(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.windows = Windows(Windows.resampled(8, 4, 3).ranges, 4), Windows.cut(6, 3)

        def forward(self, query, key, value):
            return nt.na2d(query, key, value, self.windows)

    module = Upsample()
    tensors = [x.detach() for x in made(module.windows)]
    program = torch.export.export(module, tuple(tensors))
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    torch.testing.assert_close(loaded(*tensors), module(*tensors))


def test_fake_tensors():
    case = CASES["strided and finer"]
    with FakeTensorMode():
        query, key, value = (torch.empty_like(x) for x in made(case))
        out, lse = nt.na2d(query, key, value, **axes_of(case), return_lse=True)
        assert out.shape == (*query.shape[:-1], DIM_V) and lse.shape == query.shape[:-1]
        logits = nt.na2d_qk(query, key, **axes_of(case), clamp_window=True)
        assert logits.shape == (*query.shape[:-1], 3 * 2)
        d_value = torch.ops.nhood.na_in(
            logits, out, [3, 1], [2, 1], [1, 1], [0, 0], 1, False, [], [], [], [], [], "," + case[1]._text
        )
        assert d_value.shape == value.shape
        with pytest.raises(ValueError, match=r"key.shape = .*: 2 keys on axis 1, but kernel_size\[1\]"):
            nt.na2d(query, key[:, :, :2], value[:, :, :2], **axes_of(case))


def test_no_copies_of_keys_and_values():
    windows = Windows.resampled(64, 8, 3)
    query, key, value = [x.detach() for x in made((windows, windows), dtype=torch.float32)]
    packed = torch.cat([key, value], -1)
    views = packed[..., :DIM], packed[..., DIM:]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        out = nt.na2d(query, *views, (windows, windows))
    names = {event.name for event in profile.events()}
    assert not any(word in name for name in names for word in ("copy", "contiguous", "clone", "repeat", "expand"))
    torch.testing.assert_close(out, nt.na2d(query, key, value, windows))


def test_sets_of_heads():
    """Sets with windows of their own: values, all derivatives, programs, and FLOPs."""
    from torch.utils.flop_counter import FlopCounterMode

    sets = [(Windows.resampled(5, 3, 2), 3), (Windows.resampled(5, 3, 1).valid(2), Windows.cut(4, 3))]
    query, key, value = made((sets[0][0], dict(size=3)), kv_heads=2)

    def call(*tensors):
        return nt.na2d(*tensors, sets, stride=[(1, 2), 1])

    parts = [nt.na2d(*[x[..., i : i + 1, :] for x in (query, key, value)], sets[i], (1, 2 - i)) for i in (0, 1)]
    torch.testing.assert_close(call(query, key, value), torch.cat(parts, -2))
    assert gradcheck(call, (query, key, value), check_forward_ad=True)
    assert gradgradcheck(call, (query, key, value), fast_mode=True)
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(query, key, value), call(query, key, value))
    with FakeTensorMode(), pytest.raises(ValueError, match="does not fit 5 queries and 2 keys"):
        call(torch.empty(1, 5, 4, 2, DIM), torch.empty(1, 2, 4, 2, DIM), torch.empty(1, 2, 4, 2, DIM_V))
    counts = []
    for run in (call, lambda *x: [nt.na2d(*[t[..., i : i + 1, :] for t in x], sets[i], (1, 2 - i)) for i in (0, 1)]):
        with FlopCounterMode(display=False) as counter:
            run(query.detach(), key.detach(), value.detach())
        counts.append(counter.get_total_flops())
    assert abs(counts[0] - counts[1]) <= 2


# ---- layers ----



def test_layer():
    length, size = 8, 4
    layer = nt.NeighborhoodAttention2D(12, 2, (Windows.blocks(length, size, 2), 3)).double()
    x = torch.randn(2, length, 5, 12, dtype=torch.float64)
    query, key, value = layer.qkv(x).unflatten(-1, (-1, 6)).split(2, dim=-2)
    expected = layer.proj(nt.na2d(query, key, value, (Windows.blocks(length, size, 2), 3)).flatten(-2))
    torch.testing.assert_close(layer(x), expected)
    assert "kernel_size=(Windows.blocks(length=8, size=4, shift=2), 3)" in repr(layer)
    torch.testing.assert_close(copy.deepcopy(layer)(x), layer(x))
    torch.testing.assert_close(functional_call(layer, dict(layer.named_parameters()), (x,)), layer(x))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))


def test_layer_with_sets_of_heads():
    sets = [(Windows.blocks(6, 3, 1), 3), (5, Windows.cut(5, 2))]
    layer = nt.NeighborhoodAttention2D(8, 2, sets).double()
    x = torch.randn(1, 6, 5, 8, dtype=torch.float64)
    query, key, value = layer.qkv(x).unflatten(-1, (-1, 4)).split(2, dim=-2)
    torch.testing.assert_close(layer(x), layer.proj(nt.na2d(query, key, value, sets).flatten(-2)))
    with pytest.raises(ValueError, match="a layer's queries and keys are of one input"):
        nt.NeighborhoodAttention2D(8, 2, [(Windows.resampled(6, 3, 1), 3), (3, 3)])
    with pytest.raises(ValueError, match="a bias needs windows by formula"):
        nt.NeighborhoodAttention2D(8, 2, sets, rel_pos_bias=True)


def test_layer_that_drops_weights():
    """With nothing left of the chance, the weights in memory give what the operator gives."""
    windows = Windows.cut(6, 3).valid(5)
    layer = nt.NeighborhoodAttention1D(8, 2, windows, attn_drop=1e-12)
    x = torch.randn(1, 6, 8)
    trained = layer.train()(x)
    torch.testing.assert_close(trained, layer.eval()(x))


def test_swin_layer_equals_the_masked_original():
    """Two blocks with shifted windows: Swin rolls, partitions and masks; here windows are where they are."""
    length, size, shift = 8, 4, 2
    layer = nt.NeighborhoodAttention2D(8, 2, Windows.blocks(length, size, size - shift)).double()
    x = torch.randn(1, length, length, 8, dtype=torch.float64)
    labels = torch.zeros(1, length, length, 1)
    slices = (slice(0, -size), slice(-size, -shift), slice(-shift, None))
    for count, (rows, columns) in enumerate(itertools.product(slices, slices)):
        labels[:, rows, columns] = count

    def partitioned(t):
        blocks = t.unflatten(1, (-1, size)).unflatten(3, (-1, size)).transpose(2, 3)
        return blocks.reshape(-1, size * size, t.shape[-1])

    rows = partitioned(torch.roll(x, (-shift, -shift), (1, 2)))
    marks = partitioned(labels)[..., 0]
    query, key, value = layer.qkv(rows).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    mask = (marks[:, :, None] == marks[:, None])[:, None]
    attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2).flatten(-2)
    count = length // size
    back = layer.proj(attended).reshape(1, count, count, size, size, 8).transpose(2, 3).reshape(1, length, length, 8)
    torch.testing.assert_close(layer(x), torch.roll(back, (shift, shift), (1, 2)))


def test_layers_that_are_refused():
    with pytest.raises(ValueError, match=r"has 8 queries and 4 keys: a layer's queries and keys are of one input"):
        nt.NeighborhoodAttention1D(8, 2, Windows.resampled(8, 4, 3))
    with pytest.raises(ValueError, match="rel_pos_bias with kernel_size = .*: a bias needs windows by formula"):
        nt.NeighborhoodAttention1D(8, 2, Windows.cut(8, 3), rel_pos_bias=True)
    with pytest.raises(ValueError, match=r"stride\[0\] = 2: it must be 1 where kernel_size\[0\] = Windows.cut"):
        nt.NeighborhoodAttention2D(8, 2, (Windows.cut(8, 3), 3), stride=2)
    layer = nt.NeighborhoodAttention1D(8, 2, Windows.cut(8, 3))
    with pytest.raises(ValueError, match=r"7 queries on axis 0, but kernel_size\[0\] = Windows.cut\(length=8, size=3\) has 8"):
        layer(torch.randn(1, 7, 8))
    with pytest.raises(NotImplementedError, match="a stream has windows by formula"):
        layer.stream()


def test_benchmark(run_program: Callable, tmp_path: Path) -> None:
    """All rows and ways, of which FlexAttention may fail where there is no compiler; and all ways of a row agree."""
    ended = run_program("bench/gpu/windows.py", "--device", "cpu", "--small", "--turns", 1, "--json", tmp_path / "times.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = json.loads((tmp_path / "times.json").read_text())["rows"]
    assert [row["row"].split()[0] for row in rows] == ["blocks", "formula", "formula", "formula", "plan", "upsampling"]
    for row in rows:
        if row["row"].startswith("plan"):
            continue
        assert all("FlexAttention" in way for way in row["failed"])
        assert len(row["forward"]) >= 2 and max(row["differs by"].values()) < 1e-4


def test_calls_that_are_refused():
    windows = Windows.cut(4, 3)
    query, key, value = (torch.randn(1, 4, 2, 8) for _ in range(3))
    with pytest.raises(ValueError, match=r"is_causal\[0\] = True: it must be False"):
        nt.na1d(query, key, value, windows, is_causal=True)
    with pytest.raises(ValueError, match="bias with kernel_size"):
        nt.na1d(query, key, value, windows, bias=torch.zeros(2, 5))
    with pytest.raises(ValueError, match=r"kernel_size\[0\]\[0\] = Windows.cut\(length=5, size=3\) does not fit 4 queries and 4"):
        nt.na1d(query, key, value, [[Windows.cut(5, 3)], [3]])
    with pytest.raises(ValueError, match=r"member 0: is_causal\[0\] = True: it must be False where"):
        nt.neighborhood_attention_varlen(query, key, value, windows, layouts=[(4,)], is_causal=True)
    with pytest.raises(ValueError, match="is no text of a Windows"):
        torch.ops.nhood.na_qk(query, key, None, [1], [1], [1], [0], None, False, False, [], [], [], [], "4q3")
    with pytest.raises(ValueError, match="has 2 entries, not 1"):
        torch.ops.nhood.na_qk(query, key, None, [1], [1], [1], [0], None, False, False, [], [], [], [], "4z3,4z3")
    with pytest.raises(ValueError, match="needs 1|need 1"):
        torch.ops.nhood.na_qk(query, key, None, [3], [1], [1], [0], None, False, False, [], [], [], [], "4z3")


def test_remembered_calls_are_told_apart():
    """Operators' calls are remembered by the text of windows, also where that is made anew for every call."""
    query, key, value = (torch.randn(1, 6, 4, 2, 8) for _ in range(3))
    for _ in range(2):
        for size in (2, 3, 4):
            windows = Windows.cut(6, size), Windows.blocks(4, 2)
            recorded = nt.na2d(query.clone().requires_grad_(), key, value, windows)
            torch.testing.assert_close(recorded, nt.na2d(query, key, value, windows))
            by_hand = nhood.na2d(query, key, value, windows)
            torch.testing.assert_close(recorded.detach(), by_hand)
