"""The real MLflow and W&B, where they are installed."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.toy import ROUNDS, run_toy, tree

pytestmark = pytest.mark.slow


@pytest.fixture
def tracked_run(sets: Mapping[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Run to the end with one tracker, whose store is outside of the run."""
    pytest.importorskip(request.param)
    tracking = {"to": [request.param], "project": "faces", "directory": str(tmp_path / "store")}
    run_toy(tree(sets, tracking=tracking), tmp_path / "run")
    return tmp_path


@pytest.mark.parametrize("tracked_run", ["mlflow"], indirect=True)
def test_mlflow_stores_the_run_in_its_files(tracked_run: Path, sets: Mapping[str, Path]) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tracked_run / "store/mlruns").as_uri())
    experiment = client.get_experiment_by_name("faces")
    assert experiment is not None
    (stored,) = client.search_runs([experiment.experiment_id])
    lines = [json.loads(line) for line in (tracked_run / "run/rounds.jsonl").read_text().splitlines()]
    history = client.get_metric_history(stored.info.run_id, "loss/A")
    assert [(entry.step, entry.value) for entry in history] == [(row["round"], row["loss"]["A"]) for row in lines]
    assert stored.data.metrics["target/hter"] == json.loads((tracked_run / "run/metrics.json").read_text())["hter"]
    assert stored.data.params["training.rounds"] == f"{float(ROUNDS)}"
    assert (stored.info.run_name, stored.info.status) == ("run", "FINISHED")
    assert [entry.path for entry in client.list_artifacts(stored.info.run_id)] == ["figures.json"]
    written = b"".join(path.read_bytes() for path in (tracked_run / "store").rglob("*") if path.is_file())
    assert b"secret" not in written
    assert str(sets["A"]).encode() not in written


@pytest.mark.parametrize("tracked_run", ["mlflow"], indirect=True)
def test_mlflow_resumes_a_run_or_starts_one_in_an_emptied_store(tracked_run: Path) -> None:
    from fedvisage.report.tracking.mlflow import Mlflow
    from fedvisage.report.tracking.tracker import TrackedRun

    run_id = json.loads((tracked_run / "run/tracking/told.json").read_text())["mlflow"]["run"]
    about = TrackedRun("run", "faces", tracked_run / "run", tracked_run / "store", {})
    assert Mlflow().start(about, run_id) == run_id
    assert Mlflow().start(TrackedRun("run", "faces", tracked_run, tracked_run / "other", {}), run_id) != run_id


@pytest.mark.parametrize("tracked_run", ["wandb"], indirect=True)
def test_wandb_writes_an_offline_run_without_collected_data(tracked_run: Path, sets: Mapping[str, Path]) -> None:
    (run,) = (tracked_run / "store/wandb").glob("offline-run-*")
    (record,) = run.glob("run-*.wandb")
    written = record.read_bytes()
    assert all(word in written for word in (b"loss/A", b"target/hter", b"training.rounds", b"faces"))
    assert {path.name for path in (run / "files").iterdir()} == {"figures.json"}
    everything = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert b"secret" not in everything
    assert str(sets["A"]).encode() not in written
