"""Sets with further columns, and sets whose writing goes on after a kill."""

from pathlib import Path

import pytest
from tests.data.making import add_rows, make_set, pixels
from tests.refusals import refused

from fedvisage.base.errors import UserError
from fedvisage.data.partial_set import Journal
from fedvisage.data.prepared import PreparedSet
from fedvisage.data.writer import Writer


def make_further(path: Path, **columns: list[str]) -> PreparedSet:
    with Writer(path, name="T", size=8, source="a test", further=tuple(columns)) as out:
        out.add(
            pixels(2),
            label=[1, 0],
            species=["bonafide", "print"],
            subject=["a", "b"],
            video=["a", "b"],
            frame=[0, 0],
            split=["train", "train"],
            item=["a", "b"],
            further=columns,
        )
    return PreparedSet.open(path, verify=True)


def test_further_columns_stand_behind_the_known_ones_and_are_read_back(tmp_path: Path) -> None:
    found = make_further(tmp_path / "T", official=["train", ""], session=["1", 'two, "2"'])
    assert {name: values.tolist() for name, values in found.rows.further.items()} == {
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
def test_names_that_cannot_be_columns_are_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="extra columns"):
        Writer(tmp_path / "T", name="T", size=8, source="", further=names)


@pytest.mark.parametrize(
    ("header", "keyword"),
    [("session,session", "first line"), ("Session,device", "first line"), ("session", "line 2")],
)
def test_a_table_with_other_columns_is_refused(header: str, keyword: str, tmp_path: Path) -> None:
    make_further(tmp_path / "T", session=["1", "2"], device=["3", "4"])
    rows, manifest = tmp_path / "T/rows.csv", tmp_path / "T/set.json"
    size = rows.stat().st_size
    rows.write_text(rows.read_text().replace("session,device", header))
    manifest.write_text(manifest.read_text().replace(f'"bytes": {size}', f'"bytes": {rows.stat().st_size}'))
    with refused("T/rows.csv", keyword):
        PreparedSet.open(tmp_path / "T")


def test_a_value_that_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    with refused("T", "printable", "'b'"):
        make_further(tmp_path / "T", session=["1", "a\nb"])


def stopped(path: Path, upto: int, *, rest: bool, error: BaseException | None = None) -> None:
    """Write some of a set in pieces of four images, then end as Ctrl-C does, with images that nobody noted."""

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
def test_a_writer_with_the_same_key_goes_on_behind_what_was_noted(upto: int, rest: bool, tmp_path: Path) -> None:
    _, whole = finish_set(tmp_path / "whole")
    stopped(tmp_path / "T", upto, rest=rest)
    done, found = finish_set(tmp_path / "T")
    assert done == list(range(upto))
    assert found.digest == whole.digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["T", "whole"]


def test_notes_beyond_what_the_files_hold_do_not_count(tmp_path: Path) -> None:
    """After a power failure a file may be shorter than it was said to be, and a line may be torn."""
    stopped(tmp_path / "T", 3, rest=False)
    (partial,) = tmp_path.iterdir()
    images = partial / "images.npy"
    images.write_bytes(images.read_bytes()[:-1])
    with (partial / "journal.jsonl").open("a") as file:
        file.write('{"count": 99, "ro')
    done, found = finish_set(tmp_path / "T")
    assert done == [0, 1]
    assert found.digest == finish_set(tmp_path / "whole")[1].digest


def test_another_key_begins_anew_and_removes_what_was_left(tmp_path: Path) -> None:
    stopped(tmp_path / "T", 2, rest=False)
    with Writer(tmp_path / "T", name="T", size=8, source="s", key="other") as out:
        assert out.done == []
        add_rows(out, 0, 4, pixels(4))
    assert [path.name for path in tmp_path.iterdir()] == ["T"]


def test_two_writers_with_one_key_do_not_write_at_once(tmp_path: Path) -> None:
    with Writer(tmp_path / "T", name="T", size=8, source="s", key="k") as out:
        with (
            refused("T", "process"),
            Writer(tmp_path / "T", name="T", size=8, source="s", key="k"),
        ):
            raise AssertionError("it was let in")
        add_rows(out, 0, 4, pixels(4))


def test_a_mistake_leaves_nothing_whatever_was_noted(tmp_path: Path) -> None:
    stopped(tmp_path / "T", 2, rest=False, error=UserError("here", "too many bad files"))
    assert [*tmp_path.iterdir()] == []


def test_notes_wait_until_the_files_are_safe(tmp_path: Path) -> None:
    order: list[str] = []
    journal = Journal(tmp_path / "journal.jsonl", every=1e9)
    journal.note({"piece": 0}, 4, 100, lambda: order.append("safe"))
    assert not (tmp_path / "journal.jsonl").exists()
    journal.settle(lambda: order.append(str((tmp_path / "journal.jsonl").exists())))
    assert order == ["False"]
    assert Journal(tmp_path / "journal.jsonl").records == [{"piece": 0}]
