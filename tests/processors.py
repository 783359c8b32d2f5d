"""The suite as other processors would compute it: ``python -m tests.processors`` (``make test-processors``).

PyTorch, oneDNN and MKL choose their code by what a processor can do, and with the number of threads sums are split
otherwise; so the last bits of a trained model differ from machine to machine, and no test may hang on them.
Environment variables make these libraries choose as if the processor could do less. What they ask for beyond this
processor's instructions has no effect.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
NATIVE = "native"
"""What a library chooses by itself."""

SETTINGS = (
    "default/SSE41/1",
    "default/AVX2/2",
    "default/AVX512_CORE/1",
    "avx2/SSE41/2",
    "avx2/AVX2/1",
    "avx2/AVX512_CORE/2",
    "native/native/1",
    "native/native/2",
)
"""PyTorch's own kernels, oneDNN's, and threads: each pair of kernels once."""

LEFT_OUT = "not slow and not distributed and not browser"


@dataclass(frozen=True)
class Setting:
    """What libraries may use of a processor."""

    pytorch: str
    onednn: str
    threads: int

    @staticmethod
    def of(text: str) -> Setting:
        """Read ``avx2/AVX512_CORE/2``."""
        pytorch, onednn, threads = text.split("/")
        return Setting(pytorch, onednn, int(threads))

    def __str__(self) -> str:
        return f"{self.pytorch}/{self.onednn}/{self.threads}"

    def environment(self) -> dict[str, str]:
        """Return the variables that make libraries keep to it; MKL follows PyTorch's own kernels."""
        found = {"OMP_NUM_THREADS": str(self.threads), "FEDVISAGE_TEST_THREADS": str(self.threads)}
        found["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that spin while they wait would starve the workers beside them
        if self.pytorch != NATIVE:
            found["ATEN_CPU_CAPABILITY"] = self.pytorch
            found["MKL_CBWR"] = "COMPATIBLE" if self.pytorch == "default" else self.pytorch.upper()
        if self.onednn != NATIVE:
            found["ONEDNN_MAX_CPU_ISA"] = self.onednn
        return found


@dataclass(frozen=True)
class Found:
    """What became of the tests under one setting."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    said: str

    def cells(self) -> tuple[str, ...]:
        """Return its columns of the table."""
        return f"{self.passed}", f"{self.failed}", f"{self.skipped}", f"{self.seconds:.0f}"


COLUMNS = ("passed", "failed", "skipped", "seconds")


def tried(setting: Setting, tests: Sequence[str], workers: int) -> Found:
    """Run tests under a setting; a run that could not even begin has failed once."""
    began = time.monotonic()
    with TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", LEFT_OUT, f"--junitxml={report}", "--tb=short"]
        command += ["-p", "no:cacheprovider", "-n", str(workers), "--dist", "loadscope", *tests]
        environment = os.environ | setting.environment()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
        if report.exists():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                counts = {name: count + int(suite.get(name, 0)) for name, count in counts.items()}
    failed, skipped = counts["failures"] + counts["errors"], counts["skipped"]
    passed = counts["tests"] - failed - skipped
    return Found(passed, failed or int(done.returncode != 0), skipped, time.monotonic() - began, done.stdout)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the settings one after another, print a line for each, and say what failed; 1 if anything did."""
    parser = argparse.ArgumentParser(prog="python -m tests.processors", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("tests", nargs="*", help="files or directories; everything if none is named")
    form = "PyTorch's kernels/oneDNN's/threads, of which the first two may be native (%(default)s)"
    parser.add_argument("--settings", default=",".join(SETTINGS), help=form)
    parser.add_argument("--workers", type=int, default=2, help="tests side by side; 0 for none")
    given = parser.parse_args(arguments)
    settings = [Setting.of(one) for one in given.settings.split(",")]
    width = max(len(str(setting)) for setting in settings)
    print("setting".ljust(width), *(name.rjust(8) for name in COLUMNS), flush=True)
    broken: dict[Setting, Found] = {}
    for setting in settings:
        found = tried(setting, given.tests, given.workers)
        print(str(setting).ljust(width), *(cell.rjust(8) for cell in found.cells()), flush=True)
        if found.failed:
            broken[setting] = found
    for setting, found in broken.items():
        print(f"\n== {setting}\n{found.said}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
