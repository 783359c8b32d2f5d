"""The lists of long tests name tests that exist, and `make test` leaves these out."""

from pathlib import Path

import pytest
from tests.tiers import KEPT, LONG, SPREAD, WHOLE, is_left_to_test_all, long_tests, measure_long_tests

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


@pytest.mark.parametrize("name", sorted({*long_tests(), *KEPT}))
def test_listed_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    source = (TESTS / file).read_text(encoding="utf-8")
    assert f"\ndef {function}(" in source if function else "\ndef test_" in source


@pytest.mark.parametrize("name", sorted(KEPT))
def test_kept_test_is_long(name: str) -> None:
    file = name.partition("::")[0]
    assert any(long_test in {name, file} or long_test.startswith(f"{name}::") for long_test in long_tests())


def test_long_function_is_left_to_test_all_unless_it_is_kept_with_these_parameters() -> None:
    kept = next(name for name, parameters in KEPT.items() if parameters)
    assert is_left_to_test_all("nn/test_layers.py::test_slow[first case]", frozenset({"nn/test_layers.py::test_slow"}))
    assert is_left_to_test_all("faults/test_files.py::test_a", frozenset({"faults/test_files.py"}))
    assert not is_left_to_test_all("nn/test_layers.py::test_fast", frozenset({"nn/test_layers.py::test_slow"}))
    assert not is_left_to_test_all(f"{kept}[{KEPT[kept][0]}]", frozenset({kept}))
    assert is_left_to_test_all(f"{kept}[another]", frozenset({kept}))


def test_functions_with_long_calls_and_files_with_a_long_setup_are_read_from_a_log() -> None:
    assert measure_long_tests(LOG) == ["faults/test_files.py", "nn/test_layers.py::test_slow"]


@pytest.mark.parametrize("prefix", sorted({*WHOLE, *LONG, *SPREAD}))
def test_prefix_matches_files_of_tests(prefix: str) -> None:
    assert any(path.relative_to(TESTS).as_posix().startswith(prefix) for path in TESTS.rglob("test_*.py"))
