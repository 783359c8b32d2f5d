"""Looks at the site as it was built: it must open from a file, with nothing from elsewhere.

``python -m docs.website.checked build/site`` ends with 1 and names what is wrong. Anchors are MkDocs' own check
(``strict``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

LOADS = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("use", "href")}
"""What a browser fetches by itself; a link it follows only when somebody asks."""
HARMLESS = {"canonical", "next", "prev"}


class Fetched(HTMLParser):
    """Collects what a page has a browser fetch."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.found: list[str] = []
        self.linked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the targets of one element."""
        if tag == "link" and dict(attrs).get("rel") in HARMLESS:
            return
        self.found += [value for name, value in attrs if (tag, name) in LOADS and value]
        self.linked += [value for name, value in attrs if (tag, name) == ("a", "href") and value]


def wrong(site: Path) -> Iterator[str]:
    """Yield a line for each thing that is fetched from elsewhere or is not there."""
    for page in sorted(site.rglob("*.html")):
        parser = Fetched()
        parser.feed(page.read_text(encoding="utf-8"))
        for target in parser.found:
            if "://" in target or target.startswith("//"):
                yield f"{page.relative_to(site)}: {target} is elsewhere"
            elif not target.startswith(("#", "data:")) and not there(site, page, target):
                yield f"{page.relative_to(site)}: {target} is not there"
        for target in parser.linked:
            if "://" not in target and not target.startswith(("#", "mailto:")) and not there(site, page, target):
                yield f"{page.relative_to(site)}: {target} is linked and not there"


def there(site: Path, page: Path, target: str) -> bool:
    """Tell whether a file is where a page looks for it; the page for missing ones looks from the site's root."""
    path = target.split("#")[0].split("?")[0]
    return (site / path.lstrip("/") if path.startswith("/") else page.parent / path).is_file()


def main() -> int:
    """Print what is wrong, and count the pages."""
    site = Path(sys.argv[1])
    found = list(wrong(site))
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.stdout.write(f"{len(list(site.rglob('*.html')))} pages in {site}, {len(found)} faults\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
