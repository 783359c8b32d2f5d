"""PrivacyFace's computations at a site before a release."""

import math
from typing import Any

import numpy as np
import pytest
from tests.refusals import refused
from tests.toy import shortest_recipe

from fedvisage.methods.recognition.privacyface import Options, rank_within_person
from fedvisage.methods.recognition.privacyface_loss import least_identities, warn_of_crowding


def test_turn_of_an_image_counts_earlier_images_of_the_person() -> None:
    whose = np.array([2, 0, 2, 1, 2, 0])
    assert rank_within_person(whose).tolist() == [0, 0, 1, 0, 2, 1]


def test_site_needs_people_for_the_smallest_cluster_and_at_least_two() -> None:
    assert least_identities(shortest_recipe("privacyface", delta=1e-5, minimum=30)) == 30
    assert least_identities(shortest_recipe("privacyface", delta=1e-5, minimum=1)) == 2


def test_warning_if_clusters_could_fill_the_sphere() -> None:
    assert "lower the margin" in (
        warn_of_crowding(shortest_recipe("privacyface", delta=1e-5, rho=1.56, queries=4)) or ""
    )


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({}, 64 * math.cos(0.5)),
        ({"loss": "cosface", "margin": 0.35}, 64 * 0.65),
        ({"consensus": {"rho": 1.2}}, 64 * math.cos(0.5)),
    ],
)
def test_warning_if_clusters_dominate_the_softmax(changes: dict[str, Any], own: float) -> None:
    warning = warn_of_crowding(shortest_recipe("privacyface", delta=1e-5, **changes))
    assert warning is not None
    assert f"{own:.3g}" in warning
    assert f"{64 * math.sin(changes.get('consensus', {}).get('rho', 1.3)):.3g}" in warning


@pytest.mark.parametrize("consensus", [{"form": "lowered"}, {"form": "apart"}, {"rho": 0.9}])
def test_no_warning_if_the_own_class_wins(consensus: dict[str, Any]) -> None:
    assert warn_of_crowding(shortest_recipe("privacyface", delta=1e-5, consensus=consensus)) is None


def test_defaults_are_those_of_the_paper() -> None:
    options = shortest_recipe("privacyface", delta=5.9e-5).options(Options)
    assert (options.rho, options.minimum, options.queries, options.epsilon) == (1.3, 512, 1, 1.0)
    assert options.weight == "uniform"


def test_the_private_clustering_needs_a_delta() -> None:
    with refused("recipe.method", "delta"):
        shortest_recipe("privacyface")
