"""Tables and contact sheets of prepared sets, the shortcut meter, and differences between two sets."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from tests.commands import output_of
from tests.data.small_sets import make_set, write_set
from tests.refusals import refused

from fedvisage.data.crops import CropRecord
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.differences import compare_sets, effect_sizes
from fedvisage.datasets.show import ANY, LEAST, auc_of, contact_sheet, describe, linear_auc, shortcuts_of, show_set
from fedvisage.faces.cropping import record_of
from fedvisage.faces.cues import NAMES


def test_the_table_counts_images_subjects_and_videos(tmp_path: Path) -> None:
    cells = [line.split() for line in describe(make_set(tmp_path / "T"))]
    assert cells == [
        ["split", "species", "images", "subjects", "videos"],
        ["train", "bonafide", "6", "3", "3"],
        ["train", "print", "6", "3", "3"],
        ["heldout", "bonafide", "4", "2", "2"],
        ["heldout", "print", "4", "2", "2"],
        ["all", "20", "5", "10"],
    ]


def coloured_set(path: Path) -> PreparedSet:
    """Make a set in which each subject and species has one image of a colour of its own; subject c has no mask."""
    kinds = [(who, what) for who in "abc" for what in ("bonafide", "mask") if (who, what) != ("c", "mask")]
    images = np.stack([np.full((16, 16, 3), (255, 40 * n, 40 * n), np.uint8) for n in range(len(kinds))])
    return write_set(path, images, species=[what for _, what in kinds], subject=[who for who, _ in kinds])


def green_values(sheet: np.ndarray) -> list[int]:
    """Return the green values of the pure cells (red 255, green = blue) of a sheet, other than its white."""
    red = (sheet[..., 0] == 255) & (sheet[..., 1] < 255)
    return sorted(set(sheet[..., 1][red].tolist()))


def test_every_subject_and_species_is_on_the_sheet(tmp_path: Path) -> None:
    sheet = np.array(contact_sheet(coloured_set(tmp_path / "C"), columns=3, per_species=1))
    assert green_values(sheet) == [0, 40, 80, 120, 160]
    assert sum((sheet[..., 1] == value).sum() >= 16 * 16 for value in (0, 40, 80, 120, 160)) == 5


def test_subjects_with_more_species_come_first(tmp_path: Path) -> None:
    sheet = np.array(contact_sheet(coloured_set(tmp_path / "C"), columns=2, per_species=1))
    assert green_values(sheet) == [0, 40, 80, 120]


def test_a_set_always_gives_the_same_sheet(tmp_path: Path) -> None:
    prepared = make_set(tmp_path / "T", train=80)
    first, second = (np.array(contact_sheet(prepared, columns=3)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_sheet_has_a_heading(tmp_path: Path) -> None:
    """Two lines and the subjects' names, 20 pixels each, in letters that take 13 from top to descender."""
    sheet = np.array(contact_sheet(make_set(tmp_path / "T", train=80), columns=8))
    lines = [np.any(np.all(sheet[top : top + 20] < 128, axis=-1), axis=1) for top in (0, 20, 40)]
    assert all(np.any(line) for line in lines)
    assert max(np.ptp(np.flatnonzero(line)) + 1 for line in lines) >= 13


def test_heading_counts_the_shown_images(tmp_path: Path) -> None:
    """One column shows two of the five images, and two columns four: the second line begins with another digit."""
    prepared = coloured_set(tmp_path / "C")
    one, two = (np.array(contact_sheet(prepared, columns=columns))[20:40, :80] for columns in (1, 2))
    assert not np.array_equal(one, two)


def test_heading_names_the_split(tmp_path: Path) -> None:
    sets = make_set(tmp_path / "train", heldout=0), make_set(tmp_path / "both")
    tops = [np.array(contact_sheet(prepared, columns=1))[:20] for prepared in sets]
    assert tops[0].shape != tops[1].shape or not np.array_equal(tops[0], tops[1])


def test_very_small_images_are_enlarged_by_a_whole_number(tmp_path: Path) -> None:
    sheet = np.array(contact_sheet(coloured_set(tmp_path / "C"), columns=3, per_species=1))
    assert ((sheet[..., 0] == 255) & (sheet[..., 1] == 40)).sum() == 48 * 48


SIDE = 24


def make_noise(path: Path, blur: float = 0.0, saturation: float = 1.0) -> PreparedSet:
    """Write noise pictures of both classes; replays are blurred, prints less colourful."""
    rng, pictures = np.random.default_rng(0), []
    faces = list(product(range(30), ("bonafide", "print", "replay")))
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
    """Only a number of each person's own gives the class away, so the model learns nothing for other people."""
    rng = np.random.default_rng(2)
    subjects = np.repeat([f"p{number}" for number in range(150)], 2)
    label = np.tile([True, False], 150)
    own = rng.normal(0, 1, (150, 8)).repeat(2, 0) * np.where(label, 1, -1)[:, None]
    assert linear_auc(own, label, subjects) < 0.65
    assert linear_auc(own + 3 * label[:, None], label, subjects) > 0.95
    assert np.isnan(linear_auc(own[:2], label[:2], subjects[:2]))


Change = Callable[[np.ndarray, str], np.ndarray]


def keep(picture: np.ndarray, species: str) -> np.ndarray:
    return picture


def blur(picture: np.ndarray, species: str) -> np.ndarray:
    return np.asarray(cv2.GaussianBlur(picture, (0, 0), 1.0))


def brighten_prints(picture: np.ndarray, species: str) -> np.ndarray:
    return picture + 40 * (species == "print")


def make_people(
    path: Path,
    change: Change = keep,
    *,
    seed: int = 0,
    people: int = 2 * LEAST,
    species: tuple[str, ...] = ("bonafide", "print"),
    size: int = SIDE,
    crop: CropRecord | None = None,
    identities: bool = False,
) -> Path:
    """Write one noise picture per person and species."""
    rng = np.random.default_rng(seed)
    faces = [(person, kind) for person in range(people) for kind in species]
    pictures = [change(rng.normal(128, 30, (size, size, 3)).astype(np.float32), kind) for _, kind in faces]
    columns: dict[str, Any] = {
        "species": [kind for _, kind in faces],
        "subject": [f"p{seed}-{person}" for person, _ in faces],
        "item": [f"{seed}-{person}-{kind}" for person, kind in faces],
        **({"group": ["g"] * len(faces)} if identities else {}),
    }
    return write_set(path, np.clip(pictures, 0, 255).astype(np.uint8), crop=crop, **columns).path


def test_blurred_copy_differs_in_sharpness_and_texture(tmp_path: Path) -> None:
    differences = compare_sets(make_people(tmp_path / "soft", blur), make_people(tmp_path / "plain"))
    for kind in ("bonafide", ANY):
        assert differences.cues[kind]["sharpness"] < -2
        assert differences.cues[kind]["noise"] < -2
        assert differences.cues[kind]["blur"] > 2
        assert abs(differences.cues[kind]["brightness"]) < 0.5
    assert differences.texture_auc > 0.95


def test_equally_drawn_sets_do_not_differ(tmp_path: Path) -> None:
    differences = compare_sets(
        make_people(tmp_path / "first", people=120), make_people(tmp_path / "second", seed=1, people=120)
    )
    assert all(abs(value) < 0.5 for table in differences.cues.values() for value in table.values())
    assert 0.35 < differences.texture_auc < 0.65


def test_classes_are_compared_separately_and_attacks_only_if_both_sets_have_them(tmp_path: Path) -> None:
    plain, bright = make_people(tmp_path / "plain"), make_people(tmp_path / "bright", brighten_prints)
    cues = compare_sets(bright, plain).cues
    assert cues[ANY]["brightness"] > 2
    assert cues["bonafide"]["brightness"] == 0
    alone = make_people(tmp_path / "alone", species=("bonafide",))
    assert [*compare_sets(bright, alone).cues] == ["bonafide"]


def test_effect_size_is_cohens_d() -> None:
    first, second = np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[4.0, 5.0], [6.0, 5.0], [8.0, 5.0]])
    assert effect_sizes(first, second) == pytest.approx([(2 - 6) / np.sqrt((2 + 8) / 3), 0])
    assert effect_sizes(first + np.array([0, 1]), second)[1] == np.inf


def test_the_command_prints_a_signed_table_or_json(tmp_path: Path) -> None:
    soft, plain = make_people(tmp_path / "soft", blur), make_people(tmp_path / "plain")
    command = ("data", "show", soft, "--against", plain)
    table = output_of(*command).splitlines()
    (row,) = [line.split() for line in table if line.startswith("sharpness")]
    values = json.loads(output_of(*command, "--json"))
    assert [*values["cues"]["bonafide"]] == [*NAMES]
    assert row[1:] == [f"{values['cues'][kind]['sharpness']:+.2f}" for kind in ("bonafide", ANY)]
    assert values["texture_auc"] == compare_sets(soft, plain).texture_auc
    for options in ((), ("--against", plain, "--shortcuts")):
        with refused("--json", "--against"):
            output_of("data", "show", soft, "--json", *options)


def test_rendered_faces_are_compared_with_photographs_of_any_margin(tmp_path: Path) -> None:
    rendered = make_people(tmp_path / "rendered", crop=CropRecord(how="rendered"), species=("bonafide",))
    wide = make_people(tmp_path / "wide", crop=record_of("face", aligned=False, margin=2.7), species=("bonafide",))
    assert abs(compare_sets(rendered, wide).cues["bonafide"]["sharpness"]) < 0.5


def test_sets_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    narrow, wide = (record_of("face", aligned=False, margin=margin) for margin in (1.4, 2.7))
    plain = make_people(tmp_path / "plain", crop=narrow)
    others = {
        "people": (make_people(tmp_path / "people", species=("bonafide",), identities=True), ("tasks",)),
        "large": (make_people(tmp_path / "large", size=32), ("32", "24", "--size")),
        "wide": (make_people(tmp_path / "wide", crop=wide), ("2.7", "1.4")),
        "few": (make_people(tmp_path / "few", people=LEAST - 1), (str(LEAST - 1), str(LEAST))),
    }
    for name, (other, keywords) in others.items():
        with refused(name, *keywords):
            compare_sets(plain, other)
