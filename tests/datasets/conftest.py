"""The copies of datasets that the tests of scanners and of the pipeline share."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.datasets.pad.copies import make_copies


@pytest.fixture(scope="session")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A small copy of each dataset; not to be changed."""
    return make_copies(tmp_path_factory.mktemp("copies"))
