"""Special names of single datasets of videos: contradictions with folders, and marks."""

import pytest

from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.dataset import Entry, match_name
from fedvisage.datasets.options import ImportOptions


def read_name(kind: str, file: str) -> Entry | str | None:
    seen = match_name(SCANNERS[kind], file, ImportOptions())
    return seen and seen[2]


@pytest.mark.parametrize("name", ["Train/live/003/003-1-2-1-1.mov", "Test/spoof/153/153-1-1-1-1.mov"])
def test_siw_name_with_contradicting_type_is_unknown(name: str) -> None:
    assert read_name("siw", name) is None


@pytest.mark.parametrize(
    ("kind", "name"), [("siw", "Train/live/003/004-1-1-1-1.mov"), ("hkbu-mars-v2", "real/03/07_06_9.avi")]
)
def test_video_in_another_persons_folder_is_left_out(kind: str, name: str) -> None:
    assert read_name(kind, name) == "videos in another person's folder"


def test_every_person_of_rose_youtu_is_in_one_part() -> None:
    parts = {
        n: read_name("rose-youtu", f"{n}/G_T_HS_g_A_{n}_1.mp4") for n in (*range(2, 8), *range(9, 19), *range(20, 24))
    }
    splits = [one.split for one in parts.values() if isinstance(one, Entry)]
    assert splits == ["train"] * 10 + ["test"] * 10


def test_kinds_of_attacks_of_siw_mv2_have_species() -> None:
    name = "Spoof/Any/{}_1.mov"
    entries = {
        attack: read_name("siw-mv2", name.format(attack))
        for attack in SCANNERS["siw-mv2"].names[1].grammar.fields["attack"].split("|")
    }
    assert len(entries) == 14
    assert all(isinstance(one, Entry) and one.species != "bonafide" and not one.subject for one in entries.values())
    assert read_name("siw-mv2", "Spoof/Paper/Live_3.mov") is None
    assert read_name("siw-mv2", "Live/Paper_3.mov") is None
