"""Depth maps of imported images: where they come from, and what is said where they are missing."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from tests.datasets.importers.making import make_folder, picture, save, save_video
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.report import ImportReport
from fedvisage.datasets.sources import resolve

RAMP = np.add.outer(np.arange(32), 4 * np.arange(32)).astype(np.uint8)


def imported(
    root: Path, depth: Path | str, max_bad: float = 1.0, **options: object
) -> tuple[PreparedSet, ImportReport]:
    place = root.parent / "set"
    settings = {"size": 24, "crop": "centre", "frames": "4", "depth": str(depth), "max_bad": max_bad} | options
    report = import_items(SCANNERS["folder"], root, place, ImportOptions(**settings), name="X")  # type: ignore[arg-type]
    return PreparedSet.open(place, verify=True), report


def depth_of(found: PreparedSet, item: str) -> npt.NDArray[np.uint8]:
    assert found.depth is not None
    return np.array(found.depth[found.rows.item.tolist().index(item)])


def save_maps(root: Path, maps: Path, ending: str = ".png") -> Path:
    """Give each bona fide image a map that is uniformly as bright as the image's place in the order of names."""
    for number, path in enumerate(sorted((root / "real").rglob("*.png"))):
        name = path.relative_to(root).with_suffix("")
        save(maps / f"{name}_depth{ending}", np.full((24, 24), 10 * number, np.uint8))
    return maps


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos", subjects=2)


@pytest.mark.parametrize("ending", [".png", ".jpg"])
def test_each_bona_fide_image_gets_its_own_map_and_attacks_a_flat_one(root: Path, ending: str) -> None:
    found, report = imported(root, save_maps(root, root.parent / "maps", ending))
    assert report.skipped == ()
    assert found.depth is not None
    np.testing.assert_array_equal(found.depth[found.rows.label == 1][:, 5, 7], 10 * np.arange(6))
    assert not found.depth[found.rows.label == 0].any()


def test_maps_may_lie_in_a_folder_of_the_dataset(root: Path) -> None:
    found, report = imported(root, save_maps(root, root / "depth"))
    assert (len(found), report.skipped, report.files) == (12, (), 12)


def test_maps_beside_the_images_are_refused(root: Path) -> None:
    with refused("photos", "maps"):
        imported(root, root)


def test_the_set_does_not_say_where_on_the_machine_the_maps_were(root: Path) -> None:
    found, _ = imported(root, save_maps(root, root.parent / "maps"))
    assert "depth=maps" in found.source
    assert str(root.parent) not in found.source


def test_attacks_are_flat_even_where_they_have_a_map(root: Path) -> None:
    maps = save_maps(root, root.parent / "maps")
    save(maps / "attack/print/s0/0_depth.png", np.full((24, 24), 200, np.uint8))
    assert not depth_of(imported(root, maps)[0], "attack/print/s0/0.png").any()


def test_a_bona_fide_image_without_a_map_is_skipped_and_listed(root: Path) -> None:
    maps = save_maps(root, root.parent / "maps")
    (maps / "real/s0/1_depth.png").unlink()
    found, report = imported(root, maps)
    assert len(found) == 11
    assert [entry.path for entry in report.skipped] == ["real/s0/1.png"]
    assert report.skipped[0].reason.startswith("no 1_depth.jpg or .png at the matching path")


def test_a_directory_without_maps_stops_the_import_and_says_so(root: Path) -> None:
    (root.parent / "maps").mkdir()
    with refused("photos", "1 of 12", "0_depth.jpg"):
        imported(root, root.parent / "maps", max_bad=0.05)
    assert not (root.parent / "set").exists()


def test_a_map_is_cut_where_its_image_is_cut_whatever_its_resolution(tmp_path: Path) -> None:
    save(tmp_path / "f/real/ann/1.png", picture(1, height=64, width=96))
    wide = np.zeros((32, 48), np.uint8)
    wide[:, 8:40] = RAMP
    save(tmp_path / "maps/real/ann/1_depth.png", wide)
    found, _ = imported(tmp_path / "f", tmp_path / "maps", crop="centre")
    np.testing.assert_array_equal(depth_of(found, "real/ann/1.png"), RAMP)


def test_a_large_map_is_averaged(tmp_path: Path) -> None:
    save(tmp_path / "f/real/ann/1.png", picture(1))
    save(tmp_path / "maps/real/ann/1_depth.png", RAMP.repeat(4, axis=0).repeat(4, axis=1))
    np.testing.assert_array_equal(depth_of(imported(tmp_path / "f", tmp_path / "maps")[0], "real/ann/1.png"), RAMP)


def test_frames_of_a_video_have_maps_by_their_number(tmp_path: Path) -> None:
    save_video(tmp_path / "f/real/ann/clip.avi", length=12)
    for number in (2, 10):
        save(tmp_path / f"maps/real/ann/clip.avi/{number:06d}_depth.png", np.full((32, 32), number, np.uint8))
    found, report = imported(tmp_path / "f", tmp_path / "maps", frames="3")
    assert found.rows.frame.tolist() == [2, 10]
    assert found.depth is not None
    assert found.depth[:, 0, 0].tolist() == [2, 10]
    assert report.lost_frames == 1
    assert any("no depth map" in line for line in report.lines())


def test_a_video_none_of_whose_frames_has_a_map_is_skipped_with_the_reason(root: Path) -> None:
    save_video(root / "real/s0/clip.avi", length=3)
    _, report = imported(root, save_maps(root, root.parent / "maps"), frames="1")
    assert [entry.path for entry in report.skipped] == ["real/s0/clip.avi"]
    assert "000001_depth.jpg" in report.skipped[0].reason


def coloured(path: Path) -> None:
    save(path, picture(3))


def too_wide(path: Path) -> None:
    save(path, np.zeros((24, 32), np.uint8))


def of_sixteen_bits(path: Path) -> None:
    cv2.imwrite(str(path), np.zeros((24, 24), np.uint16))


def broken(path: Path) -> None:
    path.write_text("no picture")


def link_outwards(path: Path) -> None:
    path.unlink()
    path.symlink_to(save(path.parents[3] / "secret.png", picture(5)))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (coloured, "in colour"),
        (too_wide, "different aspect ratio"),
        (of_sixteen_bits, "8 bits"),
        (broken, "not an image"),
        (link_outwards, "to outside the folder"),
    ],
)
def test_a_map_that_cannot_be_one_is_skipped_with_its_image(root: Path, spoil: object, reason: str) -> None:
    maps = save_maps(root, root.parent / "maps")
    spoil(maps / "real/s0/1_depth.png")  # type: ignore[operator]
    found, report = imported(root, maps)
    assert len(found) == 11
    assert reason in report.skipped[0].reason


def test_no_depth_is_made_where_no_points_are_sought(root: Path) -> None:
    assert imported(root, "auto", crop="centre")[0].depth is None


@pytest.mark.parametrize("crop", ["centre", "none"])
def test_a_fit_without_points_is_refused(root: Path, crop: str) -> None:
    with refused("depth", f"crop={crop}"):
        imported(root, "canonical", crop=crop)


def test_a_word_that_is_no_choice_and_no_directory_is_refused(root: Path) -> None:
    with refused("depth", "exact"):
        imported(root, "exact")


def test_detected_faces_get_a_depth_like_the_exact_one(tmp_path: Path) -> None:
    rendered = PreparedSet.open(resolve("synth: O subjects=3 videos=2 frames=1 size=128", tmp_path / "cache"))
    chosen = [*np.flatnonzero(rendered.rows.label == 1), np.flatnonzero(rendered.rows.label == 0)[0]]
    assert rendered.depth is not None
    for index in chosen:
        scene, exact = np.full((200, 300, 3), 128, np.uint8), np.zeros((200, 300), np.uint8)
        scene[60:188, 20:148] = rendered.images[index]
        exact[60:188, 20:148] = cv2.resize(np.array(rendered.depth[index]), (128, 128))
        folder = "real/a" if rendered.rows.label[index] else "attack/print/a"
        save(tmp_path / "f" / folder / f"{index}.png", scene)
        save(tmp_path / "maps" / folder / f"{index}_depth.png", exact)
    found, _ = imported(tmp_path / "f", "auto", size=64, crop="face", max_bad=0.5)
    (tmp_path / "set").rename(tmp_path / "fitted")
    other, _ = imported(tmp_path / "f", tmp_path / "maps", size=64, crop="face", max_bad=0.5)
    found = PreparedSet.open(tmp_path / "fitted")
    assert found.depth is not None
    assert other.depth is not None
    assert found.rows.item.tolist() == other.rows.item.tolist()
    assert found.rows.label.sum() >= 4
    for label, fitted, exact in zip(found.rows.label, found.depth, other.depth, strict=True):
        if label:
            assert np.corrcoef(fitted.ravel(), exact.ravel())[0, 1] > 0.93
        else:
            assert not fitted.any()
