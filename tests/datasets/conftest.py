"""The copies of datasets that the tests of scanners and of the pipeline share."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.toy import make_once

from fedvisage.datasets.catalogue import SCANNERS
from fedvisage.datasets.small_copies import write_copy


@pytest.fixture(scope="session")
def copies(shared: Path) -> Mapping[str, Path]:
    """A small copy of each dataset, which all workers share; not to be changed."""

    def write(root: Path) -> None:
        for kind, scanner in SCANNERS.items():
            write_copy(scanner, root / kind)

    root = make_once(shared / "copies", write)
    return {kind: root / kind for kind in SCANNERS}
