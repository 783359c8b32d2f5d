"""Snapshots: models of single rounds, with the bytes and the metrics of a run that ends there."""

import json
from pathlib import Path

import pytest
from tests.toy import Sets, run_toy, tree, weights

from fedvisage.report.page import write_report
from fedvisage.runs.directory import snapshot_path

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", ["fedpad", "fedavg"])
def test_snapshot_equals_the_model_and_metrics_of_a_shorter_run(name: str, sets: Sets, tmp_path: Path) -> None:
    whole = run_toy(tree(sets, name, training__rounds=3, evaluation__snapshots=2), tmp_path / "whole")
    short = run_toy(tree(sets, name, training__rounds=2), tmp_path / "short")
    (figures,) = whole["by_round"]
    assert snapshot_path(tmp_path / "whole", 2).read_bytes() == weights(tmp_path / "short")
    assert weights(tmp_path / "whole") != weights(tmp_path / "short")
    if name == "fedpad":
        assert figures == {"round": 2, "eer": short["eer"], "auc": short["auc"]}
    else:
        rates = {name: value for name, value in short.items() if name.startswith(("generic.tar@", "generic.tpir@"))}
        assert figures == {"round": 2, **rates}


def test_resumed_run_has_all_snapshots_and_its_report_calls_them_simulated(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, "fedpad", training__rounds=2, evaluation__snapshots=1)
    first = run_toy(content, tmp_path / "run")
    assert [row["round"] for row in first["by_round"]] == [1, 2]
    (tmp_path / "run" / "metrics.json").unlink()
    again = run_toy(content, tmp_path / "run", resume=True)
    assert again["by_round"] == first["by_round"]
    page = write_report(tmp_path / "run", tmp_path / "cache").read_text()
    assert "The target, round by round" in page
    assert "simulation" in page[page.index("The target, round by round") :]


def test_training_starts_from_a_snapshot(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, "fedpad", training__rounds=2, evaluation__snapshots=1), tmp_path / "run")
    snapshot = str(snapshot_path(tmp_path / "run", 1))
    run_toy(tree(sets, "fedpad", training__rounds=1, training__start=snapshot), tmp_path / "next")
    start = json.loads((tmp_path / "next" / "start.json").read_text())
    assert start["file"] == snapshot
    assert not start["lacking"]
    assert not start["untouched"]
