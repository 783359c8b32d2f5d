"""Depth maps of imported images: their sources, and reports of missing ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from tests.datasets.importers.files import make_folder, picture, save, save_video
from tests.datasets.imports import import_attacks
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.report import ImportReport
from fedvisage.datasets.sources import resolve

RAMP = np.add.outer(np.arange(32), 4 * np.arange(32)).astype(np.uint8)


def import_with_depth(root: Path, depth: Path | str, **options: Any) -> tuple[PreparedSet, ImportReport]:
    return import_attacks("folder", root, root.parent / "set", depth=str(depth), **options)


def depth_of(prepared: PreparedSet, item: str) -> npt.NDArray[np.uint8]:
    assert prepared.depth is not None
    return np.array(prepared.depth[prepared.rows.item.tolist().index(item)])


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
def test_bona_fide_images_have_their_maps_and_attacks_flat_ones(root: Path, ending: str) -> None:
    maps = save_maps(root, root.parent / "maps", ending)
    save(maps / "attack/print/s0/0_depth.png", np.full((24, 24), 200, np.uint8))
    prepared, report = import_with_depth(root, maps)
    assert report.skipped == ()
    assert prepared.depth is not None
    np.testing.assert_array_equal(prepared.depth[prepared.rows.label == 1][:, 5, 7], 10 * np.arange(6))
    assert not prepared.depth[prepared.rows.label == 0].any()


def test_maps_may_be_in_a_folder_of_the_dataset(root: Path) -> None:
    prepared, report = import_with_depth(root, save_maps(root, root / "depth"))
    assert (len(prepared), report.skipped, report.files) == (12, (), 12)


def test_maps_beside_the_images_are_refused(root: Path) -> None:
    with refused("photos", "maps"):
        import_with_depth(root, root)


def test_set_does_not_reveal_the_path_of_the_maps(root: Path) -> None:
    prepared, _ = import_with_depth(root, save_maps(root, root.parent / "maps"))
    assert "depth=maps" in prepared.source
    assert str(root.parent) not in prepared.source


def test_bona_fide_image_without_a_map_is_skipped(root: Path) -> None:
    maps = save_maps(root, root.parent / "maps")
    (maps / "real/s0/1_depth.png").unlink()
    prepared, report = import_with_depth(root, maps)
    assert len(prepared) == 11
    assert [entry.path for entry in report.skipped] == ["real/s0/1.png"]
    assert report.skipped[0].reason.startswith("no 1_depth.jpg or .png at the matching path")


def test_directory_without_maps_stops_the_import(root: Path) -> None:
    (root.parent / "maps").mkdir()
    with refused("photos", "1 of 12", "0_depth.jpg"):
        import_with_depth(root, root.parent / "maps", max_bad=0.05)
    assert not (root.parent / "set").exists()


def test_depth_map_is_cropped_like_its_image(tmp_path: Path) -> None:
    save(tmp_path / "f/real/ann/1.png", picture(1, height=64, width=96))
    wide_map = np.zeros((32, 48), np.uint8)
    wide_map[:, 8:40] = RAMP
    save(tmp_path / "maps/real/ann/1_depth.png", wide_map)
    prepared, _ = import_with_depth(tmp_path / "f", tmp_path / "maps", crop="centre")
    np.testing.assert_array_equal(depth_of(prepared, "real/ann/1.png"), RAMP)


def test_large_depth_map_is_averaged(tmp_path: Path) -> None:
    save(tmp_path / "f/real/ann/1.png", picture(1))
    save(tmp_path / "maps/real/ann/1_depth.png", RAMP.repeat(4, axis=0).repeat(4, axis=1))
    np.testing.assert_array_equal(
        depth_of(import_with_depth(tmp_path / "f", tmp_path / "maps")[0], "real/ann/1.png"), RAMP
    )


def test_frames_of_a_video_have_maps_by_their_number(tmp_path: Path) -> None:
    save_video(tmp_path / "f/real/ann/clip.avi", length=12)
    for number in (2, 10):
        save(tmp_path / f"maps/real/ann/clip.avi/{number:06d}_depth.png", np.full((32, 32), number, np.uint8))
    prepared, report = import_with_depth(tmp_path / "f", tmp_path / "maps", frames="3")
    assert prepared.rows.frame.tolist() == [2, 10]
    assert prepared.depth is not None
    assert prepared.depth[:, 0, 0].tolist() == [2, 10]
    assert report.lost_frames == 1
    assert any("no depth map" in line for line in report.lines())


def test_video_without_maps_is_skipped(root: Path) -> None:
    save_video(root / "real/s0/clip.avi", length=3)
    _, report = import_with_depth(root, save_maps(root, root.parent / "maps"), frames="1")
    assert [entry.path for entry in report.skipped] == ["real/s0/clip.avi"]
    assert "000001_depth.jpg" in report.skipped[0].reason


def link_outwards(path: Path) -> None:
    path.unlink()
    path.symlink_to(save(path.parents[3] / "secret.png", picture(5)))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: save(path, picture(3)), "in colour"),
        (lambda path: save(path, np.zeros((24, 32), np.uint8)), "different aspect ratio"),
        (lambda path: cv2.imwrite(str(path), np.zeros((24, 24), np.uint16)), "8 bits"),
        (lambda path: path.write_text("no picture"), "not an image"),
        (link_outwards, "to outside the folder"),
    ],
)
def test_invalid_depth_map_skips_its_image(root: Path, spoil: Callable[[Path], object], reason: str) -> None:
    maps = save_maps(root, root.parent / "maps")
    spoil(maps / "real/s0/1_depth.png")
    prepared, report = import_with_depth(root, maps)
    assert len(prepared) == 11
    assert reason in report.skipped[0].reason


def test_centre_crops_have_no_depth(root: Path) -> None:
    assert import_with_depth(root, "auto", crop="centre")[0].depth is None


def test_canonical_depth_of_centre_crops_is_refused(root: Path) -> None:
    with refused("depth", "crop=centre"):
        import_with_depth(root, "canonical", crop="centre")


@pytest.mark.long
def test_detected_faces_have_nearly_exact_depth(tmp_path: Path) -> None:
    rendered = PreparedSet.open(resolve("synth: O subjects=3 videos=2 frames=1 size=128", tmp_path / "cache"))
    indices = [*np.flatnonzero(rendered.rows.label == 1), np.flatnonzero(rendered.rows.label == 0)[0]]
    assert rendered.depth is not None
    for index in indices:
        scene, exact = np.full((200, 300, 3), 128, np.uint8), np.zeros((200, 300), np.uint8)
        scene[60:188, 20:148] = rendered.images[index]
        exact[60:188, 20:148] = cv2.resize(np.array(rendered.depth[index]), (128, 128))
        folder = "real/a" if rendered.rows.label[index] else "attack/print/a"
        save(tmp_path / "f" / folder / f"{index}.png", scene)
        save(tmp_path / "maps" / folder / f"{index}_depth.png", exact)
    prepared, _ = import_with_depth(tmp_path / "f", "auto", size=64, crop="face", max_bad=0.5)
    (tmp_path / "set").rename(tmp_path / "fitted")
    other, _ = import_with_depth(tmp_path / "f", tmp_path / "maps", size=64, crop="face", max_bad=0.5)
    prepared = PreparedSet.open(tmp_path / "fitted")
    assert prepared.depth is not None
    assert other.depth is not None
    assert prepared.rows.item.tolist() == other.rows.item.tolist()
    assert prepared.rows.label.sum() >= 4
    for label, fitted, exact in zip(prepared.rows.label, prepared.depth, other.depth, strict=True):
        if label:
            assert np.corrcoef(fitted.ravel(), exact.ravel())[0, 1] > 0.93
        else:
            assert not fitted.any()
