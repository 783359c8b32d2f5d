"""The base installation without torch: exported models work, and training names its missing extra."""

from __future__ import annotations

import json
import os
import re
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.environments import call, create_environment, distributions_of
from tests.refusals import check_output

MOST_BYTES = 450_000_000


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the packages of the base installation, and nothing else."""
    return create_environment(tmp_path_factory.mktemp("base"))


def test_base_installation_scores_pictures_with_an_export(python: Path, pad: Path, tmp_path: Path) -> None:
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
        (("demo", "--out", "demo"), "train"),
        (("study", "studies/table3-demo", "--out", "study"), "train"),
        (("status", "kit"), "federation"),
        (("serve", "--pad", "exported"), "serve"),
        (("report", "run"), "report"),
        (("compare", "run"), "report"),
        (("evaluate", "--pipeline", "--pad", "exported"), "report"),
    ],
)
def test_command_names_its_missing_extra(python: Path, words: tuple[str, ...], extra: str, tmp_path: Path) -> None:
    done = call(python, "-m", "fedvisage", *words)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    check_output(done.stderr, f"fedvisage[{extra}]", f"whl[{extra}]")


def test_python_api_names_its_missing_extra(python: Path) -> None:
    done = call(python, "-c", "import fedvisage as fv; fv.run")
    assert "UserError" in done.stderr
    assert re.search(r"pip install 'dist/fedvisage-.*whl\[train\]'", done.stderr)


def test_base_installation_is_small() -> None:
    files = {
        Path(os.path.realpath(str(distribution(name).locate_file(file))))
        for name in distributions_of()
        for file in distribution(name).files or ()
        if file.suffix != ".pyc"
    }
    assert sum(path.stat().st_size for path in files if path.is_file()) < MOST_BYTES
