"""Gathers the site's pages in a folder: docs/, the pages of the CUDA families, the README as the first page, and the references.

    docs/site/pages.py FOLDER
"""

import os
import re
import shutil
import sys
from pathlib import Path

from c_reference import reference

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NOTEBOOK = ROOT / "examples" / "first_hour.py"
EXECUTED = ROOT / "build" / "notebook"
FAMILIES = ROOT / "src" / "cuda" / "families"
LOG = DOCS / "log"
NOT_FOUND_BY_SEARCH = "---\nsearch: { exclude: true }\n---\n"
# Of the README's sections, in the order of the first page; the navigation stands for the others.
FIRST_PAGE = ("Quick start", "What it has", "How fast", "Installing", "One call that denoises", "The tool", "What it stands on")


def title(page: Path) -> str:
    return re.search(r"^# (.*)$", page.read_text(), re.MULTILINE)[1]


def place(path: Path) -> "Path | None":
    """Where a file of the repository is in the site; None: nowhere."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    if path.is_relative_to(FAMILIES) and path.name == "README.md":
        return Path("families") / f"{path.parent.name}.md"
    return Path("first-hour.md") if path == NOTEBOOK else None


def inside(text: str, source: Path) -> str:
    """With links as they hold in the site, called after their pages where they are called after files; there is none to files
    of the repository that are no pages."""

    def link(match: re.Match) -> str:
        words, target, anchor = match.groups(default="")
        path = (source.parent / target).resolve()
        if not place(path):
            return words
        if path.suffix == ".md" and words.endswith(".md"):
            words = title(path)
        here = (place(source) or Path()).parent
        return f"[{words}]({os.path.relpath(place(path), here)}{anchor})"

    def for_schemes(match: re.Match) -> str:
        """A picture that is drawn twice: the theme shows one of the two."""
        words, target = match.groups()
        dark = target.replace(".svg", "-dark.svg")
        if not (source.parent / dark).exists():
            return match[0]
        return f"![{words}]({target}#only-light)![{words}]({dark}#only-dark)"

    text = re.sub(r'<picture>.*?<img alt="([^"]*)" src="([^"]*)">\s*</picture>', r"![\1](\2)", text, flags=re.DOTALL)
    text = re.sub(r"!\[([^]]*)\]\(([\w./-]+\.svg)\)", for_schemes, text)
    return re.sub(r"\[([^]]*)\]\(([\w./-]+)(#[^)]*)?\)", link, text)


def from_source(notebook: str) -> str:
    """A notebook in the percent format as a page, without results."""
    _, *cells = re.split(r"^# %%", notebook, flags=re.MULTILINE)
    parts = []
    for cell in cells:
        kind, _, text = cell.partition("\n")
        is_text = "[markdown]" in kind
        parts.append(re.sub(r"^# ?", "", text, flags=re.MULTILINE).strip() if is_text else f"```python\n{text.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def write_notebook(folder: Path) -> None:
    """As `make notebook` has executed it, or as it is where that was not done since it changed."""
    page = EXECUTED / "first-hour.md"
    if page.exists() and page.stat().st_mtime >= NOTEBOOK.stat().st_mtime:
        shutil.copyfile(page, folder / page.name)
        shutil.copytree(EXECUTED / "first-hour_files", folder / "first-hour_files")
    else:
        (folder / page.name).write_text(from_source(NOTEBOOK.read_text()))


def first_page() -> str:
    readme = ROOT / "README.md"
    intro, *sections = re.split(r"^## ", readme.read_text(), flags=re.MULTILINE)
    by_title = {section.split("\n", 1)[0]: section for section in sections}
    page = intro + "".join("## " + by_title[heading] for heading in FIRST_PAGE)
    return "---\nhide: [navigation]\n---\n" + inside(page, readme)


def main() -> None:
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in DOCS.rglob("*"):
        copy = folder / path.relative_to(DOCS)
        if path.is_dir() or path.is_relative_to(DOCS / "site"):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            copy.write_text(NOT_FOUND_BY_SEARCH * path.is_relative_to(LOG) + inside(path.read_text(), path))
        else:
            shutil.copyfile(path, copy)
    for path in FAMILIES.glob("*/README.md"):
        (folder / place(path)).parent.mkdir(exist_ok=True)
        (folder / place(path)).write_text(inside(path.read_text(), path))
    for name in ("site.css", "search_from_folder.js"):
        shutil.copyfile(DOCS / "site" / name, folder / name)
    write_notebook(folder)
    (folder / "index.md").write_text(first_page())
    for page, header in (("reference-c.md", "nhood.h"), ("reference-norm-rope.md", "nhood_norm_rope.h")):
        (folder / page).write_text(reference(header, (ROOT / "include" / header).read_text()))


if __name__ == "__main__":
    main()
