"""The privacy page: every release, its cost and its coverage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.toy import remove_seal, run_toy, tree

from fedvisage.report.page import render
from fedvisage.report.privacy import page
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


def test_page_lists_spending_by_site_and_releases_by_round(run: Path) -> None:
    html = render(read_run(run))
    for site in "ABC":
        assert f">{site}<" in html
    assert "ε 2, δ 0.02" in html
    assert "selection × 1" in html
    assert "gaussian × 1" in html


def test_published_mechanism_is_marked(run: Path, tmp_path: Path) -> None:
    """The ledger of the run with the relation that Algorithm 1's releases have."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("recipe.yaml", "metrics.json", "rounds.jsonl"):
        (copy / name).write_bytes((run / name).read_bytes())
    lines = (run / "ledger.jsonl").read_text().replace('"relation": "add-remove"', '"relation": "paper"')
    (copy / "ledger.jsonl").write_text(lines)
    section = page(read_run(copy))
    assert section is not None
    assert any("does not hold end to end" in sentence for sentence in section["sentences"])


def test_run_without_releases_has_no_privacy_page(run: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    for name in ("recipe.yaml", "metrics.json", "rounds.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    kept = [line for line in lines if "cost" not in line]
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert page(read_run(tmp_path)) is None
