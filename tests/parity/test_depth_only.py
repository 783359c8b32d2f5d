"""Depth only: what the score says of an estimated map."""

from pathlib import Path

import numpy as np
import torch
from tests.refusals import refused
from tests.toy import Sets, copy_set, run_toy, tree
from torch import Tensor

from fedvisage.methods.pad import depth_only


def scores(maps: Tensor) -> list[float]:
    actual: list[float] = depth_only.live_logit(maps).tolist()
    return actual


def test_the_probability_is_the_share_of_the_maps_energy() -> None:
    maps = torch.rand(5, 32, 32, generator=torch.Generator().manual_seed(0))
    energy = (maps.double().numpy() ** 2).mean(axis=(1, 2))
    expected = energy / (energy + depth_only.UNDECIDED)
    np.testing.assert_allclose(1 / (1 + np.exp(-np.array(scores(maps)))), expected, rtol=1e-5)


def test_a_deeper_map_scores_higher_and_a_flat_one_lowest_and_finite() -> None:
    actual = scores(torch.linspace(0, 1, 6)[:, None, None].expand(6, 32, 32))
    assert actual == sorted(actual)
    assert np.isfinite(actual).all()
    assert len(set(actual)) == 6


def test_a_site_without_depth_maps_is_named(sets: Sets, tmp_path: Path) -> None:
    bare = copy_set(sets["A"], tmp_path / "bare", depth=False)
    content = tree(sets, "depth_only", data__sites={"A": str(bare), "B": str(sets["B"])})
    with refused("data.sites.all", "depth_only", "--depth"):
        run_toy(content, tmp_path / "run")
