"""The privacy page: every release, its cost and its coverage; and the sentences on protections."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.toy import remove_seal, run_toy, tree

from fedvisage.metrics.recorded import Metrics
from fedvisage.report import content
from fedvisage.report.page import render
from fedvisage.report.privacy import page, promises
from fedvisage.report.run_files import read_run


@pytest.fixture(scope="module")
def run(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ends at its budget, after two of three rounds; without a seal, so that its ledger can be edited."""
    out = tmp_path_factory.mktemp("private") / "run"
    run_toy(tree(sets, "privacyface", privacy__epsilon=2.0), out)
    return remove_seal(out)


def test_page_states_budget_end_of_the_run_and_simulated_noise(run: Path) -> None:
    section = page(read_run(run))
    assert section is not None
    text = " ".join(section["sentences"])
    for words in (
        "ε 2 at δ 0.5",
        "ended after round 2 of 3",
        "protects nobody",
        "one class centre added or removed",
        "Not covered: the weights",
    ):
        assert words in text
    assert "does not hold end to end" not in text
    assert "nobody who sees them can be sure" not in text, "at a large ε or δ they can"
    assert "never drawn twice" not in text, "a visit that was killed before it sent anything draws again"


@pytest.mark.long
def test_page_lists_spending_by_site_and_releases_by_round(run: Path) -> None:
    html = render(read_run(run))
    for site in "ABC":
        assert f">{site}<" in html
    assert "ε 2, δ 0.02" in html
    assert "selection × 1" in html
    assert "gaussian × 1" in html


def test_released_field_has_one_row_for_all_rounds(run: Path) -> None:
    released = content.uploads_table(read_run(run).uploads)
    assert released is not None
    rows = [row for row in released.rows if row[1] == "dp"]
    assert [row[4] for row in rows] == ["6"]  # messages: three sites in two rounds
    assert "ε 0.8, δ 0.01" in rows[0][2]


def test_published_mechanism_is_marked(run: Path, tmp_path: Path) -> None:
    """The ledger of the run with the relation that Algorithm 1's releases have."""
    copy = shutil.copytree(run, tmp_path / "copy")
    lines = (run / "ledger.jsonl").read_text().replace('"relation": "add-remove"', '"relation": "paper"')
    (copy / "ledger.jsonl").write_text(lines)
    section = page(read_run(copy))
    assert section is not None
    assert any("does not hold end to end" in sentence for sentence in section["sentences"])


def test_run_without_releases_has_no_privacy_page(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    (copy / "ledger.jsonl").write_text("".join(line for line in lines if "cost" not in json.loads(line)))
    assert page(read_run(copy)) is None


RELEASED = {"epsilon": 3.0, "delta": 2e-5, "tight_epsilon": 2.25, "at_delta": 1e-5, "site": "A"}


@pytest.mark.long
def test_page_of_a_private_run_with_secure_sums_states_both(sets: Mapping[str, Path], tmp_path: Path) -> None:
    noise = {"clip": 0.5, "epsilon": 4.0, "delta": 1e-5, "entropy": "derived"}
    run_toy(tree(sets, federation={"dp": noise, "secure": True}, training__rounds=1), tmp_path / "run")
    text = render(read_run(tmp_path / "run"))
    assert "Differential privacy of sites: ε 4 at δ 1e-05, for all data of one site" in text
    assert "a simulation, which protects nobody" in text
    assert "Secure aggregation: the server saw the sum" in text


def test_sentence_on_noise_names_the_statistics_that_it_covers() -> None:
    """BatchNorm's statistics are parts of the model and get noise; losses and counts are no parts, and get none."""
    noise = {**RELEASED, "relation": ["site"], "noise": "system", "noise_multiplier": 0.6, "clip": 1.0, "releases": 1}
    (sentence,) = promises(Metrics({"privacy": noise}), {})
    covered, _, uncovered = sentence.partition("covers ")[2].partition("but not")
    assert "BatchNorm" in covered
    assert "losses" in uncovered
    assert "counts of held-out scores" in uncovered
    assert "1 sum." in sentence


@pytest.mark.parametrize(
    ("metrics", "federation", "expected"),
    [
        ({}, {}, []),
        ({}, {"combine": {"rule": "mean"}}, []),
        ({}, {"combine": {"rule": "krum"}}, ["Robust aggregation: uploads were combined by krum"]),
        ({}, {"poisoned": {"sites": ["A", "B"], "how": "scaling"}}, ["Simulated attack: A, B sent a scaling"]),
        ({}, {"secure": {"entropy": "derived"}}, ["Secure aggregation in a simulation"]),
        ({**RELEASED, "relation": ["add-remove"], "noise": "system"}, {}, ["What site A released"]),
        (
            {**RELEASED, "relation": ["add-remove"], "noise": "derived"},
            {},
            ["What site A released", "The noise is derived"],
        ),
    ],
)
def test_each_protection_has_a_sentence(metrics: Any, federation: Any, expected: list[str]) -> None:
    lines = promises(Metrics({"privacy": metrics} if metrics else {}), {"federation": federation})
    assert [line.startswith(start) for line, start in zip(lines, expected, strict=True)] == [True] * len(expected)
