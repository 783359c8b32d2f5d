"""The cluster of two nodes that the tests of Ray share; without Ray they are skipped."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from tests.ray.clusters import Cluster, cluster

RAY = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_USAGE_STATS_ENABLED")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder; they take too long for `make test`."""
    for item in items:
        if item.path.parent.name == "ray":
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[Cluster]:
    """A cluster of two nodes with one core each, to which this process can connect."""
    package = find_spec("ray")
    if package is None or package.origin is None:  # this folder, too, can be imported as ray
        pytest.skip("Ray is not installed")
    with pytest.MonkeyPatch.context() as patch, cluster() as started:
        for name in RAY:
            patch.setenv(name, started.environment()[name])
        yield started
        assert started.workers() == []
        assert started.scratch() == []
