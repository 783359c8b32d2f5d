"""Importing a folder: what the folders mean, what is skipped, and what stops the import."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.datasets.importers.making import make_folder, picture, save, save_video
from tests.refusals import refused

from fedvisage.base.parallel import Progress
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.report import ImportReport
from fedvisage.datasets.sources import resolve


def import_folder(root: Path, destination: Path, progress: Progress | None = None, **options: object) -> ImportReport:
    settings = ImportOptions(**{"size": 24, "crop": "centre", "frames": "4"} | options)  # type: ignore[arg-type]
    return import_items(SCANNERS["folder"], root, destination, settings, name="X", progress=progress)


def imported(
    root: Path, max_bad: float = 1.0, progress: Progress | None = None, **options: object
) -> tuple[PreparedSet, ImportReport]:
    report = import_folder(root, root.parent / "set", progress, max_bad=max_bad, **options)
    return PreparedSet.open(root.parent / "set", verify=True), report


def only_fault(root: Path) -> str:
    """Import a folder with one faulty file and return the reason that is reported for it."""
    found, report = imported(root)
    assert len(report.skipped) == 1
    assert report.images == len(found)
    return report.skipped[0].reason


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos")


def test_folders_give_label_species_subject_and_pixels(root: Path) -> None:
    found, report = imported(root)
    assert (found.name, found.size, len(found), report.skipped) == ("X", 24, 24, ())
    assert found.rows.item.tolist() == sorted(found.rows.item)
    for index, item in enumerate(found.rows.item.tolist()):
        parts = item.split("/")
        assert found.rows.label[index] == (parts[0] == "real")
        assert found.rows.species[index] == ("bonafide" if parts[0] == "real" else "print")
        assert found.rows.subject[index] == parts[-2]
        np.testing.assert_array_equal(found.images[index], np.array(Image.open(root / item)))


@pytest.mark.parametrize("real", ["real", "live", "bonafide", "Live"])
@pytest.mark.parametrize("attack", ["attack", "spoof", "fake"])
def test_all_names_of_the_class_folders_have_the_right_polarity(tmp_path: Path, real: str, attack: str) -> None:
    save(tmp_path / "f" / real / "a" / "1.png", picture(1))
    save(tmp_path / "f" / attack / "silicone-3d_v2" / "a" / "1.png", picture(2))
    found, _ = imported(tmp_path / "f")
    assert dict(zip(found.rows.species.tolist(), found.rows.label.tolist(), strict=True)) == {
        "bonafide": 1,
        "silicone-3d_v2": 0,
    }


def test_subjects_are_in_one_split_and_both_splits_have_both_classes(root: Path) -> None:
    found, report = imported(root, heldout=0.5)
    split_of: dict[str, set[str]] = {}
    for subject, split in zip(found.rows.subject.tolist(), found.rows.split.tolist(), strict=True):
        split_of.setdefault(subject, set()).add(split)
    assert all(len(splits) == 1 for splits in split_of.values())
    assert report.splits == {"heldout": 12, "train": 12}
    for split in ("train", "heldout"):
        assert set(found.rows.label[found.select(split)].tolist()) == {0, 1}


def test_the_same_folder_and_seed_give_the_same_bytes(root: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        import_folder(root, root.parent / name, size=12, seed=5)
        digests.add(PreparedSet.open(root.parent / name).digest)
    assert len(digests) == 1


def test_images_in_a_folder_below_the_subject_are_frames_of_one_video(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "f/real/ann/clip/" / f"{number}.png", picture(number))
    save(tmp_path / "f/real/ann/single.png", picture(9))
    found, _ = imported(tmp_path / "f")
    assert found.rows.video.tolist() == ["real/ann/clip"] * 3 + ["real/ann/single"]
    assert found.rows.frame.tolist() == [0, 1, 2, 0]


def test_files_without_a_subject_folder_are_their_own_subjects_and_counted(tmp_path: Path) -> None:
    save(tmp_path / "f/real/a.png", picture(1))
    save(tmp_path / "f/attack/print/b.png", picture(2))
    found, report = imported(tmp_path / "f")
    assert found.rows.subject.tolist() == ["b", "a"]
    assert report.own_subjects == 2
    assert any("without a subject folder" in line for line in report.lines())


def test_frames_of_videos_are_equidistant_and_rgb(tmp_path: Path) -> None:
    save_video(tmp_path / "f/real/ann/clip.avi", length=12)
    found, _ = imported(tmp_path / "f", size=16, frames="3")
    assert found.rows.frame.tolist() == [2, 6, 10]
    assert found.rows.video.tolist() == ["real/ann/clip"] * 3
    assert found.rows.item.tolist() == [f"real/ann/clip.avi/{n:06d}" for n in (2, 6, 10)]
    colours = found.images.reshape(3, -1, 3).mean(axis=1)
    np.testing.assert_allclose(colours, [[20, 0, 255], [60, 0, 255], [100, 0, 255]], atol=6)


def test_enlarged_images_are_counted(root: Path) -> None:
    save(root / "real/s0/large.png", picture(99, 64, 64))
    _, report = imported(root, size=32)
    assert report.upscaled == 24
    assert any("enlarged" in line for line in report.lines())


def test_the_report_is_kept_in_the_set(root: Path) -> None:
    (root / "real/s0/broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing")
    _, report = imported(root)
    kept = json.loads((root.parent / "set/import-report.json").read_text())
    assert kept["skipped"] == [{"path": "real/s0/broken.jpg", "reason": report.skipped[0].reason}]
    assert kept["images"] == 24
    assert kept["files"] == 25


def broken_jpeg(path: Path) -> None:
    save(path.with_name("whole.jpg"), picture(7, 64, 64))
    whole = path.with_name("whole.jpg").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    path.with_name("whole.jpg").unlink()


def test_a_truncated_jpeg_is_skipped(root: Path) -> None:
    broken_jpeg(root / "real/s0/x.jpg")
    assert "truncated" in only_fault(root)


def test_an_empty_file_is_skipped(root: Path) -> None:
    (root / "real/s0/x.jpg").touch()
    assert "empty" in only_fault(root)


def test_a_file_that_is_no_image_is_skipped(root: Path) -> None:
    (root / "real/s0/x.jpg").write_text("#!/bin/sh\n")
    assert "not an image" in only_fault(root)


def test_a_file_with_another_ending_is_skipped(root: Path) -> None:
    (root / "real/s0/notes.txt").write_text("hello")
    assert "'.txt'" in only_fault(root)


def test_hidden_files_are_left_out_silently(root: Path) -> None:
    (root / "real/.DS_Store").write_text("x")
    (root / ".git").mkdir()
    (root / ".git/config").write_text("x")
    assert imported(root)[1].skipped == ()


def test_a_link_out_of_the_folder_is_skipped(root: Path, tmp_path: Path) -> None:
    (root / "real/s0/x.png").symlink_to(save(tmp_path / "secret.png", picture(77)))
    assert "link" in only_fault(root)


def test_a_link_to_a_directory_is_not_followed(root: Path) -> None:
    (root / "real/loop").symlink_to(root, target_is_directory=True)
    assert "links to directories" in only_fault(root)


def test_a_dangling_link_is_skipped(root: Path) -> None:
    (root / "real/s0/x.png").symlink_to(root / "real/s0/none.png")
    assert "read" in only_fault(root)


def test_a_named_pipe_is_skipped_without_waiting(root: Path) -> None:
    os.mkfifo(root / "real/s0/x.png")
    assert "regular file" in only_fault(root)


def test_a_file_in_an_unknown_class_folder_is_skipped(root: Path) -> None:
    save(root / "unsure/s0/x.png", picture(77))
    assert "'unsure'" in only_fault(root)


def test_a_file_beside_the_class_folders_is_skipped(root: Path) -> None:
    save(root / "x.png", picture(77))
    assert "class folder" in only_fault(root)


def test_an_attack_without_species_is_skipped(root: Path) -> None:
    save(root / "attack/x.png", picture(77))
    assert "attack/<species>/" in only_fault(root)


def test_a_species_that_cannot_be_kept_is_skipped(root: Path) -> None:
    save(root / "attack/Paper Mask/s0/x.png", picture(77))
    assert "'Paper Mask'" in only_fault(root)


def test_the_same_content_twice_is_skipped_once(root: Path) -> None:
    (root / "real/s0/x.png").write_bytes((root / "real/s0/0.png").read_bytes())
    assert "real/s0/0.png" in only_fault(root)


def test_a_name_that_cannot_be_kept_is_skipped(root: Path) -> None:
    save(root / "real/s0/a\nb.png", picture(77))
    assert "characters" in only_fault(root)


def test_a_name_that_is_not_unicode_is_skipped_and_reported(root: Path) -> None:
    raw = os.fsencode(root / "real/s0") + b"/\xff\xfe.png"
    with open(raw, "wb") as file:
        file.write(b"x")
    assert "characters" in only_fault(root)


def test_a_broken_video_is_skipped(root: Path) -> None:
    (root / "real/s0/x.avi").write_bytes(b"RIFF\x00\x00\x00\x00AVI " + bytes(100))
    assert "video" in only_fault(root)


def check_stopped(root: Path, place: str | Path, *keywords: str, **options: object) -> None:
    with refused(place, *keywords):
        import_folder(root, root.parent / "set", **options)
    assert [path.name for path in root.parent.iterdir() if "set" in path.name] == []


def test_too_many_bad_files_stop_the_import_and_leave_nothing(root: Path) -> None:
    for number in range(3):
        (root / f"real/s0/bad{number}.jpg").write_text(f"{number}")
    check_stopped(root, root, "3 of 27", "real/s0/bad0.jpg", max_bad=0.1)
    assert len(imported(root, max_bad=0.12)[0]) == 24


def test_a_folder_that_is_missing_empty_or_of_another_layout_is_named(tmp_path: Path) -> None:
    check_stopped(tmp_path / "none", tmp_path / "none", "directory")
    (tmp_path / "photos").mkdir()
    check_stopped(tmp_path / "photos", tmp_path / "photos", "real, live, bonafide")
    (tmp_path / "photos/real").mkdir()
    check_stopped(tmp_path / "photos", tmp_path / "photos", "no files")


def test_a_class_inside_the_other_class_is_a_contradiction(root: Path) -> None:
    save(root / "attack/live/s0/x.png", picture(77))
    check_stopped(root, root, "attack/live/s0/x.png")


def test_an_attack_inside_bona_fide_is_a_contradiction(root: Path) -> None:
    save(root / "real/print/s0/x.png", picture(77))
    check_stopped(root, root, "real/print/s0/x.png")


def test_the_same_content_in_both_classes_is_a_contradiction(root: Path) -> None:
    (root / "real/s0/x.png").write_bytes((root / "attack/print/s1/0.png").read_bytes())
    check_stopped(root, root, "attack/print/s1/0.png", "real/s0/x.png", max_bad=1.0)


def test_labels_of_the_wrong_polarity_are_caught(root: Path) -> None:
    (root / "labels.csv").write_text("path,label\nreal/s0/0.png,0\nattack/print/s0/0.png,1\n")
    check_stopped(root, root / "labels.csv", "2 labels", "1 is bona fide")


def test_labels_that_agree_are_accepted(root: Path) -> None:
    (root / "labels.csv").write_text("path,label,note\nreal/s0/0.png,1,x\nattack/print/s0/0.png,0,\n")
    assert imported(root)[1].skipped == ()


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("", "path,label"),
        ("file,class\n", "path,label"),
        ("path,label\nreal/s0/0.png,live\n", "'live'"),
        ("path,label\n\0", "label"),
    ],
)
def test_labels_that_cannot_be_read_are_named(root: Path, text: str, keyword: str) -> None:
    (root / "labels.csv").write_text(text)
    check_stopped(root, root / "labels.csv", keyword)


@pytest.mark.parametrize(("place", "value"), [("frames", 0), ("heldout", 1.0), ("max_bad", -0.1), ("crop", "oval")])
def test_an_impossible_option_is_named(root: Path, place: str, value: object) -> None:
    check_stopped(root, place, str(value), **{place: value})


def test_progress_counts_the_files(root: Path) -> None:
    seen: list[tuple[int, int]] = []
    imported(root, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 24) for done in range(1, 25)]


def test_faces_are_found_cut_out_and_their_points_kept(tmp_path: Path) -> None:
    rendered = PreparedSet.open(resolve("synth: O subjects=3 videos=2 frames=1 size=128", tmp_path / "cache"))
    for index in np.flatnonzero(rendered.rows.label == 1):
        scene = np.full((200, 300, 3), 128, np.uint8)
        scene[60:188, 20:148] = rendered.images[index]
        save(tmp_path / "f/real" / f"{index}.png", scene)
    found, report = imported(tmp_path / "f", size=64, crop="face", max_bad=0.5)
    assert len(found) + len(report.skipped) == 6
    assert {entry.reason for entry in report.skipped} <= {"no face found"}
    assert found.points is not None
    assert ((found.points > 0) & (found.points < 64)).all()
    left_eye, right_eye, nose, left_mouth, right_mouth = found.points.transpose(1, 0, 2)
    assert (left_eye[:, 0] < right_eye[:, 0]).all()
    assert (left_mouth[:, 0] < right_mouth[:, 0]).all()
    assert (left_eye[:, 1] < nose[:, 1]).all()
    assert (nose[:, 1] < left_mouth[:, 1]).all()


def test_a_link_that_leads_to_itself_is_passed_over(root: Path) -> None:
    (root / "real" / "s0" / "loop.png").symlink_to("loop.png")
    assert "cannot be read" in only_fault(root)


def test_a_name_of_half_a_letter_is_refused_in_one_line(root: Path) -> None:
    with refused("name", "200"):
        import_items(SCANNERS["folder"], root, root.parent / "set", ImportOptions(crop="centre"), name="half \ud800")


@pytest.mark.parametrize("name", ["0.png", "clip.avi"])
def test_a_file_with_a_hole_of_terabytes_is_passed_over_unread(root: Path, name: str) -> None:
    path = root / "real" / "s0" / name
    save_video(root / "real" / "s0" / "clip.avi", 3)
    os.truncate(path, 1 << 43)
    assert "larger than" in only_fault(root)


def test_subjects_in_the_place_of_species_are_told_so_by_name(tmp_path: Path) -> None:
    for place in ("real/s00/1.png", "real/s01/1.png", "attack/s00/1.png", "attack/s01/1.png"):
        save(tmp_path / place, picture(len(place) + int(place[-7])))
    with refused("attack/s00", "s00", "attack/print/s00/"):
        import_folder(tmp_path, tmp_path.parent / "subjects", size=8)
