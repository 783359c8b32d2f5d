"""Slow libraries load only when needed; each test starts its own process."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.toy import tree

DRAWING = ("matplotlib", "sklearn", "scipy", "tensorboardX", "pandas")
NETWORKS = ("timm", "torchvision")
COMPILER = ("torch._dynamo", "sympy")

PRINT_LOADED = f"""
import sys
def print_loaded():
    print(*(name for name in {DRAWING + NETWORKS + COMPILER} if name in sys.modules))
"""

FIRST_STEP = """
import io
from pathlib import Path
from rich.console import Console
import fedvisage as fv
from fedvisage.base.progress import Reporter
from fedvisage.runs.request import Request
from fedvisage.runs.run import run

class Stop(BaseException):
    pass

class UntilFirstStep(Reporter):
    def batch(self, site, done, of):
        raise Stop

recipe, out = fv.load(sys.argv[1]), Path(sys.argv[2])
try:
    run(Request(recipe, out, out.parent / "cache"), UntilFirstStep(Console(file=io.StringIO()), quiet=True))
except Stop:
    print_loaded()
"""

WHOLE_RUN = """
import fedvisage as fv
fv.run(sys.argv[1], out=sys.argv[2], quiet=True)
print_loaded()
"""


def loaded_after(code: str, *arguments: str) -> set[str]:
    """Return the slow libraries that a process has loaded at the end of some code."""
    command = [sys.executable, "-c", PRINT_LOADED + code, *arguments]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def write_recipe(folder: Path, sets: Mapping[str, Path], method: str = "fedpad", **changes: Any) -> str:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree(sets, method, training__rounds=1, **changes)))
    return str(path)


def test_command_line_loads_no_drawing_and_network_libraries() -> None:
    assert loaded_after("import fedvisage.cli; import fedvisage.studies.shipped; print_loaded()") == set()


@pytest.mark.long
def test_python_api_loads_no_drawing_and_network_libraries() -> None:
    assert loaded_after("import fedvisage as fv; fv.run, fv.study, fv.compare; print_loaded()") == set()


def test_loading_a_name_restores_the_garbage_collector() -> None:
    code = "import gc, fedvisage as fv; {}; fv.UserError; print(gc.isenabled())"
    assert loaded_after(code.format("gc.enable()")) == {"True"}
    assert loaded_after(code.format("gc.disable()")) == {"False"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "of_networks"), [("fedpad", set()), ("fedavg", set()), ("vit-h", {*NETWORKS, *COMPILER})]
)
def test_training_loads_only_the_libraries_of_its_network(
    sets: Mapping[str, Path], tmp_path: Path, method: str, of_networks: set[str]
) -> None:
    loaded = loaded_after(FIRST_STEP, write_recipe(tmp_path, sets, method), str(tmp_path / "run"))
    assert loaded == of_networks


@pytest.mark.long
@pytest.mark.parametrize("features", [0, 20])
def test_only_a_report_with_features_loads_scikit_learn(
    features: int, sets: Mapping[str, Path], tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, sets, evaluation__features=features)
    loaded = loaded_after(WHOLE_RUN, recipe, str(tmp_path / "run"))
    assert "matplotlib" in loaded
    assert not loaded & {*NETWORKS, *COMPILER}
    assert ("sklearn" in loaded) == bool(features)
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert ("Features (t-SNE)" in report) == bool(features)
