"""The folders of bindings/hub as the `kernels` package loads them, and diffusers' processor on one of them."""

import subprocess
import sys
from pathlib import Path

import eager_mask
import kernels
import pytest
import torch


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def random_tensors(shape: tuple, count: int = 3) -> list:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


@pytest.fixture(scope="module")
def natten():
    return kernels.get_kernel("shi-labs/natten", version=1)


def test_it_is_the_local_folder(natten) -> None:
    assert Path(natten.__file__).parts[-4:-1] == ("natten", "build", "torch-universal")
    import nhood

    assert Path(nhood.library_path).is_relative_to(Path(natten.__file__).parent)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_na3d(natten, dtype: torch.dtype, tolerance: float, device: str) -> None:
    window = (3, 4, 5)
    query, key, value = (t.to(device, dtype) for t in random_tensors((2, 4, 6, 7, 2, 16)))
    out = natten.na3d(query, key, value, kernel_size=window, scale=0.5, backend=None)
    expected = eager_mask.attention(query, key, value, window, 0.5)
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)


def test_names_that_programs_take(natten) -> None:
    for name in ("na1d", "na2d", "attention", "merge_attentions", "NeighborhoodAttention3D"):
        assert callable(getattr(natten, name))
    assert callable(natten.functional.neighborhood_attention_generic)
    assert callable(natten.token_permute.token_permute_operation)
    assert "na3d" in natten.__all__ and "functional" in dir(natten)
    with pytest.raises(AttributeError):
        natten.no_such_name


@pytest.mark.parametrize("device", DEVICES)
def test_gradients(natten, device: str) -> None:
    query, key, value = (t.to(device).requires_grad_() for t in random_tensors((1, 3, 4, 5, 2, 8)))
    weights = random_tensors((1, 3, 4, 5, 2, 8), 1)[0].to(device)
    got = torch.autograd.grad((natten.na3d(query, key, value, kernel_size=3) * weights).sum(), (query, key, value))
    by_mask = eager_mask.attention(query, key, value, (3, 3, 3), 8**-0.5)
    expected = torch.autograd.grad((by_mask * weights).sum(), (query, key, value))
    for one, other in zip(got, expected):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_nhood_shares_the_library(natten) -> None:
    """Both kernels in one process: torch takes an operator's name only once."""
    folder = Path(natten.__file__).parents[3] / "nhood"
    nhood = kernels.get_local_kernel(folder)
    query, key, value = random_tensors((1, 4, 5, 6, 1, 8))
    same = natten.na3d(query, key, value, kernel_size=(3, 3, 5))
    assert torch.equal(nhood.na3d(query, key, value, kernel_size=(3, 3, 5)), same)


def test_an_installed_nhood_comes_first(natten) -> None:
    """PYTHONPATH stands for site-packages."""
    source = Path(__file__).resolve().parents[2] / "bindings" / "python"
    program = "import kernels, nhood; kernels.get_kernel('shi-labs/natten', version=1); print(nhood.__file__)"
    run = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(source)!r}); {program}"]
    assert Path(subprocess.check_output(run, text=True).strip()).is_relative_to(source)


@pytest.mark.parametrize("device", DEVICES)
def test_diffusers_processor(device: str) -> None:
    from diffusers.models.autoencoders import ltx2_diffusion_decoder as ltx2

    torch.manual_seed(3)
    attention = ltx2.LTX2VideoVaeNeighborhoodAttention(dim=64, kernel_size=(3, 5, 5), head_dim=32).to(device)
    x = torch.randn(1, 4, 6, 7, 64, device=device)
    attention.set_processor(ltx2.LTX2VideoVaeNeighborhoodNattenProcessor())
    with torch.no_grad():
        got = attention(x)
        query, key, value = attention.project_qkv(x)
        expected = attention.to_out[0](eager_mask.attention(query, key, value, (3, 5, 5), 1.0).reshape(x.shape))
    assert attention.build_block_mask(x) is None
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
