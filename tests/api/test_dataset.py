"""Datasets from arrays, tensors and torch Datasets in memory, and refusals of invalid ones."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.data.small_sets import columns_of
from tests.refusals import refused
from tests.toy import SIZE, tree

import fedvisage as fv
from fedvisage.data.prepared import PreparedSet

LABELS = [1, 0] * 12
SUBJECTS = [f"person {number // 4}" for number in range(24)]
MISSPELT: Any = {"subject": SUBJECTS}


def pictures(seed: int = 0, count: int = 24) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE, SIZE, 3), dtype=np.uint8)


class Pairs(torch.utils.data.Dataset[Any]):
    """Images as fractions, channels first, as torchvision's transforms make them."""

    def __init__(self, images: NDArray[np.uint8], labels: list[int]) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.images[number]).permute(2, 0, 1) / 255, self.labels[number]


def test_equal_arrays_tensors_and_torch_datasets_give_equal_sets(tmp_path: Path) -> None:
    images = pictures()
    datasets = [
        fv.dataset(pixels, labels, subjects=SUBJECTS, cache=tmp_path)
        for pixels, labels in (
            (images, np.array(LABELS)),
            (torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(LABELS)),
            (Pairs(images, LABELS), None),
            ([*images], [bool(label) for label in LABELS]),
        )
    ]
    assert len({dataset.path for dataset in datasets}) == len([*tmp_path.iterdir()]) == 1
    (rows, stored) = (datasets[0].rows, datasets[0].images)
    assert np.array_equal(stored, images)
    assert rows.label.tolist() == LABELS
    assert rows.subject.tolist() == SUBJECTS
    assert set(rows.species) == {"bonafide", "attack"}


def test_splits_share_no_person_and_a_quarter_is_held_out(tmp_path: Path) -> None:
    rows = fv.dataset(pictures(), LABELS, subjects=SUBJECTS, cache=tmp_path).rows
    people = {split: set(rows.subject[rows.split == split]) for split in ("train", "heldout")}
    assert not people["train"] & people["heldout"]
    assert (len(people["train"]), len(people["heldout"])) == (4, 2)
    splits = ["train"] * 20 + ["heldout"] * 4
    assert (
        fv.dataset(pictures(), LABELS, subjects=SUBJECTS, splits=splits, cache=tmp_path).rows.split.tolist() == splits
    )


def test_identity_set_splits_the_images_of_each_person(tmp_path: Path) -> None:
    rows = fv.dataset(pictures(), SUBJECTS, identities=True, cache=tmp_path).rows
    assert rows.group is not None
    assert rows.label.all()
    for person in set(SUBJECTS):
        assert sorted(rows.split[rows.subject == person]) == ["test", "train", "train", "train"]


@pytest.mark.long
def test_run_trains_and_evaluates_on_arrays(sets: Mapping[str, Path], tmp_path: Path) -> None:
    own, other = (
        fv.dataset(pictures(seed), LABELS, subjects=SUBJECTS, name=f"own {seed}", cache=tmp_path / "cache")
        for seed in (1, 2)
    )
    run = fv.run(tree(sets, training__rounds=1), out=tmp_path / "run", data={"A": own, "target": other}, quiet=True)
    assert run.recipe.data.sites["A"] == str(own.path)
    assert len(run.scores) == 24
    assert fv.evaluate(run, other)["hter"] == run.metrics["hter"]


@pytest.mark.parametrize(
    ("make", "place", "keywords"),
    [
        (lambda **kw: fv.dataset(pictures(), LABELS, **kw), "subjects", ("None", "per image")),
        (lambda **kw: fv.dataset(pictures(), subjects=SUBJECTS, **kw), "labels", ("None", "Dataset")),
        (lambda **kw: fv.dataset(pictures(), LABELS[:3], subjects=SUBJECTS, **kw), "labels", ("3", "24")),
        (lambda **kw: fv.dataset(pictures(), [2] * 24, subjects=SUBJECTS, **kw), "labels[0]", ("attack", "2")),
        (lambda **kw: fv.dataset(pictures(), LABELS, subjects="me", **kw), "subjects", ("'me'",)),
        (lambda **kw: fv.dataset(pictures()[:, :9], LABELS, subjects=SUBJECTS, **kw), "images[0]", ("square",)),
        (lambda **kw: fv.dataset(pictures() * 2.0, LABELS, subjects=SUBJECTS, **kw), "images[0]", ("uint8",)),
        (lambda **kw: fv.dataset(3, LABELS, subjects=SUBJECTS, **kw), "images", ("Dataset", "3")),
        (lambda **kw: fv.dataset("sets/a", LABELS, subjects=SUBJECTS, **kw), "images", ("Dataset", "data=")),
        (lambda **kw: fv.dataset([], [], subjects=[], **kw), "dataset dataset", ("no images",)),
        (
            lambda **kw: fv.dataset(pictures(), LABELS, subjects=SUBJECTS, attacks=["A B"] * 24, **kw),
            "dataset dataset",
            ("species",),
        ),
        (
            lambda **kw: fv.dataset(pictures(), LABELS, subjects=SUBJECTS, splits=["train", "heldout"] * 12, **kw),
            "dataset dataset",
            ("two splits",),
        ),
        (lambda **kw: fv.dataset(pictures(), LABELS, subjects=SUBJECTS, heldout=1, **kw), "heldout", ("share",)),
        (lambda **kw: fv.dataset(pictures(), LABELS, **MISSPELT, **kw), "dataset(subject=)", ("subjects",)),
        (
            lambda **kw: fv.dataset([pictures()[0], pictures()[0][:9, :9]], [1, 0], subjects=["ab"], **kw),
            "subjects",
            ("2",),
        ),
        (
            lambda **kw: fv.dataset([pictures()[0], pictures()[0][:20, :20]], [1, 0], subjects=[1, 2], **kw),
            "images[1]",
            ("20", "32"),
        ),
    ],
)
def test_invalid_data_is_refused(
    make: Callable[..., object], place: str, keywords: tuple[str, ...], tmp_path: Path
) -> None:
    with refused(place, *keywords):
        make(cache=tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_writer_takes_its_path_as_text(tmp_path: Path) -> None:
    with fv.Writer(str(tmp_path / "set"), name="set", size=SIZE, source="a test") as out:
        out.add(pictures(count=1), **columns_of(1))
    assert len(PreparedSet.open(tmp_path / "set")) == 1
