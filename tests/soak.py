"""Run a selection of tests again and again under varied conditions: ``python -m tests.soak`` (``make soak-tests``).

Every run has its own base seed, a random order and 1 to 4 workers. Of ten runs, one competes with eight busy
processes, and one computes as a processor with AVX2 would. Finished runs are stored and not repeated; --first
divides the runs between machines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.processors import Result, Setting, run_pytest

ROOT = Path(__file__).parents[1]
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(1_000_000))"


@dataclass(frozen=True)
class Conditions:
    """The conditions of one run, which follow from its base seed."""

    seed: int
    workers: int
    busy: int
    processor: str

    @staticmethod
    def of(seed: int) -> Conditions:
        """Return the conditions of one of the runs."""
        processor = "avx2/AVX2/1" if seed % 10 == 7 else "native/native/1"
        return Conditions(seed, workers=1 + seed % 4, busy=8 if seed % 10 == 3 else 0, processor=processor)


@contextmanager
def start_busy_processes(count: int) -> Iterator[None]:
    """Keep processors busy while the block runs."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_tests(conditions: Conditions, options: Sequence[str], directory: Path) -> Result:
    """Run the tests once under these conditions."""
    words = [*options, "--shuffle", "--seed", str(conditions.seed), "-n", str(conditions.workers)]
    log, setting = directory / f"{conditions.seed}.log", Setting.of(conditions.processor)
    with start_busy_processes(conditions.busy):
        return run_pytest(words, setting, log, PYTHONHASHSEED=str(conditions.seed))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests, print a line per run and the runs of each test that failed; 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--runs", type=int, default=20, help="number of runs (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="base seed of the first run (%(default)s)")
    parser.add_argument("--directory", type=Path, default=Path("build/soak"), help="results and logs (%(default)s)")
    parser.add_argument("options", nargs="*", help="options and tests for pytest, behind --")
    parsed = parser.parse_args(arguments)
    parsed.directory.mkdir(parents=True, exist_ok=True)
    described = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    commit, results = described.stdout.strip(), parsed.directory.resolve() / "runs.jsonl"
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    done = {line["seed"]: line for line in lines if line["commit"] == commit}
    columns = ("seed", "workers", "busy", "processor", "passed", "skipped", "failed", "seconds")
    print(*(name.rjust(15) for name in columns), flush=True)
    failures: dict[str, list[int]] = defaultdict(list)
    for seed in range(parsed.first, parsed.first + parsed.runs):
        if seed not in done:
            conditions = Conditions.of(seed)
            result = run_tests(conditions, parsed.options, results.parent)
            done[seed] = asdict(conditions) | asdict(result) | {"commit": commit}
            with results.open("a") as file:
                print(json.dumps(done[seed]), file=file)
        row = done[seed] | {"failed": len(done[seed]["failed"])}
        print(*(str(row[name]).rjust(15) for name in columns), flush=True)
        for name in done[seed]["failed"]:
            failures[name].append(seed)
    for name, seeds in sorted(failures.items()):
        print(f"failed with seed {', '.join(map(str, seeds))}: {name}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
