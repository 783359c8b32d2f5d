"""Crop records: in sets, derived from old source lines, and their compatibility."""

import json
from itertools import product
from pathlib import Path

import pytest
from tests.datasets.importers.files import make_folder
from tests.datasets.imports import import_attacks
from tests.toy import make_set

from fedvisage.base.errors import UserError
from fedvisage.data.crops import OLD_DETECTOR, CropRecord, DetectorRecord, are_incompatible, from_source
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.import_presentations import read_settings_of
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.sources import resolve
from fedvisage.faces.cropping import LARGEST, record_of

OLD_BOX = CropRecord(how="detected", detector=OLD_DETECTOR, margin=1.4, alignment="box")
OLD_POINTS = CropRecord(how="detected", detector=OLD_DETECTOR, rotation=True, alignment="points")
FACE, ALIGNED = record_of("face"), record_of("face", aligned=True)
CENTRE, WHOLE, CAME_ALIGNED = record_of("centre"), record_of("none"), record_of("none", aligned=True)
OTHER = CropRecord(
    how="detected", detector=DetectorRecord(name="other", version="1"), rotation=True, alignment="points"
)
WIDER = FACE.model_copy(update={"margin": 2.0})
RENDERED = CropRecord(how="rendered", alignment="box")
RENDERED_PEOPLE = CropRecord(how="rendered", rotation=True, alignment="points")


def test_import_stores_a_crop_record_outside_the_digest(tmp_path: Path) -> None:
    make_folder(tmp_path / "photos", subjects=2)
    prepared, _ = import_attacks("folder", tmp_path / "photos", tmp_path / "set")
    assert prepared.crop == CENTRE
    settings = json.loads((tmp_path / "set/set.json").read_text())
    assert settings.pop("crop")["how"] == "centre"
    (tmp_path / "set/set.json").write_text(json.dumps(settings))
    assert PreparedSet.open(tmp_path / "set").digest == prepared.digest


def test_record_of_face_crops_names_the_detector() -> None:
    assert FACE.detector is not None
    assert (FACE.detector.name, FACE.detector.version, len(FACE.detector.sha256)) == ("mtcnn", "1.0.2", 64)
    assert (FACE.margin, FACE.rotation, FACE.alignment) == (1.4, False, "box")
    assert (ALIGNED.margin, ALIGNED.rotation, ALIGNED.alignment) == (None, True, "points")


def test_crops_of_both_searches_are_compatible() -> None:
    for usual, aligned in ((FACE, False), (ALIGNED, True)):
        sought = record_of("face", aligned=aligned, search=LARGEST)
        assert sought != usual
        assert not are_incompatible(sought, usual)
        assert are_incompatible(sought, WIDER if not aligned else OTHER)
        assert CropRecord.model_validate_json(sought.model_dump_json()) == sought
        assert "search" not in usual.model_dump_json()
    record = read_settings_of(SCANNERS["casia-fasd"], ImportOptions(size=24, depth="none")).record
    assert record == record_of("face", search=LARGEST)


def test_set_without_a_description_has_no_crop_record(tmp_path: Path) -> None:
    assert PreparedSet.open(make_set(tmp_path / "A", "A", 0)).crop is None
    assert "crop" not in json.loads((tmp_path / "A/set.json").read_text())


def test_rendered_sets_have_exact_crop_records(tmp_path: Path) -> None:
    videos = resolve("synth: O subjects=2 videos=1 frames=1 size=32", tmp_path)
    people = resolve("synth: people identities=2 images=2 size=32", tmp_path)
    assert PreparedSet.open(videos).crop == RENDERED
    assert PreparedSet.open(people).crop == RENDERED_PEOPLE


@pytest.mark.parametrize(
    ("source", "record"),
    [
        ("folder photos crop=face depth=auto frames=4 heldout=0.25 seed=0", OLD_BOX),
        ("folder photos crop=centre depth=auto frames=4 heldout=0.25 seed=0", CENTRE),
        ("folder photos crop=none depth=auto frames=4 heldout=0.25 seed=0", WHOLE),
        ("people LFW crop=face test=0.4 heldout=0.25 seed=0", OLD_POINTS),
        ("people LFW crop=none test=0.4 heldout=0.25 seed=0", CAME_ALIGNED),
        ("photographs with simulated attacks crop=face O subjects=3", OLD_BOX),
        ("made for a test", None),
        ("a table crop=face", None),
        ("", None),
    ],
)
def test_source_line_implies_the_crop_record(source: str, record: CropRecord | None) -> None:
    assert from_source(source) == record


def test_set_without_a_record_counts_as_the_old_detectors(tmp_path: Path) -> None:
    path = make_set(tmp_path / "A", "A", 0) / "set.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"source": "folder photos crop=face depth=auto"}))
    crop = PreparedSet.open(tmp_path / "A").crop
    assert crop is not None
    assert crop.outdated
    assert not FACE.outdated


def test_invalid_crop_record_is_refused(tmp_path: Path) -> None:
    path = make_set(tmp_path / "A", "A", 0) / "set.json"
    whole = json.loads(path.read_text())
    for wrong in ({"how": "guessed"}, {"how": "whole", "margin": -1.0}, {"how": "whole", "angle": 3}, "face"):
        path.write_text(json.dumps(whole | {"crop": wrong}))
        with pytest.raises(UserError, match="crop") as caught:
            PreparedSet.open(tmp_path / "A")
        assert caught.value.place == str(path)


GROUPS = [
    {None, FACE},
    {None, OLD_BOX},
    {None, WIDER},
    {None, CENTRE, WHOLE},
    {None, RENDERED},
    {None, OLD_POINTS},
    {None, ALIGNED, CAME_ALIGNED, RENDERED_PEOPLE},
    {None, OTHER, CAME_ALIGNED, RENDERED_PEOPLE},
]
"""Records that are compatible with each other."""


def test_only_listed_records_are_compatible() -> None:
    everything = set.union(*GROUPS)
    for one, other in product(everything, repeat=2):
        assert are_incompatible(one, other) == (not any({one, other} <= group for group in GROUPS)), (
            f"{one} and {other}"
        )


def test_crop_record_describes_itself() -> None:
    assert str(FACE) == "faces found by mtcnn 1.0.2, 1.4 times their box"
    assert str(OLD_POINTS) == "faces found by an earlier version's detector, aligned by five points"
    assert str(WHOLE) == "whole images as delivered"
