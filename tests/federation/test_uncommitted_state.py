"""A site that could not store its private state appears in the run's lines, its rounds, its figures and its report."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tests.toy import Sets, run_toy, tree

from fedvisage.base.progress import Reporter
from fedvisage.federation.record.ledger import read_lines
from fedvisage.federation.site_worker import LocalTransport
from fedvisage.report.page import write_report

REASON = "its disk is full; see its log"
FULL = (2, 3)
"""The rounds in which the disk of site B is full."""


class FullDisk(LocalTransport):
    """Site B cannot commit in some rounds, and goes back to its last generation, as over NVFlare."""

    generation = 0

    def commit(self, generation: int) -> dict[str, int]:
        self.uncommitted = {"B": REASON} if generation in FULL else {}
        committed = {}
        for name, worker in self.site_workers.items():
            if name in self.uncommitted:
                worker.restore(self.generation)
                committed[name] = self.generation
            else:
                committed[name] = worker.commit(generation)
        self.generation = committed["B"]
        return committed


@pytest.fixture(scope="module")
def run_and_output(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a run with a full disk, and the lines that its operator saw."""
    out, screen = tmp_path_factory.mktemp("full") / "run", io.StringIO()
    content = tree(sets, "fedgpad", training__rounds=4, training__optimizer__state="kept")
    run_toy(content, out, wire=FullDisk, reporter=Reporter(Console(file=screen, width=1000)))
    return out, screen.getvalue()


def test_rounds_record_the_site_that_could_not_commit(run_and_output: tuple[Path, str]) -> None:
    rows = read_lines(run_and_output[0] / "rounds.jsonl")
    assert [row.get("uncommitted") for row in rows] == [None, {"B": REASON}, {"B": REASON}, None]
    assert [row["counted"] for row in rows] == [["A", "B", "C"]] * 4, "its uploads count"
    assert [row["failed"] for row in rows] == [{}] * 4


def test_run_prints_the_site_that_could_not_commit(run_and_output: tuple[Path, str]) -> None:
    rounds = [line for line in run_and_output[1].splitlines() if line.startswith("round ")]
    assert [f"B could not store its private state: {REASON}" in line for line in rounds] == [False, True, True, False]
    assert "note: B lost its private state of rounds 2, 3, which it could not store" in run_and_output[1].splitlines()


def test_metrics_count_the_rounds_that_a_site_could_not_commit(run_and_output: tuple[Path, str]) -> None:
    attendance = json.loads((run_and_output[0] / "metrics.json").read_text())["attendance"]
    assert attendance["uncommitted"] == {"B": [2, 3]}
    assert attendance["rounds"] == {"A": 4, "B": 4, "C": 4}


def test_report_shows_the_site_that_could_not_commit(run_and_output: tuple[Path, str]) -> None:
    write_report(run_and_output[0])
    page = (run_and_output[0] / "report.html").read_text()
    assert page.count(f"could not store its private state: {REASON}") == 2
    assert "B lost its private state of rounds 2, 3" in page


def test_run_without_failed_commits_records_no_failure(sets: Sets, tmp_path: Path) -> None:
    run_toy(tree(sets, training__rounds=1), tmp_path / "run")
    (row,) = read_lines(tmp_path / "run" / "rounds.jsonl")
    assert "uncommitted" not in row
    assert "uncommitted" not in json.loads((tmp_path / "run/metrics.json").read_text())["attendance"]
