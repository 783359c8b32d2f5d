"""The shortcut meter on sets whose classes differ by a known amount, or not at all."""

from itertools import product
from pathlib import Path

import cv2
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from tests.data.small_sets import make_set, write_set
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.show import LEAST, auc_of, linear_auc, shortcuts_of, show_set

SIDE = 24


def make_noise(path: Path, people: int = 30, blur: float = 0.0, saturation: float = 1.0) -> PreparedSet:
    """Write noise pictures of both classes; replays are blurred, prints less colourful."""
    rng, pictures = np.random.default_rng(0), []
    faces = list(product(range(people), ("bonafide", "print", "replay")))
    for _, species in faces:
        picture = np.clip(rng.normal(128, 40, (SIDE, SIDE, 3)), 0, 255).astype(np.float32)
        if species == "replay" and blur:
            picture = np.asarray(cv2.GaussianBlur(picture, (0, 0), blur))
        if species == "print":
            grey = picture.mean(2, keepdims=True)
            picture = grey + saturation * (picture - grey)
        pictures.append(np.clip(picture, 0, 255).astype(np.uint8))
    return write_set(
        path,
        np.stack(pictures),
        species=[species for _, species in faces],
        subject=[f"p{person}" for person, _ in faces],
    )


def test_no_shortcut_warning_when_classes_look_alike(tmp_path: Path) -> None:
    shortcuts = shortcuts_of(make_noise(tmp_path / "set"))
    assert [*shortcuts.cues] == ["print", "replay", "any attack"]
    assert all(0.3 < auc < 0.7 for table in shortcuts.cues.values() for auc in table.values())
    assert shortcuts.warnings() == []


def test_shortcuts_are_reported_per_species(tmp_path: Path) -> None:
    shortcuts = shortcuts_of(make_noise(tmp_path / "set", blur=1.5, saturation=0.7))
    assert shortcuts.cues["replay"]["blur"] < 0.01
    assert shortcuts.cues["replay"]["sharpness"] > 0.99
    assert 0.3 < shortcuts.cues["print"]["blur"] < 0.7
    assert shortcuts.cues["print"]["saturation"] > 0.99
    assert shortcuts.linear["print"][1] > 0.95
    (warning,) = shortcuts.warnings()
    assert warning.startswith("warning: ")
    assert "cues reach 0.75" in warning


def test_shortcut_table_is_optional(tmp_path: Path) -> None:
    make_noise(tmp_path / "set", blur=1.5)
    plain, with_table = show_set(tmp_path / "set"), show_set(tmp_path / "set", shortcuts=True)
    assert with_table[: len(plain)] == plain
    head, names, *table = with_table[len(plain) :]
    assert "30 bonafide, 30 print, 30 replay" in head
    assert names.split() == ["cue", "print", "replay", "any", "attack"]
    assert any(line.startswith("blur") and "1.00-" in line for line in table)
    assert table[-1].startswith("warning: ")


def test_shortcuts_need_enough_images_and_attacks(tmp_path: Path) -> None:
    make_set(tmp_path / "few", train=2 * LEAST - 2, heldout=0)
    assert "too few" in show_set(tmp_path / "few", shortcuts=True)[-1]
    write_set(tmp_path / "people", np.zeros((1, 8, 8, 3), np.uint8), group=["g"])
    with refused("people", "--shortcuts"):
        show_set(tmp_path / "people", shortcuts=True)


def test_auc_equals_scikit_learn_with_ties() -> None:
    rng = np.random.default_rng(1)
    values, label = rng.integers(0, 5, 200).astype(float), rng.random(200) < 0.4
    assert auc_of(values, label) == pytest.approx(roc_auc_score(label, values))


def test_linear_model_is_evaluated_on_unseen_people() -> None:
    """Each person has a number of their own that gives the class away, and nothing else does: nothing is learnt."""
    rng = np.random.default_rng(2)
    subjects = np.repeat([f"p{number}" for number in range(150)], 2)
    label = np.tile([True, False], 150)
    own = rng.normal(0, 1, (150, 8)).repeat(2, 0) * np.where(label, 1, -1)[:, None]
    assert linear_auc(own, label, subjects) < 0.65
    assert linear_auc(own + 3 * label[:, None], label, subjects) > 0.95
    assert np.isnan(linear_auc(own[:2], label[:2], subjects[:2]))
