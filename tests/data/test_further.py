"""Sets with further columns, and resumed writers."""

from pathlib import Path

import pytest
from tests.data.small_sets import add_rows, make_set, pixels, write_set
from tests.refusals import refused

from fedvisage.base.errors import UserError
from fedvisage.data.partial_set import Journal
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer


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
