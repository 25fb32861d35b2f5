"""Streams: what they return for tokens one after another is what attention over all of them returns."""

import io

import nhood.torch as nt
import pytest
import torch
from nhood import _plans

LINE = dict(kernel_size=(5,))
CASES = {  # arguments, other extents, key heads, axis
    "line": (LINE, (), 2, 0),
    "dilation": (dict(kernel_size=(4,), dilation=(3,)), (), 2, 0),
    "stride": (dict(kernel_size=(5,), stride=(2,)), (), 2, 0),
    "stride and dilation": (dict(kernel_size=(5,), stride=(3,), dilation=(2,)), (), 1, 0),
    "blocked": (dict(kernel_size=(4,), stride=(4,)), (), 2, 0),
    "one key": (dict(kernel_size=(1,), dilation=(2,)), (), 2, 0),
    "plane": (dict(kernel_size=(3, 2), dilation=(2, 1)), (5,), 1, 0),
    "second axis": (dict(kernel_size=(3, 4), stride=(2, 3), is_causal=(True, True)), (5,), 2, 1),
    "video": (dict(kernel_size=(4, 3, 3), is_periodic=(False, False, True)), (3, 4), 1, 0),
}
TOKENS = 24  # a multiple of all products of stride and dilation
BLOCKS = {
    "one by one": (1, 1),
    "two": (2, 2),
    "three": (3, 3),
    "seven": (7, 7),
    "cut": (3, 8),
    "fewer": (6, 4),
    "all": (24, 24),
}


def sequence(name, dtype=torch.float64, batch=2, tokens=TOKENS):
    """Arguments, the streamed axis, and query, key and value of a sequence."""
    arguments, others, kv_heads, axis = CASES[name]
    torch.manual_seed(0)
    shape = [*others[:axis], tokens, *others[axis:]]
    tensors = [
        torch.randn(batch, *shape, heads, dim).to(dtype) for heads, dim in ((2, 4), (kv_heads, 4), (kv_heads, 3))
    ]
    return arguments, axis, tensors


def whole(arguments, axis, tensors, **more):
    rank = len(arguments["kernel_size"])
    causal = arguments.get("is_causal", tuple(i == axis for i in range(rank)))
    return nt.neighborhood_attention(*tensors, **{**arguments, "is_causal": causal}, **more)


def streamed(stream, axis, tensors, count, start=0):
    tokens = tensors[0].shape[1 + axis]
    steps = [
        stream(*(x.narrow(1 + axis, at, min(count, tokens - at)) for x in tensors))
        for at in range(start, tokens, count)
    ]
    return torch.cat(steps, 1 + axis)


@pytest.mark.parametrize("block, count", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_whole_sequence(name, block, count):
    arguments, axis, tensors = sequence(name)
    stream = nt.StreamingNeighborhoodAttention(**arguments, axis=axis, block=block)
    torch.testing.assert_close(streamed(stream, axis, tensors, count), whole(arguments, axis, tensors))
    assert stream.tokens == TOKENS
    stream.reset()
    torch.testing.assert_close(streamed(stream, axis, tensors, count), whole(arguments, axis, tensors))


def test_extents_may_change_from_call_to_call():
    arguments, axis, tensors = sequence("stride and dilation")
    stream = nt.StreamingNeighborhoodAttention(**arguments, block=5)
    steps, at = [], 0
    for count in (1, 4, 2, 9, 5, 3):
        steps.append(stream(*(x[:, at : at + count] for x in tensors)))
        at += count
    torch.testing.assert_close(torch.cat(steps, 1), whole(arguments, axis, tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_storage_types(dtype):
    arguments, axis, tensors = sequence("plane", dtype)
    stream = nt.StreamingNeighborhoodAttention(**arguments)
    out = streamed(stream, axis, tensors, 1)
    assert out.dtype == dtype
    torch.testing.assert_close(out, whole(arguments, axis, tensors))


def test_additional_tokens_and_log_sum_exp():
    arguments, axis, tensors = sequence("line")
    extra = dict(additional_keys=torch.randn(2, 3, 2, 4).double(), additional_values=torch.randn(2, 3, 2, 3).double())
    stream = nt.StreamingNeighborhoodAttention(**arguments, scale=0.3, block=2)
    steps = [stream(*(x[:, at : at + 4] for x in tensors), **extra, return_lse=True) for at in range(0, TOKENS, 4)]
    for got, expected in zip(zip(*steps), whole(arguments, axis, tensors, **extra, scale=0.3, return_lse=True)):
        torch.testing.assert_close(torch.cat(got, 1), expected)


@pytest.mark.parametrize("name", ["stride and dilation", "dilation", "second axis"])
@pytest.mark.parametrize("blocks", [(1, 1), (1, 4), (4, 1)])
def test_state_is_saved_and_loaded(name, blocks):
    arguments, axis, tensors = sequence(name)
    before, after = (nt.StreamingNeighborhoodAttention(**arguments, axis=axis, block=block) for block in blocks)
    for at in (0, 1, 5, 17):
        before.reset()
        first = [x.narrow(1 + axis, 0, at) for x in tensors]
        if at:
            streamed(before, axis, first, 3)
        file = io.BytesIO()
        torch.save(before.state_dict(), file)
        file.seek(0)
        after.load_state_dict(torch.load(file))
        rest = streamed(after, axis, tensors, 2, start=at)
        torch.testing.assert_close(rest, whole(arguments, axis, tensors).narrow(1 + axis, at, TOKENS - at))


@pytest.mark.parametrize(
    "name, block", [("line", 1), ("dilation", 1), ("stride and dilation", 1), ("stride", 2), ("line", 3)]
)
def test_steady_state_comes_again(name, block):
    """In a period of calls, plans and addresses are those of the period before: what CUDA graphs replay."""
    arguments, axis, tensors = sequence(name, tokens=6 * TOKENS)
    stream = nt.StreamingNeighborhoodAttention(**arguments, block=block)
    window = arguments["kernel_size"][0] * arguments.get("dilation", (1,))[0]
    warm = -(-window // block) * block
    streamed(stream, axis, [x[:, :warm] for x in tensors], block)
    seen = []
    for _ in range(2 * stream.period):
        seen.append((*stream._region(block, (block,)), stream.tokens % stream._length))
        stream(*(x[:, stream.tokens : stream.tokens + block] for x in tensors))
    assert seen[: stream.period] == seen[stream.period :]
    phases = arguments.get("stride", (1,))[0] * arguments.get("dilation", (1,))[0]
    assert len({region for region, *_ in seen}) <= phases
    made = _plans.find_plan.cache_info().misses
    streamed(stream, axis, [x[:, : stream.period * block] for x in tensors], block)
    assert _plans.find_plan.cache_info().misses == made


def test_buffers_stay_where_they_are():
    arguments, axis, tensors = sequence("line")
    stream = nt.StreamingNeighborhoodAttention(**arguments)
    stream(*(x[:, :1] for x in tensors))
    addresses = [x.data_ptr() for x in stream._buffers]
    assert [x.shape[1] for x in stream._buffers] == [5, 5]  # no more than a window sees
    streamed(stream, axis, tensors, 1, start=1)
    assert [x.data_ptr() for x in stream._buffers] == addresses


def test_layers_stream():
    torch.manual_seed(0)
    layer = nt.NeighborhoodAttention3D(16, 4, (4, 3, 3), is_causal=(True, False, False), num_kv_heads=2)
    x = torch.randn(1, 9, 4, 5, 16)
    stream = layer.stream()
    out = torch.cat([layer(x[:, at : at + 1], stream) for at in range(9)], 1)
    torch.testing.assert_close(out, layer(x))
    with torch.autocast("cpu", torch.bfloat16):
        stream = layer.stream(block=2)
        out = torch.cat([layer(x[:, at : at + 2], stream) for at in range(0, 9, 2)], 1)
        torch.testing.assert_close(out, layer(x))
        assert stream._buffers[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(kernel_size=(3, 3), is_causal=(False, True)), r"is_causal = \(False, True\): the streamed axis 0"),
        (dict(kernel_size=(3, 3), axis=2), r"axis = 2 is not in \[0, 2\)"),
        (dict(kernel_size=3, block=0), r"block = 0 is less than 1"),
        (dict(kernel_size=3, is_periodic=True), r"is_periodic = \(True,\): the streamed axis 0 cannot wrap"),
        (dict(kernel_size=3, stride=4), r"kernel_size 3, stride 4, dilation 1 on axis 0"),
        (dict(kernel_size=(3, 3, 3, 3)), r"kernel_size = .* has 4 entries"),
    ],
)
def test_streams_that_cannot_be(arguments, text):
    with pytest.raises(ValueError, match=text):
        nt.StreamingNeighborhoodAttention(**arguments)


def test_tokens_that_do_not_go_on():
    x = torch.randn(1, 2, 2, 4)
    stream = nt.StreamingNeighborhoodAttention(3)
    with pytest.raises(ValueError, match=r"query.shape = \(1, 2, 2, 4, 1\) has 5 axes, not 4"):
        stream(x[..., None], x, x)
    with pytest.raises(ValueError, match=r"key.shape = \(1, 1, 2, 4\): batch and tokens"):
        stream(x, x[:, :1], x)
    stream(x, x, x)
    with pytest.raises(
        ValueError, match=r"key has \[2, 2, 4\], device and dtype .*; the tokens before it \[1, 2, 4\]"
    ):
        stream(*3 * [x.expand(2, -1, -1, -1)])
    with pytest.raises(ValueError, match=r"key has .*float64.*float32"):
        stream(x.double(), x.double(), x.double())
    state = stream.state_dict()
    with pytest.raises(ValueError, match=r"key.shape = \(1, 2, 2, 4\): not 4 axes with 4 tokens"):
        nt.StreamingNeighborhoodAttention(5).load_state_dict({**state, "tokens": 7})
    with pytest.raises(ValueError, match=r"tokens = 3 in a state with key NoneType"):
        stream.load_state_dict({"tokens": 3, "key": None, "value": None})
