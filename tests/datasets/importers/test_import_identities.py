"""Folders of people become identity sets; rendered faces stand for photographs, and the detector finds them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.datasets.imports import import_photographs
from tests.refusals import refused
from tests.toy import misalignment

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.report import ImportReport
from fedvisage.render.identities import Identities, photograph_person, photographs_of
from fedvisage.render.people import draw_conditions, draw_people
from fedvisage.render.scene import render

SIZE = 112


def save(image: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def import_aligned(source: Path, destination: Path, **options: Any) -> ImportReport:
    return import_photographs("identities", source, destination, crop="none", **options)


@pytest.fixture(scope="module")
def crops() -> dict[str, np.ndarray]:
    """Aligned faces of two people."""
    spec = Identities(images=3, size=SIZE)
    return {f"person{number}": photograph_person(photographs_of(spec, number), SIZE)[0] for number in (0, 3)}


@pytest.fixture
def folder(crops: dict[str, np.ndarray], tmp_path: Path) -> Path:
    for person, images in crops.items():
        for number, image in enumerate(images):
            save(image, tmp_path / "people" / person / f"{number}.png")
    return tmp_path / "people"


def test_aligned_faces_are_unchanged(folder: Path, crops: dict[str, np.ndarray], tmp_path: Path) -> None:
    (folder / "groups.csv").write_text("person,group\nperson0,north\n")
    report = import_aligned(folder, tmp_path / "set", heldout=0, test=0.34)
    prepared = PreparedSet.open(tmp_path / "set", verify=True)
    assert (report.images, report.subjects, report.one_photograph) == (6, 2, 0)
    assert prepared.rows.group is not None
    assert dict(zip(prepared.rows.subject.tolist(), prepared.rows.group.tolist(), strict=True)) == {
        "person0": "north",
        "person3": "all",
    }
    splits = [sorted(prepared.rows.split[prepared.rows.subject == who].tolist()) for who in crops]
    assert splits == [["test", "train", "train"]] * 2
    assert np.array_equal(prepared.images[:3], crops["person0"])


def test_aligned_crops_need_no_detectable_face(folder: Path, tmp_path: Path) -> None:
    """A detector for photographs may miss a face in a tight crop, and then a list would lose its pairs."""
    upright = np.asarray(Image.open(folder / "person0" / "0.png"))
    wall = np.full((SIZE, SIZE, 3), 90, np.uint8)
    save(wall, folder / "person3" / "wall.png")
    save(upright, folder / "person0" / "again.png")
    report = import_aligned(folder, tmp_path / "set", heldout=0, max_bad=0.5)
    prepared = PreparedSet.open(tmp_path / "set")
    assert {entry.path: entry.reason for entry in report.skipped} == {
        "person0/again.png": "the same content as person0/0.png"
    }
    assert np.array_equal(prepared.images[[*prepared.rows.item].index("person3/wall.png")], wall)
    assert prepared.points is None


def test_set_of_one_person_has_one_warning(folder: Path, tmp_path: Path) -> None:
    for path in (folder / "person3").iterdir():
        path.unlink()
    report = import_aligned(folder, tmp_path / "set", heldout=0)
    (warning,) = [line for line in report.lines() if line.startswith("warning")]
    assert "one subject" in warning


def test_faces_in_photographs_are_aligned(tmp_path: Path) -> None:
    people = draw_people([5, 6], 0)
    scene = render(people, draw_conditions([1, 2], roll_max=0.4), 256)
    pictures = (scene.radiance.clamp(0, 1) ** 0.45 * 255).byte().permute(0, 2, 3, 1).numpy()
    for number, picture in enumerate(pictures):
        save(np.ascontiguousarray(picture), tmp_path / "photos" / f"person{number}" / "1.png")
    report = import_photographs("identities", tmp_path / "photos", tmp_path / "set", size=64, crop="face", heldout=0)
    prepared = PreparedSet.open(tmp_path / "set")
    assert report.one_photograph == 2
    assert prepared.rows.split.tolist() == ["train", "train"]
    assert prepared.points is not None
    assert max(misalignment(points, 64) for points in prepared.points) < 0.1
    assert "2 people with one photograph" in "\n".join(report.lines())


def test_people_with_few_photographs_are_left_out(folder: Path, crops: dict[str, np.ndarray], tmp_path: Path) -> None:
    save(np.ascontiguousarray(crops["person0"][0][:, ::-1]), folder / "person1" / "0.png")
    (folder / "person3" / "2.png").write_bytes(b"no picture")
    report = import_aligned(folder, tmp_path / "set", heldout=0, least=3, max_bad=0.5)
    assert (report.images, report.people_left_out, report.photographs_left_out) == (3, 2, 3)
    assert set(PreparedSet.open(tmp_path / "set").rows.subject.tolist()) == {"person0"}
    assert "2 people with 3 photographs left out" in "\n".join(report.lines())
    with refused("least", "9"):
        import_aligned(folder, tmp_path / "none", least=9)


def test_same_photograph_of_two_people_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "person3" / "copy.png").write_bytes((folder / "person0" / "0.png").read_bytes())
    with refused("people", "person0/0.png", "person3/copy.png"):
        import_aligned(folder, tmp_path / "set", max_bad=0.9)
    assert not (tmp_path / "set").exists()


def test_folder_of_attacks_is_refused(tmp_path: Path) -> None:
    for number, name in enumerate(("Real/anna", "attack/print/anna")):
        save(np.full((SIZE, SIZE, 3), number, np.uint8), tmp_path / "attacks" / name / "1.png")
    with refused("attacks", "data import folder"):
        import_aligned(tmp_path / "attacks", tmp_path / "set")


def test_invalid_layouts_and_options_are_refused(folder: Path, tmp_path: Path) -> None:
    with refused("crop", "aligned"):
        import_photographs("identities", folder, tmp_path / "set", size=SIZE, crop="centre")
    save(np.zeros((SIZE, SIZE, 3), np.uint8), folder / "loose.png")
    with refused("people", "loose.png", "folder"):
        import_aligned(folder, tmp_path / "set")
    (folder / "loose.png").unlink()
    (folder / "groups.csv").write_text("name,side\nperson0,north\n")
    with refused("people/groups.csv", "person,group"):
        import_aligned(folder, tmp_path / "set")
