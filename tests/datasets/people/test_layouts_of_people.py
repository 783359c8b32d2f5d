"""Folders of people as published: people, groups and pairs by the datasets' documentation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.datasets.imports import import_photographs, import_quietly, list_photographs, write_changed_copy
from tests.refusals import refused

from fedvisage.data.batches import View
from fedvisage.data.lists import read_pairs
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import LAYOUTS, describe_kinds, write_small_copy
from fedvisage.tasks.recognition.benchmarks import pairs_among

PEOPLE = {
    "rec": {"copy/0000000": 2, "copy/0000001": 1},
    "vggface2": {"vggface2/n000001": 2, "vggface2/n000002": 3},
    "bupt-balancedface": {"bupt-balancedface/African/m.01": 2, "bupt-balancedface/Indian/m.01": 2},
    "digiface": {"digiface/000007": 2, "digiface/100003": 2},
    "bin": {
        f"bin/people/pair{name}": 2 - (name[-1] in "ab")
        for name in ("000000", "000001a", "000001b", "000002", "000003a", "000003b")
    },
    "lfw": {"lfw/Ann_Ay": 3, "lfw/Bea": 2},
    "calfw": {"calfw/Ann_Ay": 3, "calfw/Bea": 2},
    "cplfw": {"cplfw/Ann_Ay": 3, "cplfw/Bea": 2},
    "cfp": {"cfp/001": 3, "cfp/002": 3},
    "agedb": {"agedb/AnnAy": 2, "agedb/BobBe": 2},
    "rfw": {f"rfw/{race}-m.0{who}": 2 for race in ("African", "Asian", "Caucasian", "Indian") for who in (0, 1)},
    "ijb-b": {f"ijb-b/{who}": 3 for who in (100, 101, 102)},
    "ijb-c": {f"ijb-c/{who}": 3 for who in (100, 101, 102)},
    "ijb-b-nist": {"ijb-b-nist/100": 3, "ijb-b-nist/101": 2, "ijb-b-nist/102": 2},
    "ijb-c-nist": {"ijb-c-nist/100": 3, "ijb-c-nist/101": 2, "ijb-c-nist/102": 2},
}
"""The people of each small copy, with their numbers of photographs."""

A, B = "Ann_Ay/Ann_Ay_000", "Bea/Bea_000"
IN_THE_WILD = [
    (A + "1", A + "2", True, 0),
    (A + "1", B + "1", False, 0),
    (B + "1", B + "2", True, 1),
    (A + "3", B + "2", False, 1),
]
PAIRS = {
    ("lfw", ""): IN_THE_WILD,
    ("calfw", ""): IN_THE_WILD,
    ("cplfw", ""): IN_THE_WILD,
    ("cfp", "-ff"): [
        ("001/001_0001", "001/001_0002", True, 0),
        ("001/001_0001", "002/002_0001", False, 0),
        ("002/002_0001", "002/002_0002", True, 1),
        ("001/001_0002", "002/002_0002", False, 1),
    ],
    ("cfp", "-fp"): [
        ("001/001_0001", "001/001_0101", True, 0),
        ("001/001_0001", "002/002_0101", False, 0),
        ("002/002_0002", "002/002_0101", True, 1),
        ("002/002_0001", "001/001_0101", False, 1),
    ],
    ("rfw", "-asian"): [
        ("Asian-m.00/Asian-m.00_0001", "Asian-m.00/Asian-m.00_0002", True, 0),
        ("Asian-m.00/Asian-m.00_0001", "Asian-m.01/Asian-m.01_0001", False, 0),
        ("Asian-m.01/Asian-m.01_0001", "Asian-m.01/Asian-m.01_0002", True, 1),
        ("Asian-m.00/Asian-m.00_0002", "Asian-m.01/Asian-m.01_0002", False, 1),
    ],
}
"""Pairs of the small copies by hand: both images, whether they are of one person, the fold."""


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("people")
    for kind in LAYOUTS:
        write_small_copy(kind, root / kind / "copy")
    return root


def test_every_layout_lists_the_expected_people(copies: Path) -> None:
    """One test, because the person of a photograph does not depend on its pixels, and no detector runs."""
    assert {*PEOPLE} == {*LAYOUTS}
    for kind, layout in LAYOUTS.items():
        listing = layout.scan(layout, copies / kind / "copy")
        assert listing.counts == PEOPLE[kind]
        assert not listing.skipped
        assert {person: len({one.name for one in listing.photographs(person)}) for person in listing.counts} == PEOPLE[
            kind
        ]


@pytest.mark.parametrize("kind", ["lfw", "calfw", "cplfw", "cfp", "rfw"])
def test_benchmark_import_writes_lists_with_existing_pairs(kind: str, copies: Path, tmp_path: Path) -> None:
    lines = import_quietly(kind, copies / kind / "copy", tmp_path / "set", size=32, heldout=0.5)
    prepared = PreparedSet.open(tmp_path / "set", verify=True)
    assert "heldout" not in prepared.rows.split
    items = {name.rpartition(".")[0]: who for name, who in zip(prepared.rows.item, prepared.rows.subject, strict=True)}
    lists = sorted(tmp_path.glob("set-pairs*.txt"))
    assert sum(line.startswith("pairs: ") for line in lines) == len(lists)
    for path in lists:
        listed = read_pairs(path)
        pairs = pairs_among(View.of(prepared, None), str(path))  # what `evaluate --pairs` does
        assert (len(pairs), pairs.left_out) == (len(listed), 0)
        assert [items[one] == items[two] for one, two in zip(listed.first, listed.second, strict=True)] == [
            *listed.same
        ]
        if expected := PAIRS.get((kind, path.stem.removeprefix("set-pairs"))):
            assert [*zip(listed.first, listed.second, listed.same, listed.fold, strict=True)] == expected


def test_combined_rfw_list_has_each_group_in_every_fold(copies: Path) -> None:
    listing = list_photographs("rfw", copies / "rfw" / "copy")
    assert {*listing.pairs} == {"", "african", "asian", "caucasian", "indian"}
    assert [sorted({pair[0][0].partition("-")[0] for pair in fold}) for fold in listing.pairs[""]] == [
        ["African", "Asian", "Caucasian", "Indian"]
    ] * 2
    assert {one.group for person in listing.counts for one in listing.photographs(person)} == {*listing.pairs} - {""}


def test_vggface2_has_split_gender_and_points(tmp_path: Path) -> None:
    source = tmp_path / "vggface2" / "copy"  # a copy of its own, because the test changes files
    write_small_copy("vggface2", source)
    with refused("vggface2/copy", "VGGFace2", "--boxes dataset"):
        import_photographs("vggface2", source, tmp_path / "none", size=32, boxes="dataset")
    place = "30,40,70,40,50,60,35,80,66,80"
    for part, names in (("train", [f"n000002/{n:04d}_01" for n in (1, 2, 3)]), ("test", ["n000001/0001_01"])):
        rows = "".join(f'"{name}",{place}\r\n' for name in names)
        (source / f"loose_landmark_{part}.csv").write_text("NAME_ID,P1X,P1Y,P2X,P2Y\r\n" + rows)
    report = import_photographs("vggface2", source, tmp_path / "set", size=112, boxes="dataset", max_bad=0.3)
    prepared = PreparedSet.open(tmp_path / "set")
    assert prepared.rows.further["official"].tolist() == ["test", "train", "train", "train"]
    assert prepared.rows.further["gender"].tolist() == ["m", "f", "f", "f"]
    assert [one.reason for one in report.skipped] == ["the dataset's lists have no points for it"]
    assert prepared.points is not None
    assert np.allclose(prepared.points[0], prepared.points[1])
    assert str(prepared.crop) == "faces by the dataset's points, aligned by five points"
    meta = source / "meta" / "identity_meta.csv"
    meta.write_text(meta.read_text(encoding="utf-8").replace("2, 0, m", "2, 1, m"), encoding="utf-8")
    with refused("vggface2/copy", "n000001", "identity_meta.csv"):
        import_photographs("vggface2", source, tmp_path / "other", size=32)


@pytest.mark.parametrize(
    ("kind", "file", "old", "new", "place", "keyword"),
    [
        ("lfw", "pairs.txt", "Bea\t1\t2\n", "", "copy/pairs.txt", "3 pairs"),
        ("lfw", "pairs.txt", "Bea\t1\t2\n", "Bea\tx\t2\n", "copy/pairs.txt, line 4", "images"),
        ("calfw", "pairs_CALFW.txt", "Ay_0002.jpg 1", "Ay_0002.jpg 2", "pairs_CALFW.txt, line 1", "1 and 2"),
        ("calfw", "pairs_CALFW.txt", "Ann_Ay_0002.jpg 1", "Bea_0002.jpg 1", "pairs_CALFW.txt, line 1", "Bea_0002"),
        ("cplfw", "pairs_CPLFW.txt", "Bea_1.jpg 0", "Ann_Ay_2.jpg 0", "pairs_CPLFW.txt, line 3", "Ann_Ay_2"),
        ("cplfw", "pairs_CPLFW.txt", "Ann_Ay_1.jpg 1\n", "", "pairs_CPLFW.txt", "7 lines"),
        ("cfp", "Protocol/Split/FP/01/same.txt", "1,1", "1,9", "Split/FP/01/same.txt, line 1", "Pair_list_F.txt"),
        ("cfp", "Protocol/Split/FP/01/same.txt", "1,1", "1,2", "Split/FP/01/same.txt, line 1", "same"),
    ],
)
def test_lists_that_contradict_the_photographs_are_refused(
    kind: str, file: str, old: str, new: str, place: str, keyword: str, tmp_path: Path
) -> None:
    source = write_changed_copy(kind, tmp_path / "copy", file, old, new)
    with refused(place, keyword):
        import_photographs(kind, source, tmp_path / "set", size=32)
    assert [one.name for one in tmp_path.iterdir()] == ["copy"]


def test_other_folder_is_refused_and_outward_link_skipped(copies: Path, tmp_path: Path) -> None:
    with refused("lfw/copy", "VGGFace2"):
        import_photographs("vggface2", copies / "lfw" / "copy", tmp_path / "set", size=32)
    write_small_copy("digiface", tmp_path / "copy")
    (tmp_path / "out.png").write_bytes(b"x")
    (tmp_path / "copy" / "subjects_0-1999_72_imgs" / "7" / "12.png").symlink_to(tmp_path / "out.png")
    listing = list_photographs("digiface", tmp_path / "copy")
    assert "to outside" in listing.skipped[0].reason


def test_aligned_runs_no_detector_and_requires_people(copies: Path, tmp_path: Path) -> None:
    source = copies / "digiface" / "copy"
    options: dict[str, Any] = {"size": 32, "aligned": True, "max_bad": 1}
    with refused("digiface/copy", "000007/0.png", "192×160"):
        import_quietly("digiface", source, tmp_path / "a", **options)
    for kind in ("oulu-npu", "all"):
        with refused("--aligned", "people"):
            import_quietly(kind, source, tmp_path / "b", **options)
    contradicting: dict[str, Any] = {"aligned": True, "crop": "centre"}
    with refused("--aligned", "--crop centre"):
        import_quietly("identities", source, tmp_path / "c", **contradicting)


def test_kinds_describe_expected_files() -> None:
    assert "    5,749 people, 13,233 images" in describe_kinds("lfw")
    assert {f"{kind}: {layout.title}" for kind, layout in LAYOUTS.items()} <= {*describe_kinds("")}
