"""The index gives the same matches as a matrix product and a sort, after any additions and removals."""

from __future__ import annotations

import numpy as np
import pytest

from fedvisage.device.gallery.search import Index
from fedvisage.metrics.similarity import Features, normalise

ROWS = 100


def vectors(seed: int, count: int, size: int = 16) -> Features:
    return normalise(np.random.default_rng(seed).standard_normal((count, size)))


@pytest.mark.parametrize("query_count", [1, 7, 300])
@pytest.mark.parametrize("most", [1, 5, 40])
def test_search_has_full_recall(query_count: int, most: int) -> None:
    people, faces = vectors(0, ROWS * 2 + 77), vectors(1, query_count)
    index = Index(16, ROWS)
    for number, vector in enumerate(people):
        index.put(str(number), vector)
    results = index.search(faces, most)
    similarity = faces @ people.T
    for row, hits in enumerate(results):
        expected = np.argsort(-similarity[row], kind="stable")[:most]
        assert [int(name) for name, _ in hits] == expected.tolist()
        assert [value for _, value in hits] == pytest.approx(similarity[row][expected].tolist(), abs=1e-5)


def test_adding_and_removing_people_keeps_the_others() -> None:
    rng, index, kept = np.random.default_rng(2), Index(16, ROWS), dict[str, Features]()
    for step, vector in enumerate(vectors(3, 3 * ROWS)):
        name = str(int(rng.integers(ROWS + 500)))
        if step % 3 == 2:
            index.drop(name)
            kept.pop(name, None)
        else:
            index.put(name, vector)
            kept[name] = vector
    assert len(index) == len(kept)
    names, matrix = list(kept), np.stack(list(kept.values()))
    for row, hits in enumerate(index.search(vectors(4, 5), 3)):
        similarity = matrix @ vectors(4, 5)[row]
        assert [name for name, _ in hits] == [names[at] for at in np.argsort(-similarity)[:3]]
    for name in names:
        index.drop(name)
    assert index.search(vectors(4, 2), 3) == [[], []]


def test_search_returns_all_people_if_there_are_fewer_than_requested() -> None:
    index = Index(16, ROWS)
    for number, vector in enumerate(vectors(0, 3)):
        index.put(str(number), vector)
    assert {name for name, _ in index.search(vectors(1, 1), 10)[0]} == {"0", "1", "2"}
