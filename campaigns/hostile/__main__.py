"""Hostile input, in numbers: ``python -m campaigns.hostile`` (``make hostile``) tries all kinds and prints a table.

A case is drawn from the seed, its kind and its number alone, so that ``--replay KIND/NUMBER`` carries out the very
same one again and shows what became of it. A process carries out many cases; one that ends by itself is a finding.
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

from campaigns.hostile.conduct import attack
from campaigns.hostile.kinds import KINDS

ROOT = Path(__file__).parents[2]
PIECE = 1250
"""Cases of one process."""

COLUMNS = ("cases", "refused", "harmless", "findings", "slowest s", "most MiB", "seconds")


@dataclass
class Row:
    """What became of the cases of a kind."""

    outcomes: list[dict[str, Any]] = field(default_factory=list)
    findings: list[tuple[int, str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def alike(self) -> list[list[tuple[int, str, str]]]:
        """Return the findings in groups whose words are the same but for what they quote."""
        groups: dict[str, list[tuple[int, str, str]]] = {}
        for one in self.findings:
            groups.setdefault(re.sub(r"['\"].*|\d+|/\S*", "", one[2])[:80], []).append(one)
        return list(groups.values())

    def cells(self) -> tuple[str, ...]:
        """Return its columns of the table."""
        ends = [one["ended"] for one in self.outcomes]
        slowest = max((one["seconds"] for one in self.outcomes), default=0.0)
        most = max((one["grown"] for one in self.outcomes), default=0) >> 20
        counts = (len(ends), ends.count("refused"), ends.count("harmless"), len(self.findings))
        return *(f"{count:,}" for count in counts), f"{slowest:.1f}", f"{most}", f"{self.seconds:.0f}"


def piece(kind: str, seed: int, until: float, numbers: range) -> list[dict[str, Any]]:
    """Carry out some cases in a process of their own, and return what it wrote."""
    seconds = max(0.0, until - time.monotonic())
    command = [sys.executable, "-m", "campaigns.hostile", "--seed", str(seed), "--child", kind, str(numbers.start)]
    command += [str(numbers.stop), f"{seconds:.1f}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            told, said = child.communicate(timeout=seconds + 300)
        except subprocess.TimeoutExpired:
            child.kill()
            told, said = child.communicate()
    lines = [json.loads(line) for line in told.splitlines()]
    if child.returncode != 0:
        begun = max((line["begun"] for line in lines if "begun" in line), default=numbers.start)
        what = f"the process ended with {child.returncode}: {said.decode(errors='replace')[-600:]}"
        lines.append({"number": begun, "title": "", "ended": "", "wrongs": [what], "seconds": 0.0, "grown": 0})
    return [line for line in lines if "begun" not in line]


def here(kind: str, seed: int, until: float, numbers: range) -> list[dict[str, Any]]:
    """Carry out some cases in this process."""
    told = io.StringIO()
    with TemporaryDirectory(prefix="hostile-") as base:
        attack(kind, seed, numbers, Path(base) / "base", told, until)
    return [line for line in map(json.loads, told.getvalue().splitlines()) if "begun" not in line]


def campaign(
    kinds: Sequence[str], seed: int, share: float, count: int | None, minutes: float, workers: int
) -> dict[str, Row]:
    """Try kinds one after another, each over several processes, and print a row for each."""
    until, rows = time.monotonic() + 60 * minutes, dict[str, Row]()
    width = max(len(KINDS[kind].what) for kind in kinds)
    print("".ljust(width), *(name.rjust(9) for name in COLUMNS), flush=True)
    for kind in kinds:
        row, began = Row(), time.monotonic()
        total = count if count is not None else max(1, round(share * KINDS[kind].count))
        pieces = [range(start, min(start + PIECE, total)) for start in range(0, total, PIECE)]
        with ThreadPoolExecutor(max(1, workers)) as pool:
            carried = pool.map if workers else map
            for lines in carried(partial(piece if workers else here, kind, seed, until), pieces):
                row.outcomes += [line for line in lines if line["ended"]]
                row.findings += [(line["number"], line["title"], wrong) for line in lines for wrong in line["wrongs"]]
        row.seconds = time.monotonic() - began
        rows[kind] = row
        print(KINDS[kind].what.ljust(width), *(cell.rjust(9) for cell in row.cells()), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all kinds, print the table and how to replay each finding; 1 if there is any."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.hostile", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("kinds", nargs="*", help=f"{', '.join(KINDS)}; all if none is named")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="cases of each kind, instead of those of a whole campaign")
    parser.add_argument("--share", type=float, default=1.0, help="share of a whole campaign (%(default)g)")
    parser.add_argument("--minutes", type=float, default=20.0, help="no case begins after so many (%(default)g)")
    parser.add_argument("--workers", type=int, default=2, help="processes side by side (%(default)d); 0: in this one")
    parser.add_argument("--replay", metavar="KIND/NUMBER", help="carry out one case, and show what became of it")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        kind, first, last, seconds = given.child
        with TemporaryDirectory(prefix="hostile-") as base:
            until = time.monotonic() + float(seconds)
            attack(kind, given.seed, range(int(first), int(last)), Path(base) / "base", sys.stdout, until)
        return 0
    if given.replay:
        return replay(given.replay, given.seed)
    rows = campaign(given.kinds or list(KINDS), given.seed, given.share, given.count, given.minutes, given.workers)
    for kind, row in rows.items():
        for alike in row.alike():
            number, title, wrong = alike[0]
            print(f"\n{kind}/{number} ({title}), and {len(alike) - 1} like it\n  {wrong}")
            print(f"  again: python -m campaigns.hostile --seed {given.seed} --replay {kind}/{number}")
    return int(any(row.findings for row in rows.values()))


def replay(name: str, seed: int) -> int:
    """Carry out one case here, with all that it says."""
    kind, _, number = name.partition("/")
    with TemporaryDirectory(prefix="hostile-") as base:
        numbers = range(int(number), int(number) + 1)
        attack(kind, seed, numbers, Path(base) / "base", sys.stdout, time.monotonic() + 600, loud=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
