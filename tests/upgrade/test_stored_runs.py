"""Runs of an earlier version are opened, evaluated, compared, reported and resumed by this one."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.refusals import refused
from tests.toy import quiet_reporter

import fedvisage as fv
from fedvisage.methods import read_method
from fedvisage.metrics.recorded import read_metrics
from fedvisage.recipe import load
from fedvisage.report.compare import compare
from fedvisage.report.page import write_report
from fedvisage.report.tracking.tensorboard import write_events
from fedvisage.runs.request import Request
from fedvisage.runs.run import run

STORED = Path(__file__).parent / "from-0.1"
WHOLE = ("texture", "transformer")
RUNS = (*WHOLE, "faces")


@pytest.fixture
def here(sets: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the runs beside their sets, as in the earlier version."""
    for name in RUNS:
        shutil.copytree(STORED / name, tmp_path / name)
    (tmp_path / "sets").symlink_to(sets["A"].parent)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", WHOLE)
def test_stored_model_has_the_recorded_figures(here: Path, name: str) -> None:
    """The last bits may differ on another processor; no score is that close to the threshold."""
    then = json.loads((here / name / "metrics.json").read_text())
    now = fv.evaluate(here / name)
    for figure in ("hter", "eer", "auc", "threshold"):
        assert now[figure] == pytest.approx(then[figure], abs=1e-4), figure


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_stored_run_is_reported(here: Path, name: str) -> None:
    (here / name / "report.html").unlink(missing_ok=True)
    page = write_report(here / name).read_text()
    assert json.loads((here / name / "metrics.json").read_text())["method"] in page
    assert list(write_events(here / name).iterdir())


def test_stored_runs_are_compared(here: Path) -> None:
    rows = compare([here / name for name in WHOLE])
    assert {row.method for row in rows} == {"colour_texture", "vit"}


@pytest.mark.parametrize("name", RUNS)
def test_resume_of_a_stored_run_returns_its_figures_and_changes_no_file(here: Path, name: str) -> None:
    recipe = load(here / name / "recipe.yaml", [], read_method)
    before = {path: path.read_bytes() for path in (here / name).rglob("*") if path.is_file()}
    figures = run(Request(recipe, here / name, here / "cache", resume=True), quiet_reporter())
    assert figures == read_metrics(here / name / "metrics.json")
    assert figures["target"] == fv.Run(here / name).metrics["target"] == "U"
    assert {path: path.read_bytes() for path in before} == before


def test_run_of_a_later_version_is_refused_with_the_unknown_key(here: Path) -> None:
    path = here / "texture/model.json"
    settings = json.loads(path.read_text())
    settings["recipe"]["training"]["from_the_future"] = 1
    path.write_text(json.dumps(settings))
    with refused("texture/model.json", "recipe.training.from_the_future"):
        fv.open(here / "texture")
