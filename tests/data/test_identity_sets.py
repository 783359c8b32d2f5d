"""Identity sets: one more column in the rows, and one rule that is relaxed for them alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.refusals import refused

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import COLUMNS
from fedvisage.data.writer import Writer
from fedvisage.datasets.sources import Part, without_part
from fedvisage.recipe import expand_sites


def write(path: Path, *rows: dict[str, Any], identities: bool = True) -> Path:
    """Write a set with one image for each row, whose defaults are a person's first training image."""
    with Writer(path, name="T", size=8, source="made for a test", identities=identities) as out:
        for number, row in enumerate(rows):
            values = {
                "label": 1,
                "species": "bonafide",
                "subject": "ann",
                "video": f"v{number}",
                "frame": 0,
                "split": "train",
                "item": f"{number}.png",
                "group": "north",
                **row,
            }
            if not identities:
                del values["group"]
            out.add(np.zeros((1, 8, 8, 3), np.uint8), **{name: [value] for name, value in values.items()})
    return path


def test_groups_come_back_and_an_identity_may_have_images_of_both_kinds(tmp_path: Path) -> None:
    write(tmp_path / "set", {}, {"split": "test"}, {"subject": "bob", "group": "south", "split": "heldout"})
    found = PreparedSet.open(tmp_path / "set", verify=True)
    assert found.rows.group is not None
    assert found.rows.group.tolist() == ["north", "north", "south"]
    view = View.of(found, None)
    assert view.of_identities
    assert view.identities.tolist() == ["ann", "bob"]
    assert view.of_people(np.array(["bob"])).items.tolist() == ["2.png"]


def test_sets_for_attack_detection_read_as_ever(tmp_path: Path) -> None:
    write(tmp_path / "set", {}, identities=False)
    assert (tmp_path / "set" / "rows.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    found = PreparedSet.open(tmp_path / "set")
    assert found.rows.group is None
    assert not View.of(found, None).of_identities
    with refused("other", "ann", "split"):
        write(tmp_path / "other", {}, {"split": "test"}, identities=False)


@pytest.mark.parametrize(
    ("second", "keyword"),
    [
        ({"split": "heldout"}, "heldout"),
        ({"group": "south"}, "south"),
        ({"subject": "eve", "label": 0, "species": "print"}, "bona fide"),
        ({"subject": "eve", "group": "../x"}, "../x"),
        ({"subject": "eve", "group": ""}, "north-2"),
    ],
)
def test_rows_that_no_identity_set_can_have_are_refused(tmp_path: Path, second: dict[str, Any], keyword: str) -> None:
    with refused("set", "1.png", keyword):
        write(tmp_path / "set", {}, second)
    assert not (tmp_path / "set").exists()


def test_a_writer_takes_groups_if_and_only_if_it_writes_an_identity_set(tmp_path: Path) -> None:
    image, columns = np.zeros((1, 8, 8, 3), np.uint8), {"label": [1], "species": ["bonafide"], "subject": ["a"]}
    columns |= {"video": ["v"], "frame": [0], "split": ["train"], "item": ["1.png"]}
    with Writer(tmp_path / "plain", name="T", size=8, source="") as out:
        with pytest.raises(ValueError, match="groups"):
            out.add(image, **columns, group=["north"])
        out.add(image, **columns)
    with Writer(tmp_path / "people", name="T", size=8, source="", identities=True) as out:
        with pytest.raises(ValueError, match="groups"):
            out.add(image, **columns)
        out.add(image, **columns, group=["north"])


def test_a_row_without_its_group_is_no_row(tmp_path: Path) -> None:
    write(tmp_path / "set", {})
    rows = tmp_path / "set" / "rows.csv"
    rows.write_text(rows.read_text().replace(",north", "     x"))
    with refused("set/rows.csv", "line 2", "8"):
        PreparedSet.open(tmp_path / "set")


def test_an_entry_can_name_a_share_and_a_key_many_sites() -> None:
    assert without_part("data/people part=3/40") == ("data/people", Part(3, 40, 3))
    assert without_part("data/people part=3-6/40") == ("data/people", Part(3, 40, 6))
    assert without_part("data/part=3/40") == ("data/part=3/40", None)
    assert expand_sites({"a[9-11]": "DIR part=*/40", "b": "x*"}) == {
        "a09": "DIR part=9/40",
        "a10": "DIR part=10/40",
        "a11": "DIR part=11/40",
        "b": "x*",
    }
    for wrong in ("DIR part=0/3", "DIR part=4/3"):
        with refused(wrong, "part=1/3"):
            without_part(wrong)
