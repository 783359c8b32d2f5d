"""The wheel, in an environment of its own from which the repository cannot be seen, as whoever installs it has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import fedvisage
from fedvisage.studies.shipped import names

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src", "recipes")
TINY = "subjects=4 videos=1 frames=1 heldout=0.5 size=32"
CHANGES = (
    f"data.sites={{O: 'synth: O {TINY}', C: 'synth: C {TINY}'}}",
    f"data.target='synth: M {TINY}'",
    "input.size=32",
    "method.network.width=8",
    "training.rounds=1",
    "training.batch=4",
    "evaluation.features=0",
    "evaluation.resamples=0",
    "runtime.precision=fp32",
    "runtime.threads=1",
)


def run(*words: str | Path, where: Path) -> str:
    """Run a program that sees nothing of this checkout, and return what it prints."""
    seen = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run([str(word) for word in words], cwd=where, env=seen, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources, offline, with the setuptools that is here."""
    place = tmp_path_factory.mktemp("build")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, place / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, place)
    run(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", "dist", ".", where=place)
    (built,) = (place / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the wheel and, instead of downloads, what is installed here already."""
    place = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", "venv", where=place)
    (packages,) = (place / "venv/lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    run(*PIP, "--python", place / "venv/bin/python", "install", "--no-deps", "--no-index", wheel, where=place)
    return place / "venv/bin"


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    asked = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "src/fedvisage", "recipes")
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a checkout")
    ours = [line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    expected = {line.replace("recipes/", "fedvisage/studies/recipes/", 1).removeprefix("src/") for line in ours}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert held == expected


def test_the_wheel_says_what_it_is_and_under_which_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (folder,) = {name.split("/")[0] for name in files.namelist() if ".dist-info/" in name}
        said = message_from_string(files.read(f"{folder}/METADATA").decode())
        assert files.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert (said["Name"], said["Version"]) == ("fedvisage", fedvisage.__version__)
    assert said["License-Expression"] == "Apache-2.0"


@pytest.mark.slow
def test_an_installed_wheel_runs_a_shipped_recipe_without_the_repository(installed: Path, tmp_path: Path) -> None:
    found = run(installed / "python", "-c", "import fedvisage; print(fedvisage.__file__)", where=tmp_path)
    assert Path(found.strip()).is_relative_to(installed.parent)
    listed = json.loads(run(installed / "fedvisage", "recipes", "--json", where=tmp_path))
    assert {row["name"] for row in listed} <= set(names())
    assert len(listed) > 80
    run(installed / "fedvisage", "run", "demo/fedpad", *CHANGES, "--out", "run", "--cache", "cache", where=tmp_path)
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert (metrics["method"], metrics["sites"], metrics["rounds"]) == ("fedpad", ["C", "O"], 1)
    assert "FedPAD, demo size" in (tmp_path / "run/report.html").read_text()


@pytest.mark.slow
def test_an_installed_wheel_finds_the_files_of_its_demo_and_of_a_study(installed: Path, tmp_path: Path) -> None:
    program = (
        "from importlib.resources import files\n"
        "from fedvisage.studies.shipped import locate\n"
        "from fedvisage.studies.study import load_study\n"
        "print(load_study(locate('studies/table3-demo')).recipe['title'])\n"
        "print(load_study(files('fedvisage.studies') / 'study.yaml').title)"
    )
    said = run(installed / "python", "-c", program, where=tmp_path).splitlines()
    assert said == ["FedPAD, demo size", "FedPAD and its baselines at toy size, rendered faces"]
