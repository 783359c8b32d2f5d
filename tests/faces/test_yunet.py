"""YuNet: refusals without its file, records of its crops, and, if the cache has the file, its faces.

`fedvisage model get yunet` stores the file; without it, the last tests are skipped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.device.exports import copy_export
from tests.faces.test_turned_faces import COUNT, SIZE, Faces, portraits, turn
from tests.refusals import refused

from fedvisage.base.files import CACHE
from fedvisage.data.crops import are_incompatible
from fedvisage.datasets.options import ImportOptions
from fedvisage.device import Exported, Pipeline, Settings
from fedvisage.device.gallery.enrolment import Engine
from fedvisage.device.predict import InputPicture, InputPictures, predict
from fedvisage.faces import yunet
from fedvisage.faces.cropping import (
    choose_detector,
    detector_of,
    make_finder,
    make_upright_detector,
    other_detector,
    record_of,
)
from fedvisage.faces.quality import pose
from fedvisage.faces.yunet import YuNet
from fedvisage.starts.published import read_catalogue

__all__ = ["portraits"]

OURS, THEIRS = record_of("face"), record_of("face", detector="yunet")


def test_file_is_that_of_the_catalogue() -> None:
    (file,) = read_catalogue()["yunet"].files
    assert (file.name, file.sha256) == (yunet.FILE, yunet.SHA256)
    assert read_catalogue()["yunet"].directory(Path("cache")) == Path("cache/models") / yunet.NAME


def test_missing_or_damaged_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yunet, "CACHE", tmp_path)
    with refused("--detector yunet", "fedvisage model get yunet", "--from"):
        make_finder(detector="yunet")
    path = tmp_path / "models" / "yunet" / yunet.FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(b"another graph")
    with refused(path, "differs", "fedvisage model get yunet"):
        YuNet()


def test_record_names_the_detector_and_crops_of_both_are_incompatible() -> None:
    assert THEIRS.detector is not None
    assert (THEIRS.detector.name, THEIRS.detector.sha256) == ("yunet", yunet.SHA256)
    assert "yunet 2023mar" in str(THEIRS)
    assert are_incompatible(OURS, THEIRS)
    assert are_incompatible(record_of("face", aligned=True), record_of("face", aligned=True, detector="yunet"))
    assert not are_incompatible(THEIRS, record_of("face", detector="yunet", padding="replicate"))


def test_models_use_the_detector_of_their_crops() -> None:
    assert detector_of([THEIRS, record_of("centre")]) == "yunet"
    assert detector_of([record_of("centre")]) == detector_of([]) == "mtcnn"
    assert choose_detector("", [THEIRS, THEIRS]) == "yunet"
    assert choose_detector("mtcnn", [THEIRS]) == "mtcnn"
    with refused("--detector", "mtcnn", "yunet", "choose"):
        choose_detector("", [OURS, THEIRS])
    with refused("--detector", "retinaface"):
        choose_detector("retinaface")
    with refused("--detector", "retinaface"):
        other_detector("retinaface", [OURS])  # no note before the refusal
    with refused("--detector", "retinaface"):
        ImportOptions(detector="retinaface")  # type: ignore[arg-type]


def test_export_of_its_crops_is_not_used_with_another_detector(
    pad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yunet, "CACHE", tmp_path)
    model = Exported.open(copy_export(pad, tmp_path / "export", crop=THEIRS))
    picture = InputPicture("picture", lambda: np.zeros((64, 64, 3), np.uint8))
    with refused("--detector yunet", "fedvisage model get yunet"):
        predict(model, InputPictures([picture]))
    with refused("--detector yunet", "fedvisage model get yunet"):
        Pipeline(model)
    wanted = Pipeline(model, settings=Settings(detector="mtcnn"))
    assert wanted.detector == "mtcnn"
    assert "yunet" in " ".join(wanted.notices)
    assert Pipeline(Exported.open(pad)).notices == []


@pytest.fixture(scope="module")
def detector() -> YuNet:
    if not (CACHE / "models" / yunet.NAME / yunet.FILE).is_file():
        pytest.skip("YuNet's file is not in the cache; run `fedvisage model get yunet`")
    return YuNet()


def test_points_are_those_of_the_rendered_face(portraits: Faces, detector: YuNet) -> None:
    errors = []
    for image, points in zip(*portraits, strict=True):
        (face,) = detector.detect(image)
        largest = detector.largest(image, 0.7)
        assert largest is not None
        np.testing.assert_array_equal(largest.points, face.points)
        errors.append(face.points - points)
    assert np.abs(np.mean(errors, axis=(0, 1))).max() < SIZE / 20


def test_face_on_its_side_is_refused(portraits: Faces, detector: YuNet) -> None:
    for angle in (60, 90, 180, 270, 300):
        for image, points in zip(*portraits, strict=True):
            faces = detector.detect(turn(image, points, angle)[0])
            assert all(pose(face)[1] > Settings.tilted for face in faces), angle


def test_picture_upside_down_is_turned(portraits: Faces, detector: YuNet) -> None:
    find = make_upright_detector(detector="yunet")
    detections = [find(np.ascontiguousarray(image[::-1, ::-1])) for image in portraits[0]]
    assert [(faces.turns, len(faces.faces)) for faces in detections] == [(2, 1)] * COUNT
    assert find(portraits[0][0]).turns == 0


def test_large_pictures_are_reduced_and_small_or_empty_ones_have_no_face(portraits: Faces, detector: YuNet) -> None:
    image, points = portraits[0][0], portraits[1][0]
    (face,) = detector.detect(image.repeat(8, axis=0).repeat(8, axis=1))
    assert np.abs(face.points / 8 - points).max() < 8
    noise = np.random.default_rng(0).integers(0, 256, (40, 300, 3), dtype=np.uint8)
    assert detector.detect(noise) == []
    assert detector.detect(np.full((16, 16), 90, np.uint8)) == []


def test_gallery_of_another_detector_counts_as_one_of_another_model(recognition: Path, detector: YuNet) -> None:
    own = Engine(Pipeline(recognition=recognition)).model
    other = Engine(Pipeline(recognition=recognition, settings=Settings(detector="yunet"))).model
    assert detector is not None
    assert own is not None
    assert other is not None
    assert own.digest != other.digest
