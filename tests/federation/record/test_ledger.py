"""The ledger keeps every line, and marks those whose exchange an interrupted run repeats."""

import itertools
import os
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refused

from fedvisage.base.files import pieces_of, read_plain
from fedvisage.federation.record.ledger import REPEATED, JsonLines, read_lines, stream_lines, totals_of


def test_ledger_continues_after_truncation(tmp_path: Path) -> None:
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


def marked_rounds(path: Path) -> list[int]:
    return [row["line"] for row in read_lines(path) if row.get("repeated")]


def unmarked_rounds(path: Path) -> list[int]:
    return [row["line"] for row in read_lines(path) if not row.get("repeated")]


def resume_ledger(path: Path, length: int) -> None:
    with closing(JsonLines(path)) as ledger:
        ledger.check(length, None)
        ledger.mark_repeated(length)
        assert ledger.digest == sha256(path.read_bytes()).hexdigest()


def test_resume_keeps_and_marks_lines_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = ledger_of(path, [1])
    ledger_of(path, [2, 3])
    resume_ledger(path, first)
    ledger_of(path, [2])
    resume_ledger(path, first)
    resume_ledger(path, first)  # killed before it sent anything
    second = ledger_of(path, [2, 3])
    ledger_of(path, [4])
    resume_ledger(path, second)
    ledger_of(path, [4, 5])
    assert unmarked_rounds(path) == [1, 2, 3, 4, 5]
    assert marked_rounds(path) == [2, 3, 2, 4]
    resume_ledger(path, first)  # the second checkpoint was lost
    assert (unmarked_rounds(path), marked_rounds(path)) == ([1], [2, 3, 2, 2, 3, 4, 4, 5])


def test_a_ledger_larger_than_any_text_is_resumed_and_kept_up_to_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    first = ledger_of(path, list(range(1000)))
    before = path.read_bytes()
    ledger_of(path, [1000])
    monkeypatch.setattr("fedvisage.base.files.PIECE", 100)
    for function in (read_plain, pieces_of):
        monkeypatch.setattr(function, "__defaults__", (1000,))
    resume_ledger(path, first)
    assert path.read_bytes() == before + b'{"line": 1000, "repeated": true}\n'


def test_the_digest_follows_each_line_without_reading_the_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    length = ledger_of(path, [1, 2])
    with closing(JsonLines(path)) as ledger:
        ledger.check(length, sha256(b'{"line": 1}\n{"line": 2}\n').hexdigest())
        monkeypatch.delattr("fedvisage.federation.record.ledger.pieces_of")
        ledger.append({"line": 3})
        ledger.flush()
        assert ledger.digest == sha256(b'{"line": 1}\n{"line": 2}\n{"line": 3}\n').hexdigest()


@pytest.mark.parametrize("content", [b'{"line": 1}\n{"line": 4}\n', b'{"line": 2}\n{"line": 1}\n'])
def test_a_ledger_that_was_changed_before_its_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    length = ledger_of(path, [1, 2])
    digest = sha256(path.read_bytes()).hexdigest()
    ledger_of(path, [3])
    with closing(JsonLines(path)) as ledger:
        ledger.check(length, digest)
    path.write_bytes(content + b'{"line": 3}\n')
    with closing(JsonLines(path)) as ledger, refused(path, "digest", "checkpoint", "--out"):
        ledger.check(length, digest)


def test_appended_line_is_in_the_file(tmp_path: Path) -> None:
    ledger = JsonLines(tmp_path / "ledger.jsonl")
    ledger.append({"line": 1})
    assert read_lines(tmp_path / "ledger.jsonl") == [{"line": 1}]
    ledger.close()


def test_line_cut_off_by_the_interruption_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    length = ledger_of(path, [1])
    with path.open("ab") as file:
        file.write(b'{"line": 2}\n{"line": "\xc3')
    resume_ledger(path, length)
    assert path.read_bytes() == b'{"line": 1}\n{"line": 2, "repeated": true}\n'


def test_damaged_line_after_a_checkpoint_is_reported_without_changes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    length = ledger_of(path, [1])
    path.write_bytes(path.read_bytes() + b'\xff\n{"line": 3}\n')
    before = path.read_bytes()
    with refused("ledger.jsonl", "line 2"):
        resume_ledger(path, length)
    assert path.read_bytes() == before


def test_ledger_shorter_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    ledger = JsonLines(tmp_path / "ledger.jsonl")
    ledger.append({"line": 1})
    with refused("ledger.jsonl", "checkpoint"):
        ledger.check(1000, None)


def test_missing_ledger_is_refused_and_not_created(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "ledger.jsonl")
    with closing(lines), refused("ledger.jsonl", "missing"):
        lines.check(10, None)
    assert not lines.path.exists()


@pytest.mark.long
def test_a_ledger_is_read_line_by_line(tmp_path: Path) -> None:
    """A ledger can be larger than memory: its first line is there before the last one is read."""
    path, count = tmp_path / "ledger.jsonl", 300_000
    path.write_text("".join(f'{{"line": {number}}}\n' for number in range(count)) + "changed\n{")
    assert next(stream_lines(path)) == {"line": 0}
    lines = stream_lines(path)
    assert [row["line"] for row in itertools.islice(lines, count)] == list(range(count))
    with refused(path, f"line {count + 1}"):
        next(lines)


def test_a_file_without_line_ends_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": 1}\n')
    os.truncate(path, 1 << 40)  # a sparse file
    with refused(path, "line 2", "67,108,864"):
        read_lines(path)


def test_a_file_that_grew_without_line_ends_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    length = ledger_of(path, [1])
    os.truncate(path, 1 << 40)
    with refused(path, "line 2", "67,108,864"):
        resume_ledger(path, length)


def test_totals_add_up_bytes_by_direction_and_name_the_site_that_released_most() -> None:
    def release_row(site: str, epsilon: float, relation: str) -> dict[str, Any]:
        cost = {"total": {"epsilon": epsilon}, "releases": [{"relation": relation}], "noise": "derived"}
        return {"direction": "up", "site": site, "bytes": 4, "cost": cost}

    rows = [
        {"direction": "down", "site": "A", "bytes": 100},
        {"direction": "up", "site": "A", "bytes": 10, REPEATED: True},
        {"direction": "up", "site": "B", "bytes": 1},
        release_row("A", 1.0, "site"),
        release_row("B", 3.0, "image"),
        release_row("C", 3.0, "site"),
    ]
    totals = totals_of(iter(rows))
    assert totals.bytes == {"up": 23, "down": 100}
    assert totals.repeated == {"up": 10, "down": 0}
    assert totals.privacy == {"epsilon": 3.0, "site": "B", "noise": "derived", "relation": ["image", "site"]}
    without = totals_of(rows[2:3])
    assert (without.repeated, without.privacy) == ({}, {})
