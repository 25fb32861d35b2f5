"""Graphs that hold only operators train as the eager calls do: exported, decomposed, cut into stages, compiled ahead of time."""

import copy
import functools

import nhood.torch as nt
import pytest
import torch
from torch import nn
from versions import needs_kept_graphs

GENERATOR = torch.Generator()


def tensor(*shape):
    return torch.randn(*shape, generator=GENERATOR)


@pytest.fixture(autouse=True)
def same_tensors():
    GENERATOR.manual_seed(0)
    torch.compiler.reset()


class Calls(nn.Module):
    """A function of its parameters, which are the tensors that it differentiates."""

    def __init__(self, call, **tensors):
        super().__init__()
        self.call = call
        for name, value in tensors.items():
            setattr(self, name, nn.Parameter(value))

    def forward(self, x):
        return self.call(x, **dict(self.named_parameters()))


def attention(x, key, value, bias, keys, values):
    out, lse = nt.na2d(
        x, key, value, (3, 4), (2, 1), additional_keys=keys, additional_values=values, bias=bias, return_lse=True
    )
    return out.sum(-1) + lse.sin()


def out_alone(x, key, value):
    return nt.na1d(x, key, value, 3, is_causal=True)


def a_part(x, key, value):
    return nt.na1d(x, key, value, 3, grid=12, query_offset=2, key_offset=1)


def logits(x, key, bias):
    return nt.na2d_qk(x, key, 3, bias=bias, scale=0.3)


def weighted(x, value):
    return nt.na2d_av(x.softmax(-1), value, 3)


def norm(x, weight, table):
    return nt.norm_rope(x, [table, None], weight, scale=0.5)


def dense(x, key, value):
    return nt.attention(x, key, value, is_causal=True)


def cases():
    GENERATOR.manual_seed(0)
    q2, q1 = (2, 5, 6, 4, 8), (2, 7, 2, 4)
    bias, extra = tensor(4, 5, 7), [tensor(2, 3, 2, dim) for dim in (8, 6)]
    of_q2 = dict(key=tensor(2, 5, 6, 2, 8), value=tensor(2, 5, 6, 2, 6))
    yield "attention", Calls(attention, **of_q2, bias=bias, keys=extra[0], values=extra[1]), q2
    yield "out alone", Calls(out_alone, key=tensor(*q1), value=tensor(*q1)), q1
    yield "a part", Calls(a_part, key=tensor(2, 9, 2, 4), value=tensor(2, 9, 2, 4)), q1
    yield "logits", Calls(logits, key=of_q2["key"], bias=tensor(4, 5, 5)), q2
    yield "weighted", Calls(weighted, value=of_q2["value"]), (2, 5, 6, 4, 9)
    yield "norm", Calls(norm, weight=tensor(8), table=tensor(5, 3, 2)), q2
    yield "dense", Calls(dense, key=tensor(2, 5, 2, 4), value=tensor(2, 5, 2, 4)), q1
    for rank, layer in enumerate(
        (nt.NeighborhoodAttention1D, nt.NeighborhoodAttention2D, nt.NeighborhoodAttention3D), start=1
    ):
        yield f"layer {rank}d", layer(16, 4, 3, num_kv_heads=2, rel_pos_bias=True), (2, *(4, 5, 6)[:rank], 16)
    yield "causal layer", nt.NeighborhoodAttention1D(16, 2, 3, is_causal=True), (2, 6, 16)


CASES = {name: (module, shape) for name, module, shape in cases()}


def gradients(module, x):
    module.zero_grad()
    x = x.clone().requires_grad_()
    out = module(x)
    out.square().sum().backward()
    wrapped = ("_orig_mod.", "orig_module.")
    found = {functools.reduce(str.removeprefix, wrapped, name): p.grad for name, p in module.named_parameters()}
    return {"out": out.detach(), "x": x.grad, **found}


def assert_trains_like(got, module, x):
    expected = gradients(copy.deepcopy(module), x)
    found = gradients(got, x)
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        assert found[name] is not None, f"{name} has no gradient"
        torch.testing.assert_close(found[name], right, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", CASES)
def test_exported(name):
    module, shape = CASES[name]
    x = tensor(*shape)
    program = torch.export.export(copy.deepcopy(module), (x,), strict=name.startswith("layer 2"))
    assert_trains_like(program.module(), module, x)
    assert_trains_like(program.run_decompositions().module(), module, x)


@pytest.mark.parametrize("name", ["attention", "norm", "layer 2d"])
def test_exported_and_compiled(name):
    module, shape = CASES[name]
    x = tensor(*shape)
    program = torch.export.export(copy.deepcopy(module), (x,)).module()
    assert_trains_like(torch.compile(program, backend="aot_eager", fullgraph=True), module, x)


def test_exported_while_frozen():
    """A graph made for inference, which asks for no log-sum-exp, trains too."""
    module, shape = CASES["layer 2d"]
    x = tensor(*shape)
    frozen = copy.deepcopy(module).requires_grad_(False)
    with torch.no_grad():
        program = torch.export.export(frozen, (x,))
    assert_trains_like(program.module().requires_grad_(True), module, x)


def test_exported_of_any_size():
    module, shape = CASES["layer 2d"]
    sizes = torch.export.Dim("batch", min=2, max=9), torch.export.Dim("height", min=4, max=99)
    program = torch.export.export(
        copy.deepcopy(module), (tensor(*shape),), dynamic_shapes=({0: sizes[0], 1: sizes[1]},)
    )
    assert_trains_like(program.module(), module, tensor(3, 7, *shape[2:]))


class Stages(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nt.NeighborhoodAttention2D(16, 2, 3, rel_pos_bias=True)
        self.second = nt.NeighborhoodAttention2D(16, 2, 3)

    def forward(self, x):
        return self.second(self.first(x))


def test_pipelined():
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    from torch.distributed.pipelining import SplitPoint, pipeline

    module, x = Stages(), tensor(2, 5, 6, 16)
    pipe = pipeline(copy.deepcopy(module), (x,), split_spec={"second": SplitPoint.BEGINNING})
    assert pipe.num_stages == 2
    stages = nn.Sequential(pipe.get_stage_module(0), pipe.get_stage_module(1))
    expected = gradients(module, x)
    found = gradients(stages, x)
    for name, right in expected.items():
        got = found[name] if name in ("out", "x") else found[f"{'01'[name.startswith('second')]}.{name}"]
        assert got is not None, f"{name} has no gradient"
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["attention", "norm"])
def test_compiled_ahead_of_time(name):
    """By aot_function, whose forward and backward graphs hold operators only."""
    from functorch.compile import aot_module, nop

    module, shape = CASES[name]
    assert_trains_like(aot_module(copy.deepcopy(module), nop), module, tensor(*shape))


@needs_kept_graphs
def test_cached_by_aot_autograd(tmp_path, monkeypatch):
    """Graphs have nothing that AOTAutograd would not keep: compiled again, they come from the cache."""
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    module, shape = CASES["out alone"]
    x = tensor(*shape)
    counters.clear()
    for _ in range(2):
        torch.compiler.reset()
        compiled = torch.compile(copy.deepcopy(module), fullgraph=True)
        found = torch.autograd.grad(compiled(x), list(compiled.parameters()), torch.ones(shape))
        for got, expected in zip(found, torch.autograd.grad(module(x), list(module.parameters()), torch.ones(shape))):
            torch.testing.assert_close(got, expected)
    noted = [counters["aot_autograd"][f"autograd_cache_{name}"] for name in ("miss", "hit", "bypass")]
    assert noted == [1, 1, 0], "miss, hit, bypass"
