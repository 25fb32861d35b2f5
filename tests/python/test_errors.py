"""Bad calls: the right exception, a text that names argument, value and limit, and no crash."""

import nhood
import numpy as np
import pytest


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


QUERY = zeros(1, 7, 9, 4, 8)


def attention(query=QUERY, key=QUERY, value=QUERY, kernel_size=3, **arguments):
    return nhood.na2d(query, key, value, kernel_size, **arguments)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(kernel_size=(3, 10)), r"^kernel_size = \(3, 10\): 10 exceeds the 9 tokens of axis 1$"),
        (dict(kernel_size=0), r"^kernel_size = 0 is less than 1$"),
        (dict(kernel_size=-3), r"^kernel_size = -3 is less than 1$"),
        (dict(kernel_size=2**64 + 3), r"kernel_size\[0\] = 18446744073709551619 does not fit 64 bits"),
        (dict(kernel_size=(3, 3, 3)), r"kernel_size = \(3, 3, 3\) has 3 entries, not 2"),
        (dict(stride=4), r"^stride = 4 exceeds kernel_size 3 of axis 0$"),
        (dict(stride=(1, 0)), r"^stride = \(1, 0\): 0 is less than 1$"),
        (dict(dilation=(1, 4)), r"^kernel_size = 3 times dilation 4 exceeds the 9 tokens of axis 1$"),
        (dict(dilation=[1]), r"dilation = \[1\] has 1 entry, not 2"),
        (dict(is_causal=(True,)), r"is_causal = \(True,\) has 1 entry, not 2"),
        (dict(scale=float("inf")), r"^scale = inf is not finite$"),
        (dict(scale=float("nan")), r"scale = nan is not finite"),
        (dict(scale=10**400), r"scale = 10*0 is beyond float64"),
        (dict(bias=zeros(4, 5, 5), is_causal=True), r"^is_causal = True: a relative bias needs"),
        (dict(bias=zeros(4, 5, 5), is_causal=(False, True)), r"^is_causal = \(False, True\): a relative bias needs"),
        (dict(query=zeros(1, 7, 9, 4, 65537), key=zeros(1, 7, 9, 4, 65537)), r"^query.shape = .*: the head dim, 65537, is not in \[1, 65536\]$"),
        (dict(bias=zeros(4, 5, 6)), r"bias.shape = .*: 2 \* kernel_size - 1 of axis 1 is 6, expected 5"),
        (dict(bias=zeros(2, 5, 5)), r"bias.shape = .*: the number of query heads is 2, expected 4"),
        (dict(bias=zeros(4, 5, 10)[:, :, ::2]), r"bias has strides .*: it must be contiguous"),
        (dict(bias=zeros(4, 5, 5, dtype=np.float64)), r"bias has dtype float64, expected float32"),
        (dict(query=zeros(7, 9, 4, 8)), r"query.shape = .* has 4 axes, not 5: \[B, X0, X1, H, D\]"),
        (dict(query=zeros(0, 7, 9, 4, 8)), r"key.shape = .*: the batch is 1, expected 0"),
        (dict(key=zeros(1, 7, 9, 4, 9)), r"key.shape = .*: the head dim is 9, expected 8"),
        (dict(key=zeros(1, 7, 8, 4, 8)), r"key.shape = .*: the length of axis 1 is 8, expected 9"),
        (dict(key=zeros(1, 7, 9, 0, 8)), r"key.shape = .*: the number of key/value heads is 0"),
        (dict(key=zeros(1, 7, 9, 2, 8)), r"value.shape = .*: the number of key/value heads is 4, expected 2"),
        (dict(key=zeros(1, 7, 9, 3, 8), value=zeros(1, 7, 9, 3, 8)), r"^key.shape = \(1, 7, 9, 3, 8\): the number of key/value heads, 3, does not divide the number of query heads, 4$"),
        (dict(value=zeros(1, 7, 9, 4, 0)), r"value.shape = .*: the value head dim is 0"),
        (dict(key=QUERY.astype(np.float16)), r"key has dtype float16, expected float32 as query has float32"),
        (dict(query=QUERY.astype(np.int64)), r"query has dtype int64: not one of float64, float32"),
        (dict(query=QUERY.astype(">f4")), r"query has dtype >f4"),
        (dict(query=zeros(1, 7, 9, 8, 4).swapaxes(3, 4)), r"query has a stride of 4 items on its last axis"),
        (dict(additional_keys=zeros(1, 2, 4, 8)), r"additional_keys and additional_values: give both"),
        (
            dict(additional_keys=zeros(1, 2, 4, 8), additional_values=zeros(1, 3, 4, 8)),
            r"additional_values.shape = .*: the number of additional tokens is 3, expected 2",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_value_errors(arguments, text):
    with pytest.raises(ValueError, match=text):
        attention(**arguments)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(query=[[1.0]]), r"query is a list, not a numpy array or anything with __dlpack__"),
        (dict(key=None), r"key is None"),
        (dict(kernel_size=3.0), "kernel_size = 3.0 is not an integer"),
        (dict(kernel_size=(3, 3.5)), "kernel_size = 3.5 is not an integer"),
        (dict(kernel_size="33"), "kernel_size = '33' is not an integer"),
        (dict(stride=None), "stride = None is not an integer"),
        (dict(scale="0.3"), "scale = '0.3' is not a number"),
        (dict(scale=True), "scale = True is not a number"),
        (dict(scale=np.complex64(1)), "scale = .* is not a number"),
        (dict(kernel_size=True), "kernel_size = True is not an integer"),
        (dict(kernel_size=(3, np.bool_(True))), "kernel_size = .*True.* is not an integer"),
        (dict(kernel_size=np.array([3])), r"kernel_size = array\(\[3\]\) is not an integer"),
        (dict(dilation=True), "dilation = True is not an integer"),
        (dict(is_causal="no"), "is_causal = 'no' is not a bool"),
        (dict(is_causal=1), "is_causal = 1 is not a bool"),
        (dict(is_causal=None), "is_causal = None is not a bool"),
        (dict(is_causal=(True, 0)), "is_causal = 0 is not a bool"),
        (dict(is_causal=(False, "no")), "is_causal = 'no' is not a bool"),
        (dict(clamp_window="no"), "clamp_window = 'no' is not a bool"),
        (dict(return_lse=1), "return_lse = 1 is not a bool"),
        (dict(query=np.ma.masked_array(QUERY, QUERY == 0)), "query has a mask"),
    ],
)
def test_type_errors(arguments, text):
    with pytest.raises(TypeError, match=text):
        attention(**arguments)


def test_scalars_of_numpy():
    expected = attention(kernel_size=5, is_causal=(True, False), scale=0.5, return_lse=True)
    got = attention(
        kernel_size=(np.int8(5), np.uint64(5)),
        stride=np.int64(1),
        is_causal=(np.True_, np.False_),
        scale=np.float32(0.5),
        return_lse=np.True_,
    )
    for one, other in zip(got, expected):
        np.testing.assert_array_equal(one, other)


def test_integers_and_flags_of_other_functions():
    attn = nhood.na2d_qk(QUERY, QUERY, 3)
    for call, text in (
        (lambda: nhood.na2d_qk(QUERY, QUERY, 3, zero_fill=1), "zero_fill = 1 is not a bool"),
        (lambda: nhood.na2d_av(attn, QUERY, 3, clamp_window=0), "clamp_window = 0 is not a bool"),
        (lambda: nhood.na2d_in(attn, QUERY, 3, kv_heads=True), "kv_heads = True is not an integer"),
        (lambda: nhood.na2d_in(attn, QUERY, 3, kv_heads=4.0), "kv_heads = 4.0 is not an integer"),
        (lambda: nhood.configure(threads=True), "threads = True is not an integer"),
        (lambda: nhood.configure(threads="2"), "threads = '2' is not an integer"),
        (lambda: nhood.configure(isa=2), "isa = 2 is not a str"),
    ):
        with pytest.raises(TypeError, match=text):
            call()


def test_a_wrong_call_stays_wrong_after_a_right_one():
    """Values that compare equal to those of a cached plan are still checked."""
    attention(kernel_size=3)
    with pytest.raises(TypeError):
        attention(kernel_size=3.0)


def test_misaligned_items():
    raw = np.zeros(QUERY.nbytes + 4, np.uint8)
    odd = raw[1 : 1 + QUERY.nbytes].view(np.float32).reshape(QUERY.shape)
    with pytest.raises(ValueError, match=r"^query is at 0x[0-9a-f]+, which is not aligned to 4 bytes$"):
        attention(query=odd)
    fields = np.zeros(QUERY.shape[:-2] + (4,), np.dtype([("a", np.float32, 8), ("b", np.uint8)], align=False))
    with pytest.raises(ValueError, match="stride of 33 bytes, not a multiple of its 4-byte items"):
        attention(key=fields["a"])


def test_backward_and_operators():
    out, lse = attention(return_lse=True)
    with pytest.raises(ValueError, match=r"lse has dtype float64, expected float32"):
        nhood.na2d_backward(out, QUERY, QUERY, QUERY, out, lse.astype(np.float64), 3)
    with pytest.raises(ValueError, match=r"d_out.shape = .*: the value head dim is 7, expected 8"):
        nhood.na2d_backward(out[..., :7], QUERY, QUERY, QUERY, out, lse, 3)
    with pytest.raises(ValueError, match=r"attn.shape = .*: the number of window slots is 8, expected 9"):
        nhood.na2d_av(zeros(1, 7, 9, 4, 8), QUERY, 3)
    with pytest.raises(ValueError, match=r"kv_heads = 0 is less than 1"):
        nhood.na2d_in(zeros(1, 7, 9, 4, 9), QUERY, 3, kv_heads=0)
    with pytest.raises(ValueError, match=r"^kv_heads = 3 does not divide the number of query heads, 4$"):
        nhood.na2d_in(zeros(1, 7, 9, 4, 9), QUERY, 3, kv_heads=3)


def test_no_additional_tokens():
    query = np.random.default_rng(0).standard_normal(QUERY.shape)
    none = zeros(1, 0, 4, 8, dtype=np.float64)
    out, lse = attention(query, query, query, additional_keys=none, additional_values=none, return_lse=True)
    np.testing.assert_array_equal(out, attention(query, query, query))
    gradients = nhood.na2d_backward(
        out, query, query, query, out, lse, 3, additional_keys=none, additional_values=none
    )
    assert [g.shape for g in gradients] == [QUERY.shape] * 3 + [none.shape] * 2


ROWS = zeros(1, 3, 9, 4, 8)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (dict(query=ROWS), r"key.shape = .*: the length of axis 0 is 7, expected 3"),
        (
            dict(query=ROWS, grid=(7, 9), query_offset=(5, 0)),
            r"query_offset\[0\] = 5 and 3 tokens on axis 0 of query: .*beyond 7",
        ),
        (dict(key=ROWS, value=ROWS, grid=(7, 9), key_offset=(7, 0)), r"key_offset\[0\] = 7 is not in \[0, 7\)"),
        (dict(key=ROWS, value=ROWS, key_offset=(-1, 0)), r"key_offset\[0\] = -1 is not in \[0, 7\)"),
        (dict(grid=6), r"query_offset\[0\] = 0 and 7 tokens on axis 0 of query: .*beyond 6"),
        (dict(key=ROWS, grid=(7, 9)), r"value.shape = .*: the length of the keys on axis 0 is 7, expected 3"),
        (dict(grid=(7, 9, 1)), r"grid = \(7, 9, 1\) has 3 entries, not 2"),
        (dict(grid=(0, 9)), r"^grid = \(0, 9\): 0 is not in \[1, 2\^40\]$"),
        (dict(grid=2**64), r"grid\[0\] = 18446744073709551616 does not fit 64 bits"),
        (dict(query_offset=(0, 2**70)), r"query_offset\[1\] = \d+ is not in \[0, 9\)"),
        (dict(grid=(8, 12), is_periodic=True, query_offset=(0, 12)), r"query_offset\[1\] = 12 is not in \[0, 12\)"),
        (dict(grid=(6, 12), is_periodic=True), r"query_offset\[0\] = 0 and 7 tokens on axis 0 of query: .*beyond 6"),
        (
            dict(is_periodic=(False, True), is_causal=(False, True)),
            r"^is_periodic = \(False, True\): a causal axis cannot wrap$",
        ),
        (dict(is_periodic=(False, True), stride=(1, 2)), r"^stride = \(1, 2\): 2 does not divide the 9 tokens of a dilation group of axis 1, which is periodic"),
        (dict(is_periodic=True, dilation=(1, 2)), r"^dilation = \(1, 2\): 2 does not divide the 9 tokens of axis 1, which is periodic$"),
        (dict(is_periodic=(True,)), r"is_periodic = \(True,\) has 1 entry, not 2"),
        (dict(key=zeros(1, 0, 9, 4, 8), grid=(7, 9)), r"key.shape = .*: the length of the keys on axis 0 is 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_parts_of_a_grid(arguments, text):
    with pytest.raises(ValueError, match=text):
        attention(**arguments)


def test_parts_of_a_grid_are_of_integers_and_flags():
    with pytest.raises(TypeError, match=r"query_offset = 1.5 is not an integer"):
        attention(query_offset=1.5)
    with pytest.raises(TypeError, match=r"is_periodic = 1 is not a bool"):
        attention(is_periodic=1)
    with pytest.raises(ValueError, match=r"key_lengths = 3 without grid"):
        nhood.na1d_in(zeros(1, 5, 1, 3), zeros(1, 5, 1, 8), 3, key_lengths=3)
