"""Shares of clusters in a softmax, compared with explicit sums."""

import math

import pytest
import torch
from torch import Tensor

from fedvisage.audit.softmax_shares import SiteData, cluster_geometry, shares


def site_data(
    features: list[list[float]], labels: list[int], centres: list[list[float]], clusters: list[list[float]]
) -> SiteData:
    def rows(values: list[list[float]]) -> Tensor:
        return torch.tensor(values).reshape(-1, 2)

    return SiteData(rows(features), torch.tensor(labels), rows(centres), rows(clusters))


RIGHT, UP, LEFT = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]


def test_orthogonal_cluster_gets_the_share_of_equation_5() -> None:
    result = shares(site_data([RIGHT], [0], [RIGHT, LEFT], []), torch.tensor([UP]), margin=1.3, scale=4.0)
    own, other, cluster = math.exp(4.0), math.exp(-4.0), math.exp(4.0 * math.cos(math.pi / 2 - 1.3))
    whole = own + other + cluster
    assert result["own class"] == pytest.approx(own / whole)
    assert result["own site's others"] == pytest.approx(other / whole)
    assert result["clusters"] == pytest.approx(cluster / whole)


def test_caps_contain_their_own_people() -> None:
    sites = {"A": site_data([], [], [RIGHT, UP], [RIGHT]), "B": site_data([], [], [UP, LEFT], [UP])}
    geometry = cluster_geometry(sites, edge=0.5)
    assert geometry["own people in a cap"] == 0.5
    assert geometry["other sites' people in a cap"] == 0.25  # A's cap holds none of B's, B's cap one of A's two
    assert geometry["cosine of two sites' clusters"] == 0.0


def test_shares_without_clusters_have_no_cluster_part() -> None:
    assert cluster_geometry({"A": site_data([], [], [RIGHT], [])}, edge=0.5) == {}
