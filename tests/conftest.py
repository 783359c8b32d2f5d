"""Fixtures that tests of the core share."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests.toy import THREADS, make_sets

torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Three sites and a user, for attack detection and for recognition."""
    return make_sets(tmp_path_factory.mktemp("sets"))
