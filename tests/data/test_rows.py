"""Tables of rows: reading by column and by row, further columns, groups of identity sets, and resumed writers."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.small_sets import add_rows, columns_of, make_set, pixels, write_set
from tests.refusals import refused

from fedvisage.base.errors import UserError
from fedvisage.data.batches import View
from fedvisage.data.partial_set import Journal
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.rows import COLUMNS, ImageRows, RowRules, as_columns, read_rows, rows_of
from fedvisage.data.writer import Writer
from fedvisage.datasets.sources import Part, without_part
from fedvisage.recipe import expand_sites

HEADER = "item,label,species,subject,video,frame,split"
ROWS = [
    f"{subject}/{kind}/{frame}.png,{int(kind == 'bonafide')},{kind},{subject},{subject}-{kind},{frame},{split}"
    for subject, split in (("anna", "train"), ("björn", "heldout"), ("chloé", "test"))
    for kind in ("bonafide", "print")
    for frame in range(3)
]
PEOPLE = [f"{n}.png,1,bonafide,p{n // 2},v{n},0,{('train', 'test')[n % 2]},group-{n % 4 // 2}" for n in range(8)]
VALID = {
    "plain": [HEADER, *ROWS],
    "several blocks": [HEADER, *(f"{n:06d}.png,1,bonafide,s{n},v{n},{n},train" for n in range(4000))],
    "longer values in later blocks": [
        HEADER,
        *(f"{n:06d},1,bonafide,{'s' * (n // 20)}s,v{n},0,train" for n in range(4000)),
    ],
    "groups": [f"{HEADER},group", *PEOPLE],
    "further columns": [f"{HEADER},session,official", *(f"{row},{n % 3},dev" for n, row in enumerate(ROWS))],
    "empty values": [f"{HEADER},session", *(f"{row}," for row in ROWS)],
    "quotes": [HEADER, *ROWS, '"d,e/1.png",1,bonafide,"say ""d""",d,0,train'],
    "hidden directories": [HEADER, *ROWS, ".d/.e..png,1,bonafide,d,d,0,train", "d/..e,1,bonafide,d,d,1,train"],
    "numbers in other forms": [HEADER, *ROWS, "d, 1,bonafide,d,d,+7,train", "e,1,bonafide,d,d,0_1,train"],
    "a long line of short values": [f"{HEADER},a,b", f"i,1,bonafide,s,v,0,train,{'a' * 200},{'b' * 200}"],
}
INVALID = {
    "missing value": "d.png,1,bonafide,d,d,train",
    "values of the next row": "d.png,1,bonafide,d,d,0\ntrain,e.png,1,bonafide,d,d,0,train",
    "no row": "",
    "label": "d.png,2,bonafide,d,d,0,train",
    "text as label": "d.png,one,bonafide,d,d,0,train",
    "species of the other label": "d.png,0,bonafide,d,d,0,train",
    "species": "d.png,0,Print,d,d,0,train",
    "split": "d.png,1,bonafide,d,d,0,dev",
    "frame": "d.png,1,bonafide,d,d,-1,train",
    "huge frame": f"d.png,1,bonafide,d,d,{2**31},train",
    "gigantic frame": f"d.png,1,bonafide,d,d,{10**30},train",
    "item twice": "anna/bonafide/0.png,1,bonafide,d,d,0,train",
    "subject in two splits": "d.png,1,bonafide,anna,d,0,heldout",
    "video of two labels": "d.png,0,print,anna,anna-bonafide,9,train",
    "video of two subjects": "d.png,1,bonafide,d,anna-bonafide,9,train",
    "no item": ",1,bonafide,d,d,0,train",
    "no subject": "d.png,1,bonafide,,d,0,train",
    "no video": "d.png,1,bonafide,d,,0,train",
    "long item": f"{'d' * 256},1,bonafide,d,d,0,train",
    "unprintable video": "d.png,1,bonafide,d,d\x1b[2J,0,train",
    "open quote": '"d.png,1,bonafide,d,d,0,train',
    **{
        f"path {path!r}": f"{path},1,bonafide,d,d,0,train"
        for path in ("/d", "d/", "d//e", "./d", "d/./e", "d/.", "../d", "d/../e", "d/..", ".", "..", "c:d", "d\\e")
    },
}


def read_row_by_row(path: Path) -> ImageRows:
    rules = RowRules(str(path))
    with path.open(encoding="utf-8", newline="") as lines:
        header = lines.readline().strip().split(",")
        lines.seek(0)
        rows = list(rows_of(lines, str(path)))
    for row in rows:
        rules.check(row)
    return as_columns(rows, [name for name in header if name not in (*HEADER.split(","), "group")])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("lines", VALID.values(), ids=VALID)
def test_column_reader_equals_row_reader(tmp_path: Path, lines: list[str], end: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(end.join([*lines, ""]), encoding="utf-8", newline="")
    by_column, by_row = read_rows(path, len(lines) - 1), read_row_by_row(path)
    names = [*HEADER.split(","), "group"]
    columns = {name: (getattr(by_column, name), getattr(by_row, name)) for name in names}
    columns |= {name: (by_column.further[name], column) for name, column in by_row.further.items()}
    assert by_column.further.keys() == by_row.further.keys()
    for name, (column, expected) in columns.items():
        if expected is None:
            assert column is None, name
        else:
            np.testing.assert_array_equal(column, expected)
            assert column.dtype == expected.dtype, name
            assert not column.flags.writeable, name


@pytest.mark.parametrize("fault", INVALID.values(), ids=INVALID)
def test_column_reader_reports_the_fault_of_the_row_reader(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([HEADER, *ROWS, fault, ROWS[0].replace("anna/", "last/"), ""]), encoding="utf-8")
    with pytest.raises(UserError) as by_column:
        read_rows(path, len(ROWS) + 2)
    with pytest.raises((UserError, csv.Error)) as by_row:
        read_row_by_row(path)
    assert str(by_row.value) in str(by_column.value)


@pytest.mark.parametrize("second", ["train", "test"])
def test_held_out_identity_has_no_other_split(tmp_path: Path, second: str) -> None:
    path = tmp_path / "rows.csv"
    rows = [f"a{n}.png,1,bonafide,anna,w{n},0,{split},g" for n, split in enumerate((second, "heldout"))]
    path.write_text("\n".join([f"{HEADER},group", *PEOPLE, *rows, ""]), encoding="utf-8")
    with pytest.raises(UserError, match="two splits"):
        read_rows(path, len(PEOPLE) + 2)


def make_further(path: Path, **columns: list[str]) -> PreparedSet:
    return write_set(path, pixels(2), species=["bonafide", "print"], further=columns)


def test_further_columns_follow_the_standard_ones(tmp_path: Path) -> None:
    prepared = make_further(tmp_path / "T", official=["train", ""], session=["1", 'two, "2"'])
    assert {name: values.tolist() for name, values in prepared.rows.further.items()} == {
        "official": ["train", ""],
        "session": ["1", 'two, "2"'],
    }
    first = (tmp_path / "T/rows.csv").read_text().splitlines()[0]
    assert first == "item,label,species,subject,video,frame,split,official,session"


def test_only_sets_with_further_columns_have_the_second_format(tmp_path: Path) -> None:
    make_further(tmp_path / "T", session=["1", "2"])
    make_set(tmp_path / "plain")
    assert '"format": 2' in (tmp_path / "T/set.json").read_text()
    assert '"format": 1' in (tmp_path / "plain/set.json").read_text()
    assert PreparedSet.open(tmp_path / "plain").rows.further == {}


@pytest.mark.parametrize("names", [("item",), ("group",), ("Session",), ("a", "a"), ("",), ("two words",)])
def test_invalid_column_names_are_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="extra columns"):
        Writer(tmp_path / "T", name="T", size=8, source="", further=names)


@pytest.mark.parametrize(
    ("header", "keyword"),
    [("session,session", "first line"), ("Session,device", "first line"), ("session", "line 2")],
)
def test_table_with_other_columns_is_refused(header: str, keyword: str, tmp_path: Path) -> None:
    make_further(tmp_path / "T", session=["1", "2"], device=["3", "4"])
    rows, manifest = tmp_path / "T/rows.csv", tmp_path / "T/set.json"
    size = rows.stat().st_size
    rows.write_text(rows.read_text().replace("session,device", header))
    manifest.write_text(manifest.read_text().replace(f'"bytes": {size}', f'"bytes": {rows.stat().st_size}'))
    with refused("T/rows.csv", keyword):
        PreparedSet.open(tmp_path / "T")


def test_unprintable_value_is_refused(tmp_path: Path) -> None:
    with refused("T", "printable", "'1'"):
        make_further(tmp_path / "T", session=["1", "a\nb"])


def write_and_stop(path: Path, upto: int, *, rest: bool, error: BaseException | None = None) -> None:
    """Write a part of a set in pieces of four images, then end as with Ctrl-C, perhaps with unnoted images."""

    def write() -> None:
        with Writer(path, name="T", size=8, source="s", key="k", every=0.0) as out:
            for piece in range(upto):
                add_rows(out, 4 * piece, 4, pixels(4, seed=piece))
                out.note(piece=piece)
            if rest:
                add_rows(out, 4 * upto, 4, pixels(4, seed=99))
            raise error or KeyboardInterrupt

    with pytest.raises(type(error) if error else KeyboardInterrupt):
        write()


def finish_set(path: Path) -> tuple[list[object], PreparedSet]:
    with Writer(path, name="T", size=8, source="s", key="k") as out:
        done = [record["piece"] for record in out.done]
        for piece in range(len(done), 5):
            add_rows(out, 4 * piece, 4, pixels(4, seed=piece))
            out.note(piece=piece)
    return done, PreparedSet.open(path, verify=True)


@pytest.mark.parametrize("rest", [False, True])
@pytest.mark.parametrize("upto", [0, 1, 3])
def test_writer_with_the_same_key_resumes_after_noted_work(upto: int, rest: bool, tmp_path: Path) -> None:
    _, whole = finish_set(tmp_path / "whole")
    write_and_stop(tmp_path / "T", upto, rest=rest)
    done, prepared = finish_set(tmp_path / "T")
    assert done == list(range(upto))
    assert prepared.digest == whole.digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["T", "whole"]


def test_notes_beyond_the_files_are_ignored(tmp_path: Path) -> None:
    """After a power failure a file may be shorter than its record, and a line may be incomplete."""
    write_and_stop(tmp_path / "T", 3, rest=False)
    (partial,) = tmp_path.iterdir()
    images = partial / "images.npy"
    images.write_bytes(images.read_bytes()[:-1])
    with (partial / "journal.jsonl").open("a") as file:
        file.write('{"count": 99, "ro')
    done, prepared = finish_set(tmp_path / "T")
    assert done == [0, 1]
    assert prepared.digest == finish_set(tmp_path / "whole")[1].digest


def test_other_key_starts_again_and_removes_leftovers(tmp_path: Path) -> None:
    write_and_stop(tmp_path / "T", 2, rest=False)
    with Writer(tmp_path / "T", name="T", size=8, source="s", key="other") as out:
        assert out.done == []
        add_rows(out, 0, 4, pixels(4))
    assert [path.name for path in tmp_path.iterdir()] == ["T"]


def test_second_writer_with_the_same_key_is_refused(tmp_path: Path) -> None:
    with Writer(tmp_path / "T", name="T", size=8, source="s", key="k") as out:
        with (
            refused("T", "process"),
            Writer(tmp_path / "T", name="T", size=8, source="s", key="k"),
        ):
            raise AssertionError("it was let in")
        add_rows(out, 0, 4, pixels(4))


def test_user_error_removes_noted_work(tmp_path: Path) -> None:
    write_and_stop(tmp_path / "T", 2, rest=False, error=UserError("here", "too many bad files"))
    assert [*tmp_path.iterdir()] == []


def test_notes_wait_until_the_files_are_safe(tmp_path: Path) -> None:
    order: list[str] = []
    journal = Journal(tmp_path / "journal.jsonl", every=1e9)
    journal.note({"piece": 0}, 4, 100, lambda: order.append("safe"))
    assert not (tmp_path / "journal.jsonl").exists()
    journal.settle(lambda: order.append(str((tmp_path / "journal.jsonl").exists())))
    assert order == ["False"]
    assert Journal(tmp_path / "journal.jsonl").records == [{"piece": 0}]


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
