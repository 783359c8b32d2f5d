"""FedFR on five folds of people: the roles of people, the bootstrap over people, and the verdicts."""

from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from benchmarks.real import people
from benchmarks.real.people import (
    FARS,
    FOLDS,
    PARTS,
    PRIMARY,
    ROWS,
    SECONDARY,
    START,
    Pairs,
    bootstrap_p,
    lines,
    plan_digest,
    roles,
)
from tests.documented import read_generated

from fedvisage.base.files import write_json
from fedvisage.datasets.sources import without_part
from fedvisage.metrics.similarity import Faces, label_features
from fedvisage.metrics.verification import verify_within


def people_of(share: str) -> set[int]:
    part = without_part(f"people {share}")[1]
    assert part is not None
    assert part.of == PARTS
    return {*range(part.number, part.last + 1)}


def test_people_are_tested_in_one_fold_and_have_one_role_in_each() -> None:
    tested = [people_of(roles(fold)[0]) for fold in FOLDS]
    assert sorted(part for parts in tested for part in parts) == [*range(1, PARTS + 1)]
    for fold in FOLDS:
        test, public, sites = roles(fold)
        parts = [people_of(share) for share in (test, public, *sites.values())]
        assert [len(part) for part in parts] == [4, 8, 2, 2, 2, 2]
        assert len(set.union(*parts)) == PARTS


@pytest.fixture(scope="module")
def faces() -> Faces:
    rng = np.random.default_rng(0)
    identity = np.repeat(np.arange(20), rng.integers(2, 6, 20))
    return label_features(rng.normal(size=(20, 8))[identity] + rng.normal(size=(len(identity), 8)), identity)


@pytest.mark.parametrize("far", [0.002, 0.01])
def test_rate_without_a_draw_is_that_of_the_package(faces: Faces, far: float) -> None:
    expected = verify_within(faces, [far]).tar[far]
    assert 0 < expected < 1
    assert Pairs(faces).tar(far, np.ones(20, np.int64)) == pytest.approx(expected)


def test_drawn_people_count_as_often_as_they_were_drawn(faces: Faces) -> None:
    """Compute the rate from a list of pairs in which drawn people are repeated."""
    draws = np.bincount(np.random.default_rng(1).integers(20, size=20), minlength=20)
    genuine, impostors = [], []
    copies = [person for person, count in enumerate(draws) for _ in range(count)]
    images = [np.flatnonzero(faces.identity == person) for person in copies]
    similarity = faces.features @ faces.features.T
    for place, person in enumerate(copies):
        own = similarity[np.ix_(images[place], images[place])]
        genuine += own[np.triu_indices(len(own), 1)].tolist()
        for other in range(place + 1, len(copies)):
            if copies[other] != person:
                impostors += similarity[np.ix_(images[place], images[other])].ravel().tolist()
    accepted = [sorted(impostors, reverse=True)[int(far * len(impostors))] for far in (0.002, 0.01)]
    expected = [np.mean(np.array(genuine) > threshold) for threshold in accepted]
    pairs = Pairs(faces)
    assert [pairs.tar(far, draws) for far in (0.002, 0.01)] == pytest.approx(expected)


def test_p_value_counts_replicates_on_the_smaller_side() -> None:
    assert bootstrap_p(np.array([1.0] * 98 + [-1.0])) == pytest.approx(2 * 2 / 100)
    assert bootstrap_p(np.array([1.0, -1.0])) == 1.0


def record_folds(rates: dict[str, tuple[float, float]]) -> dict[str, dict[str, Any]]:
    """Return records whose rows have a rate per seed and little variation over draws of people."""
    rng = np.random.default_rng(2)
    return {
        str(fold): {
            "plan": plan_digest(),
            "data": "photographs",
            "start": "network",
            "tar": {
                row: (np.mean(seeds) + rng.normal(0, 0.001, (len(FARS), 201))).tolist() for row, seeds in rates.items()
            },
            "by_seed": {
                row: [[rate] * len(FARS) for rate in (seeds[:1] if row == START else seeds)]
                for row, seeds in rates.items()
            },
        }
        for fold in FOLDS
    }


@pytest.mark.parametrize(
    ("seeds", "word"),
    [((0.95, 0.95), "holds"), ((0.85, 0.85), "holds the other way"), ((1.0, 0.89), "undecided")],
)
def test_verdict_needs_the_same_sign_with_both_seeds(seeds: tuple[float, float], word: str) -> None:
    rates = {START: (0.9, 0.9), **dict.fromkeys(ROWS, (0.9, 0.9)), "FedFR": seeds}
    text = [*lines(record_folds(rates))]
    verdicts = [line.rsplit(": ", 1)[1].partition(" (")[0] for line in text if ", Holm" in line]
    assert verdicts == [word if "FedFR" in pair else "undecided" for pair in PRIMARY]
    assert sum("TAR@0.001:" in line for line in text) == len(PRIMARY) + len(SECONDARY)


def test_undecided_verdict_states_the_detectable_difference() -> None:
    """Count the normal estimates that a two-sided test at the corrected level finds."""
    spread = 0.5
    word = people.describe_undecided(np.array([-spread, spread]) / np.sqrt(2))
    needed = float(word.removeprefix("undecided (80 % power at 5 % / 4 needs ").removesuffix(")"))
    estimates = np.random.default_rng(3).normal(needed, spread, 200_000)
    detected = estimates > spread * NormalDist().inv_cdf(1 - 0.05 / 4 / 2)
    assert detected.mean() == pytest.approx(0.8, abs=0.01)


@pytest.fixture
def folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Return records of all folds, in place of the recorded ones; neither photographs nor weights exist."""
    folds = record_folds({START: (0.9, 0.9), **dict.fromkeys(ROWS, (0.9, 0.9))})
    monkeypatch.setattr(people, "RECORDS", tmp_path / "rates.json")
    monkeypatch.setattr("sys.argv", ["people", str(tmp_path / "no-people"), str(tmp_path / "no-weights")])
    write_json(people.RECORDS, folds)
    return folds


def test_recorded_folds_are_printed_without_pictures(
    folds: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert people.main() == 0
    assert capsys.readouterr().out == "\n".join(lines(folds)) + "\n"


@pytest.mark.parametrize(
    ("key", "message"),
    [("plan", "records of another plan"), ("data", "different photographs"), ("start", "different photographs")],
)
def test_folds_of_another_plan_data_or_start_are_refused(
    folds: dict[str, dict[str, Any]], key: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folds["3"][key] = "another"
    write_json(people.RECORDS, folds)
    assert people.main() == 1
    assert message in capsys.readouterr().err


def test_digest_of_the_plan_binds_settings_and_people(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {plan_digest()}
    for name, value in (("MOST", 19), ("ROWS", {**ROWS, "FedFR": {"name": "fedfr", "mu": 2}}), ("PUBLIC", ["1-8"] * 5)):
        with monkeypatch.context() as patch:
            patch.setattr(people, name, value)
            digests.add(plan_digest())
    assert len(digests) == 4


def test_page_has_the_table_and_verdicts_of_the_records() -> None:
    block = read_generated("docs/results/lfw.md", "python -m benchmarks.real.people PEOPLE WEIGHTS")
    records = people.read_records()
    assert {*records} == {*map(str, FOLDS)}
    assert not [fold for fold in records.values() if fold["commit"].endswith("-dirty")]
    assert block == "\n".join(lines(records))
