"""Long tests are found in a log, and the prefixes of groups name files that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiers import FEDERATED, FIRST, SPREAD, find_long_tests

TESTS = Path(__file__).parent
LOG = """
============================= slowest durations ==============================
12.00s setup    tests/faults/test_files.py::test_shares_a_costly_set[a]
1.00s call     tests/nn/test_layers.py::test_slow[first case]
0.60s call     tests/nn/test_layers.py::test_slow[second case]
3.00s setup    tests/nn/test_layers.py::test_slow[first case]
0.69s call     tests/nn/test_layers.py::test_fast
0.10s call     tests/faults/test_files.py::test_shares_a_costly_set[a]
"""


def test_functions_with_long_calls_and_files_with_a_long_setup_are_found_in_a_log() -> None:
    assert find_long_tests(LOG) == ["faults/test_files.py", "nn/test_layers.py::test_slow"]


@pytest.mark.parametrize("prefix", sorted({*FIRST, *SPREAD, *FEDERATED}))
def test_prefix_matches_files_of_tests(prefix: str) -> None:
    assert any(path.relative_to(TESTS).as_posix().startswith(prefix) for path in TESTS.rglob("test_*.py"))
