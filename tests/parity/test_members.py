"""Members' scores, averaged as Fused does, and members put into one model and taken out again."""

import numpy as np
import torch

from fedvisage.federation.server import join_members, members_of
from fedvisage.tasks.scoring import mean_score


def test_the_mean_score_is_the_mean_probability() -> None:
    draws = np.random.default_rng(0)
    logits = [draws.normal(0, 4, 50) for _ in range(3)]
    expected = np.mean([1 / (1 + np.exp(-values)) for values in logits], axis=0)
    np.testing.assert_allclose(1 / (1 + np.exp(-mean_score(logits))), expected, rtol=1e-12)


def test_the_mean_score_of_saturated_members_is_finite_and_keeps_their_order() -> None:
    scores = mean_score([np.array([-40.0, -39.0, 0.0, 39.0, 40.0])] * 2)
    np.testing.assert_allclose(scores, [-40.0, -39.0, 0.0, 39.0, 40.0], rtol=1e-9)


def test_the_mean_score_of_opposed_members_is_undecided() -> None:
    assert mean_score([np.array([17.0]), np.array([-17.0])])[0] == 0.0


def test_split_members_equal_the_joined_ones() -> None:
    members = {name: {"model.w": torch.rand(2), "model.deep.b": torch.rand(1)} for name in ("A", "B")}
    assert members_of(join_members(members)) == members


def test_single_model_is_the_unnamed_member() -> None:
    model = {"model.w": torch.rand(2)}
    assert members_of(model) == {"": model}
    assert join_members({"": model}) == model
