"""Figure 4: cosine between a cluster and its noisy release, compared with the expected cosine under that noise."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from fedvisage.audit.noise_on_clusters import (
    MechanismInputs,
    PlotSetting,
    paper_cosines,
    private_cosines,
    row,
    settings,
)
from fedvisage.federation.privacy.clustering import BudgetSplit, ClusteringSettings
from fedvisage.federation.privacy.mechanisms import Budget

DIMENSION, PEOPLE = 64, 400
BUDGET = Budget(0.5, 1e-5)
SETTINGS = ClusteringSettings(1.3, 1, 50, BUDGET)


def mechanism_inputs() -> MechanismInputs:
    """Place all people in a cap around the first axis, which is also a candidate."""
    draws = torch.Generator().manual_seed(0)
    axis = torch.eye(DIMENSION)[0]
    own = normalize(axis + 0.15 * torch.randn(PEOPLE, DIMENSION, generator=draws))
    public = normalize(axis + 0.15 * torch.randn(90, DIMENSION, generator=draws))
    return MechanismInputs(own, torch.eye(DIMENSION)[:2], BudgetSplit(), 0, public)


def remaining_cosine(length: float, sigma: float) -> float:
    """Return the cosine between a vector and its sum with noise that is nearly orthogonal to it."""
    return length / math.hypot(length, sigma * math.sqrt(DIMENSION))


def test_cosine_under_algorithm_1_follows_the_noise_of_line_7() -> None:
    inputs = mechanism_inputs()
    sigma = 2 * math.sin(1.3) / PEOPLE * math.sqrt(2 * math.log(1.25 / BUDGET.delta)) / BUDGET.epsilon
    expected = remaining_cosine(float(inputs.own.mean(0).norm()), sigma)
    assert expected < 0.95
    assert np.median(paper_cosines(inputs, PlotSetting("ε", "0.5", SETTINGS))) == pytest.approx(expected, abs=0.01)


@pytest.mark.long
def test_cosine_grows_with_epsilon_under_the_private_mechanism() -> None:
    medians = [
        np.nanmedian(
            private_cosines(
                mechanism_inputs(), PlotSetting("ε", str(epsilon), replace(SETTINGS, budget=Budget(epsilon, 1e-5)))
            )
        )
        for epsilon in (1.0, 8.0, 100.0)
    ]
    assert medians == sorted(medians)
    assert medians[-1] > 0.99, "with hardly any noise, what is told is the mean of the cap that was chosen"


@pytest.mark.long
def test_cosine_grows_with_fewer_public_directions_until_they_miss_the_cluster() -> None:
    inputs, little = mechanism_inputs(), replace(SETTINGS, budget=Budget(0.3, 1e-5))
    few, many = (
        np.nanmedian(private_cosines(inputs, PlotSetting("public directions", str(number), little, project=number)))
        for number in (8, DIMENSION)
    )
    alone = np.nanmedian(private_cosines(inputs, PlotSetting("ε", "0.3", little)))
    assert few > many + 0.1
    assert many == pytest.approx(alone, abs=0.1), "all directions are all dimensions"
    away = replace(inputs, public=torch.eye(DIMENSION)[8:])
    assert abs(np.nanmedian(private_cosines(away, PlotSetting("public directions", "8", little, project=8)))) < 0.5


def test_empty_clusters_give_no_cosine() -> None:
    few = replace(mechanism_inputs(), own=mechanism_inputs().own[:50])
    line = row(
        "Algorithm 1",
        PlotSetting("query", "2", SETTINGS, 1),
        paper_cosines(few, PlotSetting("query", "2", SETTINGS, 1)),
    )
    assert line["told"] == 0
    assert line["median"] == "–"


def test_each_panel_changes_one_parameter() -> None:
    boxes = list(settings(SETTINGS, None, DIMENSION))
    assert {box.panel for box in boxes} == {"ρ", "ε", "query", "public directions"}
    assert [box.project for box in boxes if box.panel == "public directions"] == [8, 16, 32, 64]
    assert {box.project for box in boxes if box.panel != "public directions"} == {None}
    boxes = [box for box in boxes if box.panel != "public directions"]
    assert len({box.clustering.margin for box in boxes if box.panel == "ρ"}) == sum(box.panel == "ρ" for box in boxes)
    assert {box.clustering.budget for box in boxes if box.panel != "ε"} == {BUDGET}
    assert {box.clustering.margin for box in boxes if box.panel != "ρ"} == {1.3}
    assert [box.row for box in boxes if box.panel == "query"] == [0, 1, 2]
