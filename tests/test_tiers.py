"""What `make test` leaves to `make test-all` exists, and a test of `make test` covers the same promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.tiers import LONG, MOVED, SPREAD, WHOLE, Moved

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def names() -> list[str]:
    """The names of all tests of the files in the table, as `make test-all` collects them."""
    files = sorted({name.split("::")[0] for row in MOVED for name in (row.test, row.sibling)})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    command += ["-m", "not slow and not browser", *(f"tests/{file}" for file in files)]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("row", MOVED, ids=lambda row: f"{row.test}-{row.parameter}")
def test_a_moved_test_exists_and_its_sibling_stays(row: Moved, names: list[str]) -> None:
    assert any(row.covers(name) for name in names)
    siblings = [name for name in names if name.split("[")[0] == row.sibling]
    assert any(not any(other.covers(name) for other in MOVED) for name in siblings)


@pytest.mark.parametrize("prefix", sorted({*WHOLE, *LONG, *SPREAD}))
def test_a_prefix_names_files_of_tests(prefix: str) -> None:
    assert any(path.relative_to(TESTS).as_posix().startswith(prefix) for path in TESTS.rglob("test_*.py"))
