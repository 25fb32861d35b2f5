"""bench/gpu/peers.py: FlashAttention 4 as a peer, made up here, as it runs on GPUs only: what it is asked for, and what is compared."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

import pytest
import torch

pytest.importorskip("torch.nn.attention.flex_attention")  # a peer in it
sys.path[:0] = map(str, (Path(__file__).parents[2] / "bench").iterdir())
import peers  # noqa: E402
from nhood import _plans  # noqa: E402

CPU = torch.device("cpu")


def made_up(shift: int) -> Callable[..., Any]:
    """flash_attn_func by masks: windows that are cut at the ends; moved by so many keys."""

    def flash_attn_func(q: Any, k: Any, v: Any, causal: bool = False, window_size: Any = (None, None)) -> Any:
        q, k, v = (t.float() for t in (q, k, v))
        k, v = (t.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for t in (k, v))
        ahead = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - shift
        left, right = (q.shape[1] if side is None else side for side in window_size)
        seen = (ahead >= -left) & (ahead <= (min(right, 0) if causal else right))
        scores = torch.einsum("bnhd,bmhd->bnhm", q, k) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        return torch.einsum("bnhm,bmhd->bnhd", weights, v).to(torch.bfloat16), scores.logsumexp(-1)

    return flash_attn_func


def install(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    for name in ("flash_attn", "flash_attn.cute", "flash_attn.cute.interface"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["flash_attn.cute.interface"].flash_attn_func = function  # type: ignore[attr-defined]


LINES = ("bf16:b1h2d16:96:w31", "bf16:b2h4k2d16:96:w32", "bf16:b1h2d16:96:w31:c1", "bf16:b1h2d16v24:96:w96:c1")


@pytest.mark.parametrize("op", ("fwd", "bwd"))
@pytest.mark.parametrize("line", LINES)
def test_flash4_by_its_own_windows(op: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    problem = peers.Problem.parse(f"{op}:{line}", _plans.CPU)
    install(monkeypatch, made_up(0))
    found = peers.gather(problem, CPU, ["flash4", "flash4 dense"], 1e9)
    assert [each.name for each in found] == ["nhood", "flash4", "flash4 dense"], capsys.readouterr().err
    peers.compare(problem, found)
    assert found[1].result and not found[2].result
    install(monkeypatch, made_up(1))
    with pytest.raises(SystemExit, match="flash4 and nhood differ"):
        peers.compare(problem, peers.gather(problem, CPU, ["flash4"], 1e9))


def test_who_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def refuses(*tensors: Any, **options: Any) -> Any:
        assert False, "head dims up to 256"

    line = peers.Problem.parse("fwd:bf16:b1h2d16:96:w31", _plans.CPU)
    assert len(peers.gather(line, CPU, ["flash4"], 1e9)) == 1
    assert "no flash4: flash_attn.cute is not installed" in capsys.readouterr().err
    install(monkeypatch, refuses)
    assert len(peers.gather(line, CPU, ["flash4", "flash4 dense"], 1e9)) == 1
    said = capsys.readouterr().err
    assert "no flash4: head dims up to 256" in said and "no flash4 dense: head dims" in said
    assert len(peers.gather(line, CPU, ["flash4 dense"], 1e-9)) == 1
    assert "no flash4 dense: above 1e-09 GFLOP" in capsys.readouterr().err
    plane = peers.Problem.parse("fwd:bf16:b1h2d16:12x16:w5x5", _plans.CPU)
    assert len(peers.gather(plane, CPU, ["flash4"], 1e9)) == 1
    assert "no multiples of its tile of 8x16" in capsys.readouterr().err
    for window in ("w32:s4", "w24:d3", "w48"):  # 48: at the ends, its own windows would lack 12 % of the pairs
        other = peers.Problem.parse(f"fwd:bf16:b1h2d16:96:{window}", _plans.CPU)
        assert len(peers.gather(other, CPU, ["flash4"], 1e9)) == 1
        assert "no multiples of its tile of 128" in capsys.readouterr().err


def test_tiles_are_an_order_of_the_tokens() -> None:
    for lengths in ((256,), (16, 48), (4, 16, 24)):
        places = peers.in_tiles(lengths, peers.FLASH4_TILES[len(lengths)])
        tokens = torch.zeros(torch.Size(lengths).numel(), dtype=torch.long)
        for length, place in zip(lengths, places(torch.arange(tokens.numel()))):
            assert place.min() == 0 and place.max() == length - 1
            tokens = tokens * length + place
        assert tokens.sort().values.equal(torch.arange(tokens.numel()))
        tile = torch.stack([p[:128] for p in places(torch.arange(tokens.numel()))])
        assert tuple((tile.max(1).values + 1).tolist()) == peers.FLASH4_TILES[len(lengths)]
