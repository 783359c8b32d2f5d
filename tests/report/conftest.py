"""A finished run for several tests, and a copy of it."""

import shutil
from pathlib import Path

import pytest
from tests.report.run_files import make_run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of FedPAD on three sites; tests that change it copy it."""
    return make_run(tmp_path_factory.mktemp("runs") / "fedpad")


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """Return a copy of that run, which a test may change."""
    return shutil.copytree(finished_run, tmp_path / "run")
