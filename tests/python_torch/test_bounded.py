"""Samples of different sizes whose lengths are a tensor, within a bound: as with lengths that are known."""

import nhood
import pytest
import torch
from nhood import torch as nt
from torch._dynamo.testing import CompileCounter
from torch.utils.flop_counter import FlopCounterMode

BATCHES = [[(14, 9), (0, 0), (5, 30), (7, 9)], [(6, 8)], [(16, 32), (5, 7), (9, 7), (5, 7)]]
TOKENS = 800
ASKED = dict(kernel_size=(5, 7), stride=(2, 1), is_causal=(False, True))
BOUND = (16, 32)


def drawn(tokens=TOKENS, dtype=torch.float64, grad=True):
    torch.manual_seed(7)
    shapes = (4, 16), (2, 16), (2, 12)
    return [torch.randn(1, tokens, *shape, dtype=dtype, requires_grad=grad) for shape in shapes]


def within(tensors, batch, **more):
    layouts = batch if isinstance(batch, torch.Tensor) else torch.tensor(batch)
    return nt.neighborhood_attention_varlen(*tensors, layouts=layouts, bound=BOUND, **{**ASKED, **more})


def known(tensors, batch):
    """out and lse of the samples' tokens."""
    tokens = sum(x * y for x, y in batch)
    layouts = [of for of in batch if 0 not in of]
    return nt.neighborhood_attention_varlen(*[x[:, :tokens] for x in tensors], layouts=layouts, return_lse=True, **ASKED)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_results_and_gradients_are_those_of_known_lengths(dtype, kind):
    for batch in BATCHES:
        tensors, others = drawn(dtype=dtype), drawn(dtype=dtype)
        out, lse = within(tensors, torch.tensor(batch, dtype=kind), return_lse=True)
        expected, expected_lse = known(others, batch)
        tokens = expected.shape[1]
        assert torch.equal(out[:, :tokens], expected) and torch.equal(lse[:, :tokens], expected_lse)
        assert (out[:, tokens:] == 0).all() and (lse[:, tokens:] == -torch.inf).all()
        d_out, d_lse = torch.randn_like(out), torch.randn_like(lse)
        torch.autograd.backward((out, lse), (d_out, d_lse))
        torch.autograd.backward((expected, expected_lse), (d_out[:, :tokens], d_lse[:, :tokens]))
        for x, y in zip(tensors, others):
            assert torch.equal(x.grad, y.grad)


def test_strides_are_free():
    whole = torch.randn(1, TOKENS, 3, 4, 16)
    parts = whole.unbind(2)
    assert torch.equal(within(parts, BATCHES[0]), within([x.contiguous() for x in parts], BATCHES[0]))
    lengths = torch.tensor(BATCHES[0]).t().contiguous().t()
    assert torch.equal(within(parts, lengths), within(parts, BATCHES[0]))


def test_all_derivatives():
    small = dict(kernel_size=(2, 3), stride=1)
    torch.manual_seed(3)
    tensors = [torch.randn(1, 14, 1, 2, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    def attend(*given):
        return within(given, [(2, 3), (0, 0), (2, 3)], **small)

    assert torch.autograd.gradcheck(attend, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(attend, tensors)


def test_one_program_serves_all_lengths():
    counter = CompileCounter()
    compiled = torch.compile(within, backend=counter, fullgraph=True)
    tensors = drawn(dtype=torch.float32, grad=False)
    for batch in (BATCHES[0], BATCHES[2]):
        assert torch.equal(compiled(tensors, torch.tensor(batch)), within(tensors, batch))
    assert counter.frame_count == 1


def test_operators_are_as_torch_asks():
    *tensors, lengths = *drawn(), torch.tensor(BATCHES[0])
    parameters = [list(BOUND), [5, 7], [1, 1], [1, 1], [0, 0], None]
    torch.library.opcheck(torch.ops.nhood.na_bounded, (*tensors, lengths, *parameters, True))
    out, lse = torch.ops.nhood.na_bounded(*tensors, lengths, *parameters, True)
    given = (*tensors, out.detach(), lse.detach(), torch.randn_like(out), None, lengths, *parameters, [True] * 3)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.nhood.na_bounded_backward, given, test_utils=tests)


def test_vmap_and_flops():
    tensors = [torch.randn(2, 1, TOKENS, 2, 8) for _ in range(3)]
    many = torch.vmap(lambda *one: within(one, BATCHES[0]))(*tensors)
    assert torch.equal(many, torch.stack([within([x[i] for x in tensors], BATCHES[0]) for i in range(2)]))
    with FlopCounterMode(display=False) as of_bound:
        within(drawn(), BATCHES[0]).sum().backward()
    with FlopCounterMode(display=False) as of_known:
        known(drawn(), BATCHES[0])[0].sum().backward()
    assert of_bound.get_total_flops() == of_known.get_total_flops() > 0


def test_autocast_and_nothing():
    with torch.autocast("cpu", torch.bfloat16):
        assert within(drawn(dtype=torch.float32), BATCHES[0]).dtype == torch.bfloat16
    none = within(drawn(tokens=0), torch.zeros(3, 2, dtype=torch.int64))
    assert none.shape == (1, 0, 4, 12)
    out, lse = within(drawn(), torch.zeros(0, 2, dtype=torch.int64), return_lse=True)
    assert (out == 0).all() and (lse == -torch.inf).all()


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(layouts=[(14, 9)]), "bound = (16, 32): it goes with layouts, a tensor on cpu, and with one kernel_size"),
        (dict(kernel_size=None, kernel_sizes=[5]), "bound = (16, 32): it goes with layouts"),
        (dict(kernel_size=None), "kernel_size = None"),
        (dict(layouts=torch.tensor([[14.0, 9.0]])), "layouts is torch.float32 of shape (1, 2), expected torch.int32 or int64"),
        (dict(layouts=torch.tensor([[14]])), "layouts is torch.int64 of shape (1, 1), expected torch.int32 or int64 of [samples, 2]"),
        (dict(bound=(16, 32, 4, 4)), "has 4 axes, expected 1, 2 or 3"),
        (dict(bound=16), "bound = 16 is not a sequence of the longest axes"),
        (dict(bound=(4, 32)), "kernel_size = 5 exceeds the 4 tokens of axis 0"),
        (dict(bound=(0, 32)), "bound[0] = 0 is less than 1"),
        (dict(layouts=torch.tensor([[9, 9], [4, 9]])), "member 1: layouts[1][0] = 4 is not in [5, 16]"),
        (dict(layouts=torch.tensor([[16, 32], [16, 32]])), "member 1 ends behind the 800 tokens of query, at token 1024"),
        (dict(kernel_size=nhood.Windows.cut(16, 5)), "kernel_size"),
    ],
)
def test_what_is_not_legal_is_named(change, text):
    given = dict(layouts=torch.tensor(BATCHES[0]), bound=BOUND, **ASKED)
    with pytest.raises((ValueError, TypeError)) as raised:
        nt.neighborhood_attention_varlen(*drawn(), **{**given, **change})
    assert text in str(raised.value)


def test_keys_are_those_of_the_queries():
    query, key, value = drawn()
    with pytest.raises(ValueError, match="query has 800 tokens, key has 700: with a bound they are the same ones"):
        within([query, key[:, :700], value[:, :700]], BATCHES[0])
