"""The pipeline that all scanners share: processes, interruptions, boxes, videos upside down, and folders as before."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.importers.making import make_folder, picture, save
from tests.datasets.pad.copies import changeable, media
from tests.refusals import refused

from fedvisage.base.parallel import Progress
from fedvisage.data.prepared import PreparedSet, read_manifest
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.import_presentations import import_items, limit_items
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.item import Item
from fedvisage.datasets.report import ImportReport
from fedvisage.datasets.small_copies import render_person, write_video


def imported(
    kind: str, source: Path, to: Path, progress: Progress | None = None, **options: object
) -> tuple[PreparedSet, ImportReport]:
    settings = ImportOptions(**{"size": 16, "frames": "2", "crop": "centre", "max_bad": 1.0} | options)  # type: ignore[arg-type]
    report = import_items(SCANNERS[kind], source, to, settings, name=kind, progress=progress)
    return PreparedSet.open(to, verify=True), report


def test_a_folder_gives_the_bytes_of_earlier_versions(tmp_path: Path) -> None:
    """The digests were computed with the importer of folders as it was before there were scanners."""
    root = make_folder(tmp_path / "plain")
    for number in range(2):
        save(root / f"real/s4/clip/{number}.png", picture(90 + number))
    (root / "real/s0/bad.jpg").write_text("x")
    imported("folder", root, tmp_path / "set", size=24, frames="4", seed=3)
    manifest = read_manifest(tmp_path / "set")
    assert manifest.source == "folder plain crop=centre depth=auto frames=4 heldout=0.25 seed=3"
    assert manifest.format == 1
    assert {name: entry.sha256 for name, entry in manifest.files.items() if name != "import-report.json"} == {
        "images.npy": "aca5c500da21e4cb2de771c66f647090da8340f6c56a74dde81dd8de4f1ff447",
        "rows.csv": "eee4546c67d2b72cacc1d80a153d9a746aa35bfa83966a4968c0c1e8040e2091",
    }


def test_an_import_takes_no_torch_which_each_process_would_load_for_seconds(tmp_path: Path) -> None:
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
def test_places_are_counted_among_the_frames_with_a_face(tmp_path: Path) -> None:
    """Two frames of a wall, then three with a face, then the wall again."""
    faces, _ = render_person(1, "bonafide")
    wall = np.full_like(faces[0], 120)
    path = tmp_path / "f/Train_files/1_1_01_1.avi"
    path.parent.mkdir(parents=True)
    write_video(path, (wall, wall, *faces, wall))
    options = {"size": 32, "crop": "face", "depth": "none"}
    found, _ = imported("oulu-npu", tmp_path / "f", tmp_path / "set", frames="0,n/2", **options)
    assert found.rows.frame.tolist() == [2, 3]
    last, report = imported("oulu-npu", tmp_path / "f", tmp_path / "late", frames="6,", **options)
    assert last.rows.frame.tolist() == [4]
    assert report.short == 1
    equidistant, plain = imported("oulu-npu", tmp_path / "f", tmp_path / "plain", frames="6", **options)
    assert equidistant.rows.frame.tolist() == [2, 3, 4]
    assert plain.lost_frames == 3


def test_two_processes_write_the_bytes_of_one(copies: Mapping[str, Path], tmp_path: Path) -> None:
    one, _ = imported("casia-fasd", copies["casia-fasd"], tmp_path / "one")
    two, _ = imported("casia-fasd", copies["casia-fasd"], tmp_path / "two", workers=2)
    assert one.digest == two.digest
    assert len(one) == 20


def test_an_interrupted_import_goes_on_behind_what_was_done_with_the_same_bytes(
    copies: Mapping[str, Path], tmp_path: Path
) -> None:
    root = changeable(copies["oulu-npu"], tmp_path / "copy")
    truncated = media("oulu-npu", root)[0]
    truncated.write_bytes(truncated.read_bytes()[:40])
    whole, plain = imported("oulu-npu", root, tmp_path / "whole")

    def interrupt(done: int, _: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        imported("oulu-npu", root, tmp_path / "set", progress=interrupt)
    assert not (tmp_path / "set").exists()
    seen: list[int] = []
    found, report = imported("oulu-npu", root, tmp_path / "set", progress=lambda done, _: seen.append(done))
    assert seen == [6, 7, 8]
    assert found.digest == whole.digest
    assert report == plain
    assert [path.name for path in tmp_path.iterdir() if "import-" in path.name] == []


def test_an_import_with_other_options_begins_anew(copies: Mapping[str, Path], tmp_path: Path) -> None:
    def interrupt(done: int, _: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        imported("oulu-npu", copies["oulu-npu"], tmp_path / "set", progress=interrupt)
    seen: list[int] = []
    imported("oulu-npu", copies["oulu-npu"], tmp_path / "set", frames="1", progress=lambda done, _: seen.append(done))
    assert seen[0] == 1
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


def test_a_killed_import_goes_on_with_the_same_bytes(copies: Mapping[str, Path], tmp_path: Path) -> None:
    source, destination = copies["oulu-npu"], tmp_path / "set"
    command = [sys.executable, "-c", KILLED, str(source), str(destination)]
    killed = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not destination.exists()
    seen: list[int] = []
    found, report = imported("oulu-npu", source, destination, progress=lambda done, _: seen.append(done))
    assert seen == [5, 6, 7, 8]
    whole, plain = imported("oulu-npu", source, tmp_path / "whole")
    assert (found.digest, report) == (whole.digest, plain)


def test_enrolment_videos_come_when_asked_for_and_are_marked(copies: Mapping[str, Path], tmp_path: Path) -> None:
    plain, _ = imported("replay-attack", copies["replay-attack"], tmp_path / "plain")
    assert set(plain.rows.further["purpose"].tolist()) == {""}
    found, report = imported("replay-attack", copies["replay-attack"], tmp_path / "all", enroll=True)
    assert report.found["enroll"] == (1, 0)
    enrolled = found.rows.further["purpose"] == "enroll"
    assert found.rows.video[enrolled].tolist() == ["enroll/train/client001_session01_webcam_enroll_adverse_1"] * 2
    assert len(found) - enrolled.sum() == len(plain)


def test_the_mistake_of_released_lists_is_made_where_it_is_asked_for_and_told(
    copies: Mapping[str, Path], tmp_path: Path
) -> None:
    right, _ = imported("casia-fasd", copies["casia-fasd"], tmp_path / "right")
    wrong, report = imported("casia-fasd", copies["casia-fasd"], tmp_path / "wrong", labels="fedsis-released")
    turned = right.rows.label != wrong.rows.label
    assert {*right.rows.further["clip"][turned].tolist()} == {"HR_4"}
    assert {*wrong.rows.species[turned].tolist()} == {"bonafide"}
    assert wrong.source.endswith(" labels=fedsis-released")
    assert any("HR_4" in line and "mistake" in line for line in report.lines())
    assert any("train: 4 of 80 bona fide, 4 of 160 attacks" in line for line in report.lines())
    with refused("--labels", "MSU-MFSD"):
        imported("msu-mfsd", copies["msu-mfsd"], tmp_path / "other", labels="fedsis-released")


def test_a_few_files_of_a_large_dataset_have_all_that_can_be_chosen_by(
    copies: Mapping[str, Path], tmp_path: Path
) -> None:
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
    plain, _ = imported("oulu-npu", copies["oulu-npu"], tmp_path / "set", few=200)
    assert plain.source.endswith(" few=200")


def test_an_option_that_a_dataset_does_not_have_is_refused(copies: Mapping[str, Path], tmp_path: Path) -> None:
    for options, place in (
        ({"enroll": True}, "--enroll"),
        ({"boxes": "dataset", "crop": "face"}, "boxes"),
        ({"boxes": "mine"}, "boxes"),
    ):
        with refused(place):
            imported("oulu-npu", copies["oulu-npu"], tmp_path / "set", **options)
    with refused("--labels", "CASIA-FASD"):
        imported("casia-fasd", copies["casia-fasd"], tmp_path / "set", labels="live=0")
    with refused("boxes", "--crop face"):
        imported("casia-fasd", copies["casia-fasd"], tmp_path / "set", boxes="dataset")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["replay-attack", "msu-mfsd"])
def test_boxes_of_the_dataset_and_of_the_detector_cut_out_the_same_face(
    kind: str, copies: Mapping[str, Path], tmp_path: Path
) -> None:
    sought, _ = imported(kind, copies[kind], tmp_path / "sought", size=64, frames="0,", crop="face", depth="none")
    given, report = imported(kind, copies[kind], tmp_path / "given", size=64, frames="0,", crop="face", boxes="dataset")
    assert given.rows.item.tolist() == sought.rows.item.tolist()
    assert given.points is None
    assert given.crop is not None
    assert sought.crop is not None
    assert (given.crop.how, sought.crop.how) == ("boxes", "detected")
    assert sought.points is not None
    live = [index for index, item in enumerate(given.rows.item.tolist()) if "client003" not in item]
    difference = given.images[live].astype(float) - sought.images[live]
    # Another face, or a corner taken for a width, would differ as much as two pictures of a set do.
    apart = given.images[live].astype(float) - np.roll(sought.images[live], 1, axis=0)
    assert np.abs(difference).mean() < 0.7 * np.abs(apart).mean()
    assert report.without_box <= 1  # the one that stands upside down has none in the copy


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_video_upside_down_is_turned_where_a_face_is_found_so_and_that_is_kept(
    copies: Mapping[str, Path], tmp_path: Path
) -> None:
    found, report = imported("msu-mfsd", copies["msu-mfsd"], tmp_path / "set", size=64, crop="face")
    assert report.turned == 1
    turned = found.rows.further["turned"] == "180"
    assert set(found.rows.video[turned].tolist()) == {"real/real_client003_android_SD_scene01"}
    assert set(found.rows.further["turned"][~turned].tolist()) == {""}
    assert found.points is not None
    eyes, mouth = found.points[:, :2, 1].mean(axis=1), found.points[:, 3:, 1].mean(axis=1)
    assert (eyes < mouth).all()
