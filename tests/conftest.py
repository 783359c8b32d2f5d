"""Fixtures that tests of the core share."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from tests.toy import THREADS, make_sets

torch.set_num_threads(THREADS)
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Three sites and a user, for attack detection and for recognition."""
    return make_sets(tmp_path_factory.mktemp("sets"))


WHOLE = (
    *(
        "contract",
        "distributed",
        "faults",
        "hostile",
        "audit",
        "studies",
        "datasets/rendered",
        "parity/test_algorithms.py",
    ),
    *("federation/test_secure_run.py", "federation/test_admission.py", "methods/test_algorithms_on_models.py"),
    *("methods/test_split.py", "methods/test_leakage.py", "methods/test_fedbn.py", "methods/test_fedma_passes.py"),
    *("test_documentation.py", "test_extensions.py", "test_processors.py", "test_shipped.py", "test_wheel.py"),
)
"""Below this folder: tests that run whole recipes or processes again and again."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what ``make quick`` leaves out."""
    root = Path(__file__).parent
    for item in items:
        if item.path.relative_to(root).as_posix().startswith(WHOLE):
            item.add_marker("whole")
