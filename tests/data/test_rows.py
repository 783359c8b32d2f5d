"""Tables are read as whole columns with the result, and the refusals, of reading them row by row."""

import csv
from pathlib import Path

import numpy as np
import pytest

from fedvisage.base.errors import UserError
from fedvisage.data.rows import ImageRows, RowRules, as_columns, read_rows, rows_of

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
