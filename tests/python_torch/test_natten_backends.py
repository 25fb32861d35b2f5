"""What programs ask of NATTEN's backends on GPUs. The device is made up; the tensors are on the CPU, where nhood
computes whatever a backend's rules let through."""

import nhood.compat.natten
import pytest
import torch
from versions import needs_flex

nhood.compat.natten.install()

import natten  # noqa: E402
import natten._libnatten  # noqa: E402
from natten.backends import get_compatible_backends, get_compatible_fmha_backends  # noqa: E402
from natten.backends.configs import cutlass, cutlass_blackwell, cutlass_hopper, flex  # noqa: E402
from natten.types import KernelSchedule  # noqa: E402
from natten.utils import device  # noqa: E402

pytestmark = needs_flex
HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.fixture
def gpu(monkeypatch):
    def pretend(capability):
        monkeypatch.setattr(natten._libnatten, "HAS_LIBNATTEN", True)
        monkeypatch.setattr(device, "is_cuda", lambda torch_device: True)
        monkeypatch.setattr(device, "get_device_cc", lambda torch_device=None: capability)

    return pretend


def qkv(rank=1, dim=64, dim_v=None, dtype=HALF, grad=False, heads_kv=2):
    shape = (1, *(8,) * rank)
    return (
        torch.ones(*shape, 2, dim, dtype=dtype, requires_grad=grad),
        torch.ones(*shape, heads_kv, dim, dtype=dtype, requires_grad=grad),
        torch.ones(*shape, heads_kv, dim_v or dim, dtype=dtype, requires_grad=grad),
    )


@pytest.mark.parametrize(
    "capability, tensors, expected",
    (
        (90, qkv(), "hopper cutlass flex"),
        (90, qkv(dim=128, grad=True), "hopper cutlass flex"),
        (90, qkv(dim=256), "hopper cutlass flex"),
        (90, qkv(dim=256, grad=True), "cutlass flex"),
        (90, qkv(dim=96), "cutlass"),
        (90, qkv(dim_v=32), "cutlass"),
        (90, qkv(dtype=SINGLE), "cutlass flex"),
        (90, qkv(dtype=DOUBLE), ""),
        (90, qkv(dim=20), ""),
        (90, qkv(heads_kv=1), "hopper cutlass flex"),
        (100, qkv(dtype=BRAIN), "blackwell cutlass flex"),
        (103, qkv(dim=72), "blackwell cutlass"),
        (100, qkv(dim=136), "cutlass"),
        (86, qkv(), "cutlass flex"),
        (60, qkv(), "cutlass"),
        (50, qkv(), ""),
    ),
)
def test_compatible_backends(gpu, capability, tensors, expected):
    gpu(capability)
    assert get_compatible_backends(*tensors, torch_compile=False) == [f"{f}-fna" for f in expected.split()]
    got = get_compatible_fmha_backends(*tensors, is_causal=False, is_varlen=False, torch_compile=False)
    assert got == [f"{f}-fmha" for f in expected.split()]
    causal = get_compatible_fmha_backends(*tensors, is_causal=True, is_varlen=False, torch_compile=False)
    assert causal == [name for name in got if name != "flex-fmha"]
    if expected:
        assert natten.backends.choose_backend(*tensors, torch_compile=False) == f"{expected.split()[0]}-fna"


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_deterministic_backward(gpu, deterministic):
    tensors = qkv(grad=True)
    gpu(90)
    assert get_compatible_backends(*tensors, False) == ["cutlass-fna", "flex-fna"]
    assert get_compatible_fmha_backends(*tensors, False, False, False) == ["cutlass-fmha", "flex-fmha"]
    with pytest.raises(NotImplementedError, match="deterministic"):
        natten.na1d(*tensors, 3, backend="hopper-fna")
    gpu(100)
    assert get_compatible_backends(*tensors, False) == ["cutlass-fna", "flex-fna"]
    assert "blackwell-fmha" in get_compatible_fmha_backends(*tensors, False, False, False)


@pytest.mark.parametrize(
    "capability, backend, tensors, error, words",
    (
        (80, "hopper-fna", qkv(), RuntimeError, "compute capability"),
        (90, "blackwell-fna", qkv(), RuntimeError, "compute capability"),
        (50, "cutlass-fna", qkv(), RuntimeError, "60 or higher"),
        (90, "hopper-fna", qkv(dtype=SINGLE), ValueError, "float32"),
        (90, "hopper-fna", qkv(dim=48), NotImplementedError, "head dim"),
        (90, "hopper-fna", qkv(dim=256, grad=True), NotImplementedError, "gradients"),
        (90, "hopper-fna", qkv(dim_v=32), ValueError, "one head dim"),
        (100, "blackwell-fna", qkv(dim=136), NotImplementedError, "head dim"),
        (90, "cutlass-fna", qkv(dim=12), ValueError, "multiple of 8"),
        (90, "cutlass-fna", qkv(dim_v=12), ValueError, "multiple of 8"),
        (90, "cutlass-fna", qkv(dtype=DOUBLE), ValueError, "float64"),
    ),
)
def test_named_backends_refuse(gpu, capability, backend, tensors, error, words):
    gpu(capability)
    with pytest.raises(error, match=words):
        natten.na1d(*tensors, 3, backend=backend)
    with pytest.raises(error, match=words):
        natten.attention(*tensors, backend=backend.replace("fna", "fmha"))


@pytest.mark.parametrize("rank", (1, 2, 3))
def test_configurations_are_taken(gpu, rank):
    """Every listed configuration can be passed; lists belong to the caller."""
    na = {1: natten.na1d, 2: natten.na2d, 3: natten.na3d}[rank]
    tensors = qkv(rank)
    expected = na(*tensors, 3)
    for capability, family, forward, backward in (
        (80, "cutlass", natten.get_configs_for_cutlass_fna, natten.get_bwd_configs_for_cutlass_fna),
        (
            100,
            "blackwell",
            natten.get_configs_for_cutlass_blackwell_fna,
            natten.get_bwd_configs_for_cutlass_blackwell_fna,
        ),
    ):
        gpu(capability)
        assert forward(*tensors) and backward(*tensors)
        for q, kv in forward(*tensors)[:3]:
            for bq, bkv in backward(*tensors)[:3]:
                got = na(
                    *tensors,
                    3,
                    backend=f"{family}-fna",
                    q_tile_shape=q,
                    kv_tile_shape=kv,
                    backward_q_tile_shape=bq,
                    backward_kv_tile_shape=bkv,
                )
                assert torch.equal(got, expected)
        forward(*tensors).clear()
        backward(*tensors).clear()
        assert forward(*tensors) and backward(*tensors)
    gpu(90)
    for (q, kv), schedule in natten.get_configs_for_cutlass_hopper_fna(*tensors):
        got = na(*tensors, 3, q_tile_shape=q, kv_tile_shape=kv, kernel_schedule=schedule, backend="hopper-fna")
        assert torch.equal(got, expected)
    for q, kv in natten.get_configs_for_flex_fna(*tensors):
        assert torch.equal(na(*tensors, 3, q_tile_shape=q, kv_tile_shape=kv, backend="flex-fna"), expected)


def test_configurations_of_attention(gpu):
    tensors = qkv()
    gpu(90)
    assert natten.get_configs_for_cutlass_fmha(*tensors) == [(32, 128), (64, 64), (64, 128)]
    assert natten.get_bwd_configs_for_cutlass_fmha(*tensors) == [(64, 64), (128, 128)]
    assert natten.get_configs_for_cutlass_hopper_fmha(*tensors) == [((64, 128), KernelSchedule.NonPersistent)]
    assert natten.get_bwd_configs_for_cutlass_hopper_fmha(*tensors) == [(64, 128), (128, 128)]
    assert natten.get_configs_for_flex_fmha(*tensors) == [(64, 64)]
    gpu(100)
    assert natten.get_configs_for_cutlass_blackwell_fmha(*tensors) == [(256, 128)]
    assert natten.get_bwd_configs_for_cutlass_blackwell_fmha(*tensors) == [(128, 128)]
    for (q, kv), (bq, bkv) in (((256, 128), (128, 128)), ((256, 128), (None, None))):
        natten.attention(
            *tensors, q_tile_size=q, kv_tile_size=kv, backward_q_tile_size=bq, backward_kv_tile_size=bkv
        )
    with pytest.raises(ValueError, match="rank"):
        cutlass_blackwell.get_all_fmha_forward_configs(qkv(2)[0])


def test_configurations_depend_on_the_problem(gpu):
    def counts(tensor):
        return len(cutlass.get_all_forward_configs(tensor)), len(cutlass.get_all_backward_configs(tensor))

    plane, line = qkv(2)[0], qkv()[0]
    gpu(80)
    assert counts(plane) == (27, 61) and counts(qkv(2, dim=192)[0]) == (27, 55)
    assert counts(qkv(2, dtype=SINGLE)[0]) == (27, 55)
    gpu(86)
    assert counts(plane) == (17, 25)
    gpu(70)
    assert counts(plane) == (27, 55) and counts(qkv(2, dtype=SINGLE)[0]) == (27, 25)
    gpu(90)
    wide = qkv(dim=128)[0]
    assert [schedule for _, schedule in cutlass_hopper.get_all_forward_configs(wide)] == [
        KernelSchedule.WarpSpecializedCooperative,
        KernelSchedule.WarpSpecializedPingpong,
    ]
    assert cutlass_hopper.get_all_backward_configs(qkv(dim=256)[0]) == []
    assert cutlass_blackwell.get_all_forward_configs(line) == []
    assert flex.get_all_tile_shapes_forward(line) == flex.FLEX_FORWARD_TILE_SHAPES[1]


def test_configurations_without_a_gpu():
    tensors = qkv(dtype=SINGLE)
    assert natten.get_configs_for_cutlass_fna(*tensors) == []
    assert natten.get_bwd_configs_for_cutlass_fmha(*tensors) == []
    assert natten.get_configs_for_cutlass_hopper_fna(*tensors) == []
    assert natten.get_configs_for_flex_fna(*tensors) == [((64,), (64,))]
    assert natten.get_configs_for_flex_fna(*qkv(dim=20)) == []


@pytest.mark.parametrize(
    "words, arguments",
    (
        ("both tiles", dict(q_tile_shape=(8, 8))),
        ("not among", dict(q_tile_shape=(8, 8), kv_tile_shape=(8, 9))),
        ("at most 3 ints", dict(q_tile_shape=(8, 8), kv_tile_shape="88")),
        ("backward", dict(backward_q_tile_shape=(8, 8), backward_kv_tile_shape=(1, 64))),
    ),
)
def test_tiles_refused(gpu, words, arguments):
    gpu(80)
    tensors = qkv(2)
    for backend in ("cutlass-fna", None):
        with pytest.raises(ValueError, match=words):
            natten.na2d(*tensors, 3, backend=backend, **arguments)
    natten.na2d(*qkv(2, dtype=DOUBLE), 3, **arguments)  # no backend would take it: tiles mean nothing


def test_schedules(gpu):
    gpu(90)
    wide, narrow = qkv(dim=128), qkv(dim=64)
    natten.na1d(*wide, 3, kernel_schedule="pp")
    natten.na1d(*wide, 3, kernel_schedule=KernelSchedule.WarpSpecializedCooperative)
    with pytest.raises(ValueError, match="schedule"):
        natten.na1d(*wide, 3, kernel_schedule="non")
    with pytest.raises(ValueError, match="schedule"):
        natten.na1d(*narrow, 3, kernel_schedule="coop", backend="hopper-fna")
    with pytest.raises(ValueError, match="kernel_schedule"):
        natten.na1d(*narrow, 3, kernel_schedule="fastest", backend="cutlass-fna")


def test_queries_refuse_tensors_that_differ():
    query, key, value = qkv(dtype=SINGLE)
    for tensors in ((query, key.half(), value), (query, key, value.to("meta"))):
        with pytest.raises(ValueError, match="differ"):
            get_compatible_backends(*tensors, torch_compile=False)


def test_functions_that_name_their_backend():
    from natten.backends import cutlass_fna_generic, na2d_flex
    from natten.backends.flex import _FLEX_SUPPORTED, flex_fmha
    from natten.backends.fna import na1d_cutlass_fna
    from natten.backends.reference import reference_fna_generic

    assert _FLEX_SUPPORTED
    plane, line = qkv(2, dtype=SINGLE), qkv(dtype=SINGLE)
    assert torch.equal(na2d_flex(*plane, 3, 1, 2, scale=0.2), natten.na2d(*plane, 3, dilation=2, scale=0.2))
    assert torch.equal(flex_fmha(*line, return_lse=True)[1], natten.attention(*line, return_lse=True)[1])
    assert torch.equal(
        reference_fna_generic(*line, 3, return_lse=True)[1], natten.na1d(*line, 3, return_lse=True)[1]
    )
    for function in (cutlass_fna_generic, na1d_cutlass_fna):
        with pytest.raises(RuntimeError, match="CUDA"):
            function(*line, 3)
