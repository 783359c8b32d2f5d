"""Tests with the code of other processors: ``python -m tests.processors`` (``make test-processors``).

PyTorch, oneDNN and MKL select their code by the processor's instructions, and the number of threads changes the order
of sums. The last bits of a trained model therefore differ between machines, and no test may depend on them.
Environment variables make these libraries select the code of a simpler processor. Instructions that this processor
lacks have no effect.
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
"""The library's own choice."""

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
    """The instructions and threads that libraries may use."""

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
        """Return the variables for the libraries; MKL follows PyTorch's own kernels."""
        variables = {"OMP_NUM_THREADS": str(self.threads), "FEDVISAGE_TEST_THREADS": str(self.threads)}
        variables["OMP_WAIT_POLICY"] = "PASSIVE"  # waiting threads that spin would slow down other workers
        if self.pytorch != NATIVE:
            variables["ATEN_CPU_CAPABILITY"] = self.pytorch
            variables["MKL_CBWR"] = "COMPATIBLE" if self.pytorch == "default" else self.pytorch.upper()
        if self.onednn != NATIVE:
            variables["ONEDNN_MAX_CPU_ISA"] = self.onednn
        return variables


@dataclass(frozen=True)
class Result:
    """The result of the tests of a run."""

    passed: int
    failed: tuple[str, ...]
    skipped: int
    seconds: int


def run_pytest(options: Sequence[str], setting: Setting, log: Path, **variables: str) -> Result:
    """Run tests under a setting; a run that ends early counts as one failed test."""
    began, report = time.monotonic(), log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *options]
    environment = os.environ | setting.environment() | variables
    with log.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=file, check=False).returncode
    ends: dict[str, set[str]] = {"passed": set(), "skipped": set(), "failed": set()}
    for case in ElementTree.parse(report).getroot().iter("testcase") if report.exists() else ():
        tags = {child.tag for child in case}
        end = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        ends[end].add(f"{case.get('classname')}::{case.get('name')}")
    failed = ends["failed"] or ({f"pytest ended with code {code}"} if code else set())
    seconds = round(time.monotonic() - began)
    return Result(len(ends["passed"] - failed), tuple(sorted(failed)), len(ends["skipped"]), seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests under each setting, print one line per setting and the output of failures; return 1 for any."""
    parser = argparse.ArgumentParser(prog="python -m tests.processors", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("tests", nargs="*", help="files or directories (all)")
    form = "PyTorch's kernels/oneDNN's/threads, of which the first two may be native (%(default)s)"
    parser.add_argument("--settings", default=",".join(SETTINGS), help=form)
    parser.add_argument("--workers", type=int, default=2, help="parallel processes; 0: this one")
    options = parser.parse_args(arguments)
    settings = [Setting.of(text) for text in options.settings.split(",")]
    width = max(len(str(setting)) for setting in settings)
    print("setting".ljust(width), *(name.rjust(8) for name in ("passed", "failed", "skipped", "seconds")), flush=True)
    failures: dict[Setting, str] = {}
    words = ["-m", LEFT_OUT, "--tb=short", "-n", str(options.workers), "--dist", "loadscope", *options.tests]
    for setting in settings:
        with TemporaryDirectory() as directory:
            log = Path(directory) / "log"
            result = run_pytest(words, setting, log)
            if result.failed:
                failures[setting] = log.read_text()
        counts = (result.passed, len(result.failed), result.skipped, result.seconds)
        print(str(setting).ljust(width), *(str(count).rjust(8) for count in counts), flush=True)
    for setting, output in failures.items():
        print(f"\n== {setting}\n{output}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
