"""`evaluation.published`: figures by the rules of papers are added, and nothing else of a run changes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.refusals import refused
from tests.tasks.pad.test_trained_on_all import check_equal_errors
from tests.toy import SITES, Sets, recipe_of, run_toy, scores_of, tree

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.record.ledger import LEDGER, read_lines
from fedvisage.methods import METHODS
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.nn.compute import resolve_compute
from fedvisage.recipe import tree_of
from fedvisage.report.page import write_report
from fedvisage.runs.evaluate import evaluate
from fedvisage.tasks.catalogue import task_of
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.pad.task import summarise
from fedvisage.tasks.saved_model import load
from fedvisage.tasks.scoring import Scorer


def content(sets: Sets, name: str = "fedpad", **changes: Any) -> dict[str, Any]:
    return tree(sets, name, training__rounds=1, evaluation__every=0, **changes)


@pytest.fixture(scope="module")
def runs(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Return a run with published figures, and the same run without."""
    root = tmp_path_factory.mktemp("published")
    run_toy(content(sets), root / "False")
    run_toy(content(sets, evaluation__published=True), root / "True")
    return {published: root / f"{published}" for published in (False, True)}


def metrics_of(run: Path) -> Metrics:
    return read_metrics(run / "metrics.json")


def test_published_figures_change_nothing_else(runs: dict[bool, Path]) -> None:
    for file in ("model.safetensors", "scores.csv"):
        assert (runs[True] / file).read_bytes() == (runs[False] / file).read_bytes()
    with_them, without = metrics_of(runs[True]), metrics_of(runs[False])
    assert with_them.part("published")
    assert not without.part("published")
    for key in ("threshold", "threshold_rule", "hter", "eer", "auc", "tpr_at_fpr_1pct"):
        assert with_them[key] == without[key]
    assert "published" not in tree_of(recipe_of(load(runs[False]).recipe))["evaluation"]


def test_threshold_of_training_has_equal_errors_on_all_training_images(runs: dict[bool, Path], sets: Sets) -> None:
    saved = load(runs[True])
    scorer = Scorer(METHODS["fedpad"], recipe_of(saved.recipe), resolve_compute("cpu", "fp32"))
    views = [View.of(PreparedSet.open(sets[name]), "train") for name in SITES]
    live = np.concatenate([scorer.scores(saved.finished, view)[""] for view in views])
    label = np.concatenate([view.labels for view in views])
    published = metrics_of(runs[True]).part("published")
    check_equal_errors(live, label, published["threshold_train_eer"])
    frames = scores_of(runs[True])[""]
    taken, is_live = frames["logit"] >= published["threshold_train_eer"], frames["label"] == 1
    assert published["hter_train_eer"] == pytest.approx((np.mean(taken[~is_live]) + np.mean(~taken[is_live])) / 2)


def test_ledger_records_the_counts_of_training_scores(runs: dict[bool, Path]) -> None:
    guarantees = {
        expected: {row.get("guarantee") for row in read_lines(run / LEDGER) if row["field"] == "histogram"}
        for expected, run in runs.items()
    }
    assert guarantees[True] - guarantees[False] == {"counts of training scores in fixed bins"}


def test_finished_model_is_evaluated_with_the_same_thresholds(
    runs: dict[bool, Path], sets: Sets, tmp_path: Path
) -> None:
    again = evaluate(open_model(runs[True]), None, tmp_path)
    assert again.part("published") == metrics_of(runs[True]).part("published")


@pytest.mark.long
def test_published_figures_of_members_are_averaged(sets: Sets, tmp_path: Path) -> None:
    metrics = run_toy(content(sets, "single", evaluation__published=True), tmp_path / "run")
    own = [metrics.part(f"members.{name}.published") for name in SITES]
    assert len({published["threshold_train_eer"] for published in own}) > 1
    for key in ("hter_train_eer", "hter_target_eer", "tpr_bona_fide_1pct"):
        assert metrics[f"published.{key}"] == pytest.approx(np.mean([published[key] for published in own]))


def test_recognition_is_referred_to_benchmarks_for_published_figures(sets: Sets) -> None:
    recipe = recipe_of(content(sets, "fedavg", evaluation__published=True))
    method = METHODS["fedavg"]
    with refused("recipe.evaluation.published", "data.benchmarks"):
        task_of(method).check(recipe, method)


@pytest.mark.long
def test_report_and_summary_show_published_figures_with_their_rules(runs: dict[bool, Path]) -> None:
    for expected, run in runs.items():
        write_report(run, run)
        page, lines = (run / "report.html").read_text(), "\n".join(summarise(metrics_of(run)))
        assert ("As papers calculate it" in page) is expected
        assert ("on the scores of training" in lines) is expected
