"""Streams of similarities against whole matrices; templates against their definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.metrics.faces import all_similarities, tied_faces
from tests.refusals import refused

from fedvisage.metrics import similarity
from fedvisage.metrics.similarity import (
    Faces,
    HighestValues,
    blocks,
    check_disjoint,
    combine_templates,
    label_features,
    measurable_rates,
    normalise,
    pair_similarity,
    require_measurable,
)


def test_blocks_cover_the_matrix_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "ROWS", 5)
    monkeypatch.setattr(similarity, "COLUMNS", 7)
    first, second = tied_faces(0, [0, 1, 2], 6), tied_faces(1, [3, 4], 11)
    actual = np.full((18, 22), np.nan)
    for rows, columns, values in blocks(first.features, second.features):
        assert np.isnan(actual[rows, columns]).all()
        actual[rows, columns] = values
    np.testing.assert_array_equal(actual, all_similarities(first, second))


@given(
    st.lists(st.lists(st.integers(-9, 9), max_size=30), max_size=6),
    st.integers(1, 60),
    st.integers(1, 30),
)
@settings(max_examples=30, deadline=None)
def test_the_highest_are_those_of_a_sorted_list(parts: list[list[int]], wanted: int, spare: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(similarity, "SPARE", spare)
        highest = HighestValues(wanted)
        for part in parts:
            highest.add(np.array(part, np.float32))
    assert highest.values().tolist() == sorted((float(one) for part in parts for one in part), reverse=True)[:wanted]


def test_minus_infinity_excludes_pairs() -> None:
    highest = HighestValues(5)
    highest.add(np.array([1, -np.inf, 3], np.float32))
    assert highest.values().tolist() == [3, 1]


def test_listed_pairs_are_compared() -> None:
    faces = tied_faces(3, [0, 1, 2], 4)
    first, second = np.random.default_rng(0).integers(0, 12, (2, 5000))
    np.testing.assert_array_equal(
        pair_similarity(faces.features, first, second), all_similarities(faces, faces)[first, second]
    )


@pytest.mark.parametrize("bad", [[[0.0, 0.0]], [[np.nan, 1.0]], [[np.inf, 1.0]]])
def test_a_feature_without_direction_is_refused(bad: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="feature"):
        normalise(bad)


def test_features_and_identities_must_have_equal_length() -> None:
    with pytest.raises(ValueError, match="do not match"):
        label_features(np.ones((3, 2)), [1, 2])
    with pytest.raises(ValueError, match="not finite"):
        Faces(np.full((1, 2), np.nan, np.float32), np.zeros(1, np.int64))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_template_is_the_sum_of_its_media_means(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    features = normalise(rng.normal(size=(40, 6)))
    template, media = rng.integers(0, 5, 40), rng.integers(100, 104, 40)
    weight = rng.random(40).astype(np.float32) if weighted else None
    actual = combine_templates(features, template, media, weight=weight)
    assert actual.identity.tolist() == sorted(set(template.tolist()))
    scaled = features * (1 if weight is None else weight[:, None])
    for row, name in zip(actual.features, actual.identity, strict=True):
        mine = template == name
        total = np.sum([scaled[mine & (media == one)].mean(axis=0) for one in sorted(set(media[mine]))], axis=0)
        np.testing.assert_allclose(row, total / np.linalg.norm(total), atol=1e-6)


def test_an_identity_on_both_sides_is_refused() -> None:
    with refused("data", "2 identities", "3"):
        check_disjoint([1, 3, 5], [3, 4, 5], "data")


def test_a_rate_below_one_comparison_is_not_measurable() -> None:
    assert measurable_rates((1e-6, 1e-3, 0.1), 1000) == (1e-3, 0.1)
    with refused("evaluation.far", "999"):
        require_measurable([1e-3], 999, "evaluation.far", "impostor pairs")
    with refused("evaluation.far", "2"):
        require_measurable([2], 999, "evaluation.far", "impostor pairs")
