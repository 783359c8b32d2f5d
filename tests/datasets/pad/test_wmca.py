"""WMCA: what types and instruments are, three forms of lists, and which of two copies of the frames are read."""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.datasets.pad.copies import changeable, listed
from tests.refusals import refused

from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.import_presentations import import_items
from fedvisage.datasets.options import ImportOptions
from fedvisage.datasets.pad.wmca import species_of

LIST = "documentation/PROTOCOL-grandtest.csv"
# By type: how many of the 100 numbers of instruments are of which species, counted from the dataset's documentation.
COUNTS = {
    "0": {"bonafide": 100},
    "1": {"glasses": 97, "mask_rigid": 3},
    "2": {"mask_head": 7, "mask_paper": 4, "mask_rigid": 6, "mask_flexible": 26, None: 57},
    "3": {"print": 97, "replay": 3},
    "4": {"replay": 100},
}


@pytest.mark.parametrize("kind", COUNTS)
def test_types_and_instruments_have_species(kind: str) -> None:
    assert Counter(species_of(kind, instrument) for instrument in range(100)) == COUNTS[kind]


@pytest.fixture
def root(copies: Mapping[str, Path], tmp_path: Path) -> Path:
    return changeable(copies["wmca"], tmp_path / "copy")


TABLE = """,client_id,filepath,group,label
0,12,face-station/26.01.18/012_01_000_0_00.hdf5,train,bonafide
1,12,face-station/26.01.18/012_01_017_2_83.hdf5,{},attack
2,19,face-station/14.02.18/019_01_000_0_01.hdf5,dev,bonafide
"""


def test_a_table_with_a_head_is_compared_and_has_the_parts(root: Path) -> None:
    (root / LIST).write_text(TABLE.format("eval"))
    found = listed("wmca", root)
    assert {item.name[-20:-5]: item.split for item in found.items if item.split} == {
        "012_01_000_0_00": "train",
        "012_01_017_2_83": "test",
        "019_01_000_0_01": "dev",
    }
    (root / LIST).write_text(TABLE.format("eval").replace("attack", "bonafide"))
    with refused("documentation/PROTOCOL-grandtest.csv", "line 3", "012_01_017_2_83", "bonafide"):
        listed("wmca", root)


def test_lines_of_a_path_and_a_label_are_compared(root: Path) -> None:
    path = root / "PROTOCOL-frames.csv"
    path.write_text("R_CDIT/012_01_000_0_00 0\nR_CDIT/012_01_017_2_83 1\n")
    assert "labels in lists agree with the names: 2 lists" in listed("wmca", root).notes
    path.write_text("R_CDIT/012_01_000_0_00 0\nR_CDIT/012_01_017_2_83 0\n")
    with refused("copy/PROTOCOL-frames.csv", "line 2", "012_01_017_2_83", "0"):
        listed("wmca", root)


def test_the_cut_out_frames_go_before_the_recordings_and_other_channels_are_left_out(root: Path) -> None:
    whole = listed("wmca", root)
    for folder in ("face-station", "preprocessed-face-station_CDIT"):
        shutil.copytree(root / "preprocessed-face-station_RGB", root / folder)
    both = listed("wmca", root)
    assert [item.name for item in both.items] == [item.name for item in whole.items]
    assert sum(both.stray.values()) == 14
    shutil.rmtree(root / "preprocessed-face-station_RGB")
    assert {item.name.split("/")[0] for item in listed("wmca", root).items} == {"face-station"}


def test_colours_are_turned_when_that_is_asked_for(root: Path, tmp_path: Path) -> None:
    assert any("--colour bgr" in note for note in listed("wmca", root).notes)
    sets = []
    for colour in ("", "bgr"):
        import_items(
            SCANNERS["wmca"],
            root,
            tmp_path / f"set-{colour}",
            ImportOptions(size=16, frames="1", crop="centre", colour=colour, max_bad=1.0),
            name="W",
        )
        sets.append(PreparedSet.open(tmp_path / f"set-{colour}").images)
    assert (sets[0] == sets[1][..., ::-1]).all()
    with refused("--colour", "grey", "bgr"):
        listed("wmca", root, ImportOptions(colour="grey"))
    with refused("--colour", "OULU-NPU"):
        listed("oulu-npu", root, ImportOptions(colour="bgr"))
