"""Figures of a finished model are recomputed from the scores in the run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.toy import SITES, NewRun, Sets, open_run_data, recipe_of, run_toy, scores_of, tree

from fedvisage.base.errors import RunFailed
from fedvisage.methods import METHODS
from fedvisage.metrics.recorded import Metrics, read_metrics
from fedvisage.metrics.threshold import BINS, EDGES
from fedvisage.nn.compute import resolve_compute
from fedvisage.report.page import threshold_sentence
from fedvisage.tasks.asking import source_summary
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.pad.evaluation import evaluate_pad, heldout_views, mean_figures
from fedvisage.tasks.pad.task import summarise
from fedvisage.tasks.saved_model import load
from fedvisage.tasks.scoring import Scorer


@pytest.fixture(scope="module", params=["fedpad", "single", "fused"])
def run(request: pytest.FixtureRequest, sets: Sets, new_run: NewRun) -> Path:
    return new_run(tree(sets, request.param, evaluation__features=5, evaluation__resamples=20))


def test_figures_follow_from_the_scores_and_the_threshold(run: Path) -> None:
    metrics = read_metrics(run / "metrics.json")
    members = metrics.parts("members") or {"": metrics}
    assert set(scores_of(run)) == set(members)
    for name, columns in scores_of(run).items():
        live, label, threshold = columns["logit"], columns["label"], members[name]["threshold"]
        far, frr = np.mean(live[label == 0] >= threshold), np.mean(live[label == 1] < threshold)
        assert members[name]["hter"] == pytest.approx((far + frr) / 2)
        assert members[name]["auc"] == pytest.approx(roc_auc_score(label, live))


def test_summary_has_counts_intervals_and_threshold_errors(run: Path) -> None:
    metrics = read_metrics(run / "metrics.json")
    labels = next(iter(scores_of(run).values()))["label"]
    text = "\n".join(summarise(metrics))
    assert f"{(labels == 1).sum()} live and {(labels == 0).sum()} attacks (frames)" in text
    if not metrics.part("members"):
        low, high = metrics["intervals.frame.auc"]
        assert f"AUC {100 * low:.2f} to {100 * high:.2f} %" in text
    assert f"accepts {metrics['threshold_source.far']:.2%} of held-out attacks" in text
    assert ("mean of the sites' EERs" in text) != bool(metrics.part("members"))
    of_one_class = Metrics({name: value for name, value in metrics.items() if not name.startswith("apcer.")})
    assert "  APCER –  BPCER " in "\n".join(summarise(of_one_class))
    assert "warning" in "\n".join(summarise(Metrics({**metrics, "count.bona_fide": 30, "count.attack": 29})))
    plenty = {**metrics, "count.bona_fide": 30, "count.attack": 30}
    assert "warning" not in "\n".join(summarise(Metrics(plenty)))
    assert "warning: log-odds beyond ±20" in "\n".join(summarise(Metrics({**plenty, "threshold": 19.5})))
    assert "warning: log-odds beyond ±20" in threshold_sentence(Metrics({**metrics, "threshold": -19.5}))
    assert "warning" not in threshold_sentence(metrics)


def test_merged_sites_are_separate_in_the_feature_plot(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, "pooled")
    data = open_run_data(content, tmp_path)
    assert list(data.sites) == ["all"]
    views = heldout_views(data)
    assert list(views) == list(SITES)
    apart = open_run_data(tree(sets, "fedpad"), tmp_path).sites
    assert all(views[name].items.tolist() == apart[name].heldout.items.tolist() for name in SITES)


def test_headline_of_several_members_is_their_mean(run: Path) -> None:
    metrics = read_metrics(run / "metrics.json")
    members = list((metrics.parts("members") or {"": metrics}).values())
    assert len(members) == (len(SITES) if metrics["method"] == "single" else 1)
    for key in ("hter", "eer", "auc", "bpcer", "threshold"):
        assert metrics[key] == pytest.approx(np.mean([member[key] for member in members]))


def test_thresholds_of_the_sites_are_saved_with_the_model(run: Path) -> None:
    metrics, saved = read_metrics(run / "metrics.json"), load(run)
    members = metrics.parts("members") or {"": metrics}
    assert {name: threshold.value for name, threshold in saved.thresholds.items()} == {
        name: member["threshold"] for name, member in members.items()
    }
    assert {member["threshold_rule"] for member in members.values()} == {"source-eer"}


def test_scores_are_recomputed_from_the_saved_model(run: Path, sets: Sets, tmp_path: Path) -> None:
    model = open_model(run)
    target = open_run_data(model.saved.recipe, tmp_path).target
    assert target is not None
    again = evaluate_pad(model.scorer, model.saved, target, "U")
    stored = np.concatenate([columns["logit"] for columns in scores_of(run).values()])
    assert (again.scores.live == stored).all()


@pytest.mark.parametrize("method", ["fedpad", "fedgpad"])
def test_scores_are_in_fp32_after_training_in_bf16(sets: Sets, tmp_path: Path, method: str) -> None:
    content = tree(sets, method)
    view, recipe = open_run_data(content, tmp_path).sites["A"].heldout, recipe_of(content)
    half, single = (Scorer(METHODS[method], recipe, resolve_compute("cpu", name)) for name in ("bf16", "fp32"))
    assert half.compute.half
    assert (half.logits(view) == single.logits(view)).all()
    images = view.batch(np.arange(4)).images
    assert torch.equal(half.score_images(images), single.score_images(images))


def test_target_labels_never_replace_a_missing_histogram(run: Path, sets: Sets, tmp_path: Path) -> None:
    model = open_model(run)
    target = open_run_data(model.saved.recipe, tmp_path).target
    assert target is not None
    with pytest.raises(RunFailed, match="no histogram"):
        evaluate_pad(model.scorer, replace(model.saved, thresholds={}), target, "U")


def test_oracle_threshold_is_recorded_as_such(sets: Sets, tmp_path: Path) -> None:
    metrics = run_toy(tree(sets, evaluation__threshold="target-eer", training__rounds=1), tmp_path / "run")
    assert metrics["threshold_rule"] == "target-eer"
    assert load(tmp_path / "run").thresholds == {}


def test_means_of_figures_skip_undefined_values_and_include_nested_ones() -> None:
    rows: list[dict[str, Any]] = [
        {"rule": "x", "eer": 0.2, "apcer": {"print": 0.0, "mask": None}, "intervals": {"eer": [0, 1]}},
        {"rule": "x", "eer": 0.4, "apcer": {"print": 0.5, "mask": 0.3}, "intervals": {"eer": [0, 1]}},
    ]
    assert mean_figures(rows) == {"rule": "x", "eer": pytest.approx(0.3), "apcer": {"print": 0.25, "mask": 0.3}}


def test_source_summary_averages_sites_with_both_classes() -> None:
    perfect, mixed, lacking = (np.zeros((2, BINS), np.int64) for _ in range(3))
    perfect[0, 100] = perfect[1, 3000] = 10
    mixed[0, 100] = mixed[1, 100] = 10
    lacking[1, 3000] = 10
    columns = source_summary({"A": perfect, "B": mixed, "C": lacking})
    assert columns == {"auc": pytest.approx(0.75), "eer": pytest.approx(0.25)}
    assert source_summary({"C": lacking}) == {}
    assert len(EDGES) == BINS + 1
