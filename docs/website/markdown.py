"""Conversion of Markdown from GitHub's dialect to that of MkDocs: blank lines before lists and tables, and links."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
LINK_WITH_TEXT = re.compile(r"(?<!!)\[([^][]+)\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
ITEM = re.compile(r"(?:[-*+]|\d+\.) ")
FENCE = re.compile(r"\s*(```|~~~)")
OF_ROOT = {"README.md": "index.md"} | {
    name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "CITATION.cff")
}
"""The places of the root's files in the site."""


def for_site(text: str, source: str) -> str:
    """Return a page's text for MkDocs; ``source`` is the page's path in the repository."""
    return (
        "\n".join(
            add_blank_lines(
                keep_together(resolve_links(line, source)) if prose else line for line, prose in mark_prose(text)
            )
        )
        + "\n"
    )


def keep_together(line: str) -> str:
    """Prevent a line break between a figure and its spread in a table."""
    return line.replace(" ± ", "\u00a0±\u00a0") if line.startswith("|") else line


def mark_prose(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line with True if it is outside of fenced code."""
    fenced = False
    for line in text.splitlines():
        border = FENCE.match(line) is not None
        yield line, not fenced and not border
        fenced ^= border


def add_blank_lines(lines: Iterator[str]) -> Iterator[str]:
    """Add a blank line between a paragraph and a list or table directly below it."""
    before, fenced = "", False
    for line in lines:
        border = FENCE.match(line) is not None
        if not fenced and needs_blank_line(line, before):
            yield ""
        yield line
        fenced ^= border
        before = "" if border else line


def needs_blank_line(line: str, before: str) -> bool:
    """Return whether a list, a table or a paragraph starts directly below another kind of block."""
    if not before.strip() or not line.strip():
        return False
    if before.startswith("|"):
        return not line.startswith("|")
    return line.startswith("|") or (ITEM.match(line) is not None and not ITEM.match(before) and before[0] != " ")


def resolve_links(line: str, source: str) -> str:
    """Convert links to targets in the site; a link to a file that the site lacks becomes the file's name."""

    def replace_by_name(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = from_root(target, source)
        if is_elsewhere(target) or is_page(path):
            return match.group()
        return text if posixpath.basename(path) in text else f"{text} (`{path}`)"

    def move(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        return before + (target if is_elsewhere(target) else target_in_site(target, source)) + after

    return LINK.sub(move, LINK_WITH_TEXT.sub(replace_by_name, line))


def is_elsewhere(target: str) -> bool:
    """Return whether a link leads out of the repository."""
    return "://" in target or target.startswith("mailto:")


def from_root(target: str, source: str) -> str:
    """Return the path in the repository to which a link in ``source`` leads."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def is_page(path: str) -> bool:
    """Return whether a file of the repository is a page or picture of the site."""
    return path in OF_ROOT or path.startswith("notebooks/") or (path.startswith("docs/") and not path.endswith(".py"))


def target_in_site(target: str, source: str) -> str:
    """Return a link's target in the site, relative to its page."""
    here = posixpath.dirname(in_site(source))
    return posixpath.relpath(in_site(from_root(target, source)), here or ".")


def in_site(path: str) -> str:
    """Return the path in the site of a page or picture of the repository: docs/ is the root."""
    if path.startswith("notebooks/"):
        return f"tutorials/{posixpath.basename(path).replace('.ipynb', '.md')}"
    return OF_ROOT.get(path, path.removeprefix("docs/"))


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def plain(text: str) -> str:
    """Return a docstring's text as Markdown: code in single marks, references as code."""
    return re.sub(r":\w+:`([^`]+)`", r"`\1`", text.replace("``", "`")).replace("*", r"\*").replace("<", "&lt;")


def titles(pages: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return paths and first headings."""
    return [(path, text.split("\n", 1)[0].lstrip("# ")) for path, text in pages.items()]
