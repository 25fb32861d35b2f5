"""A small random decoder of diffusers, decoded on the CPU by every way to nhood, against a mask over all tokens."""

import functools
import re
from pathlib import Path

import diffusers
import eager_mask
import kernels
import pytest
import torch
from diffusers import LTX2VideoDiffusionDecoderModel
from diffusers.models.autoencoders import ltx2_diffusion_decoder as ltx2
from torch.utils._python_dispatch import TorchDispatchMode

natten_of_hub = kernels.get_kernel("shi-labs/natten", version=1)  # the folder that LOCAL_KERNELS names; nhood is in it

import nhood.compat.natten  # noqa: E402
from nhood.integrations.diffusers import (  # noqa: E402
    NhoodProcessor,
    _positions,
    _versions,
    decode_in_tiles,
    use_nhood,
)

WINDOW = (5, 7, 5)  # of the diffusion stage, whose grid is FRAMES x 12 x 16
FRAMES = 9


class EagerProcessor:
    def __call__(self, attn, hidden_states, block_mask=None):
        query, key, value = attn.project_qkv(hidden_states)
        out = eager_mask.attention(query, key, value, attn.kernel_size, 1.0)
        return attn.to_out[0](out.reshape(hidden_states.shape))


class ValueProcessor:
    """No attention: how much of the result is due to it."""

    def __call__(self, attn, hidden_states, block_mask=None):
        return attn.to_out[0](attn.project_qkv(hidden_states)[2].reshape(hidden_states.shape))


class CompatProcessor(ltx2.LTX2VideoVaeNeighborhoodNattenProcessor):
    """NATTEN's processor on `import natten`, for programs that do not take it from the hub."""

    def __init__(self) -> None:
        nhood.compat.natten.install()
        import natten

        self._na3d, self.backend = natten.na3d, None


PROCESSORS = {
    "hub": ltx2.LTX2VideoVaeNeighborhoodNattenProcessor,
    "compat": CompatProcessor,
    "nhood": NhoodProcessor,
}


def make_model() -> LTX2VideoDiffusionDecoderModel:
    torch.manual_seed(5)
    return LTX2VideoDiffusionDecoderModel(
        latent_channels=8,
        decoder_head_dim=16,
        decoder_stage_channels=(64, 64, 32, 32, 32),
        decoder_stage_depths=(1, 1, 1, 2, 2),
        decoder_stage_kernels=((3, 3, 3), (3, 3, 4), (3, 5, 5), (3, 3, 5)),
        decoder_upsample_strides=((1, 2, 2), (2, 1, 1), (2, 1, 1), (2, 2, 2)),
        decoder_upsample_channel_reductions=(1, 2, 1, 1),
        decoder_stage5_kernel=WINDOW,
        decoder_t_emb_dim=16,
        spatial_compression_ratio=16,
    ).eval()


@pytest.fixture
def model() -> LTX2VideoDiffusionDecoderModel:
    return make_model()


LATENTS = torch.randn(1, 8, 2, 3, 4, generator=torch.Generator().manual_seed(6))


@torch.no_grad()
def decode(model, processor, **named) -> torch.Tensor:
    if processor is not None:
        model.set_attn_processor(processor)
    latents = LATENTS.to(model.dtype)
    return model.decode(latents, generator=torch.Generator().manual_seed(7), **named).sample


@functools.lru_cache(maxsize=None)
def references(dtype: torch.dtype, steps: int) -> tuple:
    """By the mask, and without attention."""
    model = make_model().to(dtype)
    return tuple(decode(model, p(), num_inference_steps=steps) for p in (EagerProcessor, ValueProcessor))


def check_close(video: torch.Tensor, steps: int = 1) -> None:
    """Closer by far than a decoder whose attention passes on its values."""
    expected, without_attention = references(video.dtype, steps)
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 4e-2}[video.dtype] * expected.abs().max().item()
    assert video.shape == (1, 3, FRAMES, 48, 64)
    difference = (video.float() - expected.float()).abs().max().item()
    assert difference < tolerance < (without_attention - expected).abs().max().item() / 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROCESSORS)
def test_decoder(model, name: str, dtype: torch.dtype) -> None:
    model.to(dtype)
    check_close(decode(model, PROCESSORS[name]()))


TILING = dict(
    tile_sample_min_num_frames=16,
    tile_sample_min_height=48,
    tile_sample_min_width=48,
    tile_sample_stride_num_frames=16,
    tile_sample_stride_height=48,
    tile_sample_stride_width=24,
)


def test_several_steps_in_tiles(model) -> None:
    """Each step reads the noise that the one before left in all tiles."""
    use_nhood(model, exact_tiles=True).enable_tiling(**TILING)
    check_close(decode(model, None, num_inference_steps=2), steps=2)


TILES = {
    (FRAMES, 24, 20): torch.bfloat16,
    (2, 48, 64): torch.float32,
    (5, 4, 40): torch.float32,
    (100, 100, 100): torch.float32,
}


@pytest.mark.parametrize("tile, dtype", TILES.items(), ids=str)
def test_tiles(model, tile: tuple, dtype: torch.dtype) -> None:
    use_nhood(model).to(dtype)
    check_close(decode_in_tiles(model, LATENTS.to(dtype), tile, torch.Generator().manual_seed(7)))


def test_tiles_of_diffusers_differ(model) -> None:
    """It is use_nhood that makes them exact."""
    expected, _ = references(torch.float32, 1)
    use_nhood(model).enable_tiling(**TILING)
    assert (decode(model, None) - expected).abs().max() > 1e-2


class Recorded(TorchDispatchMode):
    """The operators that ran, and the elements of the largest result."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.largest = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.names.append(str(function))
        results = result if isinstance(result, (tuple, list)) else (result,)
        self.largest = max([self.largest, *(t.numel() for t in results if isinstance(t, torch.Tensor))])
        return result


def test_tiles_bound_memory(model) -> None:
    """A third of the columns and half a window of each of two blocks on either side."""
    use_nhood(model)
    latents = torch.randn(1, 8, 2, 3, 12)
    with Recorded() as whole, torch.no_grad():
        model.decode(latents)
    with Recorded() as tiled:
        decode_in_tiles(model, latents, (FRAMES, 48, 64))
    assert tiled.largest < 0.55 * whole.largest


@pytest.mark.parametrize("packed", [False, True])
def test_nothing_is_copied(packed: bool) -> None:
    """Neither of contiguous tensors nor of slices of one projection."""
    shape = (1, 5, 6, 7, 3, 2, 16) if packed else (3, 1, 5, 6, 7, 2, 16)
    query, key, value = torch.randn(shape).unbind(4 if packed else 0)
    with Recorded() as recorded:
        out = NhoodProcessor().attend(query, key, value, (3, 5, 5), None)
    assert recorded.names == ["nhood.na.default"]
    assert recorded.largest == out.numel()
    torch.testing.assert_close(out, eager_mask.attention(query, key, value, (3, 5, 5), 1.0))


@torch.no_grad()
def test_decoder_is_one_graph(model) -> None:
    use_nhood(model)
    whole = torch.compile(model.decoder, fullgraph=True, backend="eager")
    torch.manual_seed(8)
    got = whole(LATENTS)
    torch.manual_seed(8)
    torch.testing.assert_close(got, model.decoder(LATENTS))


@torch.no_grad()
def test_compiled_layer(model) -> None:
    """In the compiler's own code, which may hand on tensors of any strides."""
    use_nhood(model)
    layer = model.decoder.diff_blocks[0].attn
    x = torch.randn(1, 6, 8, 7, 32)
    got = torch.compile(layer, fullgraph=True)(x)
    layer.set_processor(EagerProcessor())
    torch.testing.assert_close(got, layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head_dim", [16, 48, 64])
def test_positions(head_dim: int) -> None:
    """They have diffusers' values and gradients."""
    torch.manual_seed(9)
    attn = ltx2.LTX2VideoVaeNeighborhoodAttention(2 * head_dim, (3, 3, 3), head_dim=head_dim)
    norms = [attn.norm_q.weight, attn.norm_k.weight]
    for weight in norms:
        weight.data.uniform_(0.5, 1.5)
    x = torch.randn(2, 4, 5, 6, 2 * head_dim, requires_grad=True)
    results = []

    for outs in (attn.project_qkv(x), _positions.project_qkv(attn, x)):
        loss = sum((out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum() for out in outs)
        results.append([*outs, *torch.autograd.grad(loss, [x, *norms])])
    for expected, got in zip(*results):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_positions_of_a_tile() -> None:
    """They are those of the whole grid."""
    attn = ltx2.LTX2VideoVaeNeighborhoodAttention(32, (3, 3, 3), head_dim=16)
    query, key = torch.randn(2, 1, 4, 5, 6, 2, 16)
    tile = (slice(None), slice(1, 4), slice(0, 3), slice(2, 6))
    wholes = _positions.norm_and_rotate(attn, query, key)
    parts = _positions.norm_and_rotate(attn, query[tile], key[tile], (1, 0, 2))
    for whole, part in zip(wholes, parts):
        torch.testing.assert_close(part, whole[tile], rtol=0, atol=0)


@pytest.mark.parametrize("compiled", [False, True])
@torch.no_grad()
def test_projections_by_operator(compiled: bool) -> None:
    """Neither norms nor rotations are torch's own."""
    attn = ltx2.LTX2VideoVaeNeighborhoodAttention(32, (3, 3, 3), head_dim=16)
    x, names = torch.randn(1, 3, 3, 3, 32), []

    def record(graph: torch.fx.GraphModule, _: list) -> torch.fx.GraphModule:
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    if compiled:
        torch.compile(_positions.project_qkv, fullgraph=True, backend=record)(attn, x)
    else:
        with Recorded() as recorded:
            _positions.project_qkv(attn, x)
        names = recorded.names
    assert sum(name.startswith("nhood.norm_rope") for name in names) == 2
    assert not any("rms_norm" in name or "rsqrt" in name for name in names)


def test_other_positions(model) -> None:
    """Norms that are not diffusers' own are computed as the layer has it, also compiled."""
    use_nhood(model)
    layer = model.decoder.diff_blocks[0].attn
    assert _positions.is_known(layer)
    layer.norm_k = torch.nn.LayerNorm(16)
    assert not _positions.is_known(layer)
    x = torch.randn(1, 6, 8, 7, 32)
    got = torch.compile(layer, fullgraph=True, backend="eager")(x)
    layer.set_processor(EagerProcessor())
    torch.testing.assert_close(got, layer(x), rtol=1e-5, atol=1e-5)


def test_compiled_tiles(model) -> None:
    use_nhood(model).decoder.diff_blocks[0].compile(fullgraph=True, backend="eager")
    check_close(decode_in_tiles(model, LATENTS, (FRAMES, 24, 64), torch.Generator().manual_seed(7)))


def test_document(model) -> None:
    """The code of docs/models.md runs, and its tiles have the whole video's result."""
    page = Path(__file__).resolve().parents[2] / "docs" / "models.md"
    blocks = re.findall(r"^```python\n(# fragment.*?)^```", page.read_text(), flags=re.M | re.S)
    known = {"decoder": model, "latents": LATENTS, "torch": torch}
    assert len(blocks) == 3
    exec(blocks[0] + blocks[2], known)
    generator = torch.Generator().manual_seed(1)
    torch.testing.assert_close(known["same"], decode_in_tiles(model, LATENTS, (FRAMES, 24, 64), generator))
    exec(blocks[1], known)  # last, as the compiler's code of a layer, which a call would make, has a test
    assert all(layer.attn._compiled_call_impl for layer in model.decoder.diff_blocks)


def test_what_it_does_not_know(model) -> None:
    with pytest.raises(ValueError, match="a Linear, has no LTX2VideoVaeNeighborhoodAttention"):
        use_nhood(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="model is a str, not a torch.nn.Module; of a pipeline"):
        use_nhood("decoder")
    with pytest.raises(TypeError, match="exact_tiles is for a LTX2VideoDiffusionDecoderModel, model is a LTX2V"):
        use_nhood(model.decoder, exact_tiles=True)
    with pytest.raises(TypeError, match="model is a LTX2VideoDiffusionDecoder3d"):
        decode_in_tiles(model.decoder, LATENTS, (8, 32, 32))
    with pytest.raises(ValueError, match="has a LTX2VideoVaeNeighborhoodAttnProcessor: call use_nhood"):
        decode_in_tiles(model, LATENTS, (8, 32, 32))
    with pytest.raises(ValueError, match=r"tile\[2\] = 3 is below 4"):
        decode_in_tiles(model, LATENTS, (8, 32, 3))
    with pytest.raises(TypeError, match="block_mask is a Tensor: NhoodProcessor takes no mask"):
        use_nhood(model).decoder.diff_blocks[0].attn(torch.randn(1, 9, 9, 9, 32), torch.ones(1))


def test_versions(monkeypatch) -> None:
    monkeypatch.setattr(diffusers, "__version__", "0.42.0")
    with pytest.raises(ImportError, match="needs diffusers 0.42.1 or later; 0.42.0 is installed"):
        _versions._import_decoder()
    monkeypatch.setattr(diffusers, "__version__", "1.0.0.dev0")
    assert _versions._import_decoder() is ltx2
    monkeypatch.delattr(ltx2.LTX2VideoVaeNeighborhoodAttention, "project_qkv")
    with pytest.raises(ImportError, match="diffusers 1.0.0.dev0 does not have .* 'project_qkv'"):
        _versions._import_decoder()
