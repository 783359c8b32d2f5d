"""Thousands of hostile inputs: ``python -m campaigns.hostile`` (``make hostile``) tries all kinds and prints a table.

A case follows from the seed, its kind and its number, so that ``--replay KIND/NUMBER`` repeats it and prints its
outcome. A process runs many cases; a process that ends early is a finding.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from campaigns.hostile.execution import run_cases
from campaigns.hostile.kinds import KINDS

ROOT = Path(__file__).parents[2]
BATCH = 1250
"""Cases per process."""

COLUMNS = ("cases", "refused", "harmless", "findings", "slowest s", "most MiB", "seconds")


@dataclass
class Row:
    """The outcomes of the cases of a kind."""

    outcomes: list[dict[str, Any]] = field(default_factory=list)
    findings: list[tuple[int, str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def group_findings(self) -> list[list[tuple[int, str, str]]]:
        """Group the findings that differ only in quotations, numbers and paths."""
        groups: dict[str, list[tuple[int, str, str]]] = {}
        for finding in self.findings:
            groups.setdefault(re.sub(r"['\"].*|\d+|/\S*", "", finding[2])[:80], []).append(finding)
        return list(groups.values())

    def cells(self) -> tuple[str, ...]:
        """Return the columns of the table."""
        ends = [outcome["end"] for outcome in self.outcomes]
        slowest = max((outcome["seconds"] for outcome in self.outcomes), default=0.0)
        most = max((outcome["memory"] for outcome in self.outcomes), default=0) >> 20
        counts = (len(ends), ends.count("refused"), ends.count("harmless"), len(self.findings))
        return *(f"{count:,}" for count in counts), f"{slowest:.1f}", f"{most}", f"{self.seconds:.0f}"


def run_in_process(kind: str, seed: int, deadline: float, numbers: range) -> list[dict[str, Any]]:
    """Run some cases in a process of their own, and return their outcomes."""
    seconds = max(0.0, deadline - time.monotonic())
    command = [sys.executable, "-m", "campaigns.hostile", "--seed", str(seed), "--child", kind, str(numbers.start)]
    command += [str(numbers.stop), f"{seconds:.1f}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            output, errors = child.communicate(timeout=seconds + 300)
        except subprocess.TimeoutExpired:
            child.kill()
            output, errors = child.communicate()
    lines = [json.loads(line) for line in output.splitlines()]
    if child.returncode != 0:
        begun = max((line["begun"] for line in lines if "begun" in line), default=numbers.start)
        finding = f"the process ended with {child.returncode}: {errors.decode(errors='replace')[-600:]}"
        lines.append({"number": begun, "title": "", "end": "", "findings": [finding], "seconds": 0.0, "memory": 0})
    return [line for line in lines if "begun" not in line]


def run_here(kind: str, seed: int, deadline: float, numbers: range) -> list[dict[str, Any]]:
    """Run some cases in this process, and return their outcomes."""
    output = io.StringIO()
    with TemporaryDirectory(prefix="hostile-") as base:
        run_cases(kind, seed, numbers, Path(base) / "base", output, deadline)
    return [line for line in map(json.loads, output.getvalue().splitlines()) if "begun" not in line]


def run_campaign(
    kinds: Sequence[str], seed: int, share: float, count: int | None, minutes: float, workers: int
) -> dict[str, Row]:
    """Run the kinds one after another, each in several processes, and print one row per kind."""
    deadline, rows = time.monotonic() + 60 * minutes, dict[str, Row]()
    width = max(len(KINDS[kind].title) for kind in kinds)
    print("".ljust(width), *(name.rjust(9) for name in COLUMNS), flush=True)
    for kind in kinds:
        row, began = Row(), time.monotonic()
        total = count if count is not None else max(1, round(share * KINDS[kind].count))
        batches = [range(start, min(start + BATCH, total)) for start in range(0, total, BATCH)]
        with ThreadPoolExecutor(max(1, workers)) as pool:
            map_batches = pool.map if workers else map
            for lines in map_batches(partial(run_in_process if workers else run_here, kind, seed, deadline), batches):
                row.outcomes += [line for line in lines if line["end"]]
                row.findings += [(line["number"], line["title"], text) for line in lines for text in line["findings"]]
        row.seconds = time.monotonic() - began
        rows[kind] = row
        print(KINDS[kind].title.ljust(width), *(cell.rjust(9) for cell in row.cells()), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kinds, print the table and a command per finding; return 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.hostile", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("kinds", nargs="*", help=f"{', '.join(KINDS)}; all if none is named")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="cases per kind, instead of those of a whole campaign")
    parser.add_argument("--share", type=float, default=1.0, help="share of a whole campaign (%(default)g)")
    parser.add_argument("--minutes", type=float, default=20.0, help="no case starts later (%(default)g)")
    parser.add_argument("--workers", type=int, default=2, help="parallel processes (%(default)d); 0: this one")
    parser.add_argument("--replay", metavar="KIND/NUMBER", help="run one case, and print its outcome")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        kind, first, last, seconds = options.child
        with TemporaryDirectory(prefix="hostile-") as base:
            deadline = time.monotonic() + float(seconds)
            run_cases(kind, options.seed, range(int(first), int(last)), Path(base) / "base", sys.stdout, deadline)
        return 0
    if options.replay:
        kind, _, number = options.replay.partition("/")
        numbers = range(int(number), int(number) + 1)
        with TemporaryDirectory(prefix="hostile-") as base:
            deadline = time.monotonic() + 600
            run_cases(kind, options.seed, numbers, Path(base) / "base", sys.stdout, deadline, verbose=True)
        return 0
    kinds = options.kinds or list(KINDS)
    rows = run_campaign(kinds, options.seed, options.share, options.count, options.minutes, options.workers)
    for kind, row in rows.items():
        for similar in row.group_findings():
            number, title, finding = similar[0]
            print(f"\n{kind}/{number} ({title}), and {len(similar) - 1} like it\n  {finding}")
            print(f"  again: python -m campaigns.hostile --seed {options.seed} --replay {kind}/{number}")
    return int(any(row.findings for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
