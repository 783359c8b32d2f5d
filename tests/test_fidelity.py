"""docs/fidelity.md stays true: its links lead somewhere, and no study, printed table or paper's recipe is left out."""

from __future__ import annotations

import re
from pathlib import Path

from tests.documented import ROOT

PAGE = ROOT / "docs" / "fidelity.md"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]*)(?:#([^)]+))?\)")


def links() -> list[tuple[Path, str]]:
    """Return files and the places in them that the page names."""
    found = LINK.findall(PAGE.read_text(encoding="utf-8"))
    return [((PAGE.parent / path).resolve(), place) for _, path, place in found]


def places(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_link_leads_to_a_file_and_to_a_heading_of_it() -> None:
    assert len(links()) > 150
    for file, place in links():
        assert file.is_file(), file
        assert not place or place in places(file), f"{file.name}#{place}"


def test_every_study_every_printed_table_and_every_recipe_of_a_paper_is_on_the_page() -> None:
    named = {file for file, _ in links()}
    folders = (ROOT / "recipes" / "studies", ROOT / "recipes" / "studies" / "printed", ROOT / "recipes" / "paper")
    missing = [path.name for folder in folders for path in sorted(folder.glob("*.yaml")) if path.resolve() not in named]
    assert not missing


def test_every_row_says_what_became_of_it() -> None:
    rows = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert all(len(row) == 8 and row[6].strip() for row in rows)


def test_every_test_that_is_named_holds_tests() -> None:
    tests = {file for file, _ in links() if "tests" in file.parts}
    assert all("def test_" in file.read_text(encoding="utf-8") for file in tests)
