"""The choice of a detector to add to the published pair, from gains by family."""

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest
from benchmarks.real.additions import (
    CANDIDATES,
    RECORDS,
    SEEDS,
    WEIGHTS,
    choose,
    key_of,
    lines,
    read_gains,
    run_missing,
)
from benchmarks.real.families import SOURCES
from tests.refusals import refused

TUTORIAL, SQUARE, PRINT, PHONE = "tutorial", "square", "webcam-print", "webcam-phone"
FAMILIES = (TUTORIAL, SQUARE, PRINT, PHONE)


def by_family(*gains: float) -> dict[str, float]:
    return dict(zip(FAMILIES, gains, strict=True))


GAINS = {
    ("safe", 0.25): by_family(0.01, 0.01, 0.02, 0.0),
    ("large", 1.0): by_family(0.10, 0.05, 0.03, -0.02),
    ("slight loss", 0.5): by_family(0.03, 0.03, 0.02, -0.003),
}


def test_choice_has_the_largest_mean_gain_of_those_that_lose_in_no_family() -> None:
    assert choose(GAINS, FAMILIES) == ("slight loss", 0.5)
    assert choose(GAINS, (TUTORIAL, SQUARE, PRINT)) == ("large", 1.0)


def test_pair_stays_alone_if_nothing_gains_without_a_loss() -> None:
    assert choose({("a", 1.0): by_family(0.5, 0.5, 0.5, -0.1)}, FAMILIES) is None
    assert choose({("a", 1.0): by_family(-0.001, 0.0, 0.0, 0.0)}, FAMILIES) is None


def test_nested_estimate_uses_the_choice_of_the_other_families() -> None:
    start = dict.fromkeys(SOURCES, 0.9)
    text = [*lines(GAINS, start, {"large": by_family(0.5, 0.6, 0.7, 0.8)})]
    # Without the last family, `large` is chosen and loses 0.02 there; without another one, `slight loss` is.
    assert "chosen without webcam-phone: ('large', 1.0), gain there -0.020" in text
    gained = {line.split(":")[0]: float(line.split()[-1]) for line in text if line.startswith("chosen without")}
    assert gained == {
        "chosen without tutorial": pytest.approx(0.03),
        "chosen without square": pytest.approx(0.03),
        "chosen without webcam-print": pytest.approx(0.02),
        "chosen without webcam-phone": pytest.approx(-0.02),
    }
    assert text[-1] == "nested estimate of the gain at an unseen family: +0.015"
    assert "| large alone, AUC | | 0.650 | 0.500 | 0.600 | 0.700 | 0.800 |" in text


def write_records(path: Path, seeds: Iterable[int]) -> None:
    """Record an AUC of 0.8 for the pair; a sum of weight w has w * (seed + 1) / 100 more at every site."""
    cells = {}
    for name, family, seed in product(CANDIDATES, FAMILIES, seeds):
        sites = [site for site, source in SOURCES.items() if source.family == family]
        sums = {f"{weight:g}": 0.8 + weight * (seed + 1) / 100 for weight in WEIGHTS}
        cells[key_of((name, family, seed))] = {"alone": dict.fromkeys(sites, 0.6), "sums": dict.fromkeys(sites, sums)}
    path.write_text(json.dumps({"pair": dict.fromkeys(SOURCES, 0.8), "cells": cells}))


def test_table_is_computed_from_complete_records_without_pictures(tmp_path: Path) -> None:
    write_records(tmp_path / "aucs.json", SEEDS)
    run_missing(tmp_path, tmp_path, tmp_path / "aucs.json")
    gains, start, alone = read_gains(tmp_path / "aucs.json")
    assert set(start.values()) == {0.8}
    assert alone == dict.fromkeys(CANDIDATES, dict.fromkeys(FAMILIES, pytest.approx(0.6)))
    assert gains["FedWon", 0.5] == dict.fromkeys(FAMILIES, pytest.approx(0.5 * 2 / 100))


def read_gains_by_site(candidate: str, weight: float) -> dict[str, float]:
    """Return the recorded gain over the pair at each site, averaged over seeds."""
    records = json.loads(RECORDS.read_text())
    return {
        site: fmean(
            records["cells"][key_of((candidate, source.family, seed))]["sums"][site][f"{weight:g}"] for seed in SEEDS
        )
        - records["pair"][site]
        for site, source in SOURCES.items()
    }


def test_page_prints_the_recorded_gains() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "real.md").read_text()
    section = page.partition("## Added to the pair")[2].partition("\n## ")[0]
    printed = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "| " in line]
    branches, weights = printed[: len(CANDIDATES) + 1], printed[len(CANDIDATES) + 1 :]
    gains, start, alone = read_gains(RECORDS)
    expected = []
    for name in CANDIDATES:
        means = [f"{fmean(gains[name, weight].values()):+.3f}" for weight in (0.25, 1.0, 2.0)]
        families = [f"{gains[name, 2.0][family]:+.3f}" for family in (TUTORIAL, SQUARE)]
        expected.append(
            [f"{fmean(alone[name].values()):.3f}", *(text.replace("-", "−") for text in (*means, *families))]
        )
    assert [figures for _, *figures in branches[1:]] == expected
    by_weight = {weight: read_gains_by_site("Fused", weight).values() for weight in WEIGHTS}
    values = [
        [
            f"{weight:g}",
            *(
                f"{gain:+.3f}"
                for gain in (fmean(each), min(each), *(gains["Fused", weight][kind] for kind in (TUTORIAL, SQUARE)))
            ),
        ]
        for weight, each in by_weight.items()
    ]
    assert weights[1:] == [[cell.replace("-", "−") for cell in row] for row in values]
    assert max(weight for weight, each in by_weight.items() if min(each) >= -0.01) == 0.5
    assert "--weight 0.5 " in (Path(__file__).parents[2] / "docs" / "real.md").read_text()
    assert choose(gains, FAMILIES) == ("Fused", 2.0)
    pair = fmean(start[site] for site, source in SOURCES.items() if source.family == TUTORIAL)
    assert f"the pair's AUC is {pair:.3f}" in " ".join(section.split())


def test_records_that_are_missing_need_pictures(tmp_path: Path) -> None:
    write_records(tmp_path / "aucs.json", [*SEEDS][1:])
    with refused(tmp_path, "48 trainings have no record"):
        run_missing(tmp_path, tmp_path, tmp_path / "aucs.json")
