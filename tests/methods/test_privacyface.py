"""PrivacyFace's computations at a site before a release."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.refusals import refused
from tests.toy import shortest

from fedvisage.methods.recognition.privacyface import Options, rank_within_person
from fedvisage.methods.recognition.privacyface_loss import least_identities, warn_of_crowding


def test_the_turn_of_an_image_counts_the_earlier_ones_of_the_same_person() -> None:
    whose = np.array([2, 0, 2, 1, 2, 0])
    assert rank_within_person(whose).tolist() == [0, 0, 1, 0, 2, 1]


def test_a_site_needs_as_many_people_as_its_least_cluster_and_two_at_least() -> None:
    assert least_identities(shortest("privacyface", delta=1e-5, minimum=30)) == 30
    assert least_identities(shortest("privacyface", delta=1e-5, minimum=1)) == 2


def test_clusters_that_could_fill_the_sphere_are_warned_of() -> None:
    assert "lower the margin" in (warn_of_crowding(shortest("privacyface", delta=1e-5, rho=1.56, queries=4)) or "")


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({}, 64 * math.cos(0.5)),
        ({"loss": "cosface", "margin": 0.35}, 64 * 0.65),
        ({"consensus": {"rho": 1.2}}, 64 * math.cos(0.5)),
    ],
)
def test_clusters_that_take_the_softmax_are_warned_of(changes: dict[str, Any], own: float) -> None:
    warning = warn_of_crowding(shortest("privacyface", delta=1e-5, **changes))
    assert warning is not None
    assert f"{own:.3g}" in warning
    assert f"{64 * math.sin(changes.get('consensus', {}).get('rho', 1.3)):.3g}" in warning


@pytest.mark.parametrize("consensus", [{"form": "lowered"}, {"form": "apart"}, {"rho": 0.9}])
def test_forms_in_which_the_own_class_wins_are_not_warned_of(consensus: dict[str, Any]) -> None:
    assert warn_of_crowding(shortest("privacyface", delta=1e-5, consensus=consensus)) is None


def test_the_defaults_are_the_paper_s() -> None:
    options = shortest("privacyface", delta=5.9e-5).options(Options)
    assert (options.rho, options.minimum, options.queries, options.epsilon) == (1.3, 512, 1, 1.0)
    assert options.weight == "uniform"


def test_the_private_clustering_needs_a_delta() -> None:
    with refused("recipe.method", "delta"):
        shortest("privacyface")
