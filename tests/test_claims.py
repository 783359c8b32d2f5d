"""The intervals in docs/claims.md follow from the tables that the papers print, and from our recorded runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml
from benchmarks import rendered_targets
from benchmarks.real.__main__ import RECORDS
from benchmarks.real.cells import Records
from benchmarks.real.protocol import EXTENDED, FURTHER
from benchmarks.real.sign_flip import detectable, holm, interval, p_value
from benchmarks.real.verdicts import Table, word_at_sites
from scipy.stats import t
from tests.documented import ROOT, read_page

TABLES = ROOT / "recipes" / "studies" / "printed"
HTER, AUC = 0, 2
PRINTED, REAL, RENDERED, VERDICT = 1, 2, 3, 4
"""Columns of docs/claims.md."""


def figures_of(table: str, row: str, column: int) -> dict[str, float]:
    """Return a printed row's figure by target; single sites' models are averaged."""
    rows: Mapping[str, Any] = yaml.safe_load((TABLES / f"{table}.yaml").read_text())["rows"]
    return {
        target: fmean(values[column] for values in printed.values()) if isinstance(printed, dict) else printed[column]
        for target, printed in rows[row].items()
    }


def read_cell(claim: str, column: int) -> str:
    """Return a cell of docs/claims.md, with ASCII signs."""
    (line,) = [line for line in read_page("docs/claims.md").splitlines() if line.startswith(f"| {claim}")]
    return line.split("|")[column + 1].replace("−", "-")


@pytest.mark.parametrize(
    ("claim", "first", "second", "columns"),
    [
        ("FedPAD beats what", ("fedgpad-table3", "FedPAD"), ("fedgpad-table3", "Single"), (HTER,)),
        ("FedPAD beats the fused", ("fedgpad-table3", "FedPAD"), ("fedgpad-table3", "Fused"), (HTER, AUC)),
        ("FedGPAD beats", ("fedgpad-table3", "FedGPAD"), ("fedgpad-table3", "FedPAD"), (HTER, AUC)),
        ("Test-time", ("adaptation-table2", "FedPAD + TTA"), ("fedgpad-table3", "FedPAD"), (HTER,)),
        ("An adapted", ("adaptation-table2", "FedPAD + TTA"), ("fedgpad-table3", "All"), (HTER,)),
        ("FedSIS beats", ("fedsis-table1", "FedSIS"), ("fedsis-table1", "FedAvg"), (HTER,)),
    ],
)
def test_printed_interval_follows_from_the_papers_table(
    claim: str, first: tuple[str, str], second: tuple[str, str], columns: tuple[int, ...]
) -> None:
    stated = read_cell(claim, PRINTED)
    for column in columns:
        better, worse = figures_of(*first, column), figures_of(*second, column)
        gaps = [better[target] - worse[target] for target in better]
        half = t.ppf(0.975, len(gaps) - 1) * stdev(gaps) / len(gaps) ** 0.5
        mean, low, high = (f"{value:+.1f}" for value in (fmean(gaps), fmean(gaps) - half, fmean(gaps) + half))
        assert f"{'HTER' if column == HTER else 'AUC'} {mean} [{low}, {high}]" in stated


@pytest.mark.parametrize(
    ("claim", "first", "second"),
    [
        ("FedPAD beats what", "FedPAD", "Single (mean)"),
        ("FedPAD beats what", "FedPAD", "Single (best at home)"),
        ("FedPAD beats the fused", "FedPAD", "Fused"),
        ("Test-time", "FedPAD, paper", "FedPAD"),
        ("Test-time", "FedPAD, gated", "FedPAD"),
        ("An adapted", "FedPAD, paper", "All"),
        ("An adapted", "FedPAD, paper", "All, paper"),
    ],
)
def test_interval_on_real_sites_follows_from_the_records(claim: str, first: str, second: str) -> None:
    verdict = Table(FURTHER, Records(RECORDS, FURTHER)).verdict((first, second))
    assert verdict is not None
    low, high = interval(verdict.differences)
    assert f"{verdict.mean:+.3f} [{low:+.3f}, {high:+.3f}]" in read_cell(claim, REAL)


@pytest.mark.parametrize(
    ("claim", "pair"),
    [
        ("FedPAD beats what", ("FedPAD", "Single", "auc")),
        ("FedPAD beats what", ("FedPAD", "Single", "hter")),
        ("FedPAD beats the fused", ("FedPAD", "Fused", "auc")),
        ("FedPAD beats the fused", ("FedPAD", "Fused", "hter")),
        ("FedGPAD beats", ("FedGPAD", "FedPAD", "auc")),
        ("Test-time", ("FedPAD, paper", "FedPAD", "hter")),
        ("Test-time", ("FedPAD, gated", "FedPAD", "hter")),
        ("An adapted", ("FedPAD, paper", "All", "hter")),
        ("An adapted", ("FedPAD, paper", "All, paper", "hter")),
        ("FedSIS beats", ("FedSIS, one draw", "FedAvg", rendered_targets.PAPERS_RULE)),
    ],
)
def test_interval_on_rendered_targets_follows_from_the_records(claim: str, pair: tuple[str, str, str]) -> None:
    table = rendered_targets.read_table(rendered_targets.RECORDS)
    first, second, figure = pair
    gaps = [100 * (table[first][figure][target] - table[second][figure][target]) for target in table[first][figure]]
    assert len(gaps) == 12
    mean, (low, high) = fmean(gaps), interval(gaps)
    assert f"{'AUC' if figure == 'auc' else 'HTER'} {mean:+.1f} [{low:+.1f}, {high:+.1f}]" in read_cell(claim, RENDERED)


def test_verdicts_follow_from_the_records() -> None:
    rendered = rendered_targets.read_table(rendered_targets.RECORDS)
    gains = {pair: rendered_targets.gains(rendered, pair) for pair in rendered_targets.PRIMARY}
    adjusted = holm({" - ".join(pair): p_value([*gap.values()]) for pair, gap in gains.items()})
    words = {
        pair: rendered_targets.word_for_domains(pair, gap, adjusted[" - ".join(pair)]) for pair, gap in gains.items()
    }
    fused = ("FedPAD", "Fused", "auc")
    needed = 100 * detectable([*gains[fused].values()], len(gains))
    table = Table(EXTENDED, Records(RECORDS, FURTHER))
    real = {pair: verdict for pair in EXTENDED.primary if (verdict := table.verdict(pair))}
    corrected = holm({verdict.name: verdict.p for verdict in real.values()})
    on_real = {pair: word_at_sites(verdict, corrected[verdict.name], len(real)) for pair, verdict in real.items()}

    assert words["FedPAD", "Single", "auc"] == "holds"
    assert on_real["FedPAD", "Single (mean)"] == on_real["FedPAD", "Single (best at home)"] == "holds at these sites"
    assert read_cell("FedPAD beats what", VERDICT).strip() == "holds at these sites and on rendered targets"
    least = corrected[real["FedPAD", "Single (best at home)"].name]
    assert f"(corrected p {least:.3f})" in read_cell("FedPAD beats what", REAL)
    assert words[fused].startswith("undecided")
    assert on_real["FedPAD", "Fused"].startswith("undecided")
    assert f"80 % power needs {needed:.1f} of AUC" in read_cell("FedPAD beats the fused", RENDERED)
    needed = detectable(real["FedPAD", "Fused"].differences, len(real))
    assert f"80 % power needs {needed:.3f}" in read_cell("FedPAD beats the fused", REAL)
    assert words["FedPAD, paper", "FedPAD", "hter"] == "holds"
    assert on_real["FedPAD, paper", "FedPAD"].startswith("undecided")
    assert read_cell("Test-time", VERDICT).strip() == "holds on rendered faces; undecided on real sites"
    assert words["FedSIS, one draw", "FedAvg", rendered_targets.PAPERS_RULE] == "holds"
    assert read_cell("FedSIS beats", VERDICT).strip().startswith("holds on rendered faces")
    for claim, pair in (
        ("FedPAD beats the fused", fused),
        ("FedGPAD beats", ("FedGPAD", "FedPAD", "auc")),
        ("An adapted", ("FedPAD, paper", "All", "hter")),
    ):
        assert words[pair].startswith("undecided")
        assert read_cell(claim, VERDICT).strip() == "undecided"


@pytest.mark.parametrize("claim", ["FedFR beats", "FedAvg harms", "PrivacyFace's clusters", "Algorithm 1 has"])
def test_figures_without_records_are_those_of_the_linked_pages(claim: str) -> None:
    cell = read_cell(claim, RENDERED)
    pages = "".join(read_page(f"docs/{page}") for page in re.findall(r"\((results/[\w-]+\.md)", cell))
    series = re.findall(r"[+-]?\d+\.\d+(?:, [+-]?\d+\.\d+)*", cell)
    assert series
    for figures in series:
        assert figures in pages.replace("−", "-")
