"""IJB-B and IJB-C as InsightFace repacks them and as NIST distributes them, and contradicting lists."""

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

CROPS = [  # name, person, template, medium, confidence, as the small copy has them
    ("1", 100, 1, 0, "0.90"),
    ("2", 100, 1, 0, "0.91"),
    ("3", 100, 2, 1, "0.92"),
    ("4", 101, 3, 10, "0.93"),
    ("5", 101, 3, 10, "0.94"),
    ("6", 101, 4, 11, "0.95"),
    ("7", 102, 5, 20, "0.96"),
    ("8", 102, 5, 20, "0.97"),
    ("9", 102, 6, 21, "0.98"),
]
GALLERIES = {"ijb-b": ("s1", "s2"), "ijb-c": ("g1", "g2")}


@pytest.fixture(scope="module", params=GALLERIES)
def copy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    root = tmp_path_factory.mktemp(request.param) / "IJB"
    write_small_copy(request.param, root)
    return request.param, root


def import_crops(kind: str, source: Path, place: Path) -> PreparedSet:
    import_photographs(kind, source, place, max_bad=0.5)
    return PreparedSet.open(place)


def test_crops_have_person_template_medium_and_alignment(copy: tuple[str, Path], tmp_path: Path) -> None:
    kind, source = copy
    prepared = import_crops(kind, source, tmp_path / "set")
    rows = prepared.rows
    further = [rows.further[name].tolist() for name in ("template", "media", "confidence")]
    assert sorted(zip(rows.item.tolist(), rows.subject.tolist(), *further, strict=True)) == [
        (f"loose_crop/{name}.jpg", f"{kind}/{person}", str(template), str(media), confidence)
        for name, person, template, media, confidence in CROPS
    ]
    assert str(prepared.crop) == "faces by the dataset's points, aligned by five points"
    (line,) = (one for one in (source / "meta").glob("*_5pts_score.txt"))
    fields = line.read_text().splitlines()[4].split()
    points = np.array(fields[1:11], np.float64).reshape(5, 2)
    expected, _ = align(np.asarray(Image.open(source / "loose_crop" / fields[0])), points, 112)
    assert np.array_equal(prepared.images[rows.item.tolist().index("loose_crop/5.jpg")], expected)


def test_lists_are_written_as_numbers(copy: tuple[str, Path], tmp_path: Path) -> None:
    kind, source = copy
    import_crops(kind, source, tmp_path / "set")
    first, second = GALLERIES[kind]
    assert {name: table.tolist() for name, table in read_lists(tmp_path / "set").tables.items()} == {
        "pairs": [[1, 2, 1], [1, 4, 0], [3, 4, 1], [3, 6, 0], [5, 6, 1], [5, 2, 0]],
        f"gallery-{first}": [[1, 100], [3, 101]],
        f"gallery-{second}": [[5, 102]],
        "probes": [[2, 100], [4, 101], [6, 102]],
    }
    with refused("set-templates-pairs.txt", "exists"):
        import_crops(kind, source, tmp_path / "set")


@pytest.mark.parametrize(
    ("file", "old", "new", "place", "keyword"),
    [
        ("face_tid_mid.txt", "1.jpg 1 0\n", "1.jpg 1\n", "meta/ijbc_face_tid_mid.txt, line 1", "3 fields"),
        ("face_tid_mid.txt", "2.jpg 1 0\n", "1.jpg 1 0\n", "meta/ijbc_face_tid_mid.txt, line 2", "1.jpg"),
        ("face_tid_mid.txt", "9.jpg 6 21\n", "", "IJBC", "9.jpg"),
        ("face_tid_mid.txt", "2.jpg 1 0\n", "2.jpg 1.5 0\n", "IJBC", "whole numbers"),
        ("name_5pts_score.txt", " 0.93", " nan", "meta/ijbc_name_5pts_score.txt", "finite"),
        ("name_5pts_score.txt", " 0.93", " sure", "meta/ijbc_name_5pts_score.txt", "sure"),
        ("name_5pts_score.txt", " 0.93", " -1", "IJBC", "below 0"),
        ("template_pair_label.txt", "1 4 0", "1 4 1", "meta/ijbc_template_pair_label.txt, line 2", "1 and 4"),
        ("template_pair_label.txt", "1 2 1", "1 2 0", "meta/ijbc_template_pair_label.txt, line 1", "two people"),
        ("template_pair_label.txt", "1 2 1", "1 2 -1", "meta/ijbc_template_pair_label.txt", "1 for one person"),
        ("template_pair_label.txt", "1 2 1", "1 2", "meta/ijbc_template_pair_label.txt", "0 or 1"),
        # Only the pair in the other file names template 2.
        ("1N_probe_mixed.csv", "2,100", "2,101", "meta/ijbc_template_pair_label.txt, line 1", "1 and 2"),
        ("1N_probe_mixed.csv", "2,100", "1,101", "IJBC", "template 1"),
        ("1N_probe_mixed.csv", "2,100", "2;100", "meta/ijbc_1N_probe_mixed.csv, line 2", "person"),
    ],
)
def test_lists_that_contradict_themselves_or_each_other_are_refused(
    file: str, old: str, new: str, place: str, keyword: str, tmp_path: Path
) -> None:
    source = write_changed_copy("ijb-c", tmp_path / "IJBC", f"meta/ijbc_{file}", old, new)
    with refused(place, keyword):
        import_photographs("ijb-c", source, tmp_path / "set")
    assert [one.name for one in tmp_path.iterdir()] == ["IJBC"]


def test_lists_with_repeated_templates_and_further_columns_are_read(tmp_path: Path) -> None:
    source = write_changed_copy(
        "ijb-c", tmp_path / "IJBC", "meta/ijbc_1N_gallery_G1.csv", "1,100\r\n", '"1","100",a.jpg\r\n1,100,b.jpg\r\n'
    )
    prepared = list_photographs("ijb-c", source)
    assert prepared.templates is not None
    assert prepared.templates.galleries["g1"].tolist() == [[1, 100], [3, 101]]


def test_missing_and_unlisted_crops_are_skipped(tmp_path: Path) -> None:
    source = write_changed_copy("ijb-c", tmp_path / "IJBC", "meta/ijbc_1N_probe_mixed.csv", "6,102\r\n", "")
    crops = source / "loose_crop"
    (crops / "4.jpg").rename(crops / "10.jpg")
    (source / "meta" / "ijbc_1N_gallery_G2.csv").unlink()
    listing = list_photographs("ijb-c", source)
    assert listing.counts == {"ijb-c/100": 3, "ijb-c/101": 2, "ijb-c/template-5": 2, "ijb-c/template-6": 1}
    assert [(one.path, one.reason) for one in listing.skipped] == [
        ("loose_crop/10.jpg", "it is in no list"),
        ("4.jpg", "it is in a list, but missing"),
    ]


@pytest.mark.parametrize(
    ("kind", "other", "keywords"),
    [
        ("ijb-c", "ijb-b", ("IJB-C", "ijbc_face_tid_mid.txt")),
        ("ijb-b-nist", "ijb-c", ("IJB-B", "ijbb_1N_gallery_S1.csv")),
    ],
)
def test_other_folder_is_refused(kind: str, other: str, keywords: tuple[str, ...], tmp_path: Path) -> None:
    write_small_copy(other, tmp_path / "IJB")
    with refused("IJB", *keywords):
        list_photographs(kind, tmp_path / "IJB")


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
    source = tmp_path / "IJBB"
    write_small_copy("ijb-b-nist", source)
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


def test_points_are_detected_near_a_box_or_placed_as_usual() -> None:
    images, points = render_person(0, "bonafide")
    detector = Detector()

    def detect(image: np.ndarray) -> list[Face]:
        return detector.detect(image)

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
