"""Sites that train on all of their data, and the threshold that follows from the scores of training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from tests.refusals import refused
from tests.toy import SITES, Sets, open_run_data, recipe_of, run_toy, tree
from typer.testing import CliRunner

from fedvisage.base.errors import UserError
from fedvisage.cli import app
from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.record.ledger import LEDGER, read_lines
from fedvisage.methods import METHODS
from fedvisage.metrics.recorded import Metrics
from fedvisage.nn.compute import resolve_compute
from fedvisage.recipe.evaluation import Evaluation
from fedvisage.report.page import write_report
from fedvisage.tasks.saved_model import load
from fedvisage.tasks.scoring import Scorer


def check_equal_errors(live: np.ndarray, label: np.ndarray, threshold: float) -> None:
    """Check that both error rates differ least at a threshold, to the width of a bin of scores."""
    step = 5 / 512
    levels = np.arange(live.min() - step, live.max() + step, step / 4)
    gaps = [abs(np.mean(live[label == 0] >= at) - np.mean(live[label == 1] < at)) for at in levels]
    least = levels[np.isclose(gaps, min(gaps))]
    assert least.min() - step <= threshold <= least.max() + step


def content(sets: Sets, heldout: str = "none") -> dict[str, Any]:
    outcome = tree(sets, training__rounds=1, evaluation__every=0, evaluation__threshold="source-train-eer")
    if heldout:
        outcome["data"]["sites"] = {name: f"{sets[name]} only: heldout={heldout}" for name in SITES}
    return outcome


@pytest.fixture(scope="module")
def run(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Metrics]:
    out = tmp_path_factory.mktemp("all") / "run"
    return out, run_toy(content(sets), out)


def test_every_image_of_a_site_trains(sets: Sets, tmp_path: Path) -> None:
    data = open_run_data(content(sets), tmp_path)
    for name, site in data.sites.items():
        assert sorted(site.train.items.tolist()) == sorted(PreparedSet.open(sets[name]).rows.item.tolist())
        assert site.all_trains
    assert not any("held-out" in place for place in data.places)  # no place lists held-out images


def test_threshold_has_equal_errors_on_all_training_images(run: tuple[Path, Metrics], sets: Sets) -> None:
    out, metrics = run
    saved = load(out)
    scorer = Scorer(METHODS["fedpad"], recipe_of(saved.recipe), resolve_compute("cpu", "fp32"))
    views = [View.of(PreparedSet.open(sets[name])) for name in SITES]
    live = np.concatenate([scorer.scores(saved.finished, view)[""] for view in views])
    label = np.concatenate([view.labels for view in views])
    check_equal_errors(live, label, metrics["threshold"])
    assert metrics["threshold_rule"] == "source-train-eer"
    at = metrics["threshold"]
    assert metrics["threshold_source.far"] == pytest.approx(np.mean(live[label == 0] >= at), abs=0.05)


@pytest.mark.long
def test_run_records_that_the_scores_are_of_training(run: tuple[Path, Metrics]) -> None:
    out, metrics = run
    assert set(metrics.parts("sites_training")) == set(SITES)
    assert not metrics.part("sites_heldout")
    guarantees = {row.get("guarantee") for row in read_lines(out / LEDGER) if row["field"] in ("histogram", "scatter")}
    assert guarantees == {"counts of training scores in fixed bins", "mean distance between training batches"}
    write_report(out, out)
    page = (out / "report.html").read_text()
    assert "images that the sites trained on" in page
    assert "held-out" not in page.split("source-train-eer")[1][:400]


def test_rule_evaluates_sites_with_held_out_subjects_on_training_images(sets: Sets, tmp_path: Path) -> None:
    data = open_run_data(content(sets, heldout=""), tmp_path)
    for name, site in data.sites.items():
        trained = PreparedSet.open(sets[name])
        assert set(site.heldout.items.tolist()) == set(trained.rows.item[trained.select("train")].tolist())


@pytest.mark.parametrize("rule", ["source-eer", "source-bpcer-5pct", "fixed", "target-eer"])
def test_other_rules_need_held_out_subjects(sets: Sets, tmp_path: Path, rule: str) -> None:
    settings = content(sets)
    settings["evaluation"]["threshold"] = rule
    with refused("data.sites.A", rule, "source-train-eer"):
        open_run_data(settings, tmp_path)


def test_scores_of_training_choose_no_round() -> None:
    with pytest.raises(ValidationError, match="every"):
        Evaluation(threshold="source-train-eer", every=1)


def test_target_holds_no_images_out(sets: Sets, tmp_path: Path) -> None:
    settings = content(sets)
    settings["data"]["target"] += " only: heldout=none"
    with refused("data.target", "heldout="):
        open_run_data(settings, tmp_path)


def test_training_pictures_cannot_be_a_target(run: tuple[Path, Metrics], sets: Sets) -> None:
    """The held-out subjects of the set trained, too."""
    result = CliRunner().invoke(app, ["evaluate", str(run[0]), "--data", f"{sets['A']} only: subjects=0-100"])
    assert isinstance(result.exception, UserError)
    assert "shares 6 subjects" in str(result.exception)
