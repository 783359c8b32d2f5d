"""WMCA: species of types and instruments, three forms of lists, and the choice between two copies of frames."""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.datasets.imports import copy_to, import_attacks, list_items
from tests.refusals import refused

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
    return copy_to(copies["wmca"], tmp_path / "copy")


TABLE = """,client_id,filepath,group,label
0,12,face-station/26.01.18/012_01_000_0_00.hdf5,train,bonafide
1,12,face-station/26.01.18/012_01_017_2_83.hdf5,{},attack
2,19,face-station/14.02.18/019_01_000_0_01.hdf5,dev,bonafide
"""


def test_table_with_a_header_is_compared_and_has_the_parts(root: Path) -> None:
    (root / LIST).write_text(TABLE.format("eval"))
    listing = list_items("wmca", root)
    assert {item.name[-20:-5]: item.split for item in listing.items if item.split} == {
        "012_01_000_0_00": "train",
        "012_01_017_2_83": "test",
        "019_01_000_0_01": "dev",
    }
    (root / LIST).write_text(TABLE.format("eval").replace("attack", "bonafide"))
    with refused("documentation/PROTOCOL-grandtest.csv", "line 3", "012_01_017_2_83", "bonafide"):
        list_items("wmca", root)


def test_lines_of_a_path_and_a_label_are_compared(root: Path) -> None:
    path = root / "PROTOCOL-frames.csv"
    path.write_text("R_CDIT/012_01_000_0_00 0\nR_CDIT/012_01_017_2_83 1\n")
    assert "labels in lists agree with the names: 2 lists" in list_items("wmca", root).notes
    path.write_text("R_CDIT/012_01_000_0_00 0\nR_CDIT/012_01_017_2_83 0\n")
    with refused("copy/PROTOCOL-frames.csv", "line 2", "012_01_017_2_83", "0"):
        list_items("wmca", root)


def test_cropped_frames_replace_recordings(root: Path) -> None:
    whole = list_items("wmca", root)
    for folder in ("face-station", "preprocessed-face-station_CDIT"):
        shutil.copytree(root / "preprocessed-face-station_RGB", root / folder)
    both = list_items("wmca", root)
    assert [item.name for item in both.items] == [item.name for item in whole.items]
    assert sum(both.stray.values()) == 14
    shutil.rmtree(root / "preprocessed-face-station_RGB")
    assert {item.name.split("/")[0] for item in list_items("wmca", root).items} == {"face-station"}


def test_colour_option_reverses_the_channels(root: Path, tmp_path: Path) -> None:
    assert any("--colour bgr" in note for note in list_items("wmca", root).notes)
    rgb, bgr = (
        import_attacks("wmca", root, tmp_path / f"set-{colour}", size=16, frames="1", colour=colour)[0].images
        for colour in ("", "bgr")
    )
    assert (rgb == bgr[..., ::-1]).all()
    with refused("--colour", "grey", "bgr"):
        list_items("wmca", root, ImportOptions(colour="grey"))
    with refused("--colour", "OULU-NPU"):
        list_items("oulu-npu", root, ImportOptions(colour="bgr"))
