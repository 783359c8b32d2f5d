"""A site's own pages, for its administrator and data-protection officer: one file each, without scripts.

Names, titles and recipes come from other organisations. The template escapes every text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedvisage.base.errors import plain_line
from fedvisage.report.page import colours, environment
from fedvisage.report.tables import Table

LETTERS = 500
"""Characters of a sentence on a page, at most."""


@dataclass(frozen=True)
class PageSection:
    """A section of a page: its title, sentences and tables."""

    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()


def site_page(site: str, title: str, sections: Sequence[PageSection]) -> str:
    """Return a page about a site."""
    return (
        environment()
        .get_template("site.html.jinja")
        .render(
            colours=colours(),
            site=plain_line(site, LETTERS),
            title=plain_line(title, LETTERS),
            sections=[
                (section.title, [plain_line(each, LETTERS) for each in section.sentences], section.tables)
                for section in sections
            ],
        )
    )
