"""`python -m benchmarks gpu` runs without a GPU at small size, on emulated cards, and without OpenCV."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu import program
from benchmarks.gpu.sections import SECTIONS
from tests.cards.test_cards import HERE, run_checks

pytestmark = pytest.mark.long


def test_every_section_has_a_time_limit_and_the_program_ends_in_time() -> None:
    assert program.LIMITS.keys() == SECTIONS.keys()


def test_sections_run_on_an_emulated_card(tmp_path: Path) -> None:
    run_checks(tmp_path, HERE / "check_gpu_program.py")


@pytest.mark.slow
def test_other_sections_run_on_an_emulated_card(tmp_path: Path) -> None:
    run_checks(tmp_path, HERE / "check_gpu_program.py", marks="slow")


@pytest.mark.parametrize("section", ["machine", "workers"])
def test_a_section_runs_on_a_cpu_without_opencv(section: str, tmp_path: Path) -> None:
    (tmp_path / "cv2.py").write_text(program.STAND_IN, encoding="utf-8")  # hides the installed package
    command = [sys.executable, "-m", "benchmarks", "gpu", "--device", "cpu", "--tiny", "--only", section]
    result = subprocess.run(
        [*command, "--json", str(tmp_path / "gpu.json")],
        cwd=program.ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    (values,) = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["sections"]
    assert values["status"] == "finished"
    assert all(row["holds"] is not False for row in values["rows"])


def test_failed_or_slow_section_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "gpu.json"
    arguments = ["--device", "tpu", "--tiny", "--json", str(target), "--only", "machine", "memory"]
    assert program.main(arguments) == 1
    failed, complete = json.loads(target.read_text(encoding="utf-8"))["sections"]
    assert failed["status"] == "failed with code 1"
    assert "runtime.device" in failed["output"][-1]
    assert "runtime.device" in capsys.readouterr().out
    assert complete["status"] == "finished"
    assert program.main(["--json", str(target), "--only", "machine", "--minutes", "0"]) == 1
    (late,) = json.loads(target.read_text(encoding="utf-8"))["sections"]
    assert late["status"] == "no time left"
