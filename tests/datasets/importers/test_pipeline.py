"""The pipeline of all scanners: processes, interruptions, boxes, videos upside down, and unchanged bytes of folders."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.datasets.importers.files import make_folder, picture, save
from tests.datasets.imports import copy_to, import_attacks, media_files
from tests.refusals import refused

from fedvisage.base.parallel import Progress
from fedvisage.data.prepared import PreparedSet, read_manifest
from fedvisage.datasets.dataset import Item
from fedvisage.datasets.import_presentations import limit_items
from fedvisage.datasets.report import ImportReport
from fedvisage.datasets.small_copies import render_person, write_video

pytestmark = pytest.mark.long


def import_set(
    kind: str, source: Path, to: Path, progress: Progress | None = None, **options: Any
) -> tuple[PreparedSet, ImportReport]:
    return import_attacks(kind, source, to, progress, **{"size": 16, "frames": "2"} | options)


def test_folder_import_has_the_bytes_of_earlier_versions(tmp_path: Path) -> None:
    """The digests were computed with an importer of folders that was older than the scanners."""
    root = make_folder(tmp_path / "plain")
    for number in range(2):
        save(root / f"real/s4/clip/{number}.png", picture(90 + number))
    (root / "real/s0/bad.jpg").write_text("x")
    import_set("folder", root, tmp_path / "set", size=24, frames="4", seed=3)
    manifest = read_manifest(tmp_path / "set")
    assert manifest.source == "folder plain crop=centre depth=auto frames=4 heldout=0.25 seed=3"
    assert manifest.format == 1
    assert {name: entry.sha256 for name, entry in manifest.files.items() if name != "import-report.json"} == {
        "images.npy": "aca5c500da21e4cb2de771c66f647090da8340f6c56a74dde81dd8de4f1ff447",
        "rows.csv": "eee4546c67d2b72cacc1d80a153d9a746aa35bfa83966a4968c0c1e8040e2091",
    }


def test_import_does_not_load_torch(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from fedvisage.datasets.importing import ImportOptions, import_dataset\n"
        "options = ImportOptions(size=24, crop='centre')\n"
        "import_dataset('folder', Path(sys.argv[1]), Path(sys.argv[2]), print, name='plain', options=options)\n"
    )
    command = [sys.executable, "-c", program, str(make_folder(tmp_path / "plain")), str(tmp_path / "set")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(PreparedSet.open(tmp_path / "set"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_positions_count_frames_with_a_face(tmp_path: Path) -> None:
    """Two frames of a wall, then three with a face, then the wall again."""
    faces, _ = render_person(1, "bonafide")
    wall = np.full_like(faces[0], 120)
    path = tmp_path / "f/Train_files/1_1_01_1.avi"
    path.parent.mkdir(parents=True)
    write_video(path, (wall, wall, *faces, wall))
    options: dict[str, Any] = {"size": 32, "crop": "face", "depth": "none"}
    prepared, _ = import_set("oulu-npu", tmp_path / "f", tmp_path / "set", frames="0,n/2", **options)
    assert prepared.rows.frame.tolist() == [2, 3]
    last, report = import_set("oulu-npu", tmp_path / "f", tmp_path / "late", frames="6,", **options)
    assert last.rows.frame.tolist() == [4]
    assert report.short == 1
    equidistant, plain = import_set("oulu-npu", tmp_path / "f", tmp_path / "plain", frames="6", **options)
    assert equidistant.rows.frame.tolist() == [2, 3, 4]
    assert plain.lost_frames == 3


def test_two_processes_write_the_bytes_of_one(copies: Mapping[str, Path], tmp_path: Path) -> None:
    one, _ = import_set("casia-fasd", copies["casia-fasd"], tmp_path / "one")
    two, _ = import_set("casia-fasd", copies["casia-fasd"], tmp_path / "two", workers=2)
    assert one.digest == two.digest
    assert len(one) == 20


def test_interrupted_import_resumes_with_the_same_bytes(copies: Mapping[str, Path], tmp_path: Path) -> None:
    root = copy_to(copies["oulu-npu"], tmp_path / "copy")
    truncated = media_files("oulu-npu", root)[0]
    truncated.write_bytes(truncated.read_bytes()[:40])
    whole, plain = import_set("oulu-npu", root, tmp_path / "whole")

    def interrupt(done: int, _: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_set("oulu-npu", root, tmp_path / "set", progress=interrupt)
    assert not (tmp_path / "set").exists()
    counts: list[int] = []
    prepared, report = import_set("oulu-npu", root, tmp_path / "set", progress=lambda done, _: counts.append(done))
    assert counts == [6, 7, 8]
    assert prepared.digest == whole.digest
    assert report == plain
    assert [path.name for path in tmp_path.iterdir() if "import-" in path.name] == []


def test_import_with_other_options_starts_again(copies: Mapping[str, Path], tmp_path: Path) -> None:
    def interrupt(done: int, _: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_set("oulu-npu", copies["oulu-npu"], tmp_path / "set", progress=interrupt)
    counts: list[int] = []
    import_set(
        "oulu-npu",
        copies["oulu-npu"],
        tmp_path / "set",
        frames="1",
        progress=lambda done, _: counts.append(done),
    )
    assert counts[0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


KILLED = """
import os, signal, sys
from pathlib import Path
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.small_copies import render_person, write_video
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.options import ImportOptions
source, destination = map(Path, sys.argv[1:])
def kill(done, total):
    if done == 4:
        os.kill(os.getpid(), signal.SIGKILL)
options = ImportOptions(size=16, frames="2", max_bad=1.0, crop="centre")
import_items(SCANNERS["oulu-npu"], source, destination, options, name="oulu-npu", every=0.0, progress=kill)
"""


def test_killed_import_resumes_with_the_same_bytes(copies: Mapping[str, Path], tmp_path: Path) -> None:
    source, destination = copies["oulu-npu"], tmp_path / "set"
    command = [sys.executable, "-c", KILLED, str(source), str(destination)]
    process = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    assert not destination.exists()
    counts: list[int] = []
    prepared, report = import_set("oulu-npu", source, destination, progress=lambda done, _: counts.append(done))
    assert counts == [5, 6, 7, 8]
    whole, plain = import_set("oulu-npu", source, tmp_path / "whole")
    assert (prepared.digest, report) == (whole.digest, plain)


def test_enrolment_videos_are_optional_and_marked(copies: Mapping[str, Path], tmp_path: Path) -> None:
    plain, _ = import_set("replay-attack", copies["replay-attack"], tmp_path / "plain")
    assert set(plain.rows.further["purpose"].tolist()) == {""}
    prepared, report = import_set("replay-attack", copies["replay-attack"], tmp_path / "all", enroll=True)
    assert (report.found or {})["enroll"] == (1, 0)
    enrolled = prepared.rows.further["purpose"] == "enroll"
    assert prepared.rows.video[enrolled].tolist() == ["enroll/train/client001_session01_webcam_enroll_adverse_1"] * 2
    assert len(prepared) - enrolled.sum() == len(plain)


def test_released_label_bug_is_reproduced_and_reported(copies: Mapping[str, Path], tmp_path: Path) -> None:
    right, _ = import_set("casia-fasd", copies["casia-fasd"], tmp_path / "right")
    wrong, report = import_set("casia-fasd", copies["casia-fasd"], tmp_path / "wrong", labels="fedsis-released")
    turned = right.rows.label != wrong.rows.label
    assert {*right.rows.further["clip"][turned].tolist()} == {"HR_4"}
    assert {*wrong.rows.species[turned].tolist()} == {"bonafide"}
    assert wrong.source.endswith(" labels=fedsis-released")
    assert any("HR_4" in line and "mistake" in line for line in report.lines())
    assert any("train: 4 of 80 bona fide, 4 of 160 attacks" in line for line in report.lines())
    with refused("--labels", "MSU-MFSD"):
        import_set("msu-mfsd", copies["msu-mfsd"], tmp_path / "other", labels="fedsis-released")


def test_limited_items_cover_all_values_of_columns(copies: Mapping[str, Path], tmp_path: Path) -> None:
    """Of a whole copy of OULU-NPU: every value of every column in every part, both classes, and little more."""
    parts = {who: "train" if who <= 20 else "dev" if who <= 35 else "test" for who in range(1, 56)}
    items = [
        Item(
            tmp_path,
            f"{phone}_{session}_{who:02d}_{file}",
            "video",
            "bonafide" if file == 1 else "print",
            str(who),
            "",
            part,
            {"phone": str(phone), "session": str(session), "file": str(file)},
        )
        for phone, session, (who, part), file in product(range(1, 7), range(1, 4), parts.items(), range(1, 6))
    ]
    few = limit_items(items, 200)
    assert 100 <= len(few) <= 300
    for part in ("train", "dev", "test"):
        own = [item for item in few if item.split == part]
        for one, other in (("phone", "session"), ("phone", "file"), ("session", "file")):
            pairs = {(item.extra[one], item.extra[other]) for item in own}
            assert pairs == {(item.extra[one], item.extra[other]) for item in items}
        assert all(len({item.subject for item in own if item.label == label}) >= 4 for label in (0, 1))
    assert limit_items(items, 0) == items
    assert limit_items(items[:7], 200) == items[:7]
    plain, _ = import_set("oulu-npu", copies["oulu-npu"], tmp_path / "set", few=200)
    assert plain.source.endswith(" few=200")


def test_unsupported_option_is_refused(copies: Mapping[str, Path], tmp_path: Path) -> None:
    for options, place in (
        ({"enroll": True}, "--enroll"),
        ({"boxes": "dataset", "crop": "face"}, "boxes"),
        ({"boxes": "mine"}, "boxes"),
    ):
        with refused(place):
            import_set("oulu-npu", copies["oulu-npu"], tmp_path / "set", **options)
    with refused("--labels", "CASIA-FASD"):
        import_set("casia-fasd", copies["casia-fasd"], tmp_path / "set", labels="live=0")
    with refused("boxes", "--crop face"):
        import_set("casia-fasd", copies["casia-fasd"], tmp_path / "set", boxes="dataset")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["replay-attack", "msu-mfsd"])
def test_dataset_boxes_and_detector_crop_the_same_face(kind: str, copies: Mapping[str, Path], tmp_path: Path) -> None:
    detected, _ = import_set(kind, copies[kind], tmp_path / "sought", size=64, frames="0,", crop="face", depth="none")
    by_boxes, report = import_set(
        kind, copies[kind], tmp_path / "given", size=64, frames="0,", crop="face", boxes="dataset"
    )
    assert by_boxes.rows.item.tolist() == detected.rows.item.tolist()
    assert by_boxes.points is None
    assert by_boxes.crop is not None
    assert detected.crop is not None
    assert (by_boxes.crop.how, detected.crop.how) == ("boxes", "detected")
    assert detected.points is not None
    live = [index for index, item in enumerate(by_boxes.rows.item.tolist()) if "client003" not in item]
    difference = by_boxes.images[live].astype(float) - detected.images[live]
    # Another face, or a corner taken for a width, would differ as much as two pictures of a set do.
    apart = by_boxes.images[live].astype(float) - np.roll(detected.images[live], 1, axis=0)
    assert np.abs(difference).mean() < 0.7 * np.abs(apart).mean()
    assert report.without_box in (0, 1)  # the one that stands upside down has none in the copy


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_upside_down_video_is_rotated_and_marked(copies: Mapping[str, Path], tmp_path: Path) -> None:
    prepared, report = import_set("msu-mfsd", copies["msu-mfsd"], tmp_path / "set", size=64, crop="face")
    assert report.turned == 1
    turned = prepared.rows.further["turned"] == "180"
    assert set(prepared.rows.video[turned].tolist()) == {"real/real_client003_android_SD_scene01"}
    assert set(prepared.rows.further["turned"][~turned].tolist()) == {""}
    assert prepared.points is not None
    eyes, mouth = prepared.points[:, :2, 1].mean(axis=1), prepared.points[:, 3:, 1].mean(axis=1)
    assert (eyes < mouth).all()
