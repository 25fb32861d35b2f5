"""Torch's dispatcher is left out where it would do nothing, and only there."""

import subprocess
import sys

import nhood.torch as nt
import pytest
import torch
from nhood import _quick
from nhood.torch import _dispatch, _ops, _transforms
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from versions import needs_keys_of_dispatch

AXES = ((3, 3), (1, 1), (1, 1), (False, False))


class Noting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        self.operators.append(operator)
        return operator(*arguments, **(named or {}))


class Wrapper(torch.Tensor):
    operators = []

    @staticmethod
    def __new__(cls, inner):
        wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapper.inner = inner
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, operator, types, arguments=(), named=None):
        cls.operators.append(operator)
        return operator(*[x.inner if isinstance(x, cls) else x for x in arguments], **(named or {}))


@pytest.fixture
def query():
    return torch.randn(1, 7, 7, 2, 8, generator=torch.Generator().manual_seed(0))


@needs_keys_of_dispatch
def test_plain_calls_go_directly(query, monkeypatch):
    """To the implementation or, where gradients are recorded, to the formula."""

    class Formula:
        @staticmethod
        def apply(*arguments):
            assert arguments[2:] == ((3,), implementation, False)
            return "formula"

    def implementation(*arguments):
        return "implementation"

    monkeypatch.setitem(_transforms.formulas, "tried", Formula)
    call = _dispatch.directly("tried", lambda *_: "dispatcher", implementation, 2)
    trained = query.clone().requires_grad_()
    assert call(query, None, 3) == call(query.double(), query[:, ::2], 3) == "implementation"
    assert call(trained, query, 3) == call(query, torch.nn.Parameter(query), 3) == "formula"
    with torch.no_grad():
        assert call(trained, query, 3) == "implementation"
    with torch._C._AutoDispatchBelowAutograd():
        assert call(trained, query, 3) == "implementation"
    with torch.inference_mode():
        assert call(query, torch.ones(2), 3) == "implementation"
    with torch.autocast("cpu", torch.bfloat16):
        assert call(query, None, 3) == "implementation"
    with torch.autograd.forward_ad.dual_level():
        assert call(query, None, 3) == "dispatcher"
    with Noting():
        assert call(query, None, 3) == call(trained, None, 3) == "dispatcher"
    assert call(query.to("meta"), trained, 3) == "dispatcher"


def kinds_of_tensors(query):
    """A tensor, whether the dispatcher would only find its implementation, and whether gradients are recorded for it."""
    trained = query.clone().requires_grad_()
    with torch.inference_mode():
        in_inference_mode = query.clone()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(query)
    return {
        "a plain one": (query, True, False),
        "a view": (query[:, ::2, 1:], True, False),
        "another dtype": (query.bfloat16(), True, False),
        "of inference mode": (in_inference_mode, True, False),
        "trained": (trained, True, True),
        "a parameter": (torch.nn.Parameter(query), True, True),
        "a result to train through": (trained * 2, True, True),
        "detached": (trained.detach(), True, False),
        "lazily negated": (torch._neg_view(query), False, False),
        "lazily conjugated": (torch.complex(query, query).conj(), False, False),
        "zeros without memory": (torch._efficientzerotensor(query.shape), False, False),
        "sparse": (query.to_sparse(), False, False),
        "of meta": (query.to("meta"), False, False),
        "fake": (fake, False, False),
        "a subclass": (Wrapper(query), False, False),
        "nested": (torch.nested.nested_tensor([query[0], query[0]]), False, False),
        "functional": (torch._to_functional_tensor(query), False, False),
        "quantized": (torch.quantize_per_tensor(query, 0.1, 0, torch.qint8), False, False),
        "mapped": (torch._C._functorch._add_batch_dim(query, 0, 1), False, False),
    }


needs_keys_read = pytest.mark.skipif(
    _dispatch.are_plain is _dispatch._ask_torch, reason="nhood_quick is not built, or torch does not tell keys"
)


@needs_keys_of_dispatch
@needs_keys_read
@pytest.mark.parametrize("ask", (_dispatch._ask_torch, _dispatch.are_plain), ids=("of torch", "as read"))
@pytest.mark.filterwarnings("ignore")  # of torch, on kinds it will not have for ever
def test_keys_and_gradients_are_seen(query, ask):
    for name, (tensor, plain, recorded) in kinds_of_tensors(query).items():
        assert ask(False, tensor) is plain, name
        assert ask(True, query, tensor, 3, None, "text") is (plain and not recorded), name
        assert ask(False, tensor, query) is plain, name
        with torch.no_grad():
            assert ask(True, tensor) is plain, name
    assert ask(True) and ask(True, None, 3, [query])


@needs_keys_of_dispatch
@needs_keys_read
def test_keys_follow_the_tensor(query):
    tensor = query.clone()
    assert _dispatch.are_plain(True, tensor)
    tensor.requires_grad_()
    assert not _dispatch.are_plain(True, tensor) and _dispatch.are_plain(False, tensor)
    tensor.requires_grad_(False)
    tensor.data = torch._neg_view(query)
    assert not _dispatch.are_plain(False, tensor)


def test_keys_that_are_not_found(query):
    """Samples that contradict each other, or too few: nothing is learnt, in a process of its own as it is learnt once."""
    program = """
import torch
from nhood import _quick
x, y = torch.empty(2), torch.empty(2).to_sparse()
right = [(t, t._cdata, torch._C._dispatch_keys(t).raw_repr()) for t in (x, y, x, y)]
learn = lambda samples, kind=torch.Tensor: _quick.tensors_are_plain(kind, samples, (right[0][2],), torch.is_grad_enabled)
assert learn(right[:3]) is None
assert learn([*right, (x, x._cdata, 12345)]) is None
assert learn([*right, (x, y._cdata, right[1][2])]) is None
assert learn([*right, (torch.nn.Parameter(x), 1, 2)]) is None
assert not _quick._module.are_plain(False, x)
known = learn(right)
assert known(False, x) and not known(False, y)
assert learn(right) is None
"""
    if _quick._module is None:
        pytest.skip("nhood_quick is not built")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_modes_see_the_operators(query):
    trained = query.clone().requires_grad_()
    with Noting() as mode:
        nt.na2d(query, query, query, 3)
        nt.na2d(trained, query, query, 3).sum().backward()
        nt.na2d_qk(query, query, 3)
    seen = [operator for operator in mode.operators if operator.namespace == "nhood"]
    operators = torch.ops.nhood
    assert seen == [operators.na.default] * 2 + [operators.na_backward.default, operators.na_qk.default]


def test_function_modes_see_the_operators(query):
    seen = []

    class Noting(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), named=None):
            seen.append(function)
            return function(*arguments, **(named or {}))

    with Noting():
        nt.na2d(query, query, query, 3)
    assert torch.ops.nhood.na.default in seen


def test_the_profiler_sees_the_operators(query):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        nt.na2d(query, query, query, 3)
    assert "nhood::na" in {event.key for event in profile.key_averages()}


def test_jit_sees_the_operators(query):
    graph = torch.jit.trace(lambda q: nt.na2d(q, q, q, 3), query, check_trace=False).graph
    assert "nhood::na" in str(graph)


def test_subclasses_see_the_operators(query):
    Wrapper.operators.clear()
    out = nt.na2d(query, Wrapper(query), query, 3)
    assert Wrapper.operators == [torch.ops.nhood.na.default]
    assert torch.equal(out, nt.na2d(query, query, query, 3))


def test_fake_tensors_stay_fake(query):
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(query)
        out = nt.na2d(fake, fake, fake, 3)
    assert isinstance(nt.na2d(fake, fake, fake, 3), type(fake)), "outside of the mode, too"
    assert out.shape == query.shape


def test_lazy_negation_is_done(query):
    negative = torch.complex(query, query).conj().imag
    assert negative.is_neg()
    assert torch.equal(nt.na2d(negative, query, query, 3), nt.na2d(-query, query, query, 3))


def test_other_layouts_and_devices_are_refused(query):
    with pytest.raises(NotImplementedError, match="SparseCPU"):
        _ops.na(query.to_sparse(), query, query, None, None, None, *AXES, None, False, False)



@pytest.mark.parametrize(
    "call, text",
    [
        (lambda q: nt.na2d(q.numpy(), q, q, 3), "query is a numpy.ndarray, not a torch.Tensor"),
        (lambda q: nt.na2d(q, None, q, 3), "key is a NoneType"),
        (lambda q: nt.na2d(q, q, [1.0], 3), "value is a list"),
        (lambda q: nt.na2d(q, q, q, 3, bias=0.5), "bias is a float"),
        (lambda q: nt.neighborhood_attention(q.numpy(), q, q, 3), "query is a numpy.ndarray"),
        (lambda q: nt.na2d_qk(q, q.numpy(), 3), "key is a numpy.ndarray"),
        (lambda q: nt.na2d_av(q.numpy(), q, 3), "attn is a numpy.ndarray"),
    ],
)
def test_what_is_no_tensor_is_refused(query, call, text):
    with pytest.raises(TypeError, match=text):
        call(query)


def test_transforms_see_the_operators(query):
    with Noting() as mode:
        torch.vmap(lambda q: nt.na2d(q, query, query, 3))(query[None])
    assert torch.ops.nhood.na.default in mode.operators
