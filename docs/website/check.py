"""Check of the built site: it must open from a file, and fetch nothing from another host.

``python -m docs.website.check build/site`` prints the faults and ends with 1 if there are any. MkDocs itself checks
anchors (``strict``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

FETCHED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("use", "href")}
"""Attributes whose targets a browser fetches without a click."""
NOT_FETCHED = {"canonical", "next", "prev"}


class TargetParser(HTMLParser):
    """Collects the targets of a page."""

    def __init__(self) -> None:
        """Start without targets."""
        super().__init__()
        self.fetched: list[str] = []
        self.linked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Add the targets of one element."""
        if tag == "link" and dict(attrs).get("rel") in NOT_FETCHED:
            return
        self.fetched += [value for name, value in attrs if (tag, name) in FETCHED and value]
        self.linked += [value for name, value in attrs if (tag, name) == ("a", "href") and value]


def find_faults(site: Path) -> Iterator[str]:
    """Yield one line per target that is on another host or does not exist."""
    for page in sorted(site.rglob("*.html")):
        parser = TargetParser()
        parser.feed(page.read_text(encoding="utf-8"))
        for target in parser.fetched:
            if "://" in target or target.startswith("//"):
                yield f"{page.relative_to(site)}: {target} is elsewhere"
            elif not target.startswith(("#", "data:")) and not exists(site, page, target):
                yield f"{page.relative_to(site)}: {target} is not there"
        for target in parser.linked:
            if "://" not in target and not target.startswith(("#", "mailto:")) and not exists(site, page, target):
                yield f"{page.relative_to(site)}: {target} is linked and not there"


def exists(site: Path, page: Path, target: str) -> bool:
    """Return whether the target of a page exists; absolute targets start at the site's root."""
    path = target.split("#")[0].split("?")[0]
    return (site / path.lstrip("/") if path.startswith("/") else page.parent / path).is_file()


def main() -> int:
    """Print the faults and the number of pages."""
    site = Path(sys.argv[1])
    faults = list(find_faults(site))
    sys.stdout.writelines(f"{line}\n" for line in faults)
    sys.stdout.write(f"{len(list(site.rglob('*.html')))} pages in {site}, {len(faults)} faults\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
