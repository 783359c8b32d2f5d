"""What PrivacyFace's sites work out before anything is released."""

from __future__ import annotations

import numpy as np
import pytest
from tests.toy import shortest

from fedvisage.errors import UserError
from fedvisage.methods.clusters import Options, turn_of
from fedvisage.methods.consensus import crowded, least_identities


def test_the_turn_of_an_image_counts_the_earlier_ones_of_the_same_person() -> None:
    whose = np.array([2, 0, 2, 1, 2, 0])
    assert turn_of(whose).tolist() == [0, 0, 1, 0, 2, 1]


def test_a_site_needs_as_many_people_as_its_least_cluster_and_two_at_least() -> None:
    assert least_identities(shortest("privacyface", delta=1e-5, minimum=30)) == 30
    assert least_identities(shortest("privacyface", delta=1e-5, minimum=1)) == 2


def test_clusters_that_could_fill_the_sphere_are_warned_of() -> None:
    assert crowded(shortest("privacyface", delta=1e-5)) is None
    assert "lower the margin" in (crowded(shortest("privacyface", delta=1e-5, rho=1.56, queries=4)) or "")


def test_the_defaults_are_the_paper_s() -> None:
    options = shortest("privacyface", delta=5.9e-5).options(Options)
    assert (options.rho, options.minimum, options.queries, options.epsilon) == (1.3, 512, 1, 1.0)
    assert options.weight == "uniform"


def test_the_private_clustering_needs_a_delta() -> None:
    with pytest.raises(UserError, match="needs delta"):
        shortest("privacyface")
