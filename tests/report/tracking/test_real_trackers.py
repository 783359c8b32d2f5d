"""MLflow and W&B as they are, where they are installed: both are extras, and heavy ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.toy import ROUNDS, run_toy, tree

pytestmark = pytest.mark.slow


@pytest.fixture
def tracked(sets: Mapping[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Run with one tracker, stopped by nobody; its store lies outside of the run."""
    pytest.importorskip(request.param)
    tracking = {"to": [request.param], "project": "faces", "directory": str(tmp_path / "store")}
    run_toy(tree(sets, tracking=tracking), tmp_path / "run")
    return tmp_path


@pytest.mark.parametrize("tracked", ["mlflow"], indirect=True)
def test_mlflow_stores_the_run_in_its_files(tracked: Path, sets: Mapping[str, Path]) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tracked / "store/mlruns").as_uri())
    experiment = client.get_experiment_by_name("faces")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    lines = [json.loads(line) for line in (tracked / "run/rounds.jsonl").read_text().splitlines()]
    history = client.get_metric_history(found.info.run_id, "loss/A")
    assert [(one.step, one.value) for one in history] == [(row["round"], row["loss"]["A"]) for row in lines]
    assert found.data.metrics["target/hter"] == json.loads((tracked / "run/metrics.json").read_text())["hter"]
    assert found.data.params["training.rounds"] == f"{float(ROUNDS)}"
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert [one.path for one in client.list_artifacts(found.info.run_id)] == ["figures.json"]
    written = b"".join(path.read_bytes() for path in (tracked / "store").rglob("*") if path.is_file())
    assert b"secret" not in written
    assert str(sets["A"]).encode() not in written


@pytest.mark.parametrize("tracked", ["mlflow"], indirect=True)
def test_mlflow_resumes_a_run_or_starts_one_in_an_emptied_store(tracked: Path) -> None:
    from fedvisage.report.tracking.mlflow import Mlflow
    from fedvisage.report.tracking.tracker import TrackedRun

    known = json.loads((tracked / "run/tracking/told.json").read_text())["mlflow"]["run"]
    about = TrackedRun("run", "faces", tracked / "run", tracked / "store", {})
    assert Mlflow().start(about, known) == known
    assert Mlflow().start(TrackedRun("run", "faces", tracked, tracked / "other", {}), known) != known


@pytest.mark.parametrize("tracked", ["wandb"], indirect=True)
def test_wandb_writes_an_offline_run_without_collected_data(tracked: Path, sets: Mapping[str, Path]) -> None:
    (run,) = (tracked / "store/wandb").glob("offline-run-*")
    (record,) = run.glob("run-*.wandb")
    written = record.read_bytes()
    assert all(word in written for word in (b"loss/A", b"target/hter", b"training.rounds", b"faces"))
    assert {path.name for path in (run / "files").iterdir()} == {"figures.json"}
    everything = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert b"secret" not in everything
    assert str(sets["A"]).encode() not in written
