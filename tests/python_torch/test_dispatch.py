"""Torch's dispatcher is left out where it would do nothing, and only there."""

import nhood.torch as nt
import pytest
import torch
from nhood.torch import _dispatch, _ops
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
def test_plain_calls_go_directly(query):
    plain = _dispatch.only_implementation
    assert plain((query, None)) and plain((torch.nn.Parameter(query), query[:, ::2])) and plain((query.double(),))
    with torch.no_grad():
        assert plain((query.clone().requires_grad_(),))
    with torch.inference_mode():
        assert plain((query, torch.ones(2)))
    with torch.autocast("cpu", torch.bfloat16):
        assert plain((query,))


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
