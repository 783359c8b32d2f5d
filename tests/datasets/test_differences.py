"""Differences between two sets, on sets whose difference is known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from tests.data.small_sets import write_set
from tests.refusals import refused
from typer.testing import CliRunner

from fedvisage.cli import app
from fedvisage.data.crops import CropRecord
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.differences import compare_sets, compare_with, effect_sizes
from fedvisage.datasets.show import ANY, LEAST
from fedvisage.faces.cropping import record_of
from fedvisage.faces.cues import NAMES

SIDE = 24
Change = Callable[[np.ndarray, str], np.ndarray]


def keep(picture: np.ndarray, species: str) -> np.ndarray:
    return picture


def blur(picture: np.ndarray, species: str) -> np.ndarray:
    return np.asarray(cv2.GaussianBlur(picture, (0, 0), 1.0))


def brighten_prints(picture: np.ndarray, species: str) -> np.ndarray:
    return picture + 40 * (species == "print")


def make_set(
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
    differences = compare_with(make_set(tmp_path / "soft", blur), make_set(tmp_path / "plain"))
    for kind in ("bonafide", ANY):
        assert differences.cues[kind]["sharpness"] < -2
        assert differences.cues[kind]["noise"] < -2
        assert differences.cues[kind]["blur"] > 2
        assert abs(differences.cues[kind]["brightness"]) < 0.5
    assert differences.texture_auc > 0.95


def test_equally_drawn_sets_do_not_differ(tmp_path: Path) -> None:
    differences = compare_with(
        make_set(tmp_path / "first", people=120), make_set(tmp_path / "second", seed=1, people=120)
    )
    assert all(abs(value) < 0.5 for table in differences.cues.values() for value in table.values())
    assert 0.35 < differences.texture_auc < 0.65


def test_classes_are_compared_separately_and_attacks_only_if_both_sets_have_them(tmp_path: Path) -> None:
    plain, bright = make_set(tmp_path / "plain"), make_set(tmp_path / "bright", brighten_prints)
    cues = compare_with(bright, plain).cues
    assert cues[ANY]["brightness"] > 2
    assert cues["bonafide"]["brightness"] == 0
    alone = make_set(tmp_path / "alone", species=("bonafide",))
    assert [*compare_with(bright, alone).cues] == ["bonafide"]


def test_effect_size_is_cohens_d() -> None:
    first, second = np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[4.0, 5.0], [6.0, 5.0], [8.0, 5.0]])
    assert effect_sizes(first, second) == pytest.approx([(2 - 6) / np.sqrt((2 + 8) / 3), 0])
    assert effect_sizes(first + np.array([0, 1]), second)[1] == np.inf


def test_the_command_prints_a_signed_table_or_json(tmp_path: Path) -> None:
    soft, plain = make_set(tmp_path / "soft", blur), make_set(tmp_path / "plain")
    command = ["data", "show", str(soft), "--against", str(plain)]
    table = CliRunner().invoke(app, command).output.splitlines()
    (row,) = [line.split() for line in table if line.startswith("sharpness")]
    values = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert [*values["cues"]["bonafide"]] == [*NAMES]
    assert row[1:] == [f"{values['cues'][kind]['sharpness']:+.2f}" for kind in ("bonafide", ANY)]
    assert values["texture_auc"] == compare_sets(PreparedSet.open(soft), PreparedSet.open(plain)).texture_auc
    for options in ([], ["--against", str(plain), "--shortcuts"]):
        with refused("--json", "--against"):
            CliRunner().invoke(app, ["data", "show", str(soft), "--json", *options], catch_exceptions=False)


def test_rendered_faces_are_compared_with_photographs_of_any_margin(tmp_path: Path) -> None:
    rendered = make_set(tmp_path / "rendered", crop=CropRecord(how="rendered"), species=("bonafide",))
    wide = make_set(tmp_path / "wide", crop=record_of("face", aligned=False, margin=2.7), species=("bonafide",))
    assert abs(compare_with(rendered, wide).cues["bonafide"]["sharpness"]) < 0.5


def test_sets_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    narrow, wide = (record_of("face", aligned=False, margin=margin) for margin in (1.4, 2.7))
    plain = make_set(tmp_path / "plain", crop=narrow)
    others = {
        "people": (make_set(tmp_path / "people", species=("bonafide",), identities=True), ("tasks",)),
        "large": (make_set(tmp_path / "large", size=32), ("32", "24", "--size")),
        "wide": (make_set(tmp_path / "wide", crop=wide), ("2.7", "1.4")),
        "few": (make_set(tmp_path / "few", people=LEAST - 1), (str(LEAST - 1), str(LEAST))),
    }
    for name, (other, keywords) in others.items():
        with refused(name, *keywords):
            compare_with(plain, other)
