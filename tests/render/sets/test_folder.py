"""Attacks on a folder of photographs: what becomes of each, and what is said of those that cannot be used."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.on_portraits import synthesise_from
from fedvisage.datasets.report import ImportReport
from fedvisage.faces.cropping import Crop
from fedvisage.render.domains import find_domain
from fedvisage.render.sets import film_subject, parse_synthesis, plan_videos

LINE = "C frames=1 size=48"


@pytest.fixture(scope="module")
def faces() -> list[NDArray[np.uint8]]:
    """Return rendered portraits of three people, 160 pixels wide."""
    plan = plan_videos(parse_synthesis("I subjects=3 videos=1 frames=1 size=160"))
    living = [[video for video in videos if video.attack is None] for videos in plan]
    return [film_subject(videos, find_domain("I"), 160).images[0] for videos in living]


@pytest.fixture
def photos(tmp_path: Path, faces: list[NDArray[np.uint8]]) -> Path:
    for person, image in zip(("ada", "bob", "eve"), faces, strict=True):
        (tmp_path / "photos" / person).mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / "photos" / person / "1.png")
    return tmp_path / "photos"


def attacked(
    photos: Path, line: str = LINE, crop: Crop = "centre", max_bad: float = 1.0
) -> tuple[PreparedSet, ImportReport]:
    place = photos.parent / "set"
    report = synthesise_from(photos, parse_synthesis(line), place, crop=crop, max_bad=max_bad)
    return PreparedSet.open(place, verify=True), report


def test_each_photograph_is_taken_again_as_often_as_it_is_attacked(
    photos: Path, faces: list[NDArray[np.uint8]]
) -> None:
    found, report = attacked(photos, "C frames=1 size=160")
    assert sorted(set(found.rows.subject)) == ["ada", "bob", "eve"]
    kinds = np.asarray(found.rows.species)
    assert all(np.sum(kinds == kind) == 3 for kind in ("print", "cut", "replay"))
    assert (report.files, report.images, report.bona_fide, report.skipped) == (3, 18, 9, ())
    living = np.asarray(found.images)[kinds == "bonafide"]
    for number, face in enumerate(faces):
        taken = living[3 * number : 3 * number + 3]
        alike = [np.corrcoef(one.mean(2).ravel(), face.mean(2).ravel())[0, 1] for one in taken]
        assert min(alike) > 0.4
        assert all((one != face).any() for one in taken)


def test_a_pair_of_bona_fide_and_attack_has_one_camera_and_a_medium_is_the_attacks_alone(photos: Path) -> None:
    found, _ = attacked(photos)
    videos = [str(video).rsplit("-", 1)[0] for video in found.rows.video]
    cameras: dict[str, set[str]] = {name: set() for name in videos}
    for name, camera in zip(videos, found.rows.further["camera"].tolist(), strict=True):
        cameras[name].add(camera)
    assert len(cameras) == 9
    assert all(len(names) == 1 for names in cameras.values())
    media = dict(zip(found.rows.species.tolist(), found.rows.further["medium"].tolist(), strict=True))
    assert media == {"bonafide": "", "print": "copper-paper", "cut": "copper-paper-cut", "replay": "ipad"}
    assert found.source.endswith("capture=3")


def test_a_domain_with_masks_of_paper_has_them_cut_from_prints(photos: Path) -> None:
    found, _ = attacked(photos, "W frames=1 size=48 species=mask")
    assert set(found.rows.species.tolist()) == {"bonafide", "mask"}
    assert set(found.rows.further["medium"].tolist()) == {"", "paper-mask"}


def test_faces_are_found_in_wider_portraits_and_cut_out_with_their_points(photos: Path) -> None:
    for path in photos.rglob("*.png"):
        wide = np.full((260, 420, 3), 128, np.uint8)
        wide[70:230, 40:200] = np.asarray(Image.open(path))
        Image.fromarray(wide).save(path)
    found, report = attacked(photos, crop="face")
    assert report.skipped == ()
    assert found.points is not None
    eyes, mouth = found.points[:, :2].mean(1), found.points[:, 3:].mean(1)
    assert (np.abs(eyes[:, 0] - 24) < 10).all()
    assert (mouth[:, 1] - eyes[:, 1] > 6).all()
    assert found.depth is not None
    assert (found.depth.max((1, 2)) > 200).tolist() == (found.rows.label == 1).tolist()


def test_files_that_cannot_be_used_are_skipped_with_a_reason_and_the_report_is_in_the_set(photos: Path) -> None:
    (photos / "ada" / "broken.jpg").write_bytes(b"\xff\xd8\xff not a picture")
    (photos / "ada" / "notes.txt").write_text("hello")
    (photos / "eve" / "again.png").write_bytes((photos / "bob" / "1.png").read_bytes())
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(photos / "small.png")
    found, report = attacked(photos)
    reasons = {entry.path: entry.reason for entry in report.skipped}
    assert reasons == {
        "ada/broken.jpg": "not an image; give JPEG, PNG, BMP, WebP, TIFF or HEIC",
        "ada/notes.txt": "files that end in '.txt' are not supported",
        "eve/again.png": "the same content as bob/1.png",
        "small.png": "its crop is smaller than 48×48 pixels, and enlarging it would blur it",
    }
    assert len(found) == 18
    assert json.loads((found.path / "import-report.json").read_text())["files"] == 7


def test_too_many_bad_photographs_stop_the_work_and_leave_nothing(photos: Path) -> None:
    (photos / "bob" / "1.png").write_bytes(b"")
    with refused("photos", "1 of 3", "bob/1.png: an empty file"):
        attacked(photos, max_bad=0.3)
    assert [path.name for path in photos.parent.iterdir()] == ["photos"]


def test_two_processes_write_the_same_bytes_as_one(photos: Path, tmp_path: Path) -> None:
    one, _ = attacked(photos)
    synthesise_from(photos, parse_synthesis(LINE), tmp_path / "two", crop="centre", workers=2)
    assert PreparedSet.open(tmp_path / "two").digest == one.digest


@pytest.mark.parametrize(("line", "keyword"), [("C", ".png"), ("3", "domain 3")])
def test_a_folder_without_photographs_and_a_domain_of_masks_are_refused(
    tmp_path: Path, line: str, keyword: str
) -> None:
    with refused(tmp_path if line == "C" else "synth", keyword):
        synthesise_from(tmp_path, parse_synthesis(line), tmp_path / "set")
    with refused("nowhere", "directory"):
        synthesise_from(tmp_path / "nowhere", parse_synthesis("C"), tmp_path / "set")
