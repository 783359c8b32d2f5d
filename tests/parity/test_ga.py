"""GA's step of the weights of sites, against NumPy and by hand; its runs are in test_algorithms.py."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.toy import Sets, recipe_of, tree
from torch import nn

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.federation.site import Batch, Site
from fedvisage.methods.algorithms.ga import adjust, mean_loss
from fedvisage.nn.compute import resolve_compute

WEIGHTS = {"A": 0.5, "B": 0.3, "C": 0.2}


def test_site_that_loses_most_by_averaging_gains_most() -> None:
    """The mean gap is 2, so the deviations are −2, 0 and 2: shares of −1, 0 and 1 of the step."""
    assert adjust(WEIGHTS, {"A": 0.0, "B": 2.0, "C": 4.0}, 0.1) == pytest.approx({"A": 0.4, "B": 0.3, "C": 0.3})


def test_absent_site_keeps_its_weight_and_the_others_share_theirs() -> None:
    assert adjust(WEIGHTS, {"A": 1.0, "C": 3.0}, 0.1) == pytest.approx({"A": 0.4, "B": 0.3, "C": 0.3})


def test_large_step_is_clipped() -> None:
    assert adjust(WEIGHTS, {"A": 0.0, "B": 1.0, "C": 8.0}, 9.0) == pytest.approx({"A": 0.0, "B": 0.0, "C": 1.0})


@pytest.mark.parametrize(("gaps", "step"), [({"A": 1.0, "B": 1.0, "C": 1.0}, 0.5), ({"A": 1.0, "B": 0.0}, 0.0)])
def test_equal_gaps_and_a_step_of_zero_change_nothing(gaps: dict[str, float], step: float) -> None:
    assert adjust(WEIGHTS, gaps, step) == WEIGHTS


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3), st.floats(0.01, 1))
def test_weights_are_those_of_the_equation(gaps: list[float], step: float) -> None:
    actual = adjust(WEIGHTS, dict(zip(WEIGHTS, gaps, strict=True)), step)
    deviations = [gap - sum(gaps) / 3 for gap in gaps]
    largest = max(map(abs, deviations)) or 1.0
    moved = [min(1, max(0, a + step * g / largest)) for a, g in zip(WEIGHTS.values(), deviations, strict=True)]
    np.testing.assert_allclose(list(actual.values()), [weight / sum(moved) for weight in moved], rtol=1e-9, atol=1e-12)


def test_loss_of_a_model_is_the_mean_over_images_in_evaluation_mode(sets: Sets) -> None:
    """Ten images at a time of 24, so that the last batch is smaller; labels are sorted by batch."""
    content = tree(sets, "ga", evaluation__batch=10, training__augment={"brightness": 0.5}, input__colour="rgb")
    view, net = View.of(PreparedSet.open(sets["A"]), "train"), nn.ModuleDict({"model": nn.BatchNorm2d(3)})
    site = Site("A", recipe_of(content), 1, view, net, resolve_compute("cpu", "fp32"), {}, {})

    def loss(site: Site, batch: Batch) -> torch.Tensor:
        levels: torch.Tensor = site.net["model"](batch.images).mean((1, 2, 3))
        return (levels * (1 + batch.labels)).mean()

    stored = np.asarray(PreparedSet.open(sets["A"]).images)[PreparedSet.open(sets["A"]).select("train")]
    # A new BatchNorm in evaluation mode divides by √(1 + 1e-5).
    values = (stored.astype(np.float64) / 255).mean((1, 2, 3)) * (1 + view.labels) / np.sqrt(1 + 1e-5)
    assert len(values) == 24
    assert mean_loss(site, loss) == pytest.approx(values.mean(), rel=1e-5)
    assert all(module.training for module in net.modules())
