"""Robust rules against NumPy written from the papers' equations, in float64."""

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedvisage.federation.protections.combine import (
    clip_update,
    krum_selection,
    median,
    scores,
    squared_distances,
    trimmed_mean,
)

Values = NDArray[np.float64]


def uploads(count: int, seed: int, size: int = 40) -> Values:
    return np.random.default_rng(seed).normal(size=(count, size)) * 3


def messages(values: Values) -> list[dict[str, torch.Tensor]]:
    """Two tensors and a counter that no distance may contain."""
    return [
        {
            "a": torch.from_numpy(row[:10]).reshape(2, 5),
            "b": torch.from_numpy(row[10:]),
            "n": torch.tensor(index * 1000),
        }
        for index, row in enumerate(values)
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10])
def test_the_median_is_numpys(count: int) -> None:
    values = uploads(count, count)
    assert np.array_equal(median(torch.from_numpy(values)).numpy(), np.median(values, axis=0))


@pytest.mark.parametrize(("count", "cut"), [(3, 1), (5, 0), (5, 2), (8, 3), (9, 1)])
def test_the_trimmed_mean_drops_the_extremes_of_each_coordinate(count: int, cut: int) -> None:
    values = uploads(count, 10 * count + cut)
    expected = []
    for column in values.T:
        left = sorted(column)
        for _ in range(cut):
            left.remove(max(left))
            left.remove(min(left))
        expected.append(sum(left) / len(left))
    np.testing.assert_allclose(trimmed_mean(torch.from_numpy(values), cut).numpy(), expected, rtol=1e-14)


def test_trimmed_mean_of_no_uploads_is_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        trimmed_mean(torch.zeros(4, 2, dtype=torch.float64), 2)


def krum_scores(values: Values, hostile: int) -> list[float]:
    """s(i) of Blanchard et al., §4: over all choices of n − f − 2 others, the least sum of squared distances."""
    count = len(values)
    actual = []
    for i in range(count):
        others = [float(((values[i] - values[j]) ** 2).sum()) for j in range(count) if j != i]
        actual.append(min(sum(some) for some in itertools.combinations(others, count - hostile - 2)))
    return actual


@pytest.mark.parametrize(("count", "hostile"), [(5, 1), (6, 1), (7, 2), (9, 3)])
def test_krum_scores_are_those_of_the_paper(count: int, hostile: int) -> None:
    values = uploads(count, 100 * count)
    actual = scores(squared_distances(messages(values)), hostile)
    expected = krum_scores(values, hostile)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12)
    for select in (1, count - hostile - 2):
        assert krum_selection(messages(values), hostile, select) == sorted(np.argsort(expected)[:select].tolist())


def test_krum_excludes_hostile_uploads() -> None:
    values = uploads(9, 1)
    values[[0, 4, 8]] = 1e3 * np.sign(values[[0, 4, 8]])
    assert not {0, 4, 8} & set(krum_selection(messages(values), hostile=3, select=4))


def test_too_few_for_krum_is_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        krum_selection(messages(uploads(4, 0)), hostile=1)


@pytest.mark.parametrize("bound", [0.1, 5.0, 1e3])
def test_clipping_divides_the_update_by_the_larger_of_one_and_norm_over_bound(bound: float) -> None:
    (lent, sent), before = uploads(2, 3), torch.get_default_dtype()
    update = sent - lent
    expected = lent + update / max(1.0, float(np.sqrt((update**2).sum())) / bound)
    base, upload = messages(np.stack([lent, sent]))
    actual = clip_update(upload, base, bound)
    np.testing.assert_allclose(np.concatenate([actual["a"].reshape(-1), actual["b"]]), expected, rtol=1e-12, atol=1e-12)
    assert int(actual["n"]) == 1000
    assert torch.get_default_dtype() == before


def test_an_update_within_the_bound_stays_bit_for_bit() -> None:
    base, upload = ({"w": torch.randn(50, generator=torch.Generator().manual_seed(seed))} for seed in (0, 1))
    assert clip_update(upload, base, 1e4)["w"] is upload["w"]
