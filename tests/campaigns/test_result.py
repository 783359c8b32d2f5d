"""The result of a soak: each problem is reported, and the table counts the events."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaigns.soak import table
from campaigns.soak.faults import KINDS, Event
from campaigns.soak.runs import Run
from campaigns.soak.sampling import Sample
from campaigns.soak.table import BEGIN, BOUNDS, DISK, END, Result

KILL, CUT = "a site's processes are killed", "a site's network is cut"
SAMPLE = Sample(at=0.0, kind="server", machine="server", pid=1, age=300.0, rss_mb=300.0, files=30, threads=20)


@pytest.fixture
def result() -> Result:
    """Half an hour without problems, with two runs of three rounds each."""
    runs = [
        Run(Path("run-001"), 0.0, 100.0, 1, rounds=[(20.0, 1), (50.0, 2), (90.0, 3)], jobs=2, resubmissions=1),
        Run(Path("run-002"), 110.0, 200.0, 2, rounds=[(130.0, 1), (135.0, 2), (199.0, 3)], jobs=4, resubmissions=2),
    ]
    events = [Event(30.0, KILL, "A", 0.0), Event(40.0, CUT, "B", 9.0), Event(136.0, KILL, "A", 0.0)]
    samples = [replace(SAMPLE, at=60.0 * n, age=60.0 * n) for n in range(3, 33)]
    disk = [{"server": 100, "A": 10}, {"server": 100 + 2**21, "A": 10}]
    return Result(30, 7, 5, 3, True, 0.0, 1800.0, events, samples, runs, disk, equal=1, repeated=1)


def test_soak_without_problems_reports_none(result: Result) -> None:
    result.codes = {"server": [-9, 1], "A": []}
    result.runs[1].failures.append("1: the server cannot be reached")
    assert result.problems() == []


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"errors": ["run-001 and its repetition: model.safetensors"]}, "model.safetensors"),
        ({"codes": {"server": [-9], "B": [1, 2]}}, "B"),
        ({"lines": [(5.0, "Traceback (most recent call last):")]}, "traceback"),
        ({"remaining_jobs": 3}, "3"),
        ({"zombies": 4}, "4 dead"),
        ({"orphans": 5}, "5"),
        ({"disk": [{"A": 0}, {"A": int(4 * 1.5 * DISK * 2**20)}]}, f"A: {1.5 * DISK:.2f} MB"),
    ],
)
def test_each_problem_is_reported(result: Result, changes: dict[str, Any], keyword: str) -> None:
    (problem,) = replace(result, **changes).problems()
    assert keyword in problem


def test_exit_code_other_than_that_of_a_failed_run_is_a_problem(result: Result) -> None:
    result.runs[0].failures += ["1: a failed run", "-6: it crashed"]
    (problem,) = result.problems()
    assert "run-001" in problem
    assert "-6" in problem


@pytest.mark.parametrize("value", list(BOUNDS))
def test_growing_process_is_a_problem(result: Result, value: str) -> None:
    per_second, start = 2 * BOUNDS[value] / 3600, float(getattr(SAMPLE, value))
    changes: list[dict[str, Any]] = [{value: start + per_second * sample.age} for sample in result.samples]
    result.samples = [replace(sample, **change) for sample, change in zip(result.samples, changes, strict=True)]
    (problem,) = result.problems()
    assert value in problem
    assert "server" in problem


def test_recovery_ends_with_the_first_round_that_began_after_the_fault(result: Result) -> None:
    """Round 2 began before both faults and ended at 50; round 3 began later and ended at 90."""
    assert result.recoveries(KILL) == [60.0], "the only round after the last fault had begun before it"
    assert result.recoveries(CUT) == [50.0]


def test_table_counts_the_events(result: Result) -> None:
    text = "\n".join(result.table())
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert [KILL, "2", "60, 60"] in rows
    assert [CUT, "1", "50, 50"] in rows
    assert sum(row[0] in KINDS for row in rows) == 2, "other faults have no row"
    server = next(row for row in rows if row[0] == "server")
    assert server[1:5] == ["300, 300", "30, 30", "20, 20", f"{30 * 5 / 3600:.1f}"]
    for part in ("30 minutes", "seed 7", "3 faults", "6 rounds", "2 of 2 runs", "0.50 MB"):
        assert part in text
    assert "submitted runs again 3 times" in text
    assert "called it again 1 times" in text


def test_new_table_replaces_the_old_one_in_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = table.REPORT.read_text(encoding="utf-8")
    assert text.index(BEGIN) < text.index(END)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    monkeypatch.setattr(table, "REPORT", page)
    table.write(["new"])
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
