"""D_sys against its integral, where both densities are known."""

import numpy as np
import pytest
from benchmarks.gallery import linkability
from scipy.integrate import quad
from scipy.stats import norm


def test_equal_scores_are_unlinkable_and_disjoint_ones_fully_linkable() -> None:
    scores = np.linspace(0, 1, 1000)
    assert linkability(scores, scores) == 0
    assert linkability(scores + 2, scores) == pytest.approx(1)


@pytest.mark.parametrize("apart", [0.5, 1.0, 2.0])
def test_normal_scores_give_the_integral_over_their_densities(apart: float) -> None:
    rng = np.random.default_rng(0)

    def inside(score: float) -> float:
        one, other = norm.pdf(score, apart), norm.pdf(score)
        return float(one * (one - other) / (one + other)) if one > other else 0.0

    expected, _ = quad(inside, -8, 10, points=[apart / 2])
    measured = linkability(rng.normal(apart, 1, 200_000), rng.normal(0, 1, 200_000))
    assert measured == pytest.approx(expected, abs=0.01)
