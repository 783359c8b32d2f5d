"""Repeated runs of the tests under varied conditions: results are stored, and failures reported."""

import json
from pathlib import Path

import pytest
from tests.soak import Conditions, main

FAILS_WITH_SEED_1 = """
import os
def test_that_passes():
    pass
def test_that_fails_once(pytestconfig):
    assert pytestconfig.option.seed != 1
"""


def soak(directory: Path, runs: int, first: int = 0) -> int:
    """Run the tests of a directory without the suite's own conftest."""
    options = ["--runs", str(runs), "--first", str(first), "--directory", str(directory / "soak")]
    return main([*options, "--", "-p", "tests.seeding", str(directory)])


@pytest.mark.long
def test_failure_is_reported_with_its_seed_and_finished_runs_are_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_once.py").write_text(FAILS_WITH_SEED_1)
    assert soak(tmp_path, 1) == 0
    stored = tmp_path / "soak" / "runs.jsonl"
    first = stored.read_text()
    capsys.readouterr()
    assert soak(tmp_path, 2) == 1
    assert stored.read_text().startswith(first)
    assert [json.loads(line)["seed"] for line in stored.read_text().splitlines()] == [0, 1]
    output = capsys.readouterr().out.splitlines()
    assert [line.split()[4:7] for line in output[1:3]] == [["2", "0", "0"], ["1", "0", "1"]]
    assert output[3].startswith("failed with seed 1: ")
    assert output[3].endswith("test_that_fails_once")
    assert soak(tmp_path, 2, first=1) == 1
    assert [json.loads(line)["seed"] for line in stored.read_text().splitlines()] == [0, 1, 2]


@pytest.mark.long
def test_run_without_tests_counts_as_failed(tmp_path: Path) -> None:
    assert soak(tmp_path, 1) == 1


def test_twenty_runs_have_every_number_of_workers_and_each_condition_twice() -> None:
    runs = [Conditions.of(seed) for seed in range(20)]
    assert {run.workers for run in runs} == {1, 2, 3, 4}
    assert len([run for run in runs if run.busy == 8]) == 2
    assert len([run for run in runs if "avx2" in run.processor]) == 2
    assert len({run.seed for run in runs}) == 20
