"""A published list of pairs: missing images are counted, and figures use the folds of the list."""

import numpy as np
import pytest
from sklearn.metrics import roc_curve
from tests.refusals import refused

from fedvisage.data.lists import ListedPairs
from fedvisage.metrics.similarity import label_features
from fedvisage.metrics.verification import accuracy_on_folds
from fedvisage.tasks.recognition.benchmarks import compare_pairs, find_pairs

PEOPLE, EACH = 12, 4
IDENTITY = np.repeat(np.arange(PEOPLE), EACH)
IMAGES = {f"{person}/{image}": person * EACH + image for person in range(PEOPLE) for image in range(EACH)}
NAMES = list(IMAGES)


def draw_pairs(pairs: int = 40, folds: int = 4) -> ListedPairs:
    first = np.random.default_rng(0).integers(0, len(NAMES), pairs)
    second = np.where(np.arange(pairs) % 2, first // EACH * EACH + (first + 1) % EACH, (first + EACH) % len(NAMES))
    one, other = ([NAMES[place] for place in places] for places in (first, second))
    return ListedPairs(one, other, IDENTITY[first] == IDENTITY[second], np.repeat(np.arange(folds), pairs // folds))


def test_accuracy_and_rates_are_those_of_the_pairs_in_the_order_of_the_list() -> None:
    rng, given = np.random.default_rng(1), draw_pairs()
    faces = label_features(rng.normal(size=(PEOPLE, 8))[IDENTITY] + rng.normal(size=(len(IDENTITY), 8)), IDENTITY)
    actual = compare_pairs(faces, find_pairs(given, IMAGES, IDENTITY, "pairs.txt"))
    places = [[IMAGES[name] for name in names] for names in (given.first, given.second)]
    similarity = (faces.features[places[0]] * faces.features[places[1]]).sum(axis=1)
    assert np.allclose(actual.similarity, similarity, atol=1e-6)
    assert actual.folds == accuracy_on_folds(actual.similarity, given.same, 4)
    far, tar, _ = roc_curve(given.same, actual.similarity, drop_intermediate=False)
    assert actual.tar == {0.1: pytest.approx(tar[far <= 0.1].max())}
    assert actual.pairs.left_out == 0


def test_pairs_with_missing_images_are_left_out_and_counted() -> None:
    given, there = draw_pairs(), {name: place for name, place in IMAGES.items() if not name.startswith("3/")}
    missing = [a.startswith("3/") or b.startswith("3/") for a, b in zip(given.first, given.second, strict=True)]
    actual = find_pairs(given, there, IDENTITY, "pairs.txt")
    assert actual.left_out == sum(missing) > 0
    assert actual.fold.tolist() == given.fold[~np.array(missing)].tolist()


def test_too_few_pairs_for_a_threshold_give_no_accuracy() -> None:
    faces = label_features(np.random.default_rng(1).normal(size=(len(IDENTITY), 8)), IDENTITY)
    assert compare_pairs(faces, find_pairs(draw_pairs(folds=1), IMAGES, IDENTITY, "pairs.txt")).folds is None


def test_a_list_about_other_images_or_other_people_is_refused() -> None:
    with refused("pairs.txt", "40", "10/0"):
        find_pairs(draw_pairs(), {}, IDENTITY, "pairs.txt")
    with refused("pairs.txt", "7/2", "7/3"):
        find_pairs(draw_pairs(), IMAGES, np.arange(len(IDENTITY)), "pairs.txt")
