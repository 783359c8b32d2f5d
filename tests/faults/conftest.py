"""One machine for all tests of a worker: starting it takes seconds."""

from collections.abc import Iterator

import pytest
from tests.faults.machine import Machine


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    with Machine() as started:
        yield started
