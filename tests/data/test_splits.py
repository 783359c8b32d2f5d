"""Splits by subject, for any mixture of subjects."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedvisage.data.splits import split_subjects

IMAGES = st.lists(st.tuples(st.sampled_from([f"s{n}" for n in range(12)]), st.integers(0, 1)), max_size=80)
SHARES = st.floats(0, 0.99)


def split(images: list[tuple[str, int]], share: float, seed: int = 0) -> dict[str, str]:
    subjects, labels = [subject for subject, _ in images], [label for _, label in images]
    return split_subjects(subjects, labels, share, np.random.default_rng(seed))


@given(IMAGES, SHARES)
def test_every_subject_has_exactly_one_split(images: list[tuple[str, int]], share: float) -> None:
    split_of = split(images, share)
    assert set(split_of) == {subject for subject, _ in images}
    assert set(split_of.values()) <= {"train", "heldout"}


@given(IMAGES, st.floats(0.01, 0.99))
def test_both_splits_have_every_kind_of_two_subjects(images: list[tuple[str, int]], share: float) -> None:
    split_of = split(images, share)
    classes = {subject: frozenset(label for who, label in images if who == subject) for subject in split_of}
    for kind in set(classes.values()):
        alike = [subject for subject in split_of if classes[subject] == kind]
        assert len({split_of[subject] for subject in alike}) == min(len(alike), 2)


@given(IMAGES, SHARES, st.randoms(use_true_random=False))
def test_the_order_of_the_images_is_irrelevant(images: list[tuple[str, int]], share: float, shuffler: Random) -> None:
    shuffled = list(images)
    shuffler.shuffle(shuffled)
    assert split(images, share) == split(shuffled, share)


def test_share_is_met_and_drawn_by_the_generator() -> None:
    images = [(f"s{n}", label) for n in range(40) for label in (0, 1)]
    first, second = split(images, 0.25, seed=1), split(images, 0.25, seed=2)
    assert list(first.values()).count("heldout") == 10
    assert first == split(images, 0.25, seed=1)
    assert first != second


def test_share_of_zero_holds_out_no_subject() -> None:
    assert set(split([("a", 0), ("b", 0)], 0).values()) == {"train"}


def test_impossible_share_is_refused() -> None:
    with pytest.raises(ValueError, match="share must be"):
        split([("a", 0)], 1)
