"""Identity sets: one more column in the rows, and one rule that does not apply to them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.small_sets import columns_of
from tests.refusals import refused

from fedvisage.data.batches import View
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import COLUMNS
from fedvisage.data.writer import Writer
from fedvisage.datasets.sources import Part, without_part
from fedvisage.recipe import expand_sites

IMAGE = np.zeros((1, 8, 8, 3), np.uint8)


def write(path: Path, *rows: dict[str, Any], identities: bool = True) -> Path:
    """Write a set with one image for each row, by default a person's first training image."""
    with Writer(path, name="T", size=8, source="a test", identities=identities) as out:
        for number, row in enumerate(rows):
            values = {"subject": "ann", "video": f"v{number}", "item": f"{number}.png", **row}
            if identities:
                values = {"group": "north", **values}
            out.add(IMAGE, **columns_of(1, **{name: [value] for name, value in values.items()}))
    return path


def test_identity_set_has_groups_and_mixed_splits(tmp_path: Path) -> None:
    write(tmp_path / "set", {}, {"split": "test"}, {"subject": "bob", "group": "south", "split": "heldout"})
    prepared = PreparedSet.open(tmp_path / "set", verify=True)
    assert prepared.rows.group is not None
    assert prepared.rows.group.tolist() == ["north", "north", "south"]
    view = View.of(prepared, None)
    assert view.of_identities
    assert view.identities.tolist() == ["ann", "bob"]
    assert view.of_people(np.array(["bob"])).items.tolist() == ["2.png"]


def test_sets_of_attacks_have_no_groups(tmp_path: Path) -> None:
    write(tmp_path / "set", {}, identities=False)
    assert (tmp_path / "set" / "rows.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    prepared = PreparedSet.open(tmp_path / "set")
    assert prepared.rows.group is None
    assert not View.of(prepared, None).of_identities
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
def test_invalid_rows_of_identity_sets_are_refused(tmp_path: Path, second: dict[str, Any], keyword: str) -> None:
    with refused("set", "1.png", keyword):
        write(tmp_path / "set", {}, second)
    assert not (tmp_path / "set").exists()


def test_only_identity_sets_have_groups(tmp_path: Path) -> None:
    plain, with_group = columns_of(1), columns_of(1, group=["north"])
    for identities, right, wrong in ((False, plain, with_group), (True, with_group, plain)):
        with Writer(tmp_path / f"{identities}", name="T", size=8, source="", identities=identities) as out:
            with pytest.raises(ValueError, match="groups"):
                out.add(IMAGE, **wrong)
            out.add(IMAGE, **right)


def test_writer_refuses_unknown_and_missing_columns(tmp_path: Path) -> None:
    columns = columns_of(1)
    with Writer(tmp_path / "set", name="T", size=8, source="") as out:
        for wrong in ({**columns, "person": ["ann"]}, {name: columns[name] for name in columns if name != "split"}):
            with pytest.raises(TypeError, match="a batch has the columns"):
                out.add(IMAGE, **wrong)
        out.add(IMAGE, **columns)


def test_row_without_a_group_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "set", {})
    rows = tmp_path / "set" / "rows.csv"
    rows.write_text(rows.read_text().replace(",north", "     x"))
    with refused("set/rows.csv", "line 2", "8"):
        PreparedSet.open(tmp_path / "set")


def test_entry_may_have_a_share_and_key_many_sites() -> None:
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
