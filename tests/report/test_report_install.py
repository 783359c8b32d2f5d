"""An installation with the extra ``report`` and without torch reports on runs and compares them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.environments import call, create_environment
from tests.toy import run_toy_once, tree

from fedvisage.report.compare import as_values, compare
from fedvisage.report.page import write_report


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the packages of the extra only."""
    return create_environment(tmp_path_factory.mktemp("report"), "report")


@pytest.fixture(scope="module", params=["pad", "recognition"])
def run(request: pytest.FixtureRequest, sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run; the one of attack detection has a figure of features."""
    if request.param == "recognition":
        recognition_run: Path = request.getfixturevalue("recognition_run")
        return recognition_run
    out = tmp_path_factory.mktemp("runs") / "run"
    run_toy_once(tree(sets, evaluation__features=20), out)
    return out


@pytest.mark.parametrize("package", ["torch", "torchvision", "timm"])
def test_report_extra_does_not_install_torch(python: Path, package: str) -> None:
    assert "ModuleNotFoundError" in call(python, "-c", f"import {package}").stderr


@pytest.mark.long
def test_report_is_the_same_as_with_torch(python: Path, run: Path, tmp_path: Path) -> None:
    here, there = (shutil.copytree(run, tmp_path / place / "run") for place in ("here", "there"))
    write_report(here)
    done = call(python, "-m", "fedvisage", "report", there)
    assert done.returncode == 0, done.stderr
    assert (there / "report.html").read_bytes() == (here / "report.html").read_bytes()
    assert list((there / "tensorboard").iterdir())


@pytest.mark.long
def test_compare_prints_the_same_as_with_torch(python: Path, run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    done = call(python, "-m", "fedvisage", "compare", run, other, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(as_values(compare([run, other]))))
