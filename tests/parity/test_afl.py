"""AFL's mixture: the projection onto the simplex, its ascent, and the course of it in a run with drop-outs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file
from tests.toy import SITES, Sets, run_toy, tree

from fedvisage.federation.record.ledger import read_lines
from fedvisage.methods.algorithms.afl import ascend, project, relative_weights

Array = NDArray[np.float64]
points = st.lists(st.floats(-50, 50), min_size=1, max_size=8)
totals = st.floats(0, 3)


def by_bisection(point: Array, total: float) -> Array:
    """Find the shift at which the positive parts sum to the total, without sorting."""
    low, high = point.min() - total - 1, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > total else (low, middle)
    return np.asarray(np.maximum(point - high, 0))


@given(points, totals)
def test_the_projection_is_the_nearest_point_of_the_simplex(point: list[float], total: float) -> None:
    actual = project(torch.tensor(point, dtype=torch.float64), total).numpy()
    assert (actual >= 0).all()
    assert actual.sum() == pytest.approx(total, abs=1e-9)
    np.testing.assert_allclose(actual, by_bisection(np.array(point), total), atol=1e-9)


@given(points, st.lists(st.floats(0.01, 1), min_size=8, max_size=8))
def test_no_other_point_of_the_simplex_is_nearer(point: list[float], shares: list[float]) -> None:
    values = np.array(point)
    other = np.array(shares[: len(point)]) / sum(shares[: len(point)])
    actual = project(torch.tensor(values)).numpy()
    assert np.linalg.norm(values - actual) <= np.linalg.norm(values - other) + 1e-9


def test_the_site_with_the_largest_loss_gains() -> None:
    raised = ascend({"A": 0.5, "B": 0.3, "C": 0.2}, {"A": 1.0, "B": 1.0, "C": 4.0}, 0.1)
    assert raised == pytest.approx({"A": 0.4, "B": 0.2, "C": 0.4})


def test_absent_site_keeps_its_share_and_the_others_rescale() -> None:
    raised = ascend({"A": 0.5, "B": 0.3, "C": 0.2}, {"A": 1.0, "B": 2.0}, 0.1)
    assert raised == pytest.approx({"A": 0.45, "B": 0.35, "C": 0.2})


def test_extreme_loss_gets_the_whole_mixture() -> None:
    assert ascend({"A": 0.5, "B": 0.5}, {"A": 0.1, "B": 90.0}, 0.1) == {"A": 0.0, "B": 1.0}


def test_equal_sites_weigh_exactly_one_and_a_site_without_share_almost_zero() -> None:
    assert set(relative_weights({str(site): 1 / 49 for site in range(49)}).values()) == {1.0}
    actual = relative_weights({"A": 0.0, "B": 1.0})
    assert 0 < actual["A"] < 1e-10


@pytest.mark.long
def test_the_mixture_of_a_run_follows_from_its_losses(sets: Sets, tmp_path: Path) -> None:
    content = tree(sets, "afl", training__rounds=4, federation__offline=0.4, federation__quorum=1)
    content["method"]["step"] = 0.5
    run_toy(content, tmp_path / "run")
    rounds = read_lines(tmp_path / "run" / "rounds.jsonl")
    expected = dict.fromkeys(SITES, 1 / 3)
    for row in rounds:
        names = sorted(row["loss"])
        before = np.array([expected[name] for name in names])
        after = by_bisection(before + 0.5 * np.array([row["loss"][name] for name in names]), before.sum())
        expected |= dict(zip(names, after.tolist(), strict=True))
    kept = load_file(sorted((tmp_path / "run" / "checkpoints").glob("*.safetensors"))[-1])["kept/mixture"]
    np.testing.assert_allclose(kept.numpy(), [expected[name] for name in SITES], atol=1e-9)
    assert {len(row["loss"]) for row in rounds} != {3}
    assert len(set(kept.tolist())) == 3
