"""A page for every file of the repository that a page links and that is no page itself: code, tests, recipes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path

from docs.website.markdown import LINK, ROOT, in_site, marked

LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".sh": "bash"}
UNSOUGHT = "---\nsearch:\n  exclude: true\n---\n"
"""Above a page that the search leaves out: what it holds is found where it is spoken of."""


def pages(written: list[str]) -> dict[str, str]:
    """Return the pages by their place in the site, for pages at these paths of the repository."""
    linked = {target for source in written for target in targets(source)}
    return {in_site(path): page(path) for path in sorted(linked) if in_site(path).startswith("code/")}


def targets(source: str) -> Iterator[str]:
    """Yield the files of the repository that a page links, if they are there."""
    for line, prose in marked((ROOT / source).read_text(encoding="utf-8")):
        for found in LINK.finditer(line) if prose else ():
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found.group(2)))
            if "://" not in found.group(2) and not path.startswith("..") and (ROOT / path).exists():
                yield path


def page(path: str) -> str:
    """Return one file's page; a folder's lists what is in it."""
    place = ROOT / path
    if place.is_dir():
        listed = "\n".join(f"- `{one.name}`" for one in sorted(place.iterdir()) if not one.name.startswith((".", "__")))
        return f"{UNSOUGHT}# {path}\n\n{listed}\n"
    text = place.read_text(encoding="utf-8")
    return f"{UNSOUGHT}# {path}\n\n~~~~{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n~~~~\n"
