"""Feature upsampling: queries on a finer grid than keys, in the example and in AnyUp's attention block."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from nhood import Windows
from nhood.torch import na2d
from torch import Tensor, nn

BY_DISTANCE = 0.1
"""the published model's: keys within this share of the extent"""


def test_example(run_program: Callable, tmp_path: Path) -> None:
    ended = run_program("examples/upsample.py", "--output", tmp_path / "upsampled.png")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    bilinear, attention = (float(number) for number in re.findall(r"([\d.]+) dB", ended.stdout))
    assert 7.9 < bilinear < 8.2 < 11 < attention < 11.3, ended.stdout
    assert (tmp_path / "upsampled.png").read_bytes().startswith(b"\x89PNG")


def bounds(queries: int, keys: int, ratio: float) -> tuple[Tensor, Tensor]:
    """First key and the one behind the last: those whose cells a query's surroundings touch, on one axis."""
    centre = (torch.arange(queries, dtype=torch.float32) + 0.5) / queries
    first = ((centre - ratio).clamp(0, 1) * keys).floor().long()
    return first, ((centre + ratio).clamp(0, 1) * keys).ceil().long()


class Block(nn.Module):
    """What AnyUp's cross attention has: a convolution of the queries, norms, and the projections of torch's multi-head attention,
    of which only the weights are used. They are averaged over heads and applied to the features as they are."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.smooth = nn.Conv2d(dim, dim, 3, padding=1, bias=False)
        self.norm_query, self.norm_key = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.2)

    def rows(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm_query(self.smooth(query).permute(0, 2, 3, 1)), self.norm_key(key.permute(0, 2, 3, 1))

    def masked(self, query: Tensor, key: Tensor, features: Tensor) -> Tensor:
        """As published: a mask of all queries by all keys."""
        query_rows, key_rows = self.rows(query, key)
        seen = []
        for axis in (2, 3):
            first, end = bounds(query.shape[axis], key.shape[axis], BY_DISTANCE)
            places = torch.arange(key.shape[axis])
            seen.append((places >= first[:, None]) & (places < end[:, None]))
        hidden = ~(seen[0][:, None, :, None] & seen[1][None, :, None, :]).flatten(2, 3).flatten(0, 1)
        flat = query_rows.flatten(1, 2), key_rows.flatten(1, 2)
        weights = self.attention(*flat, flat[1], attn_mask=hidden, average_attn_weights=True)[1]
        return (weights @ features.flatten(2).mT).mT.unflatten(2, query.shape[2:])

    def windowed(self, query: Tensor, key: Tensor, features: Tensor) -> Tensor:
        """By one call: one head of values, which all heads read."""
        dim = query.shape[1]
        weights, biases = self.attention.in_proj_weight.split(dim), self.attention.in_proj_bias.split(dim)
        projected = [
            nn.functional.linear(rows, weights[i], biases[i]).unflatten(-1, (self.heads, -1))
            for i, rows in enumerate(self.rows(query, key))
        ]
        value = features.permute(0, 2, 3, 1).unsqueeze(-2).expand(-1, -1, -1, self.heads, -1)
        windows = []
        for axis in (2, 3):
            first, end = bounds(query.shape[axis], key.shape[axis], BY_DISTANCE)
            windows.append(Windows(torch.stack([first, end - first], 1).numpy(), keys=key.shape[axis]))
        return na2d(*projected, value, kernel_size=windows).mean(-2).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("fine", "coarse"), [((32, 32), (8, 8)), ((40, 24), (20, 12)), ((37, 50), (9, 7)), ((11, 23), (30, 23)), ((6, 5), (1, 2))]
)
def test_anyup(fine: tuple[int, int], coarse: tuple[int, int]) -> None:
    """The same features, and the same gradients of everything that has one, at whole and at any other ratios."""
    block = Block(dim=16, heads=4).double()
    query = torch.randn(2, 16, *fine, dtype=torch.float64, requires_grad=True)
    key = torch.randn(2, 16, *coarse, dtype=torch.float64, requires_grad=True)
    features = torch.randn(2, 24, *coarse, dtype=torch.float64, requires_grad=True)
    leaves = [query, key, features, block.smooth.weight, block.norm_query.weight, block.norm_key.weight]
    leaves += [block.attention.in_proj_weight, block.attention.in_proj_bias]
    expected, found = block.masked(query, key, features), block.windowed(query, key, features)
    torch.testing.assert_close(found, expected)
    d_out = torch.randn_like(expected)
    for got, wanted in zip(torch.autograd.grad(found, leaves, d_out), torch.autograd.grad(expected, leaves, d_out)):
        torch.testing.assert_close(got, wanted)


def test_anyup_windows_are_not_resampled_ones() -> None:
    """They reach as far as a distance, so that those inside have sizes that alternate, and those at borders are short."""
    first, end = bounds(224, 16, BY_DISTANCE)
    counts = (end - first).numpy()
    assert counts[0] == 2 and set(np.unique(counts[30:-30])) == {4, 5}
