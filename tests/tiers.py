"""The order and the grouping of tests, and the search for tests that take long.

`make test` leaves out the tests with the marker ``long``, and only `make test-all` runs them. A test has this marker if
it takes ``SECONDS`` or more, and `make test` does not need it to show that every method trains, that a federation of
processes gives the bytes of one process, and that bad input is refused. ``python -m tests.tiers LOG`` prints the
functions that take as long without the marker, from the output of ``make test`` with ``--durations=0``.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

FIRST = ("distributed/", "studies/", "contract/", "faults/", "audit/")
"""Prefixes of long tests, which start first, so that none of them runs alone at the end."""

SPREAD = (
    *("contract/test_every_method.py", "contract/test_null_", "faults/test_killed.py", "runs/test_run.py"),
    *("methods/test_algorithms_on_models.py", "studies/test_studies.py", "federation/test_", "runs/test_workers.py"),
    "cards/",
)
"""Files whose tests share no costly fixture, so that all workers share them. Other files stay with one worker."""

FEDERATED = tuple(
    f"distributed/test_{name}.py" for name in ("own_files", "foreign_kits_and_code", "same_bytes", "operator_commands")
)
"""Files whose tests share federations; one worker runs them."""

SECONDS = 0.7
"""A test function takes long if a call of it takes this time on average."""


def find_long_tests(log: str) -> list[str]:
    """Return the functions of a log of ``--durations=0`` whose calls take ``SECONDS`` or longer on average.

    A file is named instead of its functions if what they share takes ten times as long to set up.
    """
    calls: dict[str, list[float]] = defaultdict(list)
    setups: dict[str, float] = defaultdict(float)
    for seconds, phase, name in re.findall(r"^ *([\d.]+)s (call|setup) +tests/(.+)$", log, re.MULTILINE):
        function = name.partition("[")[0].rstrip()
        if phase == "call":
            calls[function].append(float(seconds))
        else:
            setups[function.partition("::")[0]] += float(seconds)
    files = {file for file, seconds in setups.items() if seconds >= 10 * SECONDS}
    functions = {name for name, times in calls.items() if sum(times) / len(times) >= SECONDS}
    return sorted(files | {name for name in functions if name.partition("::")[0] not in files})


if __name__ == "__main__":
    print(*find_long_tests(Path(sys.argv[1]).read_text(encoding="utf-8")), sep="\n")
