"""From Markdown as GitHub reads it to Markdown as MkDocs does: blank lines before lists and tables, and links."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
LINK_WITH_TEXT = re.compile(r"(?<!!)\[([^][]+)\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
ITEM = re.compile(r"(?:[-*+]|\d+\.) ")
FENCE = re.compile(r"\s*(```|~~~)")
OF_ROOT = {"README.md": "index.md"} | {
    name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "CITATION.cff")
}
"""Where files of the repository's root are in the site."""


def for_site(text: str, source: str) -> str:
    """Return a page's text as MkDocs takes it; ``source`` is the page's path in the repository."""
    return "\n".join(spaced(unbroken(linked(line, source)) if prose else line for line, prose in marked(text))) + "\n"


def unbroken(line: str) -> str:
    """Keep a figure and its spread on one line of a table's cell."""
    return line.replace(" ± ", "\u00a0±\u00a0") if line.startswith("|") else line


def marked(text: str) -> Iterator[tuple[str, bool]]:
    """Yield lines, each with whether it is outside of fenced code."""
    fenced = False
    for line in text.splitlines():
        border = FENCE.match(line) is not None
        yield line, not fenced and not border
        fenced ^= border


def spaced(lines: Iterator[str]) -> Iterator[str]:
    """Put a blank line between a paragraph and the list or table that stands right below it."""
    before, fenced = "", False
    for line in lines:
        border = FENCE.match(line) is not None
        if not fenced and begins(line, before):
            yield ""
        yield line
        fenced ^= border
        before = "" if border else line


def begins(line: str, before: str) -> bool:
    """Tell whether a line begins a list or a table right below a paragraph, or a paragraph right below a table."""
    if not before.strip() or not line.strip():
        return False
    if before.startswith("|"):
        return not line.startswith("|")
    return line.startswith("|") or (ITEM.match(line) is not None and not ITEM.match(before) and before[0] != " ")


def linked(line: str, source: str) -> str:
    """Let links lead to the pages of the site. A link to a file that the site lacks becomes the name of the file."""

    def named(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = from_root(target, source)
        if is_elsewhere(target) or is_page(path):
            return match.group()
        return text if posixpath.basename(path) in text else f"{text} (`{path}`)"

    def moved(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        return before + (target if is_elsewhere(target) else place(target, source)) + after

    return LINK.sub(moved, LINK_WITH_TEXT.sub(named, line))


def is_elsewhere(target: str) -> bool:
    """Return whether a link leads out of the repository."""
    return "://" in target or target.startswith("mailto:")


def from_root(target: str, source: str) -> str:
    """Return the path in the repository to which a link in ``source`` leads."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def is_page(path: str) -> bool:
    """Return whether a file of the repository is a page or picture of the site."""
    return path in OF_ROOT or path.startswith("notebooks/") or (path.startswith("docs/") and not path.endswith(".py"))


def place(target: str, source: str) -> str:
    """Return a link's target as the site has it, from where its page is there."""
    here = posixpath.dirname(in_site(source))
    return posixpath.relpath(in_site(from_root(target, source)), here or ".")


def in_site(path: str) -> str:
    """Return where a page or picture of the repository is in the site: docs/ is its root."""
    if path.startswith("notebooks/"):
        return f"tutorials/{posixpath.basename(path).replace('.ipynb', '.md')}"
    return OF_ROOT.get(path, path.removeprefix("docs/"))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def plain(text: str) -> str:
    """Return a docstring's text as Markdown: code in single marks, references as code."""
    return re.sub(r":\w+:`([^`]+)`", r"`\1`", text.replace("``", "`")).replace("*", r"\*").replace("<", "&lt;")


def titles(pages: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return paths and first headings."""
    return [(path, text.split("\n", 1)[0].lstrip("# ")) for path, text in pages.items()]
