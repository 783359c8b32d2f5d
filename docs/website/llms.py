"""``llms.txt`` at the root of the site: its pages with one sentence each, for language models that look for a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from docs.website.markdown import OF_ROOT, ROOT

HEAD = """\
# fedvisage

> Federated learning for faces: organisations train presentation attack detection and face recognition together, and
> no image leaves its site. A Python package with a command line; methods, datasets, audits, deployment and devices.

Set the project up with `make setup`, try it with `fedvisage demo`, and read AGENTS.md in the repository before you
change it.
"""
FOLDERS = ("methods/", "models/")
"""Folders of generated pages, of which only the index is listed."""
SKIPPED = ("#", "|", "![", "```", "<", "-", ">", ":::", "This page is ")
"""Prefixes of blocks that are not text."""
LONGEST = 200
"""Characters of a page's sentence."""


def text(nav: list[Any], generated: Mapping[str, str]) -> str:
    """Return the file, in the order of the menu; ``generated`` has the generated pages."""
    blocks = [HEAD]
    for part in nav:
        ((title, pages),) = part.items()
        blocks.append(f"## {title}\n" + "\n".join(_lines(pages, generated)) + "\n")
    return "\n".join(blocks)


def _lines(entries: Any, generated: Mapping[str, str]) -> Iterator[str]:
    if isinstance(entries, str):
        if entries.startswith(FOLDERS) and not entries.endswith("index.md"):
            return  # the folder's index lists it
        page = _source(entries, generated)
        name = re.sub(r"[*`]", "", page.split("\n", 1)[0].lstrip("# "))
        yield f"- [{name}]({entries.removesuffix('.md')}.html): {sentence(page)}".rstrip(": ")
    elif isinstance(entries, list):
        for entry in entries:
            yield from _lines(entry, generated)
    else:
        for pages in entries.values():
            yield from _lines(pages, generated)


def _source(path: str, generated: Mapping[str, str]) -> str:
    """Return a page's Markdown, generated or from the repository."""
    if path in generated:
        return generated[path]
    of_root = {place: name for name, place in OF_ROOT.items()}
    return (ROOT / of_root.get(path, f"docs/{path}")).read_text(encoding="utf-8")


def sentence(page: str) -> str:
    """Return the first sentence of a page's text as plain text."""
    head, *blocks = page.split("\n\n")
    for block in (head.partition("\n")[2], *blocks):
        if block and not block.startswith(SKIPPED):
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(block.split())).replace("*", "")
            first = re.split(r"(?<=[.!?]) (?=[A-Z])", plain, maxsplit=1)[0]
            return first if len(first) <= LONGEST else f"{first[: LONGEST - 1].rsplit(' ', 1)[0]} …"
    return ""
