"""PrivacyFace's theorems and properties, each against draws of random vectors."""

import math

import numpy as np
import pytest
from tests.federation.privacy.drawing import unit
from tests.refusals import refused

from fedvisage.federation.privacy.clustering import claimed_sensitivity, crowding_warning, occupancy


@pytest.mark.parametrize(("margin", "dimension"), [(0.5, 3), (1.0, 6), (1.3, 20), (math.pi / 2, 6)])
def test_occupancy_is_the_share_of_random_directions_in_the_cap(margin: float, dimension: int) -> None:
    inside = unit(200_000, dimension)[:, 0] >= math.cos(margin)
    assert occupancy(margin, dimension) == pytest.approx(inside.mean(), abs=4 * math.sqrt(0.25 / 200_000))


@pytest.mark.parametrize(("margin", "share"), [(1.5, 0.055), (1.4, 5e-5), (1.3, 4e-10)])
def test_occupancy_in_512_dimensions_equals_the_papers_figure(margin: float, share: float) -> None:
    assert occupancy(margin, 512) == pytest.approx(share, rel=0.15)


def test_crowding_warns_only_when_the_clusters_could_fill_the_sphere() -> None:
    assert crowding_warning(1.3, 512, 12) is None
    assert crowding_warning(1.4, 512, 20_000) is not None
    assert "lower the margin" in (crowding_warning(1.5, 64, 12) or "")


@pytest.mark.parametrize("margin", [0.3, 1.0, 1.3, math.pi / 2])
def test_theorem_2_bounds_the_shift_of_the_mean_and_is_reached(margin: float) -> None:
    around = np.eye(5)[0]
    tangent = unit(4000, 4, seed=1)
    angle = margin * np.random.default_rng(2).uniform(size=4000) ** 0.2
    members = np.column_stack([np.cos(angle), np.sin(angle)[:, None] * tangent])
    size = 7
    moved = np.linalg.norm(members[:2000] - members[2000:], axis=1) / size
    edges = [math.cos(margin) * around + sign * math.sin(margin) * np.eye(5)[1] for sign in (1, -1)]
    assert moved.max() <= claimed_sensitivity(margin, size)
    assert np.linalg.norm(edges[0] - edges[1]) / size == pytest.approx(claimed_sensitivity(margin, size))


def test_sensitivity_is_that_of_theorem_2() -> None:
    assert claimed_sensitivity(1.3, 512) == pytest.approx(math.sqrt(2 - 2 * math.cos(2.6)) / 512)


def test_naive_sensitivity_costs_millions_of_times_as_much() -> None:
    """A.2.2 prints 1.7e-7 by way of 0.0024, which is not what follows from |S| = 512 and ρ = 1.4."""
    people, one_cluster = 7000, claimed_sensitivity(1.4, 512)
    assert one_cluster == pytest.approx(math.sqrt(2 - 2 * math.cos(2.8)) / 512)
    assert one_cluster / (people * 2) == pytest.approx(2.75e-7, rel=0.01)


@pytest.mark.parametrize("margin", [0.0, -1.0, 1.58, math.nan, math.inf])
def test_a_margin_outside_of_the_theorems_is_refused(margin: float) -> None:
    with refused("margin", "angle", str(margin)):
        occupancy(margin, 8)
