"""Scores and scatter of held-out images come from one pass through a finished model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.toy import Sets, open_run_data, run_toy, tree
from torch import Tensor

from fedvisage.federation.method import Member, Prediction
from fedvisage.methods import METHODS
from fedvisage.metrics.threshold import histogram
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.saved_model import load

pytestmark = pytest.mark.long


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


@pytest.mark.parametrize("method", ["fedpad", "fused"])
def test_one_pass_gives_the_scores_and_the_scatter_of_two(method: str, sets: Sets, tmp_path: Path) -> None:
    """The scores of several members are averaged."""
    content = tree(sets, method, training__rounds=1)
    run_toy(content, tmp_path / "run")
    finished, scorer = load(tmp_path / "run").finished, open_model(tmp_path / "run").scorer
    view = open_run_data(content, tmp_path).sites["A"].heldout
    logits, scatter = scorer.scores_and_scatter(finished, view)
    apart = scorer.scores(finished, view)[""]
    np.testing.assert_allclose(logits, apart, rtol=1e-5, atol=1e-5)
    assert scatter == scorer.scatter(finished, view)
    labels = view.labels.astype("int64")
    assert histogram(logits, labels).sum() == histogram(apart, labels).sum() == len(view)
