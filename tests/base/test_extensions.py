"""Entry points: an installed package adds a method, a model and a dataset."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.toy import Sets, tree

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "tiny"
version = "1"
[project.entry-points."fedvisage.methods"]
halved = "tiny:HALVED"
broken = "tiny:NOT_THERE"
wrong = "tiny:importer"
[project.entry-points."fedvisage.models"]
flat = "tiny:FLAT"
[project.entry-points."fedvisage.datasets"]
nothing = "tiny:importer"
[tool.setuptools]
py-modules = ["tiny"]
"""

MODULE = """
from dataclasses import replace

from torch import nn

from fedvisage.base.errors import UserError
from fedvisage.methods import METHODS, MODELS

HALVED = replace(METHODS["fedpad"], name="halved", title="Halved")
FLAT = replace(MODELS["resnet18"], name="flat", title="Flat")


def importer(source, destination, options, *, name, progress):
    raise UserError(str(source), "holds nothing")
"""

SCRIPT = """
import json, sys
import fedvisage as fv
recipe = json.load(open(sys.argv[1]))
print("tiny" in sys.modules)
run = fv.run(recipe, out=sys.argv[2], quiet=True)
print(run.metrics["method"])
"""


@pytest.fixture(scope="module")
def installed_package(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the package, installed from its directory."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "tiny.py").write_text(MODULE)
    install = [
        *["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target"],
        str(target),
    ]
    subprocess.run([sys.executable, *install, str(source)], check=True, capture_output=True)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")])}


def run_command(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fedvisage", *words], capture_output=True, text=True, env=env)


@pytest.mark.long
def test_an_installed_method_and_model_are_run_by_their_names(
    installed_package: dict[str, str], sets: Sets, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for name, section in (("halved", {"name": "halved"}), ("fedprox", {"name": "fedprox", "model": "flat"})):
        content = tree(sets, training__rounds=1) | {"method": section | {"network": {"width": 8}}}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        words = [str(script), str(tmp_path / f"{name}.json"), str(tmp_path / name)]
        actual = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=installed_package)
        assert actual.stdout.split() == ["False", name], actual.stderr


def test_an_installed_package_is_not_loaded_for_help(installed_package: dict[str, str]) -> None:
    show_help = "from fedvisage.cli import app; app(['--help'], standalone_mode=False)"
    code = f"import sys; {show_help}; print('tiny' in sys.modules)"
    actual = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=installed_package)
    assert actual.stdout.splitlines()[-1] == "False"


@pytest.mark.long
def test_an_installed_importer_is_a_layout(installed_package: dict[str, str], tmp_path: Path) -> None:
    actual = run_command(
        "data", "import", "nothing", str(tmp_path / "in"), str(tmp_path / "out"), env=installed_package
    )
    assert actual.returncode == 2
    assert "holds nothing" in actual.stderr
    wrong = run_command("data", "import", "else", str(tmp_path / "in"), str(tmp_path / "out"), env=installed_package)
    assert ", nothing," in wrong.stderr


@pytest.mark.long
@pytest.mark.parametrize(("name", "word"), [("broken", "loaded"), ("wrong", "Method")])
def test_invalid_entry_point_is_reported_by_name(installed_package: dict[str, str], name: str, word: str) -> None:
    code = f"import fedvisage as fv; fv.load({{'method': '{name}'}})"
    actual = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=installed_package)
    assert f"entry point fedvisage.methods: {name}" in actual.stderr
    assert word in actual.stderr
