"""What surrounds NATTEN's functions: switches, helpers, and the names themselves."""

import functools
import importlib
import inspect
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import nhood.compat.natten
import pytest
import torch
from nhood import _library as c
from nhood import _operations, _plans
from nhood.torch import _tensors
from versions import needs_flex, needs_flop_counts

nhood.compat.natten.install()

import natten  # noqa: E402
from natten.context import AutotunerContext, MemoryUsagePreference, NattenContext  # noqa: E402
from natten.token_permute import (  # noqa: E402
    maybe_pad,
    maybe_unpad,
    token_permute,
    token_permute_operation,
    token_unpermute,
    token_unpermute_operation,
)


@pytest.fixture(autouse=True)
def reset():
    yield
    NattenContext.reset()
    AutotunerContext.reset()


def in_new_process(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Switches


def test_memory_preference():
    assert natten.is_memory_usage_default()
    natten.set_memory_usage_preference("strict")
    assert natten.is_memory_usage_strict() and not natten.is_memory_usage_default()
    natten.set_memory_usage_preference("unrestricted")
    assert natten.is_memory_usage_unrestricted()
    assert natten.get_memory_usage_preference() is MemoryUsagePreference.Unrestricted
    with pytest.raises(ValueError, match="'most'"):
        natten.set_memory_usage_preference("most")
    NattenContext.reset()
    assert natten.is_memory_usage_default()


def test_determinism_and_parallelism_over_keys():
    assert natten.is_kv_parallelism_in_fused_na_enabled()
    natten.use_kv_parallelism_in_fused_na(False)
    assert not natten.is_kv_parallelism_in_fused_na_enabled()
    natten.use_deterministic_algorithms()
    assert natten.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="deterministic"):
        natten.use_kv_parallelism_in_fused_na(True)
    with pytest.raises(RuntimeError, match="deterministic"):
        natten.use_autotuner(forward_pass=True)
    natten.use_deterministic_algorithms(False)
    natten.use_kv_parallelism_in_fused_na()
    assert natten.is_kv_parallelism_in_fused_na_enabled()


@functools.lru_cache(maxsize=None)
def said_by_version(version):
    """The defaults of a version that the environment asks for (None: it does not), and its name and the module of its functions: by one
    process, of which importing torch is most."""
    code = "import nhood.compat.natten as n; n.install(); import natten; print(natten.is_kv_parallelism_in_fused_na_enabled(), end=' '); "
    code += "natten.use_fused_na(); print(natten.is_kv_parallelism_in_fused_na_enabled(), end=' '); "
    code += "natten.context.NattenContext.reset(); print(natten.is_kv_parallelism_in_fused_na_enabled()); "
    code += "print(natten.__version__, natten.na1d.__module__)"
    return in_new_process(code, **({} if version is None else {"NHOOD_NATTEN_VERSION": version})).splitlines()


def test_defaults_of_older_versions():
    assert said_by_version("0.17.5")[0] == "False True False"
    assert said_by_version(None)[0] == "True True True"


def test_a_changed_setting_outlasts_a_change_of_version():
    try:
        nhood.compat.natten.install("0.17.5")
        assert not natten.is_kv_parallelism_in_fused_na_enabled()
        natten.use_kv_parallelism_in_fused_na()
        nhood.compat.natten.install("0.21.0")
        nhood.compat.natten.install("0.17.5")
        natten.use_fused_na(kv_parallel=True)
        assert natten.is_kv_parallelism_in_fused_na_enabled()
    finally:
        nhood.compat.natten.install()
        NattenContext.reset()


def test_determinism_reaches_the_plans():
    request = _plans.Request(_operations.FORWARD, (3,), (1,), (1,), (False,), None, 0, (True, False))
    tensor = torch.zeros(1)
    assert not _tensors._settings(request, tensor, 0).flags & c.FLAG_DETERMINISTIC
    natten.use_deterministic_algorithms()
    assert _tensors._settings(request, tensor, 0).flags & c.FLAG_DETERMINISTIC


def test_deterministic_mode_of_torch():
    natten.use_kv_parallelism_in_fused_na(False)
    torch.use_deterministic_algorithms(True)
    try:
        natten.use_kv_parallelism_in_fused_na(True)
        natten.use_autotuner(True, True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not natten.is_kv_parallelism_in_fused_na_enabled() and not natten.is_autotuner_enabled()


def test_guards_of_flex():
    assert not natten.is_flex_compile_allowed() and not natten.is_flex_compile_backprop_allowed()
    natten.allow_flex_compile()
    assert natten.is_flex_compile_allowed() and not natten.is_flex_compile_backprop_allowed()
    natten.allow_flex_compile(True, backprop=True)
    assert natten.is_flex_compile_backprop_allowed()
    natten.disable_flex_compile_backprop()
    assert natten.is_flex_compile_allowed() and not natten.is_flex_compile_backprop_allowed()
    natten.disable_flex_compile()
    assert not natten.is_flex_compile_allowed()
    natten.allow_flex_compile_backprop()
    assert natten.is_flex_compile_allowed() and natten.is_flex_compile_backprop_allowed()
    natten.allow_flex_compile(False)
    assert not natten.is_flex_compile_allowed() and not natten.is_flex_compile_backprop_allowed()


def test_fused_switches():
    assert not natten.is_fused_na_enabled() and not natten.is_fna_enabled()
    natten.use_fused_na(True, kv_parallel=False)
    assert natten.is_fna_enabled() and not natten.is_kv_parallelism_in_fused_na_enabled()
    natten.use_flex_attention()
    assert natten.context.should_use_flex_attention() and not natten.context.should_force_flex_attention()
    natten.force_flex_attention()
    assert natten.context.should_force_flex_attention()
    natten.use_fna(False)
    assert not natten.is_fused_na_enabled() and not natten.context.should_use_flex_attention()


@pytest.mark.parametrize("switch", ["use_fused_na", "use_fna"])
def test_fused_switch_is_that_of_parallelism_over_keys_too(switch):
    """In each version that has it; where fused kernels are switched off kv_parallel is not looked at."""
    switch = getattr(natten, switch)

    def both():
        return natten.is_fused_na_enabled(), natten.is_kv_parallelism_in_fused_na_enabled()

    try:
        for version in ("0.17.5", natten.__version__):
            nhood.compat.natten.install(version)
            natten.use_kv_parallelism_in_fused_na(False)
            steps = [((), True, True), ((False,), False, False), ((True,), True, True), ((True, False), True, False)]
            steps += [((True, True), True, True), ((False, True), False, False), ((False, False), False, False)]
            for arguments, *expected in steps:
                switch(*arguments)
                assert both() == tuple(expected), (version, arguments)
            natten.use_deterministic_algorithms()
            switch(False, kv_parallel=True)
            switch(True, kv_parallel=False)
            assert both() == (True, False)
            switch(False)
            for arguments in ((), (True, True)):
                with pytest.raises(RuntimeError, match="deterministic"):
                    switch(*arguments)
                assert both() == (False, False)
            natten.use_deterministic_algorithms(False)
    finally:
        nhood.compat.natten.install()
        NattenContext.reset()


def test_autotuner_switches():
    natten.use_autotuner(
        forward_pass=True, thorough_mode_backward=True, warmup_steps_forward=2, steps_backward=9
    )
    assert natten.is_autotuner_enabled_for_forward() and not natten.is_autotuner_enabled_for_backward()
    assert natten.is_autotuner_thorough_for_backward() and not natten.is_autotuner_thorough_for_forward()
    assert AutotunerContext.warmup_steps_forward == 2 and AutotunerContext.steps_backward == 9
    natten.use_autotuner(False, False)
    assert not natten.is_autotuner_enabled() and natten.is_autotuner_thorough_for_backward()
    natten.disable_autotuner()
    assert not natten.is_autotuner_thorough_for_backward()
    for wrong in (dict(forward_pass=1), dict(steps_forward=2.5)):
        with pytest.raises(ValueError, match="expected"):
            natten.use_autotuner(**wrong)


@pytest.mark.parametrize("kind", ("gemm_na", "tiled_na", "tf32"))
def test_kernel_switches(kind):
    long = {"tf32": "tf32_in_gemm_na"}.get(kind, kind)
    enabled = getattr(natten, f"is_{long}_enabled")
    assert getattr(natten, f"disable_{kind}")() is False and not enabled()
    getattr(natten, f"use_{long}")(True)
    assert enabled()
    assert getattr(natten, f"enable_{kind}")() is True and enabled()


def test_what_the_device_has():
    names = "cuda half bfloat gemm fna fused_na tf32_gemm fp32_gemm fp64_gemm".split()
    answers = [getattr(natten, f"has_{name}")() for name in names]
    if torch.cuda.is_available():
        assert answers[0] and natten.HAS_LIBNATTEN
    else:
        assert not any(answers) and not natten.HAS_LIBNATTEN


# Helpers


def test_check_all_args():
    from natten.utils.checks import check_all_args

    assert check_all_args(2, 3, None, (1, 2), None) == ((3, 3), (1, 1), (1, 2), (False, False))
    assert check_all_args(1, [5], 2, 1, [True]) == ((5,), (2,), (1,), (True,))


def test_device_and_dtype_helpers():
    from natten.utils.device import get_device_cc, is_cpu, is_cuda, is_rocm
    from natten.utils.dtype import is_fp8, is_full, is_half

    cpu = torch.device("cpu")
    assert is_cpu(cpu) and not is_cuda(cpu) and not is_rocm(cpu) and get_device_cc(cpu) == 0
    assert is_fp8(torch.float8_e4m3fn) and is_fp8(torch.float8_e5m2) and not is_fp8(torch.float16)
    assert is_half(torch.bfloat16) and is_full(torch.float32) and not is_full(torch.float64)


def test_decorators_skip():
    from natten.utils import testing

    ran = []

    class Case(unittest.TestCase):
        @testing.skip_if_not_running_extended_tests()
        def test_extended(self):
            ran.append("extended")

        @testing.skip_if_blackwell_kernels_not_supported()
        def test_blackwell(self):
            ran.append("blackwell")

        @testing.skip_if_cuda_is_not_supported()
        def test_cuda(self):
            ran.append("cuda")

    outcome = unittest.TestResult()
    unittest.TestLoader().loadTestsFromTestCase(Case).run(outcome)
    assert outcome.wasSuccessful() and outcome.testsRun == 3
    assert len(outcome.skipped) + len(ran) == 3 and ("cuda" in ran) == torch.cuda.is_available()


def test_logger(monkeypatch, tmp_path):
    from natten.utils.log import NattenLogger, _get_log_pipe, get_logger

    monkeypatch.delenv("NATTEN_LOG_PIPE", raising=False)
    assert _get_log_pipe() is sys.stdout
    for value, expected in (("stderr", sys.stderr), ("/dev/null", None), (str(tmp_path / "no" / "log"), None)):
        monkeypatch.setenv("NATTEN_LOG_PIPE", value)
        assert _get_log_pipe() is expected
    path = tmp_path / "log"
    monkeypatch.setenv("NATTEN_LOG_PIPE", str(path))
    monkeypatch.setenv("NATTEN_LOG_LEVEL", "warning")
    logger = get_logger("natten-test")
    assert isinstance(logger, NattenLogger)
    logger.info("not this")
    logger.warning("this")
    text = path.read_text()
    assert "this" in text and "[ WARNING ]" in text and "not this" not in text


def test_compute_delta():
    from natten._libnatten import compute_delta

    out, d_out = torch.rand(2, 2, 5, 3, 8).half()
    delta = torch.empty(2, 5, 3)
    compute_delta(out, d_out, delta)
    torch.testing.assert_close(delta, (out.float() * d_out.float()).sum(-1))
    with pytest.raises(ValueError, match="delta"):
        compute_delta(out, d_out, delta[..., :2])


@pytest.mark.parametrize(
    "shape, tile, dilation",
    (((10,), (4,), None), ((9, 12), (4, 2), (2, 3)), ((8, 8), (4, 4), None), ((5, 6, 7), (2, 3, 2), (1, 2, 2))),
)
@pytest.mark.parametrize("flip", (True, False))
def test_token_permute(shape, tile, dilation, flip):
    """Against the definition, token by token, and back."""
    x = 1 + torch.rand(2, *shape, 2, 3)
    permuted, layout, group_layout = token_permute_operation(x, tile, dilation, flip_tiled_dims=flip)
    dilation = dilation or (1,) * len(shape)
    assert layout == shape
    groups = torch.tensor(dilation).prod().item()
    assert permuted.shape == (2 * groups, torch.tensor(group_layout).prod().item(), 2, 3)
    tiles = [g // t for g, t in zip(group_layout, tile)]
    order = range(len(shape) - 1, -1, -1) if flip else range(len(shape))

    def row_major(place, extents):
        number = 0
        for axis in order:
            number = number * extents[axis] + place[axis]
        return number

    for token in torch.cartesian_prod(*map(torch.arange, shape)).reshape(-1, len(shape)).tolist():
        position = [t // d for t, d in zip(token, dilation)]
        group = row_major([t % d for t, d in zip(token, dilation)], dilation)
        tile_number = row_major([p // t for p, t in zip(position, tile)], tiles)
        inside = row_major([p % t for p, t in zip(position, tile)], tile)
        row = tile_number * torch.tensor(tile).prod().item() + inside
        for b in range(2):
            assert torch.equal(permuted[b * groups + group, row], x[(b, *token)])
    assert permuted.count_nonzero() == x.numel()
    assert torch.equal(token_unpermute_operation(permuted, shape, tile, dilation, flip_tiled_dims=flip), x)
    # 0.20 pads by itself, and has the dilation groups among the heads.
    padded, padding = maybe_pad(x, tile, dilation)
    older, older_layout, older_tiles = token_permute(padded, tile, dilation, flip)
    assert torch.equal(older.unflatten(2, (groups, 2)).movedim(2, 1).flatten(0, 1), permuted)
    assert (older_layout, older_tiles) == (group_layout, tuple(tiles))
    back = token_unpermute(older, tile, older_layout, older_tiles, dilation, flip)
    assert torch.equal(back, padded) and torch.equal(maybe_unpad(back, padding), x)


def test_token_permute_refused():
    x = torch.zeros(1, 8, 8, 2, 4)
    for call in (
        lambda: token_permute_operation(x[0, 0], (2,)),
        lambda: token_permute_operation(x, (2,)),
        lambda: token_permute_operation(x, (2, 2), (1,)),
        lambda: token_unpermute_operation(x, (8, 8), (2, 2)),
        lambda: token_unpermute_operation(x[0], (8, 8), (2,)),
        lambda: token_permute(x, (3, 2)),
        lambda: token_unpermute(x[0], (2, 2), (4, 4), (2, 2), (2, 2)),
        lambda: maybe_unpad(x, (1,)),
    ):
        with pytest.raises(ValueError):
            call()


# Names

TODAY = """NeighborhoodAttention1D NeighborhoodAttention2D NeighborhoodAttention3D are_deterministic_algorithms_enabled
use_deterministic_algorithms use_kv_parallelism_in_fused_na is_kv_parallelism_in_fused_na_enabled
set_memory_usage_preference get_memory_usage_preference is_memory_usage_default is_memory_usage_strict
is_memory_usage_unrestricted is_flex_compile_allowed is_flex_compile_backprop_allowed allow_flex_compile
allow_flex_compile_backprop disable_flex_compile disable_flex_compile_backprop get_bwd_configs_for_cutlass_fmha
get_bwd_configs_for_cutlass_fna get_configs_for_cutlass_fmha get_configs_for_cutlass_fna
get_configs_for_cutlass_hopper_fmha get_bwd_configs_for_cutlass_hopper_fmha get_configs_for_cutlass_hopper_fna
get_bwd_configs_for_cutlass_hopper_fna get_bwd_configs_for_cutlass_blackwell_fmha
get_bwd_configs_for_cutlass_blackwell_fna get_configs_for_cutlass_blackwell_fmha get_configs_for_cutlass_blackwell_fna
get_configs_for_flex_fmha get_configs_for_flex_fna HAS_LIBNATTEN na1d na2d na3d attention merge_attentions __version__"""

UP_TO_0_17 = """use_fna is_fna_enabled use_fused_na is_fused_na_enabled use_autotuner force_flex_attention
use_flex_attention disable_autotuner is_autotuner_enabled is_autotuner_enabled_for_forward
is_autotuner_enabled_for_backward is_autotuner_thorough_for_forward is_autotuner_thorough_for_backward has_cuda has_half
has_bfloat has_gemm has_fna has_fused_na has_tf32_gemm has_fp32_gemm has_fp64_gemm use_tf32_in_gemm_na use_tiled_na
use_gemm_na is_tf32_in_gemm_na_enabled is_tiled_na_enabled is_gemm_na_enabled enable_tf32 disable_tf32 enable_gemm_na
disable_gemm_na enable_tiled_na disable_tiled_na"""


def test_public_names():
    names = set(TODAY.split() + UP_TO_0_17.split())
    assert names <= set(natten.__all__) and not [name for name in natten.__all__ if not hasattr(natten, name)]


def expanded(name):
    """a{b,c}d: abd, acd"""
    found = re.search(r"{([^{}]*)}", name)
    if not found:
        return [name]
    return [x for word in found[1].split(",") for x in expanded(name[: found.start()] + word + name[found.end() :])]


def documented_names():
    """The second column of the table of names, but for arguments and commands."""
    document = Path(__file__).resolve().parents[2] / "docs" / "migrating-from-natten.md"
    table = document.read_text().split("## Names")[1].split("\n## ")[0]
    columns = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")][1:]
    spans = [span for column in columns if "arguments" not in column for span in re.findall(r"`([^`]*)`", column)]
    names = [name.removeprefix("natten.") for span in spans for name in expanded(re.sub(r"\(.*", "", span))]
    return {name for name in names if re.fullmatch(r"[\w.]*\w", name)}


def exists(name):
    head, _, rest = name.rpartition(".")
    try:
        owner = importlib.import_module(f"nhood.compat.natten.{head}".rstrip("."))
    except ModuleNotFoundError:  # the head is a class
        module, _, owner_name = head.rpartition(".")
        owner = getattr(importlib.import_module(f"nhood.compat.natten.{module}"), owner_name, None)
    return hasattr(owner, rest)


def test_documented_names():
    """The table of names says all that there is, and nothing else."""
    documented = documented_names()
    absent = {name for name in documented if not exists(name)}
    assert absent <= {"rpb", "kernel_size"}, "words of the table's prose"
    leaves = {name.rpartition(".")[2] for name in documented}
    packages = natten, natten.functional, natten.backends, natten.token_permute, natten.utils, natten.utils.testing
    for module in packages:
        exported = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
        ]
        public = [name for name in exported if not inspect.ismodule(getattr(module, name)) and name[0] != "_"]
        assert set(public) - {"install"} <= leaves, module.__name__


def test_signatures():
    ours = list(inspect.signature(natten.na2d).parameters)
    assert ours[:8] == ["query", "key", "value", "kernel_size", "stride", "dilation", "is_causal", "scale"]
    assert natten.na2d.__name__ == "na2d"
    assert list(inspect.signature(natten.functional.na2d_qk).parameters) == [
        "query",
        "key",
        "kernel_size",
        "dilation",
        "additional_keys",
        "is_causal",
        "rpb",
    ]


IMPORTS = """
import natten
from natten import NeighborhoodAttention2D, allow_flex_compile
from natten._environment import _NUM_RAND_SWEEP_TESTS, _RUN_EXTENDED_TESTS, _RUN_FLEX_TESTS, HAS_LIBNATTEN
from natten._environment import _IS_CUDA_AVAILABLE
from natten._libnatten import compute_delta
from natten.backends import get_compatible_backends, get_compatible_fmha_backends
from natten.backends.configs.cutlass import get_all_backward_configs, get_all_fmha_backward_configs
from natten.backends.configs.cutlass_blackwell import get_all_fmha_forward_configs
from natten.backends.configs.cutlass_hopper import get_all_forward_configs
from natten.backends.configs.flex import FLEX_FORWARD_TILE_SHAPES
from natten.backends.flex import _FLEX_COMPILE_SUPPORTED, _FLEX_SUPPORTED
from natten.backends.reference import reference_fna_generic
from natten.context import NattenContext, set_memory_usage_preference, use_kv_parallelism_in_fused_na
from natten.experimental import na3d
from natten.flops import add_natten_handle, fna_flop_count, get_flops, na_av_flop_count, na_qk_flop_count
from natten.functional import attention, merge_attentions, natten2dav, natten2dqkrpb, neighborhood_attention_generic
from natten.na1d import NeighborhoodAttention1D
from natten.natten3d import NeighborhoodAttention3D
from natten.nested import na1d_qk_nested
from natten.profiler import main
from natten.token_permute import token_permute_operation, token_unpermute_operation
from natten.types import CausalArg2DTypeOrDed, Dimension3DType, KernelSchedule
from natten.utils import log
from natten.utils.checks import check_all_args
from natten.utils.dtype import is_fp8
from natten.utils.log import NattenLogger, _get_log_pipe, get_logger
from natten.utils.testing import skip_if_libnatten_is_not_supported, supports_bfloat16
from natten.utils.varlen import generate_varlen_parameters
from natten.varlen import configure_varlen, neighborhood_attention_varlen
import natten.functional, sys
assert natten.functional.na2d is natten.na2d and callable(natten.na2d)
assert natten.functional is sys.modules["nhood.compat.natten.functional"]
"""


def test_imports_after_install():
    in_new_process("import nhood.compat.natten\nnhood.compat.natten.install()\n" + IMPORTS)


def test_import_machinery_finds_it():
    code = """
import importlib.util, nhood.compat.natten
assert importlib.util.find_spec("natten") is None
nhood.compat.natten.install()
assert importlib.util.find_spec("natten") is not None
import importlib.metadata, pickle, natten
assert importlib.metadata.version("natten") == natten.__version__
assert [d.name for d in importlib.metadata.distributions() if d.name == "natten"] == ["natten"]
assert importlib.metadata.version("pytest")
layer = pickle.loads(pickle.dumps(natten.NeighborhoodAttention2D(8, 1, 3)))
assert type(layer) is natten.NeighborhoodAttention2D
"""
    in_new_process(code)


@needs_flex
def test_wheel(tmp_path):
    """bindings/natten brings the same package as natten itself, with a profiler to run."""
    source = Path(__file__).resolve().parents[2] / "bindings" / "natten"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", tmp_path, source], check=True, timeout=300)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code = IMPORTS.replace("nhood.compat.natten.functional", "natten.functional")
    code += f"\nassert natten.__file__.startswith({str(tmp_path)!r}), natten.__file__"
    code += (
        "\nimport importlib.metadata as m; assert m.version('natten').startswith(natten.__version__ + '+nhood')"
    )
    code += "\nnatten.install(); assert natten.na2d is sys.modules['natten'].na2d"
    in_new_process(code, PYTHONPATH=paths)
    command = [sys.executable, "-m", "natten.profiler", "-i", "64", "--dtype", "fp32", "--dry-run"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "flex-fna forward: 1 pairs" in done.stdout, done.stdout + done.stderr


def test_version_from_the_environment():
    assert said_by_version(None)[1] == "0.21.7 nhood.compat.natten.functional"
    assert said_by_version("0.17.5")[1] == "0.17.5 nhood.compat.natten._v017"


def test_another_natten_is_not_replaced():
    code = """
import sys, types, nhood.compat.natten
sys.modules["natten"] = types.ModuleType("natten")
try:
    nhood.compat.natten.install()
except RuntimeError as error:
    print(error)
"""
    assert "imported already" in in_new_process(code)


# FLOPs, and the profiler


@needs_flop_counts
def test_flop_counts():
    from natten.flops import fna_flop_count, get_flops, na_av_flop_count, na_qk_flop_count

    # 2 batch entries, 8 x 9 tokens, 4 heads of dim 16, 3 x 5 window: one multiply-add each
    macs = 2 * 72 * 4 * 16 * 15
    last, first = (2, 8, 9, 4, 16), (2, 4, 8, 9, 16)
    axes = ((3, 5), (1, 1), (False, True))
    assert fna_flop_count(last, last, last, *axes, is_heads_last=True) == 4 * macs
    assert fna_flop_count(last, last, last, *axes, True, return_macs=True) == 2 * macs
    assert na_qk_flop_count(first, first, *axes, is_heads_last=False) == 2 * macs
    assert na_av_flop_count((2, 4, 8, 9, 15), first, *axes, is_heads_last=False, return_macs=True) == macs
    with pytest.raises(AssertionError, match="differ"):
        na_qk_flop_count(first, last, *axes, is_heads_last=False)
    layer = natten.NeighborhoodAttention2D(64, 4, (3, 5))
    assert get_flops(layer, torch.rand(2, 8, 9, 64)) == 2 * macs + 2 * 72 * 64 * 64 * 4


class Unfused(torch.nn.Module):
    def forward(self, query, key, value, extra):
        attn = natten.functional.na2d_qk(query, key, 3, additional_keys=extra).softmax(-1)
        return natten.functional.na2d_av(attn, value, 3, additional_values=extra)


class Fused(torch.nn.Module):
    def forward(self, query, key, value, extra):
        return natten.na2d(query, key, value, (3, 5), additional_keys=extra, additional_values=extra)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.parametrize(
    "model, shape, extra_shape, macs",
    (
        (Unfused(), (2, 4, 8, 9, 16), (2, 4, 6, 16), 2 * 2 * 4 * 72 * 16 * 9),
        (Fused(), (2, 8, 9, 4, 16), (2, 6, 4, 16), 2 * 2 * 4 * 72 * 16 * (15 + 6)),
    ),
    ids=("unfused", "fused"),
)
@pytest.mark.parametrize("grad", (False, True))
def test_handles_of_fvcore(model, shape, extra_shape, macs, grad):
    """fvcore traces a model and asks the handle of each node's name for its MACs; so does this test."""
    handles = {}

    class Counter:
        def set_op_handle(self, **given):
            handles.update(given)
            return self

    counter = Counter()
    assert natten.flops.add_natten_handle(counter) is counter
    tensor = torch.rand(shape, requires_grad=grad)
    graph = torch.jit.trace(
        model, (tensor, tensor, tensor, torch.rand(extra_shape)), check_trace=False
    ).inlined_graph
    total = 0
    for node in graph.nodes():
        name = f"{node.kind()}.{node.pyname()}" if node.kind() == "prim::PythonOp" else node.kind()
        if name in handles:
            total += handles[name](list(node.inputs()), list(node.outputs()))
    assert total == macs


@needs_flex
def test_profiler(capsys):
    from natten import profiler

    problem = "-b 1 -n 2 -d 16 -i 8 9 -w 3 5 --dilation 2 1 -c 0 1 --dtype fp32".split()
    profiler.main([*problem, "--warmup-steps", "1", "--backprop", "--add-kv", "3", "--heads-kv", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["forward", "backward", "total"]
    times = [float(line.split()[1]) for line in lines[1:]]
    assert min(times) > 0 and times[2] == pytest.approx(times[0] + times[1], abs=2e-3)
    profiler.main([*problem, "--dry-run"])
    assert "flex-fna forward: 3 pairs" in capsys.readouterr().out
    for wrong, words in (
        (["-w", "1", "5"], "kernel_size"),
        (["--dtype", "e4m3"], "FP8"),
        (["--dry-run", "--optimize"], "exclude"),
    ):
        with pytest.raises(SystemExit):
            profiler.main([*problem, *wrong])
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit, match="torch's attention"):
        profiler.main([*problem, "--backend", "fav2"])
