"""Scores and scatter of held-out images come from one pass through a finished model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.toy import Sets, open_run_data, recipe_of, run_toy, tree
from torch import Tensor

from fedvisage.federation.method import Member, Prediction
from fedvisage.methods import METHODS
from fedvisage.metrics.threshold import histogram
from fedvisage.nn.compute import resolve_compute
from fedvisage.tasks.saved_model import load
from fedvisage.tasks.scoring import Scorer


def test_run_scores_held_out_images_once_per_evaluated_round(sets: Sets, tmp_path: Path) -> None:
    passed: list[int] = []

    def predict(member: Member) -> Tensor:
        passed.append(len(member.images))
        return METHODS["fedpad"].prediction.predict(member)

    content = tree(sets, training__rounds=2)
    run_toy(content, tmp_path / "run", method=replace(METHODS["fedpad"], prediction=Prediction(predict)))
    data = open_run_data(content, tmp_path)
    assert data.target is not None
    held_out = sum(len(site.heldout) for site in data.sites.values())
    assert sum(passed) == 2 * held_out + len(data.target)


def test_one_pass_gives_the_scores_and_the_scatter_of_two(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, training__rounds=1)
    run_toy(content, tmp_path / "run")
    finished, recipe = load(tmp_path / "run").finished, recipe_of(content)
    scorer, view = (
        Scorer(METHODS["fedpad"], recipe, resolve_compute("cpu", "fp32")),
        open_run_data(content, tmp_path).sites["A"].heldout,
    )
    logits, scatter = scorer.scores_and_scatter(finished, view)
    (apart,) = scorer.scores(finished, view).values()
    np.testing.assert_allclose(logits, apart, rtol=1e-5, atol=1e-5)
    assert scatter == scorer.scatter(finished, view)
    labels = view.labels.astype("int64")
    assert histogram(logits, labels).sum() == histogram(apart, labels).sum() == len(view)


def test_one_pass_averages_the_scores_of_members(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, "fused", training__rounds=1)
    run_toy(content, tmp_path / "run")
    finished, recipe = load(tmp_path / "run").finished, recipe_of(content)
    scorer, view = (
        Scorer(METHODS["fused"], recipe, resolve_compute("cpu", "fp32")),
        open_run_data(content, tmp_path).sites["A"].heldout,
    )
    logits, scatter = scorer.scores_and_scatter(finished, view)
    np.testing.assert_allclose(logits, scorer.scores(finished, view)[""], rtol=1e-5, atol=1e-5)
    assert scatter == scorer.scatter(finished, view)
