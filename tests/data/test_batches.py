"""Views, batches and the order of an epoch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.small_sets import make_set, pixels, write_set
from tests.refusals import refused

from fedvisage.data.batches import Sampling, Slice, View, check_view, epoch_batches
from fedvisage.data.prepared import PreparedSet


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[PreparedSet]:
    home = tmp_path_factory.mktemp("sets")
    return [make_set(home / "A", name="A", train=12), make_set(home / "B", name="B", train=20)]


def positions(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_batch_has_the_images_and_labels_at_its_positions(sets: list[PreparedSet]) -> None:
    batch = View.of(sets[0], "heldout").batch(positions(5, 0, 0, 7))
    expected = sets[0].images[[17, 12, 12, 19]]
    assert batch.images.dtype == torch.uint8
    assert batch.images.shape == (4, 3, 8, 8)
    np.testing.assert_array_equal(batch.images.permute(0, 2, 3, 1).numpy(), expected)
    assert batch.labels.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert batch.labels.dtype == torch.float32
    assert batch.depth is None


def test_images_are_channels_last_and_writable(sets: list[PreparedSet]) -> None:
    view = View.of(sets[0])
    images = view.batch(positions(0, 1)).images
    assert images.is_contiguous(memory_format=torch.channels_last)
    images.zero_()
    assert view.batch(positions(0, 1)).images.sum() > 0


def test_joined_views_are_concatenated(sets: list[PreparedSet]) -> None:
    view = View.join([View.of(sets[0], "train"), View.of(sets[1], "heldout"), View.of(sets[0], "heldout")])
    assert len(view) == 12 + 8 + 8
    batch = view.batch(positions(27, 12, 0, 11, 19, 20))
    expected = [sets[number].images[index] for number, index in ((0, 19), (1, 20), (0, 0), (0, 11), (1, 27), (0, 12))]
    np.testing.assert_array_equal(batch.images.permute(0, 2, 3, 1).numpy(), np.stack(expected))
    assert view.items[27] == "heldout/007.png"
    for column in (view.labels, view.subjects, view.species, view.videos, view.items):
        assert len(column) == len(view)


@given(st.lists(st.integers(0, 27), max_size=40))
def test_subset_has_the_same_images_at_new_positions(sets: list[PreparedSet], chosen: list[int]) -> None:
    view = View.join([View.of(sets[0], "train"), View.of(sets[1], "heldout"), View.of(sets[0], "heldout")])
    subset = view.subset(np.array(chosen, np.int64))
    assert len(subset) == len(chosen)
    assert subset.items.tolist() == [view.items[number] for number in chosen]
    every = np.concatenate([sets[0].images[:12], sets[1].images[20:], sets[0].images[12:]])
    if chosen:
        images = subset.batch(np.arange(len(chosen))).images.permute(0, 2, 3, 1)
        np.testing.assert_array_equal(images.numpy(), every[chosen])


def test_positions_outside_a_view_are_refused(sets: list[PreparedSet]) -> None:
    view = View.of(sets[0], "train")
    for number in (-1, 12):
        with pytest.raises(IndexError, match=r"0 … 11"):
            view.batch(positions(number))


def test_depth_maps_are_scaled_to_one(tmp_path: Path) -> None:
    maps = np.zeros((2, 32, 32), np.uint8)
    maps[1, 3, 4] = 255
    maps[0, 0, 0] = 51
    depth = View.of(write_set(tmp_path / "D", pixels(2), depth=maps)).batch(positions(1, 0)).depth
    assert depth is not None
    assert depth.dtype == torch.float32
    assert depth[0, 3, 4] == 1
    assert depth[1, 0, 0] == pytest.approx(0.2)
    assert depth.sum() == pytest.approx(1.2)


def view_of_labels(path: Path, labels: list[int]) -> View:
    species = ["bonafide" if label else "print" for label in labels]
    return View.of(write_set(path, np.zeros((len(labels), 1, 1, 3), np.uint8), species=species))


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> View:
    """View 7 bona fide images and 30 attacks."""
    return view_of_labels(tmp_path_factory.mktemp("order") / "L", [1] * 7 + [0] * 30)


@pytest.mark.long
@given(st.integers(2, 50), st.integers(0, 2**32))
def test_shuffled_visits_each_image_once(unequal: View, size: int, seed: int) -> None:
    batches = epoch_batches(unequal, np.random.default_rng(seed), size=size, sampling="shuffled")
    visited = np.concatenate(batches).tolist()
    assert len(set(visited)) == len(visited)
    assert len(visited) == 37 - (1 if 37 % size == 1 else 0)
    assert all(len(batch) == size for batch in batches[:-1])
    assert len(batches[-1]) >= 2


@given(st.integers(2, 50), st.integers(0, 2**32))
def test_balanced_batches_use_each_class_evenly(unequal: View, size: int, seed: int) -> None:
    batches = epoch_batches(unequal, np.random.default_rng(seed), size=size, sampling="balanced")
    assert len(batches) == int(np.ceil(37 / size))
    for batch in batches:
        assert len(batch) == size
        assert unequal.labels[batch].sum() == size // 2
    counts = np.bincount(np.concatenate(batches), minlength=37)
    for part in (counts[:7], counts[7:]):
        assert part.max() - part.min() <= 1


@pytest.mark.parametrize("sampling", ["shuffled", "balanced"])
def test_the_generator_decides_the_order(unequal: View, sampling: Sampling) -> None:
    orders = [
        np.concatenate(epoch_batches(unequal, np.random.default_rng(seed), size=8, sampling=sampling)).tolist()
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_batches_of_one_are_refused(unequal: View) -> None:
    with refused("batch", "2"):
        epoch_batches(unequal, np.random.default_rng(0), size=1, sampling="shuffled")


@pytest.mark.parametrize(("label", "keyword"), [(0, "bona fide"), (1, "attacks")])
def test_view_of_one_class_is_refused(tmp_path: Path, label: int, keyword: str) -> None:
    view = view_of_labels(tmp_path / "L", [label] * 4)
    with refused("data.sites.a", keyword):
        check_view(view, "data.sites.a")
    with refused("sampling", "classes"):
        epoch_batches(view, np.random.default_rng(0), size=2, sampling="balanced")


def test_view_of_mixed_sizes_is_refused(tmp_path: Path, sets: list[PreparedSet]) -> None:
    view = View.join([View.of(sets[0]), View.of(write_set(tmp_path / "big", pixels(4, 16)))])
    with refused("data", "8×8", "16×16"):
        check_view(view, "data")


def test_empty_view_is_refused(sets: list[PreparedSet]) -> None:
    with refused("data", "images"):
        check_view(View((Slice(sets[0], positions()),)), "data")


def test_view_of_both_classes_and_one_size_is_accepted(sets: list[PreparedSet]) -> None:
    check_view(View.join([View.of(sets[0]), View.of(sets[1])]), "data")
