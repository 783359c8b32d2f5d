"""Importing a folder: what the folders mean, what is skipped, and what stops the import."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.datasets.importers.files import make_folder, picture, save, save_video
from tests.datasets.imports import import_attacks
from tests.refusals import refused

from fedvisage.base.parallel import Progress
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.report import ImportReport
from fedvisage.datasets.sources import resolve


def import_folder(
    root: Path, progress: Progress | None = None, to: str = "set", **options: Any
) -> tuple[PreparedSet, ImportReport]:
    return import_attacks("folder", root, root.parent / to, progress, **options)


def only_fault(root: Path) -> str:
    """Import a folder with one faulty file and return the reason that is reported for it."""
    prepared, report = import_folder(root)
    assert len(report.skipped) == 1
    assert report.images == len(prepared)
    return report.skipped[0].reason


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos")


def test_folders_give_label_species_subject_and_pixels(root: Path) -> None:
    prepared, report = import_folder(root)
    assert (prepared.name, prepared.size, len(prepared), report.skipped) == ("folder", 24, 24, ())
    assert prepared.rows.item.tolist() == sorted(prepared.rows.item)
    for index, item in enumerate(prepared.rows.item.tolist()):
        parts = item.split("/")
        assert prepared.rows.label[index] == (parts[0] == "real")
        assert prepared.rows.species[index] == ("bonafide" if parts[0] == "real" else "print")
        assert prepared.rows.subject[index] == parts[-2]
        np.testing.assert_array_equal(prepared.images[index], np.array(Image.open(root / item)))


@pytest.mark.parametrize("real", ["real", "live", "bonafide", "Live"])
@pytest.mark.parametrize("attack", ["attack", "spoof", "fake"])
def test_class_folders_have_the_right_polarity(tmp_path: Path, real: str, attack: str) -> None:
    save(tmp_path / "f" / real / "a" / "1.png", picture(1))
    save(tmp_path / "f" / attack / "silicone-3d_v2" / "a" / "1.png", picture(2))
    prepared, _ = import_folder(tmp_path / "f")
    assert dict(zip(prepared.rows.species.tolist(), prepared.rows.label.tolist(), strict=True)) == {
        "bonafide": 1,
        "silicone-3d_v2": 0,
    }


def test_subjects_are_in_one_split_and_both_splits_have_both_classes(root: Path) -> None:
    prepared, report = import_folder(root, heldout=0.5)
    split_of: dict[str, set[str]] = {}
    for subject, split in zip(prepared.rows.subject.tolist(), prepared.rows.split.tolist(), strict=True):
        split_of.setdefault(subject, set()).add(split)
    assert all(len(splits) == 1 for splits in split_of.values())
    assert report.splits == {"heldout": 12, "train": 12}
    for split in ("train", "heldout"):
        assert set(prepared.rows.label[prepared.select(split)].tolist()) == {0, 1}


def test_the_same_folder_and_seed_give_the_same_bytes(root: Path) -> None:
    assert len({import_folder(root, to=name, size=12, seed=5)[0].digest for name in ("a", "b")}) == 1


def test_images_in_a_folder_below_the_subject_are_frames_of_one_video(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "f/real/ann/clip/" / f"{number}.png", picture(number))
    save(tmp_path / "f/real/ann/single.png", picture(9))
    prepared, _ = import_folder(tmp_path / "f")
    assert prepared.rows.video.tolist() == ["real/ann/clip"] * 3 + ["real/ann/single"]
    assert prepared.rows.frame.tolist() == [0, 1, 2, 0]


def test_files_without_a_subject_folder_are_their_own_subjects(tmp_path: Path) -> None:
    save(tmp_path / "f/real/a.png", picture(1))
    save(tmp_path / "f/attack/print/b.png", picture(2))
    prepared, report = import_folder(tmp_path / "f")
    assert prepared.rows.subject.tolist() == ["b", "a"]
    assert report.own_subjects == 2
    assert any("without a subject folder" in line for line in report.lines())


def test_frames_of_videos_are_equidistant_and_rgb(tmp_path: Path) -> None:
    save_video(tmp_path / "f/real/ann/clip.avi", length=12)
    prepared, _ = import_folder(tmp_path / "f", size=16, frames="3")
    assert prepared.rows.frame.tolist() == [2, 6, 10]
    assert prepared.rows.video.tolist() == ["real/ann/clip"] * 3
    assert prepared.rows.item.tolist() == [f"real/ann/clip.avi/{n:06d}" for n in (2, 6, 10)]
    colours = prepared.images.reshape(3, -1, 3).mean(axis=1)
    np.testing.assert_allclose(colours, [[20, 0, 255], [60, 0, 255], [100, 0, 255]], atol=6)


def test_enlarged_images_are_counted(root: Path) -> None:
    save(root / "real/s0/large.png", picture(99, 64, 64))
    _, report = import_folder(root, size=32)
    assert report.upscaled == 24
    assert any("enlarged" in line for line in report.lines())


def test_report_is_stored_in_the_set(root: Path) -> None:
    (root / "real/s0/broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing")
    _, report = import_folder(root)
    stored = json.loads((root.parent / "set/import-report.json").read_text())
    assert stored["skipped"] == [{"path": "real/s0/broken.jpg", "reason": report.skipped[0].reason}]
    assert stored["images"] == 24
    assert stored["files"] == 25


def truncate_jpeg(path: Path) -> None:
    whole = save(path.with_name("whole.jpg"), picture(7, 64, 64))
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    whole.unlink()


def save_latin_name(path: Path) -> None:
    with open(os.fsencode(path.parent) + b"/\xff\xfe.png", "wb") as file:
        file.write(b"x")


def link_outwards(path: Path) -> None:
    path.symlink_to(save(path.parents[3] / "secret.png", picture(77)))


@pytest.mark.parametrize(
    ("name", "write", "reason"),
    [
        ("real/s0/x.jpg", truncate_jpeg, "truncated"),
        ("real/s0/x.jpg", Path.touch, "empty"),
        ("real/s0/x.jpg", lambda path: path.write_text("#!/bin/sh\n"), "not an image"),
        ("real/s0/notes.txt", lambda path: path.write_text("hello"), "'.txt'"),
        ("real/s0/x.png", link_outwards, "link"),
        ("real/loop", lambda path: path.symlink_to(path.parents[1], target_is_directory=True), "links to directories"),
        ("real/s0/x.png", lambda path: path.symlink_to(path.with_name("none.png")), "missing file"),
        ("real/s0/loop.png", lambda path: path.symlink_to("loop.png"), "missing file"),
        ("real/s0/x.png", os.mkfifo, "regular file"),
        ("unsure/s0/x.png", lambda path: save(path, picture(77)), "'unsure'"),
        ("x.png", lambda path: save(path, picture(77)), "class folder"),
        ("attack/x.png", lambda path: save(path, picture(77)), "attack/<species>/"),
        ("attack/Paper Mask/s0/x.png", lambda path: save(path, picture(77)), "'Paper Mask'"),
        ("real/s0/x.png", lambda path: shutil.copy(path.with_name("0.png"), path), "real/s0/0.png"),
        ("real/s0/a\nb.png", lambda path: save(path, picture(77)), "characters"),
        ("real/s0/latin", save_latin_name, "characters"),
        ("real/s0/x.avi", lambda path: path.write_bytes(b"RIFF\x00\x00\x00\x00AVI " + bytes(100)), "video"),
    ],
)
def test_unusable_files_are_skipped_with_the_reason(
    root: Path, name: str, write: Callable[[Path], object], reason: str
) -> None:
    write(root / name)
    assert reason in only_fault(root)


def test_hidden_files_are_ignored(root: Path) -> None:
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "s0/thumbs.db", "s0/Desktop.ini"):
        (root / "real" / name).write_text("x")
    (root / ".git").mkdir()
    (root / ".git/config").write_text("x")
    assert import_folder(root)[1].skipped == ()


def check_stopped(root: Path, place: str | Path, *keywords: str, **options: Any) -> None:
    with refused(place, *keywords):
        import_folder(root, **{"max_bad": 0.05} | options)
    assert [path.name for path in root.parent.iterdir() if "set" in path.name] == []


def test_too_many_bad_files_stop_the_import(root: Path) -> None:
    for number in range(3):
        (root / f"real/s0/bad{number}.jpg").write_text(f"{number}")
    check_stopped(root, root, "3 of 27", "real/s0/bad0.jpg", max_bad=0.1)
    assert len(import_folder(root, max_bad=0.12)[0]) == 24


def test_missing_empty_or_foreign_folder_is_refused(tmp_path: Path) -> None:
    check_stopped(tmp_path / "none", tmp_path / "none", "directory")
    (tmp_path / "photos").mkdir()
    check_stopped(tmp_path / "photos", tmp_path / "photos", "real, live, bonafide")
    (tmp_path / "photos/real").mkdir()
    check_stopped(tmp_path / "photos", tmp_path / "photos", "no files")


@pytest.mark.parametrize("name", ["attack/live/s0/x.png", "real/print/s0/x.png"])
def test_a_class_folder_inside_the_other_class_is_a_contradiction(root: Path, name: str) -> None:
    save(root / name, picture(77))
    check_stopped(root, root, name)


def test_the_same_content_in_both_classes_is_a_contradiction(root: Path) -> None:
    (root / "real/s0/x.png").write_bytes((root / "attack/print/s1/0.png").read_bytes())
    check_stopped(root, root, "attack/print/s1/0.png", "real/s0/x.png", max_bad=1.0)


def test_labels_of_the_wrong_polarity_are_refused(root: Path) -> None:
    (root / "labels.csv").write_text("path,label\nreal/s0/0.png,0\nattack/print/s0/0.png,1\n")
    check_stopped(root, root / "labels.csv", "2 labels", "1 is bona fide")


def test_labels_that_agree_are_accepted(root: Path) -> None:
    (root / "labels.csv").write_text("path,label,note\nreal/s0/0.png,1,x\nattack/print/s0/0.png,0,\n")
    assert import_folder(root)[1].skipped == ()


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("", "path,label"),
        ("file,class\n", "path,label"),
        ("path,label\nreal/s0/0.png,live\n", "'live'"),
        ("path,label\n\0", "label"),
    ],
)
def test_unreadable_labels_are_refused(root: Path, text: str, keyword: str) -> None:
    (root / "labels.csv").write_text(text)
    check_stopped(root, root / "labels.csv", keyword)


@pytest.mark.parametrize(("place", "value"), [("frames", 0), ("heldout", 1.0), ("max_bad", -0.1), ("--crop", "oval")])
def test_impossible_option_is_refused(root: Path, place: str, value: Any) -> None:
    check_stopped(root, place, str(value), **{place.lstrip("-"): value})


def test_progress_counts_the_files(root: Path) -> None:
    counts: list[tuple[int, int]] = []
    import_folder(root, progress=lambda done, total: counts.append((done, total)))
    assert counts == [(done, 24) for done in range(1, 25)]


@pytest.mark.long
def test_face_crops_have_points(tmp_path: Path) -> None:
    rendered = PreparedSet.open(resolve("synth: O subjects=3 videos=2 frames=1 size=128", tmp_path / "cache"))
    for index in np.flatnonzero(rendered.rows.label == 1):
        scene = np.full((200, 300, 3), 128, np.uint8)
        scene[60:188, 20:148] = rendered.images[index]
        save(tmp_path / "f/real" / f"{index}.png", scene)
    prepared, report = import_folder(tmp_path / "f", size=64, crop="face", max_bad=0.5)
    assert len(prepared) + len(report.skipped) == 6
    assert {entry.reason for entry in report.skipped} <= {"no face found"}
    assert prepared.points is not None
    assert ((prepared.points > 0) & (prepared.points < 64)).all()
    left_eye, right_eye, nose, left_mouth, right_mouth = prepared.points.transpose(1, 0, 2)
    assert (left_eye[:, 0] < right_eye[:, 0]).all()
    assert (left_mouth[:, 0] < right_mouth[:, 0]).all()
    assert (left_eye[:, 1] < nose[:, 1]).all()
    assert (nose[:, 1] < left_mouth[:, 1]).all()


def test_name_with_a_lone_surrogate_is_refused(root: Path) -> None:
    with refused("name", "200"):
        options = ImportOptions(crop="centre")
        import_items(SCANNERS["folder"], root, root.parent / "set", options, name="half \ud800")


@pytest.mark.parametrize("name", ["0.png", "clip.avi"])
def test_sparse_file_of_terabytes_is_skipped_unread(root: Path, name: str) -> None:
    path = root / "real" / "s0" / name
    save_video(root / "real" / "s0" / "clip.avi", 3)
    os.truncate(path, 1 << 43)
    assert "larger than" in only_fault(root)


def test_subject_folders_instead_of_species_are_refused(tmp_path: Path) -> None:
    for place in ("real/s00/1.png", "real/s01/1.png", "attack/s00/1.png", "attack/s01/1.png"):
        save(tmp_path / place, picture(len(place) + int(place[-7])))
    with refused("attack/s00", "s00", "attack/print/s00/"):
        import_folder(tmp_path, to="subjects", size=8)
