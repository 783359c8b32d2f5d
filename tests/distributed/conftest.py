"""One federation for all tests of a worker that leave it as it was: starting it takes many seconds."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.toy import SITES

from fedvisage.federation.nvflare.rehearsal import Rehearsal, rehearsal


@pytest.fixture(scope="session")
def federation(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    with rehearsal(tmp_path_factory.mktemp("federation"), {name: sets[name] for name in SITES}) as found:
        yield found
