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


SIDE = pictures.PAGE_SIDE


def plain(**differing):
    return lambda i: pictures.window(i, SIDE, 5, **differing)


def cut(i):
    return range(max(i - 2, 0), min(i + 3, SIDE))


def block(i):
    return [j for j in range(SIDE) if (j + 2) // 4 == (i + 2) // 4]


def part(i):
    return next(keys for keys in (range(3), range(3, 7), range(7, 12)) if i in keys)


def resampled(i):
    first = min(max((2 * i + 1) * 6 // (2 * SIDE) - 1, 0), 3)
    return range(first, first + 3)


# The keys of a query on the vertical and on the horizontal axis, as nhood.h defines them.
BY_RULE = {
    "middle": (plain(), plain()),
    "border": (plain(), plain()),
    "stride": (plain(stride=3), plain(stride=3)),
    "dilation": (plain(dilation=2), plain(dilation=2)),
    "causal": (plain(causal=True), plain()),
    "periodic": (plain(periodic=True), plain()),
    "resampled": (resampled, resampled),
    "cut": (cut, cut),
    "blocks": (block, block),
    "table": (part, plain()),
    "valid": (lambda i: [key for key in cut(i) if key < 9], plain()),
}


def cells(svg, colour, left, top, size):
    """The places of cells of that colour in the square of 168 that begins there."""
    found = re.findall(r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)" fill="(.*?)"', svg)
    return {
        ((int(y) - top) // int(high), (int(x) - left) // int(wide))
        for x, y, wide, high, fill in found
        if fill == colour and size == int(wide) and left <= int(x) < left + 168
    }


@pytest.mark.parametrize("name", pictures.WINDOWS)
@pytest.mark.parametrize("scheme", pictures.SCHEMES)
def test_windows(name, scheme):
    """Both panels, from the file; calls of docs/windows.md gave them."""
    svg = (ROOT / f"docs/windows/{name}{'-dark' * (scheme == 'dark')}.svg").read_text()
    assert svg == pictures.window_picture(scheme, name), "scripts/pictures --write"
    colours, (row, column) = pictures.SCHEMES[scheme], pictures.WINDOWS[name][0]
    of_rows, of_columns = BY_RULE[name]
    size = 168 // pictures.attended_on_page()[name].shape[2]
    assert cells(svg, colours["attended"], 12, 34, size) == {(y, x) for y in of_rows(row) for x in of_columns(column)}
    assert cells(svg, colours["query"], 12, 34, 14) == {(row, column)}
    assert cells(svg, colours["attended"], 12 + 168 + 84, 34, size) == {(i, y) for i in range(SIDE) for y in of_rows(i)}
    padding = {(y, x) for y in range(9, SIDE) for x in range(SIDE)} if name == "valid" else set()
    assert cells(svg, colours["absent"], 12, 34, size) == padding


def test_every_picture_of_windows_is_on_the_page():
    assert set(pictures.attended_on_page()) == set(pictures.WINDOWS)
    assert {path.stem for path in (ROOT / "docs/windows").glob("*.svg")} == {
        name + ending for name in pictures.WINDOWS for ending in ("", "-dark")
    }


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
