"""Fixtures that tests of the core share."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests.toy import make_sets

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Three sites and a user, for attack detection and for recognition."""
    return make_sets(tmp_path_factory.mktemp("sets"))
