"""Fixtures that tests of the core share."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests.toy import SITES, make_set

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Three sites and a user."""
    root = tmp_path_factory.mktemp("sets")
    return {name: make_set(root / name, name, seed) for seed, name in enumerate((*SITES, "U"))}
