"""The table and the picture of what bench/gpu/video_decoder.py found."""

from __future__ import annotations

from pathlib import Path

from report import Row, pyplot, table

GIB = 2**30


def cell(rows: list[Row], way: str, mode: str, name: str) -> float | None:
    return next((row[name] for row in rows if (row["way"], row["mode"]) == (way, mode)), None)


def seconds(ms: float | None) -> str:
    return "–" if ms is None else f"{ms / 1e3:.3g}"


def attention_ms(rows: list[Row], way: str, mode: str) -> float | None:
    """What a decoding takes longer than one without attention."""
    whole, rest = cell(rows, way, mode, "ms"), cell(rows, "none", mode, "ms")
    return None if whole is None or rest is None or way == "none" else max(0.0, whole - rest)


def times_of(size: Row) -> str:
    rows = size["rows"]
    ways = list(dict.fromkeys(row["way"] for row in rows))
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    heads = [size["size"]] + [head for mode in modes for head in (f"{mode}, s", "in attention")]
    heads.append(f"peak memory, GiB: {', '.join(modes)}")
    lines = []
    for way in ways:
        cells = [way]
        for mode in modes:
            cells += [seconds(cell(rows, way, mode, "ms")), seconds(attention_ms(rows, way, mode))]
        peaks = [cell(rows, way, mode, "peak_bytes") for mode in modes]
        cells.append(", ".join("–" if peak is None else f"{peak / GIB:.3g}" for peak in peaks))
        lines.append(cells)
    absent = [f"\n{way}: {why}" for way, why in size["absent"].items()]
    return "\n".join([*table(heads, lines), *absent]) + "\n"


def norm_and_rope(size: Row) -> str:
    """All layers together."""
    rows = size["norm_and_rope"]
    copy = sum(row["layers"] * row["copy_ms"] for row in rows)
    parts = []
    ways = {
        "eager": "diffusers' eager",
        "compiled": "diffusers' compiled",
        "operator": "nhood.torch.norm_rope eager",
        "operator_compiled": "nhood.torch.norm_rope compiled",
    }
    for name, what in ways.items():
        if f"{name}_ms" in rows[0]:
            ms = sum(row["layers"] * row[f"{name}_ms"] for row in rows)
            parts.append(f"{what} {ms:.4g} ms, {ms / copy:.2g} times the memory's time")
    return (
        f"RMS norm and rotary positions of query and key, all layers: {'; '.join(parts)}, "
        f"which is that of reading and writing both once, {copy:.4g} ms\n"
    )


def write(found: Row, path: Path) -> None:
    names = ("device", "driver", "commit", "date", "torch", "diffusers", "dtype", "decoder")
    where = ", ".join(f"{name} {found[name]}" for name in names if name in found)
    parts = [f"{where}\n"]
    for size in found["sizes"]:
        parts += [times_of(size), norm_and_rope(size)]
    path.with_suffix(".md").write_text("\n".join(parts))
    plot(found, path.with_suffix(".png"))


def plot(found: Row, path: Path) -> None:
    """Seconds of each way: one group of bars per size and mode, and what no attention at all would take as a line."""
    plots = pyplot()
    if not plots:
        return
    groups = [(size, mode) for size in found["sizes"] for mode in dict.fromkeys(row["mode"] for row in size["rows"])]
    ways = list(dict.fromkeys(row["way"] for size in found["sizes"] for row in size["rows"] if row["way"] != "none"))
    figure, axes = plots.subplots(figsize=(2 + 1.6 * len(groups), 4), layout="constrained")
    width = 0.8 / max(1, len(ways))
    for i, way in enumerate(ways):
        heights = [(cell(size["rows"], way, mode, "ms") or 0) / 1e3 for size, mode in groups]
        bars = axes.bar([x + (i + 0.5) * width - 0.4 for x in range(len(groups))], heights, width, label=way)
        axes.bar_label(bars, [f"{height:.3g}" if height else "" for height in heights], fontsize=7)
    for x, (size, mode) in enumerate(groups):
        rest = cell(size["rows"], "none", mode, "ms")
        if rest is not None:
            axes.hlines(rest / 1e3, x - 0.45, x + 0.45, "black", label="no attention" if x == 0 else None)
    axes.set(ylabel="seconds a video", title=f"LTX-2's diffusion decoder, {found['dtype']}, {found['device']}")
    axes.set_xticks(range(len(groups)), [f"{size['size']}\n{mode}" for size, mode in groups])
    figure.legend(loc="outside upper right", ncols=len(ways) + 1, fontsize=7)
    figure.savefig(path, dpi=150)
    plots.close(figure)
