"""Samples of different sizes and windows by sets of heads, on arrays: each member as a call of its own computes it."""

import nhood
import numpy as np
import pytest

LAYOUTS = [(14, 9), (0, 7), (6, 30), (7, 9), (14, 9)]
DILATIONS = [1, 1, (1, 3), 1, (2, 1)]
TOKENS = sum(x * y for x, y in LAYOUTS)
NAMED = dict(kernel_size=(5, 7), layouts=LAYOUTS, dilations=DILATIONS)


def drawn(*shapes):
    rng = np.random.default_rng(5)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def packed():
    return drawn((1, TOKENS, 4, 16), (1, TOKENS, 2, 16), (1, TOKENS, 2, 12), (1, TOKENS, 4, 12))


def test_samples():
    query, key, value, d_out = packed()
    out, lse = nhood.neighborhood_attention_varlen(query, key, value, **NAMED, return_lse=True)
    gradients = nhood.neighborhood_attention_varlen_backward(d_out, query, key, value, out, lse, **NAMED, d_lse=lse)
    at = 0
    for (x, y), dilation in zip(LAYOUTS, DILATIONS):
        if not x * y:
            continue

        def own(array, at=at, x=x, y=y):
            return array[:, at : at + x * y].reshape(1, x, y, *array.shape[2:])

        given = [own(array) for array in (query, key, value)]
        expected = nhood.na2d(*given, (5, 7), dilation=dilation, return_lse=True)
        assert np.array_equal(own(out), expected[0]) and np.array_equal(own(lse), expected[1])
        wanted = nhood.na2d_backward(own(d_out), *given, *expected, (5, 7), dilation=dilation, d_lse=own(lse))
        assert all(np.array_equal(own(got), want) for got, want in zip(gradients, wanted))
        at += x * y
    assert at == TOKENS


def test_equal_samples_that_follow_each_other_are_a_batch():
    layouts = [(7, 9)] * 3 + [(0, 4)] * 2 + [(5, 5), (7, 9), (7, 9)]
    query, key, value = drawn(*[(1, 5 * 63 + 25, 2, 8)] * 3)
    out = nhood.neighborhood_attention_varlen(query, key, value, 5, layouts=layouts, dilations=[1] * 7 + [(1, 1)])
    at = 0
    for x, y in layouts:
        own = [array[:, at : at + x * y].reshape(1, x, y, 2, 8) for array in (query, key, value)]
        if x:
            assert np.array_equal(out[:, at : at + x * y].reshape(own[0].shape), nhood.na2d(*own, 5))
        at += x * y
    counts = nhood._groups.layouts_table(2, ((3, 3), (3, 3), (3, 4)), ((3, 3),), ((1, 1),), ((1, 1),), (False,))
    members = nhood._groups._joined(nhood._groups.read_table(counts, (30, 30), True))
    assert members.batch.tolist() == [2, 1] and members.first[0].tolist() == [0, 18]


def test_sets_of_heads():
    query, key, value = drawn((2, 12, 11, 5, 8), (2, 12, 11, 5, 8), (2, 12, 11, 5, 4))
    out = nhood.na2d(query, key, value, [[7, 7], [3, 5]], dilation=[[1, 1], [4, 2]], is_causal=[[False, True], [False, False]])
    first = nhood.na2d(*[x[..., :2, :] for x in (query, key, value)], 7, is_causal=(False, True))
    second = nhood.na2d(*[x[..., 2:, :] for x in (query, key, value)], (3, 5), dilation=(4, 2))
    assert np.array_equal(out, np.concatenate([first, second], -2))


@pytest.mark.parametrize(
    "named, text",
    [
        (dict(kernel_size=8, layouts=LAYOUTS), "member 2: kernel_size = 8 exceeds the 6 tokens of axis 0"),
        (dict(kernel_size=3, layouts=LAYOUTS[1:]), f"layouts have {TOKENS - 126} tokens, query has {TOKENS}"),
        (dict(kernel_size=3, dilation=0, layouts=LAYOUTS), "member 0: dilation = 0 is less than 1"),
        (dict(kernel_size=3, scale=float("inf"), layouts=LAYOUTS), "scale = inf is not finite"),
        (dict(kernel_size=3, scale=float("nan"), layouts=LAYOUTS), "scale = nan is not finite"),
        (dict(kernel_size=2**63, layouts=LAYOUTS), "kernel_size = 9223372036854775808 does not fit 64 bits"),
        (dict(kernel_size=3, layouts=[(2**40, 2**40)]), "tokens, query has"),
    ],
)
def test_illegal(named, text):
    with pytest.raises(ValueError) as error:
        nhood.neighborhood_attention_varlen(*packed()[:3], **named)
    assert text in str(error.value)


def test_shapes_that_do_not_go_together():
    query, key, value, _ = packed()
    for wrong, text in [
        ((query, key[:, 1:], value), f"value.shape = (1, {TOKENS}, 2, 12): the length of the keys on axis 0 is"),
        ((query[0], key, value), "query.shape"),
        ((np.concatenate([query] * 2), key, value), "query.shape = (2, "),
        ((query, key.astype(np.float64), value), "key has dtype float64, expected float32"),
        ((query, key, value[..., ::2]), "value has a stride of 2 items on its last axis"),
    ]:
        with pytest.raises(ValueError) as error:
            nhood.neighborhood_attention_varlen(*wrong, **NAMED)
        assert text in str(error.value)


@pytest.mark.parametrize("layouts", [[], [(0, 3)], [(4, 0), (0, 0)]])
def test_arrays_without_tokens(layouts):
    x = np.zeros((1, 0, 2, 4), np.float32)
    out, lse = nhood.neighborhood_attention_varlen(x, x, x, 3, layouts=layouts, return_lse=True)
    assert out.shape == x.shape and lse.shape == (1, 0, 2)
    gradients = nhood.neighborhood_attention_varlen_backward(x, x, x, x, out, lse, 3, layouts=layouts)
    assert [of.shape for of in gradients] == [x.shape] * 3
    with pytest.raises(ValueError, match="layouts have 1 tokens, query has 0"):
        nhood.neighborhood_attention_varlen(x, x, x, 1, layouts=[(1, 1)])
