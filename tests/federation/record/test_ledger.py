"""The ledger keeps every line, and marks those whose exchange an interrupted run repeats."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tests.refusals import refused

from fedvisage.federation.record.ledger import JsonLines, read_lines


def test_a_ledger_is_cut_back_to_a_length_and_grows_from_there(tmp_path: Path) -> None:
    ledger = JsonLines(tmp_path / "ledger.jsonl")
    ledger.append({"line": 1})
    length = ledger.flush()
    ledger.append({"line": 2, "not": "durable"})
    ledger.cut(length)
    ledger.append({"line": 3})
    ledger.close()
    assert read_lines(tmp_path / "ledger.jsonl") == [{"line": 1}, {"line": 3}]


def ledger_of(path: Path, lines: Sequence[int]) -> int:
    """Append lines to a ledger, as a process that is killed afterwards, and return the length."""
    ledger = JsonLines(path)
    for line in lines:
        ledger.append({"line": line})
    return ledger.flush()


def marked(path: Path) -> list[int]:
    return [row["line"] for row in read_lines(path) if row.get("repeated")]


def unmarked(path: Path) -> list[int]:
    return [row["line"] for row in read_lines(path) if not row.get("repeated")]


def resumed(path: Path, length: int) -> None:
    with closing(JsonLines(path)) as ledger:
        ledger.mark_repeated(length)


def test_lines_after_a_checkpoint_are_kept_and_marked_however_often_the_run_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = ledger_of(path, [1])
    ledger_of(path, [2, 3])
    resumed(path, first)
    ledger_of(path, [2])
    resumed(path, first)
    resumed(path, first)  # killed before it sent anything
    second = ledger_of(path, [2, 3])
    ledger_of(path, [4])
    resumed(path, second)
    ledger_of(path, [4, 5])
    assert unmarked(path) == [1, 2, 3, 4, 5]
    assert marked(path) == [2, 3, 2, 4]
    resumed(path, first)  # the second checkpoint was lost
    assert (unmarked(path), marked(path)) == ([1], [2, 3, 2, 2, 3, 4, 4, 5])


def test_a_line_is_in_the_file_when_it_has_been_appended(tmp_path: Path) -> None:
    ledger = JsonLines(tmp_path / "ledger.jsonl")
    ledger.append({"line": 1})
    assert read_lines(tmp_path / "ledger.jsonl") == [{"line": 1}]
    ledger.close()


def test_a_line_that_was_torn_by_the_interruption_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    length = ledger_of(path, [1])
    with path.open("ab") as file:
        file.write(b'{"line": 2}\n{"line": "\xc3')
    resumed(path, length)
    assert path.read_bytes() == b'{"line": 1}\n{"line": 2, "repeated": true}\n'


def test_a_damaged_line_after_a_checkpoint_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    length = ledger_of(path, [1])
    path.write_bytes(path.read_bytes() + b'\xff\n{"line": 3}\n')
    before = path.read_bytes()
    with refused("ledger.jsonl", "line 2"):
        resumed(path, length)
    assert path.read_bytes() == before


def test_a_ledger_shorter_than_a_checkpoint_says_is_not_filled_up(tmp_path: Path) -> None:
    ledger = JsonLines(tmp_path / "ledger.jsonl")
    ledger.append({"line": 1})
    for change in (ledger.cut, ledger.mark_repeated):
        with refused("ledger.jsonl", "checkpoint"):
            change(1000)
