"""IJB-B and IJB-C as InsightFace repacks them: the person and template of each crop, and contradicting lists."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.datasets.imports import import_photographs, list_photographs, write_changed_copy
from tests.refusals import refused

from fedvisage.data.lists import read_lists
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import write_small_copy
from fedvisage.faces.align import align

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


def test_other_folder_is_refused(tmp_path: Path) -> None:
    write_small_copy("ijb-b", tmp_path / "IJBB")
    with refused("IJBB", "IJB-C", "ijbc_face_tid_mid.txt"):
        list_photographs("ijb-c", tmp_path / "IJBB")
