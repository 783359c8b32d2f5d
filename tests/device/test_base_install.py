"""The base installation, which brings no torch: exported models work, and training names the extra that it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from PIL import Image

ROOT = Path(__file__).parents[2]
MOST_BYTES = 450_000_000


def base_distributions() -> Iterator[str]:
    """Yield the names of all distributions that an installation without extras brings."""
    waiting, visited = ["fedvisage"], set[str]()
    while waiting:
        name = waiting.pop()
        for text in distribution(name).requires or ():
            requirement = Requirement(text)
            needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if needed and requirement.name.lower() not in visited:
                visited.add(requirement.name.lower())
                waiting.append(requirement.name)
                yield requirement.name


def top_level_entries(name: str) -> set[Path]:
    """Return the files and folders of a distribution in its site-packages directory."""
    found = distribution(name)
    tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
    return {Path(str(found.locate_file(top))) for top in tops}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the packages of the base installation, and nothing else."""
    place = tmp_path_factory.mktemp("base")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (packages,) = (place / "lib").glob("python*/site-packages")
    for entry in {entry for name in base_distributions() for entry in top_level_entries(name)}:
        (packages / entry.name).symlink_to(entry)
    (packages / "fedvisage.pth").write_text(str(ROOT / "src"))
    return place / "bin" / "python"


def call(python: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([python, *words], env=environment, capture_output=True, text=True)


def test_the_base_installation_scores_a_picture_with_an_exported_model(python: Path, pad: Path, tmp_path: Path) -> None:
    Image.fromarray(np.full((32, 32, 3), 90, np.uint8)).save(tmp_path / "picture.png")
    assert call(python, "-c", "import torch").returncode != 0
    done = call(python, "-m", "fedvisage", "predict", pad, tmp_path / "picture.png", "--crop", "none", "--json")
    assert done.returncode == 0, done.stderr
    (image,) = json.loads(done.stdout)["images"]
    assert isinstance(image["logit"], float)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("run", "demo/fedpad", "--out", "run"), "train"),
        (("status", "kit"), "federation"),
        (("serve", "--pad", "exported"), "serve"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    python: Path, words: tuple[str, ...], extra: str, tmp_path: Path
) -> None:
    done = call(python, "-m", "fedvisage", *words)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"fedvisage[{extra}]" in done.stderr.replace("\n", "")


def test_a_name_of_the_python_api_names_the_extra_that_it_needs(python: Path) -> None:
    done = call(python, "-c", "import fedvisage as fv; fv.run")
    assert "UserError" in done.stderr
    assert "pip install 'fedvisage[train]'" in done.stderr


def test_the_base_installation_is_small() -> None:
    files = {
        Path(os.path.realpath(str(distribution(name).locate_file(file))))
        for name in base_distributions()
        for file in distribution(name).files or ()
        if file.suffix != ".pyc"
    }
    assert sum(path.stat().st_size for path in files if path.is_file()) < MOST_BYTES
