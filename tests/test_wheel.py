"""The wheel, in an environment of its own without access to the repository."""

import json
import shutil
import subprocess
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from tests.release import PIP, call, install

import fedvisage
from fedvisage.studies.shipped import names

ROOT = Path(__file__).parents[1]
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources, offline, with the installed setuptools."""
    place = tmp_path_factory.mktemp("build")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, place / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, place)
    call(*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", "dist", ".", cwd=place)
    (built,) = (place / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel, and return the directory of its programs."""
    return install(wheel, tmp_path_factory.mktemp("clean") / "venv")


def test_wheel_has_the_files_of_the_package_only(wheel: Path) -> None:
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "src/fedvisage", "recipes")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a checkout")
    ours = [line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    expected = {line.replace("recipes/", "fedvisage/studies/recipes/", 1).removeprefix("src/") for line in ours}
    files = {name for name in zipfile.ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert files == expected


def test_wheel_has_metadata_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (folder,) = {name.split("/")[0] for name in files.namelist() if ".dist-info/" in name}
        metadata = message_from_string(files.read(f"{folder}/METADATA").decode())
        assert files.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert (metadata["Name"], metadata["Version"]) == ("fedvisage", fedvisage.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"


@pytest.mark.slow
def test_installed_wheel_runs_a_shipped_recipe_without_the_repository(programs: Path, tmp_path: Path) -> None:
    file = call(programs / "python", "-c", "import fedvisage; print(fedvisage.__file__)", cwd=tmp_path)
    assert Path(file.strip()).is_relative_to(programs.parent)
    listed = json.loads(call(programs / "fedvisage", "recipes", "--json", cwd=tmp_path))
    assert {row["name"] for row in listed} <= set(names())
    assert len(listed) > 80
    call(programs / "fedvisage", "run", "demo/fedpad", *CHANGES, "--out", "run", "--cache", "cache", cwd=tmp_path)
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert (metrics["method"], metrics["sites"], metrics["rounds"]) == ("fedpad", ["C", "O"], 1)
    assert "FedPAD, demo size" in (tmp_path / "run/report.html").read_text()


@pytest.mark.slow
def test_installed_wheel_finds_the_files_of_its_demo_and_of_a_study(programs: Path, tmp_path: Path) -> None:
    program = (
        "from importlib.resources import files\n"
        "from fedvisage.studies.shipped import locate\n"
        "from fedvisage.studies.study import load_study\n"
        "print(load_study(locate('studies/table3-demo')).recipe['title'])\n"
        "print(load_study(files('fedvisage.studies') / 'study.yaml').title)"
    )
    titles = call(programs / "python", "-c", program, cwd=tmp_path).splitlines()
    assert titles == ["FedPAD, demo size", "FedPAD and its baselines at toy size, rendered faces"]
