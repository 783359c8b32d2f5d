"""A finished run for several tests."""

from pathlib import Path

import pytest
from tests.report.run_files import make_run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of FedPAD on three sites; tests that change it copy it."""
    return make_run(tmp_path_factory.mktemp("runs") / "fedpad")
