"""Federations that all tests of a worker share, as long as they leave them as they were: starting one takes long."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.distributed.federations import make_kits
from tests.toy import SITES, Sets, set_of_task, site_sets

from fedvisage.nvflare.rehearsal import Rehearsal, rehearsal


@pytest.fixture(scope="session")
def federation(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    with rehearsal(tmp_path_factory.mktemp("federation"), {name: str(sets[name]) for name in SITES}) as members:
        yield members


@pytest.fixture(scope="session")
def people_federation(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """Sites that have identities, and a public set on every machine."""
    own = {name: str(path) for name, path in site_sets(sets, "fedfr").items()}
    public = str(set_of_task(sets["U"].with_name("P"), "fedfr"))
    with rehearsal(tmp_path_factory.mktemp("people"), own, public) as members:
        yield members


@pytest.fixture(scope="session")
def own_kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kits of a federation that does not run."""
    return make_kits(tmp_path_factory.mktemp("own") / "kits")


@pytest.fixture(scope="session")
def other_kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kits of another one, with the same names."""
    return make_kits(tmp_path_factory.mktemp("other") / "kits")
