"""The example and the benchmark of the video decoder, at tiny sizes. They run in this process: to start one takes longer."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import kernels
import pytest
import torch
from diffusers import LTX2VideoDiffusionDecoderModel

kernels.get_kernel("shi-labs/natten", version=1)  # nhood is in the folder that LOCAL_KERNELS names
from nhood.integrations.diffusers import use_nhood  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """A program of a folder as a module, with its neighbours in reach and the command line that it is to have."""

    def load(path: str, *arguments: object) -> ModuleType:
        monkeypatch.syspath_prepend(str((ROOT / path).parent))
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROOT / path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_example(load, capsys, tmp_path: Path) -> None:
    """In tiles, and from a checkpoint with latents that are given."""
    torch.manual_seed(1)
    model = LTX2VideoDiffusionDecoderModel(
        latent_channels=8,
        decoder_head_dim=16,
        decoder_stage_channels=(32, 32, 16, 16, 16),
        decoder_upsample_channel_reductions=(1, 2, 1, 1),
        decoder_stage_depths=(1, 1, 1, 1, 1),
        decoder_stage_kernels=((3, 3, 3),) * 4,
        decoder_stage5_kernel=(3, 5, 5),
        decoder_t_emb_dim=16,
    )
    model.save_pretrained(tmp_path / "decoder")
    torch.save(torch.randn(1, 8, 2, 3, 4), tmp_path / "latents.pt")
    options = ("--checkpoint", tmp_path / "decoder", "--latents", tmp_path / "latents.pt", "--dtype", "float32")
    videos = []
    for tile in ((), ("--tile", "9x48x64")):
        output = tmp_path / "video.pt"
        load("examples/video_decoder.py", "--device", "cpu", *options, *tile, "--output", output).main()
        said = capsys.readouterr().out
        assert re.match(rf"9 frames of 96x128{' in tiles of at most 9x48x64' if tile else ''}, torch.float32 on cpu\n", said)
        whole, attention = map(float, re.search(r"time ([\d.]+) s, ([\d.]+) s of it attention", said).groups())
        assert 0 < attention < whole and re.search(r"peak memory [\d.]+ GiB", said)
        videos.append(torch.load(output))
    assert videos[0].shape == (1, 3, 9, 96, 128)
    torch.testing.assert_close(*videos, rtol=1e-4, atol=1e-4)


def test_example_refuses_sizes(load) -> None:
    with pytest.raises(SystemExit, match="--frames is a multiple of 8 and 1 more.* got 10, 160, 160"):
        load("examples/video_decoder.py", "--small", "--device", "cpu", "--frames", 10).main()


def test_example_fits_the_machine(load, capsys) -> None:
    def arguments(*given: object):
        return load("examples/video_decoder.py", *given).parse_arguments()

    def size(of) -> tuple:
        return of.frames, of.height, of.width, of.small

    assert size(arguments("--device", "cpu")) == (17, 160, 160, True)
    assert size(arguments("--device", "cpu", "--frames", 9)) == (9, 160, 160, False)
    assert size(arguments("--device", "meta")) == (121, 512, 768, False)
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit):
            arguments("--device", "cuda")
        assert "PyTorch sees no GPU here; --device cpu takes seconds" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        arguments("--dtype", "wide")
    assert "--dtype is a type of torch" in capsys.readouterr().err


def test_benchmark(load, capsys, tmp_path: Path) -> None:
    """Eager: the compiler's own code takes minutes; test_compiled_block has the rest of it."""
    output = tmp_path / "folder" / "decoder.json"
    size = ("--small", "--sizes", "96x128x9", "--device", "cpu", "--dtype", "float32", "--turns", 1)
    load("bench/gpu/video_decoder.py", *size, "--modes", "eager", "--output", output).main()
    said = capsys.readouterr().out
    found = json.loads(output.read_text())
    assert found["kind"] == "video decoder" and {"device", "commit", "date", "system", "dtype"} <= found.keys()
    (size,) = found["sizes"]
    rows = {row["way"]: row for row in size["rows"]}
    assert {"nhood", "none"} <= rows.keys() and all(row["ms"] > 0 for row in rows.values())
    assert "for CUDA" in size["absent"]["flex"]
    assert rows.keys() | size["absent"].keys() == {"nhood", "comfy-kitchen", "natten", "flex", "none"}
    assert sum(row["layers"] for row in size["norm_and_rope"]) == 5
    assert all(row["eager_ms"] > 0 and row["operator_ms"] > 0 for row in size["norm_and_rope"])
    assert all(row["copy_ms"] > 0 for row in size["norm_and_rope"])
    assert "| nhood |" in said and "times the memory's time" in said
    assert output.with_suffix(".png").read_bytes().startswith(PNG)


def test_benchmark_finds_what_is_wrong(load) -> None:
    """A way that is no neighborhood attention does not get to be timed."""
    bench = load("bench/gpu/video_decoder.py")
    model = LTX2VideoDiffusionDecoderModel(**bench.SMALL)
    nhood, none = (bench.WAYS[name] for name in ("nhood", "none"))
    bench.check(nhood, nhood.make(), model)
    with pytest.raises(bench.Absent, match="of the largest value"):
        bench.check(none, none.make(), model)


@torch.no_grad()
def test_compiled_block(load) -> None:
    """It computes what the model's does, whose forward is there again afterwards."""
    bench = load("bench/gpu/video_decoder.py")
    decoder = use_nhood(LTX2VideoDiffusionDecoderModel(**bench.SMALL).eval()).decoder
    inputs = torch.randn(1, 9, 12, 16, 32), torch.randn(1, 3, 9, 48, 64), torch.ones(1)
    expected = decoder.forward_diffusion_step(*inputs)
    with bench.Compiled(decoder, backend="eager"):
        assert all("forward" in vars(block) for block in bench.blocks_of(decoder))
        torch.testing.assert_close(decoder.forward_diffusion_step(*inputs), expected)
    assert not any("forward" in vars(block) for block in bench.blocks_of(decoder))
