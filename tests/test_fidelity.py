"""The links of docs/fidelity.md exist, and it has every study, printed table and paper's recipe."""

import re
from pathlib import Path

from docs.website.methods import anchor
from tests.documented import ROOT, read_page

PAGE = ROOT / "docs" / "fidelity.md"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]*)(?:#([^)]+))?\)")


TEXT = read_page("docs/fidelity.md")
LINKS = [((PAGE.parent / path).resolve(), place) for _, path, place in LINK.findall(TEXT)]
"""The linked files, with an anchor or none."""


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    return set(map(anchor, re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)))


def test_every_linked_file_and_heading_exists() -> None:
    assert len(LINKS) > 150
    for file, place in LINKS:
        assert file.is_file(), file
        assert not place or place in anchors(file), f"{file.name}#{place}"


def test_page_has_every_study_printed_table_and_recipe_of_a_paper() -> None:
    files = {file for file, _ in LINKS}
    folders = (ROOT / "recipes" / "studies", ROOT / "recipes" / "studies" / "printed", ROOT / "recipes" / "paper")
    missing = [path.name for folder in folders for path in sorted(folder.glob("*.yaml")) if path.resolve() not in files]
    assert not missing


def test_every_row_has_a_result() -> None:
    rows = [line.split("|") for line in TEXT.splitlines() if line.startswith("| ")]
    assert all(len(row) == 8 and row[6].strip() for row in rows)


def test_every_linked_test_file_has_tests() -> None:
    tests = {file for file, _ in LINKS if "tests" in file.parts}
    assert all("def test_" in file.read_text(encoding="utf-8") for file in tests)
