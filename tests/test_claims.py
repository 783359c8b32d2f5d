"""The intervals in docs/claims.md follow from the tables that the papers print."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml
from scipy.stats import t
from tests.documented import ROOT, read_page

TABLES = ROOT / "recipes" / "studies" / "printed"
HTER, AUC = 0, 2


def figures_of(table: str, row: str, column: int) -> dict[str, float]:
    """Return a printed row's figure by target; single sites' models are averaged."""
    rows: Mapping[str, Any] = yaml.safe_load((TABLES / f"{table}.yaml").read_text())["rows"]
    return {
        target: fmean(values[column] for values in printed.values()) if isinstance(printed, dict) else printed[column]
        for target, printed in rows[row].items()
    }


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
    (line,) = [line for line in read_page("docs/claims.md").splitlines() if line.startswith(f"| {claim}")]
    stated = line.split(" | ")[1].replace("−", "-")
    for column in columns:
        better, worse = figures_of(*first, column), figures_of(*second, column)
        gaps = [better[target] - worse[target] for target in better]
        half = t.ppf(0.975, len(gaps) - 1) * stdev(gaps) / len(gaps) ** 0.5
        mean, low, high = (f"{value:+.1f}" for value in (fmean(gaps), fmean(gaps) - half, fmean(gaps) + half))
        assert f"{'HTER' if column == HTER else 'AUC'} {mean} [{low}, {high}]" in stated
