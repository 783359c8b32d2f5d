"""`make benchmark` replaces its own table on the page of benchmarks."""

import json
from pathlib import Path

from benchmarks.page import with_results

PAGE = (Path(__file__).parents[1] / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_new_results_replace_the_first_table_and_the_machine_only() -> None:
    table = "| what | bound | measured | verdict |\n|---|---|---|---|\n| a row | none | 1 | – |"
    page = with_results(PAGE, table, {"processor": "another"})
    assert table in page
    assert "fedvisage --help" not in page
    assert json.loads(page.partition("```json\n")[2].partition("```")[0]) == {"processor": "another"}
    headings = [line for line in PAGE.splitlines() if line.startswith("#")]
    assert [line for line in page.splitlines() if line.startswith("#")] == headings
    assert "## Scaling" in headings
    written_by_hand = PAGE.partition("## Missed rows")[2].partition("```json")[0]
    assert written_by_hand in page
