"""Run the sections one after another, each in a process with a time limit, and write one table and one JSON file.

This module imports the standard library only. It runs from a checkout; no installation of fedvisage is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {
    "machine": 45,
    "steps-fedpad": 70,
    "state": 45,
    "workers": 70,
    "deterministic": 100,
    "steps-fedgpad": 70,
    "steps-fedfr": 70,
    "steps-fedsis": 70,
    "steps-privacyface": 70,
    "loader": 45,
    "memory": 40,
    "compiled": 90,
}
"""The seconds that each section may take, in the order in which they run."""
MINUTES = 8.0
LINES = 25
"""The last lines of a failed section's output that are reported."""
STAND_IN = '''"""A stand-in for OpenCV on a machine without it: nothing here is computed with it."""


def getNumThreads():
    return 1


def setNumThreads(count):
    pass


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name.isupper():
        return 0
    raise ImportError(f"OpenCV is not installed: cv2.{name}")
'''


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all sections, and return 0 if each one finished and all its checks hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description="Measure fedvisage on a GPU.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--tiny", action="store_true", help="small networks, to try the program")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="the file of all results")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the time of the whole program")
    parser.add_argument("--only", nargs="+", choices=LIMITS, default=list(LIMITS), metavar="SECTION")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        environment = _environment(Path(folder))
        for name in [name for name in LIMITS if name in asked.only]:
            left = 60 * asked.minutes - (time.monotonic() - began)
            limit = left if asked.tiny else min(LIMITS[name], left)
            result = _run(name, asked, limit, environment, Path(folder))
            results.append(result)
            print("\n".join(_lines(result)), flush=True)
            text = json.dumps({"format": 1, "seconds": time.monotonic() - began, "sections": results}, indent=1)
            asked.json.write_text(text + "\n", encoding="utf-8")
    failed = [result["section"] for result in results if result["status"] != "finished"]
    missed = [row["what"] for result in results for row in result["rows"] if row["holds"] is False]
    print(f"\n{time.monotonic() - began:.0f} s; not finished: {failed or 'none'}")
    print(f"checks that do not hold: {missed or 'none'}")
    return 1 if failed or missed else 0


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of the sections: this checkout's packages, and a stand-in if OpenCV is missing."""
    paths = [str(ROOT / "src"), str(ROOT)]
    if importlib.util.find_spec("cv2") is None:
        (folder / "opencv").mkdir()
        (folder / "opencv" / "cv2.py").write_text(STAND_IN, encoding="utf-8")
        paths.insert(0, str(folder / "opencv"))
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _run(
    name: str, asked: argparse.Namespace, limit: float, environment: dict[str, str], folder: Path
) -> dict[str, Any]:
    """Run a section; kill it and all its processes at its time limit. The rows so far count."""
    result: dict[str, Any] = {"section": name, "status": "no time left", "seconds": 0.0, "rows": []}
    if limit < 5:
        return result
    rows, log = folder / f"{name}.rows", folder / f"{name}.log"
    command = [sys.executable, "-m", "benchmarks.gpu.sections", name, str(rows), "--device", asked.device]
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [*command, *(["--tiny"] if asked.tiny else [])],
            cwd=ROOT,
            env={**environment, "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
            result["status"] = "finished" if code == 0 else f"failed with code {code}"
        except subprocess.TimeoutExpired:
            result["status"] = f"ended after its limit of {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    result["seconds"] = round(time.monotonic() - began, 1)
    if rows.exists():
        result["rows"] = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    if result["status"] != "finished":
        result["output"] = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:]
    return result


def _lines(result: dict[str, Any]) -> list[str]:
    verdict = {True: "  holds", False: "  DOES NOT HOLD", None: ""}
    lines = [f"## {result['section']}: {result['status']}, {result['seconds']:.0f} s"]
    lines += [f"| {row['what']} | {row['measured']} |{verdict[row['holds']]}" for row in result["rows"]]
    return lines + [f"    {line}" for line in result.get("output", [])]
