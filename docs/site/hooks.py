"""Completes the navigation, lets the search work from a folder and the page of lost links in any folder. And what GitHub's
Markdown takes and Python-Markdown does not: lists and tables that follow a paragraph without a blank line, and nested lists
that are indented by two. In tables, numbers keep their units beside them."""

import re
from pathlib import Path

UNIT = re.compile(r"(?<=\d) (?=(?:%|[mµun]s|[GT]B/s|GFLOP/s)(?: |$))")
LIST = re.compile(r"^( *)([-*]|\d+\.) ")


def listed(nav: list) -> set:
    """The pages of a navigation."""
    pages = set()
    for entry in nav:
        for target in entry.values():
            pages |= listed(target) if isinstance(target, list) else {target}
    return pages


def on_config(config: dict) -> dict:
    """Pages that the navigation does not name come last in its last part, under their own titles."""
    folder = Path(config["docs_dir"])
    found = {page.relative_to(folder).as_posix() for page in folder.rglob("*.md")}
    for page in sorted(found - listed(config["nav"])):
        title = re.search(r"^# (.*)$", (folder / page).read_text(), re.MULTILINE)[1]
        list(config["nav"][-1].values())[0].append({title: page})
    return config


def on_page_markdown(markdown: str, **_: object) -> str:
    lines, code, before = [], False, ""
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            item = LIST.match(line)
            starts_list = item and not LIST.match(before) and not before.startswith(" ")
            starts_table = line.startswith("|") and not before.startswith("|")
            if before.strip() and (starts_list or starts_table):
                lines.append("")
            if item and item[1]:
                line = item[1] + line
        if line.startswith("|") and not code:
            line = UNIT.sub("\u00a0", line)
        lines.append(line)
        before = line
    return "\n".join(lines)


def on_post_build(config: dict) -> None:
    """From a folder a page may not read the index as data, but may run it as a script. 404.html is served from anywhere, which
    the generator takes for the root of a server."""
    site = Path(config["site_dir"])
    index = (site / "search" / "search_index.json").read_text()
    (site / "search" / "search_index.js").write_text(f"var __index = {index}")
    lost = site / "404.html"
    lost.write_text(re.sub(r'(href|src|action)="/', r'\1="./', lost.read_text()).replace('"base": "/"', '"base": "."'))
