"""FedGPAD with aggregation after every batch: decision 63 and the page of results follow from the recorded figures."""

import re
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from tests.documented import read_page

from fedvisage.base.files import read_json

ROOT = Path(__file__).parents[2]
RECORDS: dict[str, Any] = read_json(ROOT / "benchmarks" / "records" / "fedgpad_regime.json")
WITHOUT, WHOLE = "Without disentanglement, 0.001", "FedGPAD, 0.001"
"""The rows at the rate that their held-out EER chooses."""


def heldout_eer(row: str) -> float:
    return fmean(RECORDS[row]["heldout"][f"{site}.eer"] for site in "COM")


def best_auc(row: str) -> float:
    return max(float(snapshot["auc"]) for snapshot in RECORDS[row]["by_round"])


def test_rates_have_the_lowest_heldout_error_rate() -> None:
    for row in (WITHOUT, WHOLE):
        assert heldout_eer(row) < heldout_eer(row.replace("0.001", "0.01"))


def test_page_prints_the_gain_of_the_form_per_image_with_the_chosen_weight() -> None:
    chosen = min((row for row in RECORDS if "per image" in row), key=heldout_eer)
    gain = 100 * (RECORDS[chosen]["target"]["auc"] - RECORDS[WITHOUT]["target"]["auc"])
    assert f"{gain:+.1f} with Eq. 7 per image" in read_page("docs/results/fedpad.md")


def test_study_has_the_recorded_rows() -> None:
    study = yaml.safe_load((ROOT / "recipes" / "studies" / "claims-fedgpad-regime.yaml").read_text())
    assert {row for row in study["rows"] if not row.startswith("Cross-entropy")} == {*RECORDS}


def test_decision_prints_the_recorded_figures() -> None:
    lines = read_page("docs/decisions/0063-fedgpad-regime.md").partition("## Result")[2].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    printed = {(name if "weight" in name else f"{name}, {rate}"): figures for name, rate, *figures in cells[1:]}
    for row, record in RECORDS.items():
        figures = [heldout_eer(row), *(record["target"][figure] for figure in ("hter", "eer", "auc")), best_auc(row)]
        assert printed.pop(row) == [f"{100 * figure:.1f}" for figure in figures]
    assert not printed


def test_page_prints_the_difference_and_the_gain_of_a_chosen_snapshot() -> None:
    (bullet,) = re.findall(
        r"- \*\*Aggregation after every batch\*\*.*?\n(?=- |\n)", read_page("docs/results/fedpad.md"), re.DOTALL
    )
    auc = {row: 100 * RECORDS[row]["target"]["auc"] for row in (WITHOUT, WHOLE)}
    assert f"AUC {auc[WHOLE] - auc[WITHOUT]:+.1f} from disentanglement".replace("-", "−") in bullet
    assert f"would add {100 * best_auc(WHOLE) - auc[WHOLE]:.1f}" in bullet
