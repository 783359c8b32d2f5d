"""IJB-B and IJB-C as NIST distributes them: faces by the boxes of templates, and pairs from tables."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.datasets.imports import import_photographs, list_photographs, write_changed_copy
from tests.refusals import refused

from fedvisage.data.lists import read_lists
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import write_small_copy
from fedvisage.datasets.photographs import USUAL_POINTS, points_around
from fedvisage.datasets.small_copies import render_person
from fedvisage.faces.align import align
from fedvisage.faces.detection import Detector, Face

FACES = [  # file, person, template, sighting, as the small copy has them
    ("img/1.jpg", 100, 1, 10),
    ("frames/2.png", 100, 2, 20),
    ("frames/3.png", 100, 2, 20),
    ("img/1.jpg", 101, 3, 10),
    ("img/4.jpg", 101, 4, 40),
    ("img/5.jpg", 102, 5, 50),
    ("img/6.jpg", 102, 6, 60),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("nist")
    write_small_copy("ijb-c-nist", root / "IJBC")
    import_photographs("ijb-c-nist", root / "IJBC", root / "set")
    return root / "set"


def test_each_face_of_a_template_has_its_person_and_sighting(prepared: Path) -> None:
    rows = PreparedSet.open(prepared).rows
    columns = [rows.further[name].tolist() for name in ("template", "media", "confidence")]
    assert sorted(zip(rows.item.tolist(), rows.subject.tolist(), *columns, strict=True)) == sorted(
        (f"{file}/{template}", f"ijb-c-nist/{person}", str(template), str(sighting), "1")
        for file, person, template, sighting in FACES
    )


def test_two_faces_of_a_photograph_have_different_crops(prepared: Path) -> None:
    opened = PreparedSet.open(prepared)
    for person, template in ((0, 1), (1, 3)):
        images, points = render_person(person, "bonafide")
        expected, _ = align(images[0], points[0].astype(np.float64), 112)
        crop = opened.images[opened.rows.item.tolist().index(f"img/1.jpg/{template}")]
        other = opened.images[opened.rows.item.tolist().index(f"img/1.jpg/{4 - template}")]
        middle = slice(30, 90)
        near, far = (
            np.abs(one[middle, middle].astype(float) - expected[middle, middle]).mean() for one in (crop, other)
        )
        assert near < 0.6 * far


def test_lists_are_written_next_to_the_set(prepared: Path) -> None:
    assert {name: table.tolist() for name, table in read_lists(prepared).tables.items()} == {
        "pairs": [[1, 2, 1], [1, 4, 0], [3, 4, 1], [3, 6, 0], [5, 6, 1], [5, 2, 0]],
        "gallery-g1": [[1, 100], [3, 101]],
        "gallery-g2": [[5, 102]],
        "probes": [[2, 100], [4, 101], [6, 102]],
    }


@pytest.mark.parametrize(
    ("file", "old", "new", "place", "keyword"),
    [
        ("1N_probe_mixed.csv", "FACE_X", "X", "ijbb_1N_probe_mixed.csv", "FACE_X"),
        ("1N_probe_mixed.csv", "2,100,", "2,,", "ijbb_1N_probe_mixed.csv, line 2", "person"),
        (
            "1N_probe_mixed.csv",
            "2,100,frames/2.png,20,",
            "2,100,frames/2.png,20,nan",
            "ijbb_1N_probe_mixed.csv, line 2",
            "box",
        ),
        ("1N_probe_mixed.csv", "4,101,", "2,101,", "IJBB", "template 2"),
        ("11_S1_S2_matches.csv", "1,4", "1,7", "ijbb_11_S1_S2_matches.csv, line 2", "probe"),
        ("11_S1_S2_matches.csv", "1,4", "1,4,0", "ijbb_11_S1_S2_matches.csv", "pairs"),
    ],
)
def test_invalid_tables_are_refused_with_the_line(
    file: str, old: str, new: str, place: str, keyword: str, tmp_path: Path
) -> None:
    source = write_changed_copy("ijb-b-nist", tmp_path / "IJBB", f"protocol/ijbb_{file}", old, new)
    with refused(place, keyword):
        import_photographs("ijb-b-nist", source, tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_faces_without_a_box_or_picture_are_skipped(tmp_path: Path) -> None:
    source = write_changed_copy(
        "ijb-b-nist", tmp_path / "IJBB", "protocol/ijbb_1N_gallery_S2.csv", "FACE_WIDTH", "FACE_WIDTH"
    )
    table = source / "protocol" / "ijbb_1N_gallery_S2.csv"
    head, line = table.read_text().splitlines()
    fields = line.split(",")
    table.write_text(f"{head}\n{line}\n{','.join([*fields[:4], '', '', '', '', '0'])}\n")
    (source / "images" / "img" / "4.jpg").unlink()
    listing = list_photographs("ijb-b-nist", source)
    assert [(one.path, one.reason) for one in listing.skipped] == [
        ("img/5.jpg/5-2", "its table has no box"),
        ("img/4.jpg/4", "it is in a table, but missing"),
    ]


def test_other_folder_is_refused(tmp_path: Path) -> None:
    write_small_copy("ijb-c", tmp_path / "IJBC")
    with refused("IJBC", "IJB-B", "ijbb_1N_gallery_S1.csv"):
        list_photographs("ijb-b-nist", tmp_path / "IJBC")


def test_points_are_detected_near_a_box_or_placed_as_usual() -> None:
    images, points = render_person(0, "bonafide")
    detector = Detector()

    def detect(image: np.ndarray) -> list[Face]:
        return detector.detect([image])[0]

    for side in (32, 128, 400):
        small = np.asarray(
            Image.fromarray(images[0]).resize((side, side), Image.Resampling.BOX if side < 128 else None)
        )
        true = points[0].astype(np.float64) * side / images.shape[1]
        reach = 2.2 * np.ptp(true, axis=0).max()
        box = np.concatenate([true.mean(axis=0) - reach / 2, [reach, reach]])
        assert np.abs(points_around(small, box, detect) - true).max() < 0.08 * reach
    nothing = np.full((90, 120, 3), 100, np.uint8)
    box = np.array([20.0, 10.0, 50.0, 60.0])
    np.testing.assert_allclose(points_around(nothing, box, detect), USUAL_POINTS * (50, 60) + (20, 10))
    outside = np.array([500.0, 500.0, 50.0, 60.0])
    assert np.isfinite(points_around(nothing, outside, detect)).all()
