"""The Python packages as pages, from the docstrings that they have once they are imported; torch and JAX are not needed for that.

    docs/site/python_reference.py FOLDER MODULE...
"""

import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path

import stand_in

MOST_COLUMNS = 88
ARGUMENTS = re.compile(r"^\w+(?:, \w+)*: ")


def escape(text: str) -> str:
    return re.sub(r"([*_<>\[\]|])", r"\\\1", text)


def as_list(paragraph: str) -> str:
    """`name: text` on lines of their own, or several on one, two blanks apart; what is set in goes on."""
    joined = re.sub(r"\n\s+", " ", paragraph)
    items = [item for line in joined.split("\n") for item in re.split(r"(?<=\.)  (?=\w+: )", line)]
    return "\n".join("- **" + escape(item.split(": ", 1)[0]) + "**: " + escape(item.split(": ", 1)[1]) for item in items)


def prose(docstring: str) -> str:
    parts = []
    for paragraph in docstring.split("\n\n"):
        if all(line.startswith("    ") for line in paragraph.split("\n")):
            parts.append("```python\n" + textwrap.dedent(paragraph) + "\n```")
        elif all(ARGUMENTS.match(line) or line.startswith(" ") for line in paragraph.split("\n")):
            parts.append(as_list(paragraph))
        else:
            parts.append(escape(paragraph))
    return "\n\n".join(parts) + "\n"


def signature(name: str, value: object) -> str:
    """Annotations are texts in these packages: shown without quotation marks."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    line = re.sub(r"(?<=: |> )'([^']*)'", r"\1", name + re.sub(r"ForwardRef\(('[^']*')\)", r"\1", str(found)))
    if len(line) <= MOST_COLUMNS:
        return line
    arguments = [re.sub(r"(?<=: )'([^']*)'", r"\1", str(p)) for p in found.parameters.values()]
    kinds = [p.kind for p in found.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    end = line[line.rindex(")") :] if " -> " not in line else ")" + line[line.rindex(" -> ") :]
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + end


def methods(value: object) -> list:
    if not inspect.isclass(value):
        return []
    return [n for n, m in vars(value).items() if inspect.isfunction(m) and not n.startswith("_") and m.__doc__]


def entry(names: list, value: object) -> str:
    page = "## " + ", ".join(f"`{name}`" for name in names) + "\n\n"
    shown = value.__name__ if hasattr(value, "__name__") else names[0]
    page += f"```python\n{signature(shown, value)}\n```\n\n" + prose(inspect.getdoc(value) or "")
    for name in methods(value):
        method = getattr(value, name)
        page += f"\n```python\n{signature(f'{shown}.{name}', method)}\n```\n\n" + prose(inspect.getdoc(method))
    return page


def module_page(module: str) -> str:
    """Names that differ by their rank alone share an entry, which shows that of two axes."""
    package = importlib.import_module(module)
    groups: dict = {}
    for name in package.__all__:
        groups.setdefault(re.sub(r"[123](?=[dD](?:_|$))", "2", name), []).append(name)
    entries = [entry(names, getattr(package, shown)) for shown, names in groups.items()]
    return f"# {module}\n\n" + prose(inspect.getdoc(package)) + "\n" + "\n".join(entries)


def main() -> None:
    stand_in.install()
    for module in sys.argv[2:]:
        Path(sys.argv[1], f"reference-{module.replace('.', '-')}.md").write_text(module_page(module))


if __name__ == "__main__":
    main()
