"""The models: names, shapes and sizes of the originals, and results and gradients of a plain formulation."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from nhood import models
from nhood.models import layers, stylenat
from nhood.torch import NeighborhoodAttention2D
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

# Parameters, counted by the original code, and multiply-adds in G for one image, as the papers state them.
PUBLISHED = {
    "nat_mini": (19984174, 2.7),
    "nat_tiny": (27901582, 4.3),
    "nat_small": (50743297, 7.8),
    "nat_base": (89769652, 13.7),
    "dinat_mini": (19984174, 2.7),
    "dinat_tiny": (27901582, 4.3),
    "dinat_small": (50719681, 7.8),
    "dinat_base": (89769652, 13.7),
    "dinat_large": (200943514, 30.6),
    "dinat_large_384": (200943514, 89.7),
    "dinat_large_384_11x11": (201144250, 92.4),
    "dinat_s_tiny": (28288354, 4.5),
    "dinat_s_small": (49606258, 8.7),
    "dinat_s_base": (87768224, 15.4),
    "dinat_s_large": (196532476, 34.5),
    "dinat_s_large_384": (196532476, 101.5),
    "vitrpb_small": (22080376, 4.6),
    "vitrpb_base": (86627080, 17.5),
    "nat_isotropic_small": (21999736, 4.3),
    "nat_isotropic_base": (86465800, 16.9),
    "dinat_isotropic_small": (21999736, 4.3),
    "dinat_isotropic_base": (86465800, 16.9),
    "stylenat_ffhq_256": (48921000, None),
    "stylenat_ffhq_1024": (49452934, None),
}


def checkpoints() -> dict[str, dict[str, tuple[int, ...]]]:
    """Name and shape of all tensors, by model."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for line in Path(__file__).with_name("checkpoints.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            shapes = found[line] = {}
            continue
        name, extents = line.split()
        bounds = re.search(r"\{(\d+)\.\.(\d+)\}", name)
        first, last = map(int, bounds.groups()) if bounds else (0, 0)
        for i in range(first, last + 1):
            shape = tuple(map(int, extents.split("x")))
            shapes[re.sub(r"\{.*\}", str(i), name)] = shape
    return found


CHECKPOINTS = checkpoints()


def on_meta(name: str, **overrides) -> nn.Module:
    with torch.device("meta"):
        return models.create(name, **overrides)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_state_dict_is_the_originals(name: str) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in on_meta(name).state_dict().items()}
    assert shapes == CHECKPOINTS[name]


def test_all_configurations_are_tested() -> None:
    assert sorted(models.names()) == sorted(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count(name: str) -> None:
    assert sum(p.numel() for p in on_meta(name).parameters()) == PUBLISHED[name][0]


@pytest.mark.parametrize("name", [name for name, (_, macs) in PUBLISHED.items() if macs])
def test_multiply_adds(name: str) -> None:
    """Counted on meta tensors, which also shows that every window fits its level."""
    model = on_meta(name).eval()
    size = 384 if "384" in name else 224
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.empty(1, 3, size, size, device="meta"))
    assert logits.shape == (1, 1000)
    assert counter.get_total_flops() / 2e9 == pytest.approx(PUBLISHED[name][1], rel=0.02)


def windows(length: int, kernel_size: int, dilation: int) -> tuple[Tensor, Tensor]:
    """For each query of an axis its keys, and their relative positions in the dilation group, from 0."""
    token = torch.arange(length)  # an index of any device's tensors
    group, position = token % dilation, token // dilation
    group_length = (length - group + dilation - 1) // dilation
    start = torch.minimum((position - kernel_size // 2).clamp(min=0), group_length - kernel_size)
    keys = start[:, None] + torch.arange(kernel_size)
    return keys * dilation + group[:, None], keys - position[:, None] + kernel_size - 1


def plain_na2d(query, key, value, kernel_size, dilation=1, bias=None):
    """By gathering every window in memory."""
    (rows, row_steps), (columns, column_steps) = (windows(n, kernel_size, dilation) for n in query.shape[1:3])
    index = rows[:, None, :, None], columns[None, :, None, :]
    logits = torch.einsum("byxhd,byxnmhd->byxhnm", query, key[:, index[0], index[1]])
    logits = logits * query.shape[-1] ** -0.5
    if bias is not None:
        table = bias[:, row_steps[:, None, :, None], column_steps[None, :, None, :]]
        logits = logits + table.permute(1, 2, 0, 3, 4)
    weights = logits.flatten(-2).softmax(dim=-1).view_as(logits)
    return torch.einsum("byxhnm,byxnmhd->byxhd", weights, value[:, index[0], index[1]])


def plain_sets(query, key, value, kernel_size, dilation, bias=None):
    """Each set of heads by itself; they are as many as its table has, or else those of an even split."""
    sets, heads = len(kernel_size), query.shape[-2]
    sizes = [(heads + i) // sets for i in range(sets)] if bias is None else [len(table) for table in bias]
    parts = zip(*[tensor.split(sizes, dim=-2) for tensor in (query, key, value)])
    tables = [None] * sets if bias is None else bias
    return torch.cat(
        [
            plain_na2d(*part, k[0], d[0], table)
            for part, k, d, table in zip(parts, kernel_size, dilation, tables)
        ],
        dim=-2,
    )


def make_plain(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the attention of a model, and of all StyleNAT generators, plain torch's."""
    for module in model.modules():
        if isinstance(module, NeighborhoodAttention2D):
            module.forward = lambda x, module=module: module.proj(plain_layer(module, x))
    monkeypatch.setattr(stylenat, "na2d", plain_sets)


def plain_layer(module: NeighborhoodAttention2D, x: Tensor) -> Tensor:
    qkv = module.qkv(x).unflatten(-1, (3, module.num_heads, -1))
    out = plain_na2d(*qkv.unbind(3), module.kernel_size[0], module.dilation[0], module.rpb)
    return out.flatten(-2)


SMALL = {
    "nat": lambda: models.NAT(16, 2, (2, 1), 2.0, kernel_size=3, num_classes=5, layer_scale=0.5),
    "dinat": lambda: models.NAT(16, 1, (2, 2), 2.0, kernel_size=3, dilations=(4, 2), num_classes=5),
    "dinat_s": lambda: models.DiNATs(16, 2, (2, 2), 2.0, kernel_size=3, dilations=(2, 1), num_classes=5),
    "vitrpb": lambda: models.IsotropicClassifier(
        16, 2, depth=2, kernel_size=None, img_size=50, patch_size=10, num_classes=5
    ),
    "isotropic": lambda: models.IsotropicClassifier(
        16, 2, depth=2, kernel_size=3, dilation=2, patch_size=8, num_classes=5, rel_pos_bias=False
    ),
    "stylenat": lambda: models.Generator(16, style_dim=32, style_layers=2),
}


DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


def small(kind: str, device: str = "cpu") -> tuple[nn.Module, Tensor]:
    """A model in f64, its parameters away from their initial zeros, and an input."""
    torch.manual_seed(1)
    model = SMALL[kind]().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    shape = (2, 32) if kind == "stylenat" else (2, 3, 50, 50)
    return model.to(device), torch.randn(shape, dtype=torch.float64).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", SMALL)
def test_results_and_gradients_are_the_plain_formulations(
    kind: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for plain in (False, True):
        model, images = small(kind, device)
        if plain:
            make_plain(model, monkeypatch)
        out = model(images)
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=device)
        (out * weights.view_as(out)).sum().backward()
        found.append((out.detach(), {name: p.grad for name, p in model.named_parameters()}))
    (out, gradients), (plain_out, plain_gradients) = found
    torch.testing.assert_close(out, plain_out, rtol=1e-9, atol=1e-9)
    assert all(gradient is not None for gradient in gradients.values())
    scale = max(gradient.abs().max() for gradient in plain_gradients.values())
    torch.testing.assert_close(gradients, plain_gradients, rtol=1e-8, atol=1e-9 * float(scale))


@pytest.mark.parametrize("kind", SMALL)
def test_one_graph(kind: str) -> None:
    """Dynamo captures the whole model, without a break."""
    model, images = small(kind)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(images), model(images))


def test_tokens_of_odd_images() -> None:
    """Patches and their merging pad, as the originals do: 50 pixels are 13 patches, then 7 tokens."""
    tokens = layers.PatchEmbed(3, 8, 4)(torch.zeros(1, 3, 50, 50))
    assert tokens.shape == (1, 13, 13, 8)
    assert layers.PatchMerging(8)(tokens).shape == (1, 7, 7, 16)


def test_generator_reads_checkpoints_with_half_tables() -> None:
    model = models.Generator(16, style_dim=32, style_layers=2)
    state = model.state_dict()
    old = {}
    for name, tensor in state.items():
        prefix, is_table, part = name.partition("attn.rpb.")
        if not is_table:
            old[name] = tensor
        elif prefix.startswith("layers.1."):  # one part here, two equal halves there
            old[f"{prefix}attn.rpb0"], old[f"{prefix}attn.rpb1"] = tensor.chunk(2)
        else:
            old[f"{prefix}attn.rpb{part}"] = tensor
    other = models.Generator(16, style_dim=32, style_layers=2)
    other.load_state_dict(old)
    torch.testing.assert_close(other.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize(
    "heads,parts,expected", [(4, 1, [4]), (4, 2, [2, 2]), (5, 3, [1, 2, 2]), (3, 3, [1, 1, 1])]
)
def test_hydra_parts_its_heads(heads: int, parts: int, expected: list[int]) -> None:
    module = models.HydraNeighborhoodAttention2D(heads * 4, heads, (3,) * parts, range(1, parts + 1))
    assert [table.shape[0] for table in module.rpb] == expected
    tokens = torch.randn(2, 10, 9, heads * 4)
    out = [
        plain_na2d(*part.unbind(3), 3, dilation, table)
        for part, dilation, table in zip(
            module.qkv(tokens).unflatten(-1, (3, heads, 4)).split(expected, dim=4),
            range(1, parts + 1),
            module.rpb,
        )
    ]
    torch.testing.assert_close(module(tokens), module.proj(torch.cat(out, dim=-2).flatten(-2)))


def test_upsampling_keeps_constants_inside() -> None:
    """The filter's taps sum to 1 for every phase; past the border lie zeros."""
    image = stylenat.BinomialUpsample()(torch.ones(1, 3, 5, 5))
    assert image.shape == (1, 3, 10, 10)
    torch.testing.assert_close(image[:, :, 1:-1, 1:-1], torch.ones(1, 3, 8, 8))
    torch.testing.assert_close(image[0, 0, 0, 5], torch.tensor(0.75))


def test_positions() -> None:
    grid = stylenat.SinusoidalPositions(16)(3, 5)
    assert grid.shape == (3, 5, 16)
    frequency = math.exp(-math.log(10000.0) / 3)  # the second of four
    expected = [
        math.sin(4 * frequency),
        math.cos(4 * frequency),
        math.sin(2 * frequency),
        math.cos(2 * frequency),
    ]
    torch.testing.assert_close(grid[1, 3, [1, 5, 9, 13]], torch.tensor(expected))


def test_stochastic_depth() -> None:
    torch.manual_seed(0)
    drop, branch = layers.DropPath(0.25), torch.ones(4000, 3, 2)
    assert drop.eval()(branch) is branch
    dropped = drop.train()(branch)
    per_sample = dropped.flatten(1)
    assert (per_sample == per_sample[:, :1]).all()
    assert per_sample.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert per_sample[:, 0].mean().item() == pytest.approx(1.0, abs=0.05)


def test_rates_rise_over_the_layers() -> None:
    model = on_meta("dinat_mini")
    rates = [module.rate for module in model.modules() if isinstance(module, layers.DropPath)]
    assert rates == pytest.approx([0.2 * i / 17 for i in range(18)])


def test_without_classes_features_come_out() -> None:
    model = models.NAT(16, 2, (1, 1), 2.0, kernel_size=3, num_classes=0)
    images = torch.randn(2, 3, 32, 32)
    assert model(images).shape == (2, model.num_features) == (2, 32)


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: models.create("nat_huge"), "name = 'nat_huge' is not one of nat_mini, "),
        (lambda: models.Generator(4), "size = 4 is not one of 8, 16, "),
        (
            lambda: models.HydraNeighborhoodAttention2D(8, 2, (3,), (1, 2)),
            "kernel_sizes has 1 entries, dilations 2",
        ),
        (
            lambda: models.HydraNeighborhoodAttention2D(8, 2, (3,) * 3, (1,) * 3),
            "dilations has 3 entries, not 1 .. num",
        ),
        (
            lambda: models.HydraNeighborhoodAttention2D(9, 2, (3,), (1,)),
            "embed_dim = 9 is no multiple of num_heads = 2",
        ),
    ],
)
def test_errors_name_the_argument(call, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        call()
