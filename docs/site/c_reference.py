"""A header as a page: its sections are those of the header, its text the header's comments."""

import re
import textwrap

SECTION = re.compile(r"^/\* ---- (.+?) -+ \*/$")


def prose(comment: str) -> str:
    """A comment's text: paragraphs, with what is set in by four blanks as code."""
    body = comment.strip()[2:-2]
    lines = textwrap.dedent("\n".join(re.sub(r"^ ?\*(?: |$)", "", line.strip()) for line in body.split("\n"))).split("\n")
    parts, code = [], []
    for line in [*lines, ""]:
        if line.startswith("    ") or (code and not line.strip() and line is not lines[-1]):
            code.append(line[4:])
            continue
        if code:
            parts.append("\n```c\n" + "\n".join(code).rstrip() + "\n```\n")
            code = []
        parts.append(escape(line))
    return "\n".join(parts).strip() + "\n"


def escape(line: str) -> str:
    """Plain text for Markdown: names of the interface as code, the rest as it is."""
    line = re.sub(r"([*<>\[\]|])", r"\\\1", line)
    return re.sub(r"(?<![\w`])((?:nhood|NHOOD)_\w+(?:\(\))?|[a-z]{3,}\.[a-z_]{3,}(?=[\s,.;:)]))", r"`\1`", line)


def names(code: str) -> list:
    """What a declaration declares, in its order."""
    plain = re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL)
    declared = re.findall(r"^\} (\w+);", plain, re.MULTILINE)
    declared += re.findall(r"^typedef [^{;]*?\(?\*?(nhood_\w+)\)?(?:\([^;]*\))?;", plain, re.MULTILINE)
    declared += re.findall(r"^NHOOD_API [^;(]*?(nhood_\w+)\(", plain, re.MULTILINE)
    if not declared and "enum {" in plain:
        declared = [re.search(r"enum \{\s*(\w+)", plain)[1] + " .."]
    return list(dict.fromkeys(declared))


def blocks(text: str) -> list:
    """Comments and declarations as they are set apart by blank lines outside of braces."""
    parts, depth, lines, comment = [], 0, [], False
    for line in text.split("\n"):
        if not line.strip() and depth == 0 and not comment:
            if lines:
                parts.append("\n".join(lines))
            lines = []
            continue
        lines.append(line)
        comment = (comment or "/*" in line) and "*/" not in line.rpartition("/*")[2]
        depth += re.sub(r"/\*.*?\*/", "", line).count("{") - re.sub(r"/\*.*?\*/", "", line).count("}")
    return [*parts, "\n".join(lines)] if lines else parts


def block_page(block: str) -> str:
    comment = re.match(r"/\*.*?\*/", block, re.DOTALL)
    text, code = (comment[0], block[comment.end() :].strip("\n")) if comment else ("", block)
    title = ", ".join(f"`{name}`" for name in names(code))
    page = f"### {title}\n\n" if title else ""
    if code.strip():
        page += f"```c\n{re.sub(r'^NHOOD_API ', '', code, flags=re.MULTILINE)}\n```\n\n"
    return page + (prose(text) + "\n" if text else "")


def reference(name: str, header: str) -> str:
    intro = re.match(r"/\*.*?\*/", header, re.DOTALL)[0]
    opening = 'extern "C" {\n#endif\n'
    body = header[header.index(opening) + len(opening) : header.rindex("#ifdef __cplusplus")]
    page = f"# {name}\n\nMade from the comments of `include/{name}`, which is the manual.\n\n" + prose(intro) + "\n"
    for block in blocks(body):
        section = SECTION.match(block)
        page += f"## {section[1].capitalize()}\n\n" if section else block_page(block)
    declared = re.findall(r"^NHOOD_API [^;(]*?(nhood_\w+)\(", header, re.MULTILINE)
    missing = [name for name in declared if not re.search(rf"^### .*`{name}`", page, re.MULTILINE)]
    if missing:
        raise SystemExit(f"{name}'s page has no heading for {', '.join(missing)}")
    return page
