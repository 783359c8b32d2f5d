"""The settings of the demo: the choice and the printed table follow from recorded figures."""

from importlib.resources import as_file, files
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest
from benchmarks.demo_settings import FRESH, NORMS, RATES, RECORDS, RULES, chosen_rows
from benchmarks.real.sign_flip import interval

from fedvisage.base.files import read_json
from fedvisage.studies.grid import cells_of
from fedvisage.studies.study import load_study

RECORDED = read_json(RECORDS)


def test_choice_has_the_lowest_recorded_error_rate() -> None:
    for row in ("Single", "Fused", "FedPAD", "All"):
        names = {f"{row} {norm} {rate} {rule}": [norm, rate, rule] for norm, rate, rule in product(NORMS, RATES, RULES)}
        means = {name: fmean(figures[name]["hter"] for figures in RECORDED["development"].values()) for name in names}
        assert names[min(means, key=lambda name: means[name])] == RECORDED["chosen"][row]


def test_page_prints_the_recorded_means_and_intervals() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "fedpad.md").read_text()
    section = page.partition("## The demo over ten renderings")[2].partition("\n## ")[0]
    printed = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "| " in line]
    assert len(printed) == 8  # with the title
    _, names = chosen_rows()
    fresh = [RECORDED["fresh"][str(seed)] for seed in FRESH]
    for label, *figures, difference in printed[1:]:
        name = names[label.removesuffix(" (GroupNorm)")]
        assert figures == [f"{100 * fmean(run[name][key] for run in fresh):.1f}" for key in ("hter", "eer", "auc")]
        gaps = [100 * (run[name]["hter"] - run[names["Fused"]]["hter"]) for run in fresh]
        low, high = interval(gaps)
        expected = "" if label == "Fused" else f"{fmean(gaps):+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")
        assert difference == expected


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("Single", "Single group 0.001"),
        ("Fused", "Fused group 0.001 fixed"),
        ("FedPAD", "FedPAD batch 0.003 fixed"),
        ("FedPAD, adapted", "FedPAD batch 0.003 fixed adapted"),
        ("All", "All batch 0.003 fixed"),
    ],
)
def test_demo_has_the_settings_of_the_evaluated_rows(row: str, name: str) -> None:
    with as_file(files("fedvisage.studies") / "study.yaml") as path:
        (cell,) = [cell for cell in cells_of(load_study(path), Path()) if cell.row == row]
    recipe = cell.resolved
    norm, rate = recipe["method"]["network"].get("norm", "batch"), recipe["training"]["optimizer"]["lr"]
    assert name in RECORDED["fresh"]["1"]
    # A row that trains the networks of others has no rule in its name, and the default.
    assert [*name.split()[1:], "source-eer"][:3] == [norm, str(rate), recipe["evaluation"]["threshold"]]
    assert (row == "FedPAD, adapted") == (recipe["evaluation"]["adapt"] is not None)
