"""Transformers' own DiNAT, which calls NATTEN, on nhood in NATTEN's place."""

import nhood.compat.natten
import pytest
import torch
from nhood import models
from test_models import windows

nhood.compat.natten.install()  # before transformers looks for NATTEN
transformers = pytest.importorskip("transformers")
from transformers.models.dinat import modeling_dinat  # noqa: E402

VERSION = tuple(map(int, transformers.__version__.split(".")[:2]))
pytestmark = pytest.mark.skipif(
    VERSION >= (4, 54), reason="since 4.54 its DiNAT does not part the heads as NATTEN wants them"
)


def plain_qk(query, key, rpb, kernel_size, dilation):
    """Heads first, by gathering every window."""
    (rows, row_steps), (columns, column_steps) = (windows(n, kernel_size, dilation) for n in query.shape[2:4])
    window = key[:, :, rows[:, None, :, None], columns[None, :, None, :]]
    logits = torch.einsum("bhyxd,bhyxnmd->bhyxnm", query, window)
    return (logits + rpb[:, row_steps[:, None, :, None], column_steps[None, :, None, :]]).flatten(-2)


def plain_av(attn, value, kernel_size, dilation):
    (rows, _), (columns, _) = (windows(n, kernel_size, dilation) for n in value.shape[2:4])
    window = value[:, :, rows[:, None, :, None], columns[None, :, None, :]]
    return torch.einsum("bhyxnm,bhyxnmd->bhyxd", attn.unflatten(-1, (kernel_size,) * 2), window)


def make_model() -> torch.nn.Module:
    torch.manual_seed(3)
    config = transformers.DinatConfig(
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        kernel_size=3,
        dilations=[[1, 4], [1, 2]],
        layer_scale_init_value=0.5,
        num_labels=5,
    )
    model = transformers.DinatForImageClassification(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # the bias tables among them start from zero
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def results(model: torch.nn.Module, images: torch.Tensor) -> tuple:
    out = model(images, output_attentions=True, output_hidden_states=True)
    gradients = torch.autograd.grad(out.logits.square().sum(), tuple(model.parameters()))
    return out.logits, out.hidden_states, out.attentions, gradients


def test_dinat_is_the_plain_formulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 pixels are 12 tokens, then 6: every window fits, those with dilation just so."""
    assert modeling_dinat.natten2dav.__module__.startswith("nhood.")
    model, images = make_model(), torch.randn(2, 3, 48, 48, dtype=torch.float64)
    found = results(model, images)
    monkeypatch.setattr(modeling_dinat, "natten2dqkrpb", plain_qk)
    monkeypatch.setattr(modeling_dinat, "natten2dav", plain_av)
    torch.testing.assert_close(found, results(model, images), rtol=1e-9, atol=1e-9)


RENAMED = (
    ("dinat.embeddings.patch_embeddings.projection.", "patch_embed.proj."),
    ("dinat.embeddings.norm.", "patch_embed.norm."),
    ("dinat.encoder.levels.", "levels."),
    (".layers.", ".blocks."),
    (".layernorm_before.", ".norm1."),
    (".layernorm_after.", ".norm2."),
    (".attention.self.", ".attn."),
    (".attention.output.dense.", ".attn.proj."),
    (".intermediate.dense.", ".mlp.fc1."),
    (".output.dense.", ".mlp.fc2."),
    ("dinat.layernorm.", "norm."),
    ("classifier.", "head."),
)


def as_ours(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state dict of transformers under the names of nhood.models."""
    ours = {}
    for name, tensor in state.items():
        for old, new in RENAMED:
            name = name.replace(old, new)
        ours[name] = tensor
    for name in list(ours):
        if ".attn.query." in name:
            parts = [ours.pop(name.replace(".query.", f".{part}.")) for part in ("query", "key", "value")]
            ours[name.replace(".query.", ".qkv.")] = torch.cat(parts)
        elif name.endswith(".layer_scale_parameters"):
            layer = name.removesuffix("layer_scale_parameters")
            ours[layer + "gamma1"], ours[layer + "gamma2"] = ours.pop(name)
    return ours


def test_dinat_is_our_dinat() -> None:
    theirs, images = make_model(), torch.randn(1, 3, 48, 48, dtype=torch.float64)
    ours = models.NAT(
        16, 2, (2, 2), 3.0, kernel_size=3, dilations=(4, 2), num_classes=5, layer_scale=1.0
    ).double()
    ours.load_state_dict(as_ours(theirs.state_dict()))
    torch.testing.assert_close(ours.eval()(images), theirs(images).logits, rtol=1e-9, atol=1e-9)
