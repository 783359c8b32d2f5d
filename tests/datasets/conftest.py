"""The copies of datasets that the tests of scanners and of the pipeline share."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.small_copies import write_copy


@pytest.fixture(scope="session")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A small copy of each dataset; not to be changed."""
    root = tmp_path_factory.mktemp("copies")
    for kind, scanner in SCANNERS.items():
        write_copy(scanner, root / kind)
    return {kind: root / kind for kind in SCANNERS}
