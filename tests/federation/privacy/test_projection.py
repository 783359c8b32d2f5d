"""Public principal directions: definition, separate projection of each class centre, and benefit."""

import numpy as np
import torch
from tests.federation.privacy.drawing import draws_of
from tests.refusals import refused
from torch import Tensor
from torch.nn.functional import normalize

from fedvisage.federation.privacy.clustering import BudgetSplit, ClusteringSettings, release, sensitivity, statistics
from fedvisage.federation.privacy.mechanisms import Budget, lift_rows, principal_directions, project_rows

ASKED = ClusteringSettings(1.3, 1, 1, Budget(1.0, 1e-5))


def directions(number: int, dimension: int, seed: int, spread: Tensor | float = 1.0) -> Tensor:
    drawn = torch.randn(number, dimension, generator=torch.Generator().manual_seed(seed))
    return normalize(drawn * spread)


def test_directions_are_the_eigenvectors_of_the_second_moments() -> None:
    features = directions(300, 24, 0, torch.linspace(3, 0.1, 24))
    actual = principal_directions(features, 5).numpy()
    _, vectors = np.linalg.eigh(features.double().numpy().T @ features.double().numpy())
    np.testing.assert_allclose(np.abs((actual @ vectors[:, ::-1][:, :5]).diagonal()), 1, atol=1e-5)
    np.testing.assert_allclose(actual @ actual.T, np.eye(5), atol=1e-5)


def test_extra_class_centre_adds_one_unit_row_and_changes_no_other() -> None:
    basis, centres = principal_directions(directions(50, 32, 1), 8), directions(20, 32, 2)
    centres[3] = centres[3] - basis.T @ (basis @ centres[3])  # nothing of it is in the public directions
    whole = project_rows(centres, basis)
    torch.testing.assert_close(whole.norm(dim=1), torch.ones(20))
    for left_out in (3, 7):
        kept = [number for number in range(20) if number != left_out]
        assert torch.equal(project_rows(centres[kept], basis), whole[kept])
        how, centre = BudgetSplit(), whole[0]
        near = whole @ centre >= ASKED.cosine
        without = near & (torch.arange(20) != left_out)
        moved = statistics(whole[near], centre, ASKED, how) - statistics(whole[without], centre, ASKED, how)
        assert float(moved.norm()) <= sensitivity(ASKED, how) * (1 + 1e-9)


def test_a_basis_of_all_axes_changes_nothing() -> None:
    centres, candidates = directions(40, 16, 3), directions(6, 16, 4)
    plain = release(centres, candidates, ASKED, BudgetSplit(), draws_of(5))
    same = release(centres, candidates, ASKED, BudgetSplit(), draws_of(5), torch.eye(16))
    torch.testing.assert_close(same.centres, plain.centres, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(same.counts, plain.counts)


def test_released_rows_are_unit_vectors_in_the_public_directions() -> None:
    basis = principal_directions(directions(50, 32, 6), 8)
    actual = release(directions(40, 32, 7), directions(6, 32, 8), ASKED, BudgetSplit(), draws_of(9), basis).centres
    assert actual.shape == (1, 32)
    torch.testing.assert_close(actual.norm(dim=1), torch.ones(1))
    torch.testing.assert_close(lift_rows(actual @ basis.T, basis), actual)


def test_projection_keeps_more_of_a_cluster_if_features_have_few_directions() -> None:
    """64 of 512 at ε = 1, with 115 members: in all dimensions with a choice a cosine of 0.29 is expected."""
    spread = torch.cat([torch.ones(32), torch.full((480,), 0.02)])
    axis = torch.eye(512)[0]
    centres = normalize(3 * axis + directions(115, 512, 10, spread) * 3)
    public = normalize(2 * axis + directions(400, 512, 11, spread) * 3)
    basis, candidates = principal_directions(public, 64), normalize(public[:100])
    mean = normalize(centres.mean(0), dim=0)

    def median(basis: Tensor | None) -> float:
        actual = [
            release(centres, candidates, ASKED, BudgetSplit(), draws_of(seed), basis).centres[0] for seed in range(99)
        ]
        return float(np.median([float(one @ mean) for one in actual]))

    assert median(basis) > 1.5 * median(None)


def test_more_directions_than_public_images_span_are_refused() -> None:
    with refused("recipe.method.project", "9", "8"):
        principal_directions(directions(8, 32, 12), 9)
