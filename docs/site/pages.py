"""Gathers the site's pages in a folder: docs/, the README as the first page, and the references.

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
# Of the README's sections, in the order of the first page; the navigation stands for the others.
FIRST_PAGE = ("How fast", "In Python", "In C", "The tool", "Two commands", "What it stands on")


def title(page: Path) -> str:
    return re.search(r"^# (.*)$", page.read_text(), re.MULTILINE)[1]


def inside(text: str, source: Path) -> str:
    """With links as they hold in the site, called after their pages where they are called after files; there is none to files
    of the repository that are no pages."""

    def link(match: re.Match) -> str:
        words, target, anchor = match.groups(default="")
        path = (source.parent / target).resolve()
        if not path.is_relative_to(DOCS):
            return words
        if path.suffix == ".md" and words.endswith(".md"):
            words = title(path)
        here = source.parent if source.is_relative_to(DOCS) else DOCS
        return f"[{words}]({os.path.relpath(path, here)}{anchor})"

    return re.sub(r"\[([^]]*)\]\(([\w./-]+)(#[^)]*)?\)", link, text)


def first_page() -> str:
    readme = ROOT / "README.md"
    intro, *sections = re.split(r"^## ", readme.read_text(), flags=re.MULTILINE)
    by_title = {section.split("\n", 1)[0]: section for section in sections}
    picture = re.search(r"^!\[.*?\n\n.*?\n\n", intro, re.MULTILINE | re.DOTALL)[0]
    name, summary, rest = intro.replace(picture, "").split("\n\n", 2)
    ordered = [name, summary, picture.rstrip(), rest]
    page = "\n\n".join(ordered) + "".join("## " + by_title[heading] for heading in FIRST_PAGE)
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
            copy.write_text(inside(path.read_text(), path))
        else:
            shutil.copyfile(path, copy)
    shutil.copyfile(DOCS / "site" / "site.css", folder / "site.css")
    (folder / "index.md").write_text(first_page())
    (folder / "reference-c.md").write_text(reference((ROOT / "include" / "nhood.h").read_text()))


if __name__ == "__main__":
    main()
