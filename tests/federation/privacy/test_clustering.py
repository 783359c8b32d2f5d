"""Algorithm 1 of PrivacyFace: against its own lines, and the data sets on which its claim of privacy breaks."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tests.federation.privacy.drawing import draws_of, unit
from tests.refusals import refused
from torch import Tensor

from fedvisage.audit.claims import two_groups
from fedvisage.federation.privacy import clustering
from fedvisage.federation.privacy.clustering import (
    ClusteringSettings,
    claimed_sensitivity,
    densest_clusters,
    paper_charges,
    sanitise_clusters,
)
from fedvisage.federation.privacy.mechanisms import Budget

BUDGET = Budget(1.0, 5.9e-5)
ASKED = ClusteringSettings(margin=0.9, queries=4, minimum=3, budget=BUDGET)


def algorithm_1(
    w: np.ndarray, asked: ClusteringSettings, *, remove_members: bool = False
) -> list[tuple[np.ndarray, int]]:
    """Transcribe lines 1 to 8 without the noise."""
    n = len(w)
    theta = np.arccos(np.clip(w @ w.T, -1, 1))
    index, actual = list(range(n)), []
    for _ in range(asked.queries):
        sets = {i: [j for j in index if theta[i, j] <= asked.margin] for i in index}
        if not sets:
            break
        largest = max(len(members) for members in sets.values())
        members = next(sets[i] for i in index if len(sets[i]) == largest)
        p = np.mean([w[i] for i in members], axis=0)
        if len(members) < asked.minimum:
            break
        actual.append((p, len(members)))
        towards = p / np.linalg.norm(p)
        gone = set(members) if remove_members else {i for i in index if np.arccos(w[i] @ towards) <= asked.margin}
        index = [i for i in index if i not in gone]
    return actual


@pytest.mark.parametrize("seed", range(12))
def test_clusters_are_those_of_the_algorithm_as_printed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "BLOCK", 16)
    w = unit(90, 4, seed)
    expected = algorithm_1(w, ASKED)
    actual = densest_clusters(torch.from_numpy(w), ASKED)
    assert [one.size for one in actual] == [size for _, size in expected]
    np.testing.assert_allclose(np.stack([one.mean.numpy() for one in actual]), [p for p, _ in expected], rtol=1e-12)


def test_removed_ball_is_centred_on_the_mean() -> None:
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for seed in range(6):
        for members in (True, False):
            sizes[members] += [size for _, size in algorithm_1(unit(90, 4, seed), ASKED, remove_members=members)]
    assert sizes[True] != sizes[False]
    actual = [one.size for seed in range(6) for one in densest_clusters(torch.from_numpy(unit(90, 4, seed)), ASKED)]
    assert actual == sizes[False]


@pytest.mark.parametrize("vectors", [700, 512, 1])
def test_neighbours_counted_in_blocks_are_those_of_the_whole_matrix(vectors: int) -> None:
    w = unit(vectors, 8, 3)
    near = w @ w.T >= 0.3
    assert clustering.neighbour_counts(torch.from_numpy(w), 0.3).tolist() == near.sum(axis=1).tolist()
    within = clustering.counts_within(torch.from_numpy(w[:600]), torch.from_numpy(w), 0.3)
    assert within.tolist() == near[:600].sum(axis=1).tolist()


def test_equally_dense_caps_use_the_lowest_index() -> None:
    first, second = torch.eye(3, dtype=torch.float64)[:2]
    asked = replace(ASKED, minimum=1, queries=2)
    actual = densest_clusters(torch.stack([second, first, second, first]), asked)
    assert torch.equal(actual[0].mean, second)
    assert torch.equal(actual[1].mean, first)


def test_no_cluster_smaller_than_the_minimum_is_found() -> None:
    asked = replace(ASKED, margin=0.1, minimum=2)
    assert densest_clusters(torch.eye(5), asked) == ()
    assert sanitise_clusters((), asked, 5, draws_of(0)).shape == (0, 5)


@pytest.mark.parametrize(("minimum", "found"), [(2, 1), (3, 1), (4, 0)])
def test_cluster_of_the_minimum_size_is_accepted(minimum: int, found: int) -> None:
    """Line 6 asks for |S| ≥ T: three people at one place are a cluster of at least two or three, not of four."""
    together = torch.eye(4, dtype=torch.float64)[[0, 0, 0, 1]]
    clusters = densest_clusters(together, replace(ASKED, margin=0.1, minimum=minimum))
    assert [one.size for one in clusters] == [3] * found


def test_all_class_centres_in_one_cap_leave_nothing_for_a_second_query() -> None:
    assert len(densest_clusters(torch.eye(4)[:1].repeat(6, 1), ASKED)) == 1


def test_noise_has_the_standard_deviation_of_line_7() -> None:
    clusters = densest_clusters(torch.from_numpy(unit(90, 4, 1)), ASKED)
    charges = paper_charges(clusters, ASKED, "round 1")
    for cluster, charge in zip(clusters, charges, strict=True):
        root = math.sqrt((1 - math.cos(2 * 0.9)) * math.log(1.25 / 5.9e-5))
        assert charge.sigma == pytest.approx(2 / cluster.size * root)
        assert charge.relation == "paper"
    actual = sanitise_clusters(clusters, ASKED, 4, draws_of(0))
    v = draws_of(0).normal((4,)) * charges[0].sigma
    expected = (clusters[0].mean + v) / (clusters[0].mean + v).norm()
    torch.testing.assert_close(actual[0], expected.float())


def test_one_record_moves_the_papers_output_369_times_its_claimed_sensitivity() -> None:
    """The mechanism chooses the densest cap without noise, so one identity decides which of two groups it releases."""
    asked = ClusteringSettings(margin=1.3, queries=1, minimum=512, budget=BUDGET)
    one, other = (densest_clusters(two_groups(extra), asked)[0] for extra in (0, 1))
    claimed = claimed_sensitivity(1.3, 513)
    assert one.size == other.size == 513
    moved = float((one.mean - other.mean).norm())
    assert moved == pytest.approx(1.386, abs=1e-3)
    assert moved / claimed == pytest.approx(369, abs=1)


def test_outputs_of_the_papers_mechanism_identify_their_data_set() -> None:
    """A lower bound on ε, at 99.9 % confidence, from 200 releases on two neighbouring data sets exceeds the claim."""
    asked = ClusteringSettings(margin=1.3, queries=1, minimum=512, budget=BUDGET)
    source, draws = draws_of(0), 200
    hits = []
    for extra in (0, 1):
        clusters = densest_clusters(two_groups(extra), asked)
        outputs = [sanitise_clusters(clusters, asked, 512, source)[0] for _ in range(draws)]
        hits.append(sum(float(one[0]) > float(one[1]) for one in outputs))
    assert hits == [draws, 0]
    least, most = stats.beta.ppf(0.001, draws, 1), stats.beta.ppf(0.999, 1, draws)
    assert math.log((least - BUDGET.delta) / most) > 3 * BUDGET.epsilon


@pytest.mark.parametrize(
    ("centres", "place", "keyword"),
    [
        (torch.eye(4) * 1.1, "class centres", "1.1"),
        (torch.eye(4).index_fill(0, torch.tensor([2]), math.nan), "class centres", "finite"),
        (torch.eye(4).index_fill(0, torch.tensor([2]), math.inf), "class centres", "finite"),
        (torch.eye(4)[0], "class centres", "(4,)"),
        (torch.eye(4)[:0], "class centres", "(0, 4)"),
        (torch.eye(2), "minimum", "2 identities"),
    ],
)
def test_class_centres_without_a_guarantee_are_refused(centres: Tensor, place: str, keyword: str) -> None:
    with refused(place, keyword):
        densest_clusters(centres, ASKED)


@pytest.mark.parametrize(("place", "value"), [("margin", 0.0), ("margin", 1.6), ("queries", 0), ("minimum", 0)])
def test_impossible_settings_are_refused(place: str, value: float) -> None:
    change: dict[str, Any] = {place: value}
    with refused(place, str(value)):
        replace(ASKED, **change)
