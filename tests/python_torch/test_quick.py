"""Calls that come again, remembered by nhood_quick: what they give, and what must not be taken for one."""

import nhood
import nhood.torch as nt
import pytest
import torch
from nhood import _groups, _quick, _varlen
from nhood.torch._groups import na_varlen
from torch.overrides import TorchFunctionMode

SHAPE = (1, 7, 7, 2, 8)
AXES = ((3, 3), (1, 1), (1, 1), (False, False))
needs_module = pytest.mark.skipif(
    _quick._module is None or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="nhood_quick is not built, or torch has no table of C functions for DLPack",
)


def tensors(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SHAPE, generator=generator).to(dtype) for _ in range(3)]


@pytest.fixture(autouse=True)
def nothing_remembered():
    nhood.clear_cache()
    yield
    nhood.configure()


@pytest.fixture
def known(monkeypatch):
    """The names of the calls that were known."""
    names = []

    def noting(function):
        def call(name, *arguments, **named):
            result = function(name, *arguments, **named)
            if result is not None and result is not False:
                names.append(name)
            return result

        return call

    monkeypatch.setattr(_quick, "call", noting(_quick._module.call))
    monkeypatch.setattr(_quick, "execute", noting(_quick._module.execute))
    return names


@pytest.fixture
def warm():
    """Three tensors with which na2d(.., 3) has been called, and the result."""
    given = tensors()
    for _ in range(2):
        out = nt.na2d(*given, 3)
    return given, out


@needs_module
def test_calls_come_again(known):
    query, key, value = tensors()
    bias = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(1))
    attn = nt.na2d_qk(query, key, 3)
    calls = {
        "torch.na2d": lambda: nt.na2d(query, key, value, 3),
        "torch.na2d with lse": lambda: nt.na2d(query, key, value, kernel_size=(3, 5), return_lse=True),
        "torch.na2d with bias": lambda: nt.na2d(query, key, value, [3, 3], bias=bias),
        "torch.na2d of bfloat16": lambda: nt.na2d(query.bfloat16(), key.bfloat16(), value.bfloat16(), 3),
        "torch.na2d by its rank": lambda: nt.neighborhood_attention(query, key, value, 5),
        "torch.na2d on a torus": lambda: nt.na2d(query, key, value, 5, is_periodic=True),
        "na_qk": lambda: nt.na2d_qk(query, key, 3, is_causal=True),
        "na_av": lambda: nt.na2d_av(attn, value, 3),
    }
    nhood.clear_cache()
    for name, call in calls.items():
        known.clear()
        expected = call()
        assert not known, name
        for _ in range(3):
            results = call()
            for got, right in zip(*[x if isinstance(x, tuple) else (x,) for x in (results, expected)]):
                assert torch.equal(got, right) and got.dtype == right.dtype and not got.requires_grad
                assert got.is_contiguous() and got.data_ptr() != right.data_ptr()
        assert known == [name.split()[0]] * 3


@needs_module
def test_gradients_come_again(known):
    def gradients():
        given = [tensor.requires_grad_() for tensor in tensors()]
        out = nt.na2d(*given, 3)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), given)]

    expected = gradients()
    for _ in range(2):
        assert all(map(torch.equal, gradients(), expected))
    assert known == ["torch.na2d", "na_backward"] * 2  # the forward's execution is found without being asked for


@needs_module
def test_an_execution_that_was_forgotten_is_computed_by_the_formula(known):
    trained = [tensor.requires_grad_() for tensor in tensors()]
    expected = nt.na2d(*trained, 3).detach()
    execution = ("na", False, *trained, None, None, None, *AXES, None, False, True)
    assert _quick.execute(*execution)
    for i in range(127):  # of 128 entries all but the newest, the call: its execution was entered before it
        nt.na2d(*tensors(), 3, scale=1.0 + i)
    assert _quick.execute(*execution) is None
    known.clear()
    out = nt.na2d(*trained, 3)
    assert known == ["torch.na2d"] and torch.equal(out, expected) and out.requires_grad
    assert _quick.execute(*execution)  # entered again


RECORDED = {
    "lse": lambda q, k, v: nt.na2d(q, k, v, 3, return_lse=True),
    "keywords": lambda q, k, v: nt.na2d(value=v, query=q, key=k, kernel_size=[3, 5], dilation=1, scale=0.5),
    "bias": lambda q, k, v, bias: nt.na2d(q, k, v, 3, bias=bias),
    "extra tokens": lambda q, k, v, keys, values: nt.na2d(q, k, v, 3, additional_keys=keys, additional_values=values),
    "a part": lambda q, k, v: nt.na2d(q, k, v, 3, grid=(9, 9), query_offset=1, key_offset=(1, 1), is_periodic=True),
    "a frozen key": lambda q, k, v: nt.na2d(q, k.detach(), v, 3),
    "of a rank": lambda q, k, v: nt.neighborhood_attention(q, k, v, 3),
}


@needs_module
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_calls_come_again(name, known):
    """Results and gradients, first and second, are those of the same call in f64 the long way, with other values each time."""
    call = RECORDED[name]
    extra = {"bias": [(2, 5, 5)], "extra tokens": [(1, 3, 2, 8)] * 2}.get(name, [])

    def derivatives(given):
        results = call(*given)
        results = results if isinstance(results, tuple) else (results,)
        assert all([result.grad_fn is not None for result in results])
        total = sum([result.square().sum() for result in results])
        gradients = torch.autograd.grad(total, given, create_graph=True, allow_unused=True)
        wanted = [x for x in gradients if x is not None]
        once = torch.autograd.grad(call(*given)[0].sum() if name == "lse" else call(*given).sum(), given, allow_unused=True)
        twice = torch.autograd.grad(sum([x.square().sum() for x in wanted]), given, allow_unused=True)
        return [x for x in (*results, *wanted, *once, *twice) if x is not None]

    for turn in range(3):
        generator = torch.Generator().manual_seed(turn)
        given = [torch.randn(shape, generator=generator) for shape in [SHAPE] * 3 + extra]
        exact = derivatives([x.double().requires_grad_() for x in given])
        known.clear()
        got = derivatives([x.requires_grad_() for x in given])
        assert len(got) == len(exact)
        for one, right in zip(got, exact):
            torch.testing.assert_close(one.double(), right, rtol=1e-3, atol=1e-4)
        assert known.count("torch.na2d") == (2 if turn else 1)  # the second call in derivatives() is as the first


@needs_module
def test_one_tensor_for_all_is_not_taken_for_others(known):
    alone = tensors()[0].requires_grad_()
    for _ in range(2):
        nt.na2d(alone, alone, alone, 3)
    assert known.count("torch.na2d") == 1
    given = [x.requires_grad_() for x in tensors(1)]
    exact = nt.na2d(*[x.detach().double() for x in given], 3)
    out = nt.na2d(*given, 3)
    assert known.count("torch.na2d") == 2
    torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-5)
    gradients = torch.autograd.grad(out.sum(), given)
    assert all([float(x.abs().max()) > 0 for x in gradients])


@needs_module
def test_parameters_come_again(known):
    """A layer's bias is a Parameter: torch's tensors and these are known, other subclasses are not."""
    layer = nt.NeighborhoodAttention2D(16, 2, 3, rel_pos_bias=True)
    x = torch.randn(1, 7, 7, 16)
    gradients = [torch.autograd.grad(layer(x).square().sum(), layer.parameters()) for _ in range(3)]
    assert known == ["torch.na2d", "na_backward"] * 2  # the forward's execution is found without being asked for
    for one, again in zip(gradients[0], gradients[2]):
        torch.testing.assert_close(one, again)


@needs_module
def test_below_autograd_nothing_is_recorded(known):
    given = [x.requires_grad_() for x in tensors()]
    for _ in range(2):
        nt.na2d(*given, 3)
    assert known.count("torch.na2d") == 1
    with torch._C._AutoDispatchBelowAutograd():
        assert nt.na2d(*given, 3).grad_fn is None


def test_gradients_are_not_lost(warm):
    given, expected = warm
    out = nt.na2d(given[0], given[1].clone().requires_grad_(), given[2], 3)
    assert torch.equal(out, expected) and out.grad_fn is not None
    parameter = torch.nn.Parameter(given[0])
    assert nt.na2d(parameter, *given[1:], 3).grad_fn is not None
    with torch.no_grad():
        assert torch.equal(nt.na2d(parameter, *given[1:], 3), expected)
        assert nt.na2d(given[0].clone().requires_grad_(), *given[1:], 3).grad_fn is None


def test_inference_mode_makes_its_tensors(warm):
    given, expected = warm
    with torch.inference_mode():
        out = nt.na2d(*given, 3)
        assert out.is_inference() and torch.equal(out, expected)
    assert not nt.na2d(*given, 3).is_inference()


def test_autocast_applies(warm):
    given, _ = warm
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            assert nt.na2d(*given, 3).dtype == torch.bfloat16
    assert nt.na2d(*given, 3).dtype == torch.float32


def test_lazy_negation_is_done(warm):
    (query, key, value), expected = warm
    for _ in range(2):
        negative = torch._neg_view(-query)
        assert negative.is_neg() and negative.stride() == query.stride()
        assert torch.equal(nt.na2d(negative, key, value, 3), expected)


def test_modes_and_transforms_see_the_operators(warm):
    (query, key, value), expected = warm
    seen = []

    class Noting(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), named=None):
            seen.append(function)
            return function(*arguments, **(named or {}))

    with Noting():
        nt.na2d(query, key, value, 3)
    assert torch.ops.nhood.na.default in seen
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        nt.na2d(query, key, value, 3)
    assert "nhood::na" in {event.key for event in profile.key_averages()}
    mapped = torch.vmap(lambda q: nt.na2d(q, key, value, 3))(torch.stack([query, query]))
    assert torch.allclose(mapped[1], expected)
    _, tangent = torch.func.jvp(lambda v: nt.na2d(query, key, v, 3), (value,), (value,))
    assert torch.allclose(tangent, expected, atol=1e-5)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(value, value)
        out = torch.autograd.forward_ad.unpack_dual(nt.na2d(query, key, dual, 3))
    assert torch.allclose(out.tangent, expected, atol=1e-5)
    compiled = torch.compile(lambda q: nt.na2d(q, key, value, 3), backend="eager", fullgraph=True)
    assert torch.equal(compiled(query), expected) and torch.equal(compiled(query), expected)


def test_settings_apply(warm):
    given, expected = warm
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(nt.na2d(*given, 3), expected)
    finally:
        torch.use_deterministic_algorithms(False)
    nhood.configure(solver="reference")
    reference = nt.na2d(*given, 3)
    assert not torch.equal(reference, expected) and torch.equal(nt.na2d(*given, 3), reference)


def test_what_is_wrong_is_found(warm):
    (query, key, value), expected = warm
    wrong = (
        (TypeError, "kernel_size = 3.0 is not an integer", lambda: nt.na2d(query, key, value, 3.0)),
        (TypeError, "key is a numpy.ndarray", lambda: nt.na2d(query, key.numpy(), value, 3)),
        (ValueError, "kernel_size = 9 exceeds the 7 tokens", lambda: nt.na2d(query, key, value, 9)),
        (ValueError, "key has dtype float64", lambda: nt.na2d(query, key.double(), value, 3)),
        (TypeError, "unexpected keyword", lambda: nt.na2d(query, key, value, 3, window=3)),
        (TypeError, "multiple values", lambda: nt.na2d(query, key, value, 3, query=query)),
    )
    for error, text, call in wrong:
        with pytest.raises(error, match=text):
            call()
        assert torch.equal(nt.na2d(query, key, value, 3), expected)


LAYOUTS = [(7, 5), (3, 3), (3, 3), [4, 9]]
TOKENS = 7 * 5 + 2 * 9 + 36


def packed(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, TOKENS, heads, 8, generator=generator).to(dtype) for heads in (4, 2, 2)]


def of_samples(q, k, v, **named):
    return nt.neighborhood_attention_varlen(q, k, v, 3, layouts=LAYOUTS, dilations=((2, 1), 1, 1, 1), **named)


def with_table(q, k, v):
    return nt.neighborhood_attention_varlen(q, k, v, table=nt.varlen_table(torch.tensor([(9, 9), (2, 4)]), 2))


def between_tokens(q, k, v):
    """Tokens of no sample: 8 .. 9, and those from 40 on."""
    table = nt.varlen_table([(2, 4), (5, 6)], 2)
    table[1, :2] = 10
    return na_varlen(q, k, v, table, None, False, True)


def of_sets(q, k, v, **named):
    q, k, v = [x[:, :81].unflatten(1, (9, 9)) for x in (q, k, v)]
    return nt.na2d(q, k, v, [3, 5], dilation=[[1, 1], [3, 1]], **named)


def of_sets_with_bias(q, k, v):
    return of_sets(q, k, v, bias=[torch.ones(2, 5, 9), torch.arange(90.0).view(2, 5, 9).to(q.dtype)])


GROUPS = {
    "samples": (of_samples, "varlen"),
    "samples, lse": (lambda q, k, v: of_samples(q, k, v, return_lse=True, scale=0.3), "varlen"),
    "table": (with_table, "varlen"),
    "tokens of no sample": (between_tokens, "na_varlen"),
    "sets": (of_sets, "torch.na2d"),
    "sets, lse": (lambda q, k, v: of_sets(q, k, v, return_lse=True, clamp_window=True), "torch.na2d"),
    "sets with bias": (of_sets_with_bias, "na_sets"),
}


def several(results):
    return results if isinstance(results, (tuple, list)) else (results,)


@needs_module
@pytest.mark.parametrize("name", GROUPS)
def test_groups_come_again(name, known, monkeypatch):
    """From the third time on: a batch of new sizes is not remembered when it comes once."""
    call, quick = GROUPS[name]
    for turn in range(4):
        given = packed(turn)
        got = several(call(*given))
        assert known == [quick] * max(0, turn - 1)
        with monkeypatch.context() as patched:
            patched.setattr(_quick, "call", _quick.no_call)
            patched.setattr(_quick, "execute", _quick.no_call)
            expected = several(call(*given))
        assert len(got) == len(expected)
        for one, right in zip(got, expected):
            assert torch.equal(one, right) and one.dtype == right.dtype and one.is_contiguous() and not one.requires_grad


@needs_module
@pytest.mark.parametrize("name", GROUPS)
def test_recorded_groups_come_again(name, known, monkeypatch):
    call, quick = GROUPS[name]

    def derivatives(given):
        given = [x.requires_grad_() for x in given]
        results = [x for x in several(call(*given))]
        results = [results[0], *[x.where(x > -torch.inf, 0) for x in results[1:]]]
        first = torch.autograd.grad(sum([x.square().sum() for x in results]), given, create_graph=True)
        second = torch.autograd.grad(sum([x.square().sum() for x in first]), given)
        return [*results, *first, *second]

    for turn in range(4):
        known.clear()
        got = derivatives(packed(turn))
        assert (quick in known) == (turn > 1)
        # asked for twice a turn, as out is a function of the inputs when gradients are differentiated
        assert any([of in known for of in ("na_varlen_backward", "na_sets_backward")]) == (turn > 0)
        with monkeypatch.context() as patched:
            patched.setattr(_quick, "call", _quick.no_call)
            patched.setattr(_quick, "execute", _quick.no_call)
            expected = derivatives(packed(turn))
        assert all(map(torch.equal, got, expected))


@needs_module
def test_layouts_and_tables_that_change_in_place():
    given = packed()
    layouts, table = [[9, 9], [2, 4]], nt.varlen_table([(9, 9), (2, 4)], 2)
    lengths = torch.tensor(layouts)
    calls = (
        lambda: nt.neighborhood_attention_varlen(*given, 2, layouts=layouts),
        lambda: nt.neighborhood_attention_varlen(*given, 2, layouts=lengths),
        lambda: nt.neighborhood_attention_varlen(*given, table=table),
    )
    first = [[call() for _ in range(4)][-1] for call in calls]
    layouts[0][1], layouts[1][:] = 3, [31, 2]
    lengths.copy_(torch.tensor(layouts))
    table.copy_(nt.varlen_table(layouts, 2))
    right = nt.neighborhood_attention_varlen(*given, 2, layouts=((9, 3), (31, 2)))
    for call, before in zip(calls, first):
        assert torch.equal(before, first[0]) and not torch.equal(right, before)
        assert torch.equal(call(), right)
    layouts[0][1] = 4
    with pytest.raises(ValueError, match="layouts have 98 tokens, query has 89"):
        calls[0]()
    layouts[0] = layouts
    with pytest.raises(TypeError):
        calls[0]()


@needs_module
def test_shapes_of_tensors_are_sizes(known):
    """torch.Size is a tuple; what else is derived from one is not taken for it."""
    images = [torch.empty(1, rows, 9, 3) for rows in (4, 5)]
    given = [x[:, :81] for x in packed()]
    calls = (
        lambda: nt.neighborhood_attention_varlen(*given, 3, layouts=[x.shape[1:3] for x in images]),
        lambda: nt.na1d(*given, torch.Size([3])),
    )
    for call, name in zip(calls, ("varlen", "torch.na1d")):
        results = [call() for _ in range(4)]
        assert known.count(name) >= 2 and torch.equal(results[0], results[3])
    assert torch.equal(results[0], nt.na1d(*given, 3))

    class Pair(tuple):
        def __getitem__(self, i):
            return 3

    known.clear()
    nt.na1d(*given, Pair([3]))
    assert not known


@needs_module
def test_new_sizes_do_not_push_out_what_comes_again(known):
    given = tensors()
    for _ in range(2):
        nt.na2d(*given, 3)
    for rows in range(3, 200):
        trained = [torch.randn(1, 3 * rows, 1, 8, requires_grad=True) for _ in range(3)]
        for _ in range(2):
            nt.neighborhood_attention_varlen(*trained, 3, layouts=[(3, rows)]).sum().backward()
    known.clear()
    nt.na2d(*given, 3)
    assert known == ["torch.na2d"]


@needs_module
def test_new_sizes_are_planned_without_numpy(monkeypatch):
    """And give what numpy's way gives; samples that are wrong are named by it."""
    given = [x.requires_grad_() for x in packed()]
    layouts = {"a list": LAYOUTS, "a table": nt.varlen_table([(9, 9), (2, 4)], 3)}

    def derivatives(name):
        nhood.clear_cache()
        named = {"table": layouts[name]} if name == "a table" else {"layouts": layouts[name], "kernel_size": 3}
        out = nt.neighborhood_attention_varlen(*given, **named)
        return [out, *torch.autograd.grad(out.square().sum(), given)]

    def refuse(*_):
        raise AssertionError("numpy's way")

    with pytest.raises(ValueError, match="member 1: kernel_size = 3 exceeds the 2 tokens of axis 0"):
        derivatives("a table")
    with pytest.raises(ValueError, match="member 3: kernel_size = 5 exceeds the 4 tokens of axis 0"):
        nt.neighborhood_attention_varlen(*given, 5, layouts=[(7, 5), (5, 5), (5, 5), (4, 1)])
    layouts["a table"] = nt.varlen_table([(9, 9), (2, 4)], 2)
    with monkeypatch.context() as patched:
        patched.setattr(_groups, "read_table", refuse)
        patched.setattr(_varlen, "layouts_table", refuse)
        found = [derivatives(name) for name in layouts]
    with monkeypatch.context() as patched:
        for name in ("group_table", "group_plan", "group_bytes", "run_group"):
            patched.setattr(_quick, name, _quick.nothing)
        for name, got in zip(layouts, found):
            assert all(map(torch.equal, got, derivatives(name)))


@needs_module
def test_settings_apply_to_groups():
    given = packed()
    expected = [of_samples(*given) for _ in range(3)][-1]
    nhood.configure(solver="reference")
    reference = [of_samples(*given) for _ in range(3)]
    assert not torch.equal(reference[0], expected) and torch.equal(reference[0], reference[2])
    with torch.autocast("cpu", torch.bfloat16):
        assert of_samples(*given).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="layouts have 89 tokens, query has 88"):
        of_samples(*[x[:, 1:] for x in given])
