"""Results of nhood.torch against the dense formulation in numpy, and how tensors may lie in memory."""

import gc
import json
import subprocess
import sys

import dense
import nhood
import nhood.torch as nt
import numpy as np
import pytest
import torch
from cases import CASES, PARTS, assert_near, random_case, random_part
from nhood import _library, _plans
from nhood.torch import _tensors
from versions import needs_precisions

DTYPES = {name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")}


def tensors(case, dtype, seed=1):
    return {
        name: torch.from_numpy(array).to(DTYPES[dtype])
        for name, array in case.arrays(np.dtype(np.float64), seed).items()
    }


def call(case, arrays, **more):
    query, key, value, *_ = arrays.values()
    rest = {name: arrays[name] for name in list(arrays)[3:]}
    return nt.neighborhood_attention(query, key, value, **case.axes, scale=case.scale, **rest, **more)


def f64(arrays):
    return {name: array.double().numpy() for name, array in arrays.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES + PARTS, ids=str)
def test_attention(case, dtype):
    arrays = tensors(case, dtype)
    out, lse = call(case, arrays, return_lse=True)
    assert out.dtype == DTYPES[dtype]
    assert lse.dtype == (torch.float64 if dtype == "float64" else torch.float32)
    expected, expected_lse = dense.forward(case, f64(arrays))
    assert_near(out.double().numpy(), expected, 16, dtype, scale=1)
    assert_near(lse.double().numpy(), expected_lse, 64, "float64" if dtype == "float64" else "float32", scale=4)


@pytest.mark.parametrize("seed", range(20))
def test_any_problem(seed):
    case = (random_part if seed % 2 else random_case)(seed)
    arrays = tensors(case, "float64", seed)
    assert_near(call(case, arrays).numpy(), dense.forward(case, f64(arrays))[0], 64, "float64", scale=1)


@pytest.mark.parametrize("case", [case for case in CASES + PARTS if not case.extra], ids=str)
def test_unfused(case):
    arrays = tensors(case, "float64")
    rank, axes = case.rank, case.axes
    qk, av = getattr(nt, f"na{rank}d_qk"), getattr(nt, f"na{rank}d_av")
    for zero_fill, unused in ((False, -np.inf), (True, 0.0)):
        attn = qk(
            arrays["query"], arrays["key"], **axes, scale=case.scale, bias=arrays.get("bias"), zero_fill=zero_fill
        )
        expected = dense.qk(case, f64(arrays), unused)
        assert (attn.numpy() == unused).sum() == (expected == unused).sum()
        finite = np.isfinite(expected)
        assert_near(attn.numpy()[finite], expected[finite], 32, "float64", scale=1)
    attn = attn.softmax(-1).nan_to_num()  # rows without keys
    out = av(attn, arrays["value"], **axes)
    assert_near(out.numpy(), dense.av(case, attn.numpy(), arrays["value"].numpy()), 32, "float64", scale=1)


def test_rank_is_that_of_the_tensor():
    query, key, value = torch.randn(3, 2, 6, 7, 1, 8)
    expected = nt.na2d(query, key, value, (3, 5))
    assert torch.equal(nt.neighborhood_attention(query, key, value, (3, 5)), expected)
    with pytest.raises(ValueError, match=r"query.shape = \(7, 1, 8\) has 3 axes"):
        nt.neighborhood_attention(query[0, 0], key[0, 0], value[0, 0], 3)


# How tensors lie in memory


def copies(monkeypatch):
    """Names the inputs that are copied to make them readable."""
    nhood.clear_cache()  # calls that are remembered are not prepared
    made, prepare = [], _tensors._prepare

    def noted(context, device, request, *seen):
        call = prepare(context, device, request, *seen)
        made.extend(request.operation.input_names[i] for i in call.unreadable)
        return call

    monkeypatch.setattr(_tensors, "_prepare", noted)
    return made


def test_packed_projections_are_read_in_place(monkeypatch):
    made = copies(monkeypatch)
    qkv = torch.randn(2, 9, 8, 3, 4, 16, requires_grad=True)
    query, key, value = qkv.unbind(3)
    assert not query.is_contiguous()
    out = nt.na2d(query, key, value, 5)
    separate = [t.detach().clone().requires_grad_() for t in (query, key, value)]
    expected = nt.na2d(*separate, 5)
    assert torch.equal(out, expected)
    d_out = torch.randn_like(out)
    out.backward(d_out)
    expected.backward(d_out)
    assert torch.equal(qkv.grad, torch.stack([t.grad for t in separate], 3))
    assert made == []


def test_any_strides(monkeypatch):
    made = copies(monkeypatch)
    query, key, value = torch.randn(3, 2, 9, 8, 4, 16)
    expected = nt.na2d(query, key, value, 5)
    heads_first = [t.permute(0, 3, 1, 2, 4).contiguous().permute(0, 2, 3, 1, 4) for t in (query, key, value)]
    assert torch.equal(nt.na2d(*heads_first, 5), expected)
    broadcast = nt.na2d(query[:1].expand(2, -1, -1, -1, -1), key, value, 5)
    assert torch.equal(broadcast[0], expected[0])
    assert made == []
    channels_first = query.movedim(-1, 1).contiguous().movedim(1, -1)  # the last axis is not contiguous
    assert torch.equal(nt.na2d(channels_first, key, value, 5), expected)
    everywhere = torch.randn(16).expand(2, 9, 8, 4, 16)
    assert torch.equal(nt.na2d(everywhere, key, value, 5), nt.na2d(everywhere.clone(), key, value, 5))
    assert made == ["query", "query"]
    bias = torch.randn(9, 9, 4).permute(2, 0, 1)
    made.clear()
    out = nt.na2d(query, key, value, 5, bias=bias)
    assert made == ["bias"]
    assert torch.equal(out, nt.na2d(query, key, value, 5, bias=bias.contiguous()))
    assert made == ["bias"]


def tensors_alive():
    return sum(type(x) is torch.Tensor for x in gc.get_objects())


def test_repeated_calls_keep_no_memory():
    query, key, value = (torch.randn(1, 16, 16, 2, 32, requires_grad=True) for _ in range(3))

    def step():
        nt.na2d(query, key, value, 7).sum().backward()
        query.grad = key.grad = value.grad = None

    step()
    plans = _plans.find_plan.cache_info().currsize
    gc.collect()
    before = tensors_alive()
    gc.disable()
    try:
        for _ in range(50):
            step()
        after = tensors_alive()
    finally:
        gc.enable()
    assert after <= before, "tensors are kept, or freed only by the cycle collector"
    assert _plans.find_plan.cache_info().currsize == plans


def test_clearing_the_cache_lets_go_of_plans():
    query = torch.randn(1, 9, 2, 16)
    nt.na1d(query, query, query, 5)
    assert _tensors._prepare.cache_info().currsize > 0
    nhood.clear_cache()
    assert _tensors._prepare.cache_info().currsize == _plans.find_plan.cache_info().currsize == 0
    nt.na1d(query, query, query, 5)


# Settings and errors


def test_autocast():
    query, key, value = (torch.randn(1, 9, 2, 16, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 9, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out, lse = nt.na1d(query, key, value, 5, bias=bias, return_lse=True)
        half = nt.na1d(query.double(), key.double(), value.double(), 5)
        attn = nt.na1d_qk(query, key, 5)
        assert nt.na1d_av(attn.softmax(-1), value, 5).dtype == torch.bfloat16
    assert (out.dtype, lse.dtype, half.dtype, attn.dtype) == (
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.bfloat16,
    )
    out.sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in (query, key, value, bias))
    expected = nt.na1d(query.bfloat16(), key.bfloat16(), value.bfloat16(), 5, bias=bias.bfloat16())
    assert torch.equal(out, expected)


def test_deterministic_algorithms_are_asked_for(monkeypatch):
    nhood.clear_cache()  # calls that are remembered are not prepared
    flags = []
    prepare = _tensors._prepare
    monkeypatch.setattr(_tensors, "_prepare", lambda *key: (flags.append(key[2].flags), prepare(*key))[1])
    query = torch.randn(1, 9, 2, 16)
    nt.na1d(query, query, query, 5)
    torch.use_deterministic_algorithms(True)
    try:
        nt.na1d(query, query, query, 5)
    finally:
        torch.use_deterministic_algorithms(False)
    assert flags == [0, _library.FLAG_DETERMINISTIC]


TF32_SETTINGS = [
    ("pass", False),
    ("torch.set_float32_matmul_precision('high')", True),
    ("torch.backends.cuda.matmul.allow_tf32 = True", True),
    pytest.param("torch.backends.cuda.matmul.fp32_precision = 'tf32'", True, marks=needs_precisions),
    pytest.param("torch.backends.fp32_precision = 'tf32'", True, marks=needs_precisions),
    pytest.param("torch.backends.cuda.matmul.fp32_precision = 'ieee'", False, marks=needs_precisions),
]

# Imports torch once, then makes each setting in a child of its own, and prints what each of them finds.
IN_CHILDREN = """
import json, multiprocessing, sys, traceback
import torch
import nhood.torch._tensors as t

def child(setting, found):
    try:
        exec(setting)
        found.send(t.tf32_allowed())
    except BaseException:
        found.send(traceback.format_exc())

context = multiprocessing.get_context("fork")
answers = {}
for setting in sys.argv[1:]:
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(setting, sending))
    process.start()
    sending.close()
    answers[setting] = receiving.recv()
    process.join()
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def tf32_found():
    """What is found with each setting. In processes: torch refuses its old settings once a new one has been used."""
    settings = [getattr(case, "values", case)[0] for case in TF32_SETTINGS]
    done = subprocess.run([sys.executable, "-c", IN_CHILDREN, *settings], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("setting, allowed", TF32_SETTINGS)
def test_tf32_is_allowed_as_torch_is_told(tf32_found, setting, allowed):
    assert tf32_found[setting] is allowed, tf32_found[setting]


QUERY = torch.zeros(1, 9, 2, 8)


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(kernel_size=10), ValueError, r"^kernel_size = 10 exceeds the 9 tokens of axis 0$"),
        (dict(kernel_size=(3, 3)), ValueError, r"kernel_size = \(3, 3\) has 2 entries, not 1"),
        (dict(kernel_size=3.0), TypeError, r"kernel_size = 3\.0 is not an integer"),
        (dict(stride=4), ValueError, r"^stride = 4 exceeds kernel_size 3 of axis 0$"),
        (dict(key=torch.zeros(1, 8, 2, 8)), ValueError, "the length of axis 0 is 8, expected 9"),
        (dict(key=torch.zeros(1, 9, 2, 8).double()), ValueError, "key has dtype float64, expected float32"),
        (dict(query=QUERY.long()), ValueError, "query has dtype torch.int64: not one of float64"),
        (dict(value=torch.zeros(1, 9, 16)), ValueError, r"value.shape = \(1, 9, 16\) has 3 axes, not 4"),
        (dict(value=torch.zeros(3)), ValueError, r"value.shape = \(3,\) has 1 axes"),
        (dict(key=None), (TypeError, RuntimeError), "key"),
        (dict(additional_keys=QUERY), ValueError, "give both or neither"),
        (dict(bias=torch.zeros(2, 5), is_causal=True), ValueError, "causal"),
        (dict(bias=torch.zeros(2, 6)), ValueError, r"bias.shape = \(2, 6\)"),
        (dict(scale=float("nan")), ValueError, "scale = nan"),
    ],
)
def test_errors(change, error, text):
    arguments = {**dict(query=QUERY, key=QUERY, value=QUERY, kernel_size=3), **change}
    with pytest.raises(error, match=text):
        nt.na1d(**arguments)


def test_help_is_complete():
    for name in nt.__all__:
        assert getattr(nt, name).__doc__, name
    assert "query: [B, X, Y, H, D]" in nt.na2d.__doc__ and "PARAGRAPH" not in nt.na2d.__doc__


def test_the_numpy_package_points_here():
    tensor = torch.randn(1, 9, 2, 8, requires_grad=True)
    with pytest.raises(ValueError, match="nhood.torch"):
        nhood.na1d(tensor, tensor, tensor, 3)


def test_old_versions_are_refused():
    code = "import torch; del torch.library.register_fake; import nhood.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert f"ImportError: nhood.torch needs torch 2.4 or later, this is {torch.__version__}" in done.stderr
