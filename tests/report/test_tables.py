"""Tables: formatted numbers and escaped names."""

import pytest

from fedvisage.metrics.recorded import Metrics
from fedvisage.report import content
from fedvisage.report.tables import html, markdown, percent, size, table


def test_shares_are_written_as_per_cent_with_two_decimals() -> None:
    assert percent(0.10625) == "10.62"
    assert percent(1.0, (0.5, 1.0)) == "100.00 [50.00, 100.00]"
    assert percent(None) == "–"


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (44_700_000, "44.7 MB"), (2.5e12, "2.5 TB")]
)
def test_bytes_are_written_in_a_suitable_unit(count: float, expected: str) -> None:
    assert size(count) == expected


def test_markdown_has_one_line_per_row_and_aligns_figures_right() -> None:
    rates = table("Rates", [{"name": "O", "hter": "1.00"}, {"name": "C"}], {"name": "site", "hter": "HTER %"})
    assert markdown(rates).splitlines() == [
        "**Rates**",
        "",
        "| site | HTER % |",
        "| --- | ---: |",
        "| O | 1.00 |",
        "| C | – |",
    ]


def test_hostile_names_break_neither_markdown_nor_html() -> None:
    hostile = table("T", [{"name": "a|b\n| <script>", "n": 1234567}], {"name": "site", "n": "count"})
    lines = markdown(hostile).splitlines()
    assert len(lines) == 5
    assert "<script>" not in markdown(hostile)
    assert "a\\|b" in lines[-1]
    assert "<script>" not in html(hostile)
    assert "&lt;script&gt;" in html(hostile)
    assert "1\u202f234\u202f567" in html(hostile)


def test_adaptation_table_gives_images_and_reasons() -> None:
    outcome = {"adapted": 40, "skipped": {"one class": 12, "too small": 3}, "taken_back": {}}
    shown = content.adaptation_table(Metrics.of({"adaptation": {"model": outcome}}))
    assert shown is not None
    assert shown.rows == (("model", "40", "12: one class; 3: too small", "none"),)
    assert content.adaptation_table(Metrics()) is None


def test_choice_between_start_and_result_shows_both_per_site() -> None:
    kept = {"model": "average", "start": {"A": {"auc": 0.9, "eer": 0.2}}, "result": {"A": {"auc": 0.95, "eer": 0.1}}}
    shown = content.kept_table(Metrics.of({"kept": kept}))
    assert shown is not None
    assert "| A | 90.00 | 95.00 | 20.00 | 10.00 |" in markdown(shown).splitlines()
    assert "both networks" in shown.note
    assert content.kept_table(Metrics()) is None


def test_choice_of_recognition_shows_rates_at_the_lowest_false_acceptance_rates() -> None:
    start = {"A": {"tar@1e-1": 0.99, "tar@1e-2": 0.9, "tar@1e-3": 0.7}, "B": {"tar@1e-1": 0.98}}
    result = {"A": {"tar@1e-1": 0.99, "tar@1e-2": 0.8, "tar@1e-3": 0.6}, "B": {"tar@1e-1": 0.97}}
    shown = content.kept_table(Metrics.of({"kept": {"model": "start", "start": start, "result": result}}))
    assert shown is not None
    lines = markdown(shown).splitlines()
    assert any(
        "TAR % at FAR 1e-3, start | TAR % at FAR 1e-3, result | TAR % at FAR 1e-2, start" in line for line in lines
    )
    assert any(line.startswith("| A |") and line.endswith("| 70.00 | 60.00 | 90.00 | 80.00 |") for line in lines)
