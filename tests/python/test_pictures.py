"""What scripts/pictures draws is what the library computes."""

import importlib.machinery
import importlib.util
import json
import pathlib
import random
import re

import nhood
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(path):
    loader = importlib.machinery.SourceFileLoader(path.name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.name, loader))
    loader.exec_module(module)
    return module


pictures = load(ROOT / "scripts/pictures")


def attended(lengths, query, **axes):
    """The tokens that have a weight in one query's result: values that tell tokens apart, and logits that do not."""
    tokens = int(np.prod(lengths))
    zeros = np.zeros((1, *lengths, 1, 8), np.float32)
    value = np.eye(tokens, dtype=np.float32).reshape(1, *lengths, 1, tokens)
    out = (nhood.na1d if len(lengths) == 1 else nhood.na2d)(zeros, zeros, value, **axes)
    places = np.flatnonzero(out[(0, *query, 0)])
    return set(zip(*(axis.tolist() for axis in np.unravel_index(places, lengths))))


@pytest.mark.parametrize("seed", range(40))
def test_window(seed):
    draw = random.Random(seed)
    dilation, causal = draw.randint(1, 3), draw.random() < 0.3
    periodic = not causal and draw.random() < 0.3
    size = draw.randint(1, 7)
    stride = draw.randint(1, size)
    length = dilation * stride * (-(-size // stride) + draw.randint(0, 3)) if periodic else dilation * size + draw.randint(0, 9)
    token = draw.randrange(length)
    expected = attended((length,), (token,), kernel_size=size, stride=stride, dilation=dilation, is_causal=causal, is_periodic=periodic)
    found = pictures.window(token, length, size, stride, dilation, causal, periodic)
    assert {(key,) for key in found} == expected


@pytest.mark.parametrize("number", range(len(pictures.NEIGHBORHOODS)))
@pytest.mark.parametrize("scheme", pictures.SCHEMES)
def test_neighborhood(number, scheme):
    """Cells of the drawing itself."""
    title, _, query, *ways = pictures.NEIGHBORHOODS[number]
    side = pictures.SIDE
    names = {"stride": "stride", "dilation": "dilation", "causal": "is_causal", "periodic": "is_periodic"}
    plain = {"stride": 1, "dilation": 1, "causal": False, "periodic": False}
    axes = {names[key]: tuple(way.get(key, plain[key]) for way in ways) for key in plain}
    expected = attended((side, side), query, kernel_size=pictures.WINDOW, **axes)
    boxes = re.findall(r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="\d+" fill="(.*?)"', pictures.neighborhood(scheme))
    colours = pictures.SCHEMES[scheme]
    left, top, width = [tuple(map(int, box[:3])) for box in boxes if box[3] == colours["empty"]][number]
    cell = width // side
    cells = [tuple(map(int, box[:3])) for box in boxes if box[3] == colours["attended"]]
    found = {((y - top) // cell, (x - left) // cell) for x, y, size in cells if size == cell and left <= x < left + width}
    assert found == expected, title


def labels(svg):
    return re.findall(r">([\d.e+]+× [^<]*)</text>", svg)


def test_speed_is_that_of_stored_runs():
    """The first bars of both panels, from the files themselves."""
    found = labels(pictures.speed("light"))
    for file, table, base in (("h200-peers", "peers", "cuDNN"), ("epyc-zen5-peers", "cpu_peers", "plain C")):
        row = json.loads((ROOT / f"bench/results/{file}.json").read_text())["tables"][table]["rows"][0]
        assert f"{row['peers_ms'][base] / row['ms']:.2g}× nhood" in found


def test_speed_has_a_bar_for_every_contender(monkeypatch):
    run = {"kind": "cuda", "device": "made up", "driver": "1", "commit": "c", "date": "2026-01-01", "system": "-"}
    problem = "fwd:bf16:b1h1d64:32x32:w8x8"
    peers = {"cuDNN": 60.0, "flash": 90.0, "flex": 30.0, "NATTEN": 20.0, "flash4": 15.0}
    rows = [{"problem": problem, "ms": 4.0, "peers_ms": peers}, {"problem": "bwd:" + problem[4:], "ms": 1.0, "peers_ms": peers}]
    stored = [one for one in pictures.performance_report.read_runs(ROOT / "bench/results") if one["kind"] == "cpu"]
    alone = [{"problem": problem, "ms": 5.0, "peers_ms": {"cuDNN": 60.0}}]  # of another run: not compared with contenders
    made_up = {**run, "tables": {"peers": {"command": "c", "rows": rows}, "large_windows": {"command": "c", "rows": alone}}}
    monkeypatch.setattr(pictures.performance_report, "read_runs", lambda folder: [made_up, *stored])
    found = labels(pictures.speed("dark"))
    assert found[:5] == ["15× nhood", "3× NATTEN", "2× FlexAttention", "4× FlashAttention 4", "1× dense (cuDNN)"]
