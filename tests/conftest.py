"""Fixtures that tests of the core share."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from tests.contract.examples import EXAMPLES
from tests.toy import THREADS, make_sets

from fedvisage.methods import METHODS

torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Three sites and a user, for attack detection and for recognition."""
    return make_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="session")
def example_methods() -> Iterator[None]:
    """The example methods of the contract tests, in the list of methods."""
    with pytest.MonkeyPatch.context() as patch:
        for name, method in EXAMPLES.items():
            patch.setitem(METHODS, name, method)
        yield
