"""The shortcut meter on sets whose classes differ by a known amount, or not at all."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from tests.data.making import make_set
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer
from fedvisage.datasets.show import LEAST, auc_of, linear_auc, shortcuts_of, show_set

SIDE = 24


def a_set(place: Path, people: int = 30, blurred: float = 0.0, saturated: float = 1.0) -> PreparedSet:
    """Write noise pictures of both classes; replays are blurred, prints less colourful."""
    rng = np.random.default_rng(0)
    with Writer(place, name="T", size=SIDE, source="made for a test") as out:
        for person in range(people):
            for species in ("bonafide", "print", "replay"):
                picture = np.clip(rng.normal(128, 40, (SIDE, SIDE, 3)), 0, 255).astype(np.float32)
                if species == "replay" and blurred:
                    picture = cv2.GaussianBlur(picture, (0, 0), blurred)
                if species == "print":
                    grey = picture.mean(2, keepdims=True)
                    picture = grey + saturated * (picture - grey)
                name = f"{person}-{species}"
                out.add(
                    np.clip(picture, 0, 255).astype(np.uint8)[None],
                    label=[int(species == "bonafide")],
                    species=[species],
                    subject=[f"p{person}"],
                    video=[name],
                    frame=[0],
                    split=["train"],
                    item=[name],
                )
    return PreparedSet.open(place)


def test_classes_made_alike_are_told_by_nothing_and_there_is_no_warning(tmp_path: Path) -> None:
    found = shortcuts_of(a_set(tmp_path / "set"))
    assert [*found.cues] == ["print", "replay", "any attack"]
    assert all(0.3 < auc < 0.7 for table in found.cues.values() for auc in table.values())
    assert found.warnings() == []


def test_what_differs_in_one_species_is_found_there_and_only_there(tmp_path: Path) -> None:
    found = shortcuts_of(a_set(tmp_path / "set", blurred=1.5, saturated=0.7))
    assert found.cues["replay"]["blur"] < 0.01
    assert found.cues["replay"]["sharpness"] > 0.99
    assert 0.3 < found.cues["print"]["blur"] < 0.7
    assert found.cues["print"]["saturation"] > 0.99
    assert found.linear["print"][1] > 0.95
    (warning,) = found.warnings()
    assert warning.startswith("warning: ")
    assert "cues reach 0.75" in warning


def test_the_table_is_shown_when_asked_for_and_not_otherwise(tmp_path: Path) -> None:
    a_set(tmp_path / "set", blurred=1.5)
    plain, asked = show_set(tmp_path / "set"), show_set(tmp_path / "set", shortcuts=True)
    assert asked[: len(plain)] == plain
    head, names, *table = asked[len(plain) :]
    assert "30 bonafide, 30 print, 30 replay" in head
    assert names.split() == ["cue", "print", "replay", "any", "attack"]
    assert any(line.startswith("blur") and "1.00-" in line for line in table)
    assert table[-1].startswith("warning: ")


def test_too_few_images_and_sets_of_people_are_no_ground_for_figures(tmp_path: Path) -> None:
    make_set(tmp_path / "few", train=2 * LEAST - 2, heldout=0)
    assert "too few" in show_set(tmp_path / "few", shortcuts=True)[-1]
    with Writer(tmp_path / "people", name="T", size=8, source="made for a test", identities=True) as out:
        images = np.zeros((1, 8, 8, 3), np.uint8)
        out.add(
            images,
            label=[1],
            species=["bonafide"],
            subject=["a"],
            video=["a"],
            frame=[0],
            split=["train"],
            item=["a"],
            group=["g"],
        )
    with refused("people", "--shortcuts"):
        show_set(tmp_path / "people", shortcuts=True)


def test_an_auc_is_that_of_scikit_learn_ties_included() -> None:
    rng = np.random.default_rng(1)
    values, label = rng.integers(0, 5, 200).astype(float), rng.random(200) < 0.4
    assert auc_of(values, label) == pytest.approx(roc_auc_score(label, values))


def test_the_linear_model_is_judged_on_people_that_it_did_not_learn() -> None:
    """Each person has a number of their own that gives the class away, and nothing else does: nothing is learnt."""
    rng = np.random.default_rng(2)
    subjects = np.repeat([f"p{number}" for number in range(150)], 2)
    label = np.tile([True, False], 150)
    own = rng.normal(0, 1, (150, 8)).repeat(2, 0) * np.where(label, 1, -1)[:, None]
    assert linear_auc(own, label, subjects) < 0.65
    assert linear_auc(own + 3 * label[:, None], label, subjects) > 0.95
    assert np.isnan(linear_auc(own[:2], label[:2], subjects[:2]))
