"""Every method runs on an emulated card.

The emulated card registers with torch for a whole process and changes what other tests see. Its checks therefore run in
processes of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.test_every_method import ALIKE

from fedvisage.methods import METHODS

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
RUNS = HERE / "check_runs.py"
METHOD = f"{RUNS}::test_a_method_computes_the_same_on_a_card"
NAMES = [name for name in METHODS if name not in ALIKE]
GROUPS = [NAMES[start : start + 6] for start in range(0, len(NAMES), 6)]


def run_checks(folder: Path, *arguments: str | Path, marks: str = "not slow") -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", marks]
    result = subprocess.run(
        [*command, f"--basetemp={folder / 'checks'}", *map(str, arguments)],
        cwd=HERE.parents[1],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-1000:]


def test_emulated_cards_refuse_the_same_calls_as_gpus(tmp_path: Path) -> None:
    run_checks(tmp_path, HERE / "check_emulation.py")


def test_private_state_stays_on_a_card_while_it_fits(tmp_path: Path) -> None:
    run_checks(tmp_path, HERE / "check_private_state.py")


def test_fedpad_computes_the_same_on_a_card(tmp_path: Path) -> None:
    run_checks(tmp_path, f"{METHOD}[fedpad]")


@pytest.mark.parametrize("names", GROUPS, ids=[f"{names[0]} to {names[-1]}" for names in GROUPS])
def test_methods_compute_the_same_on_a_card(names: list[str], tmp_path: Path) -> None:
    run_checks(tmp_path, *(f"{METHOD}[{name}]" for name in names))


def test_options_and_finished_models_compute_the_same_on_a_card(tmp_path: Path) -> None:
    run_checks(tmp_path, RUNS, "-k", "not a_method_computes")


@pytest.mark.slow
def test_other_methods_and_finished_models_compute_the_same_on_a_card(tmp_path: Path) -> None:
    run_checks(tmp_path, RUNS, marks="slow")
