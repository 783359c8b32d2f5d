"""Fixtures that tests of the core share."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from tests.tiers import LONG, MOVED, SPREAD, WHOLE
from tests.toy import THREADS, make_sets, run_toy, tree
from typer.testing import CliRunner

from fedvisage.cli import app
from fedvisage.runs.export.export import export
from fedvisage.tasks.finished_model import open_model

torch.set_num_threads(THREADS)
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Three sites and a target, for attack detection and for recognition."""
    return make_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="session")
def pad_run(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of attack detection, of one round."""
    out = tmp_path_factory.mktemp("device") / "pad-run"
    run_toy(tree(sets, training__rounds=1), out)
    return out


@pytest.fixture(scope="session")
def pad(pad_run: Path) -> Path:
    """The same, exported by the command."""
    out = pad_run.with_name("pad")
    result = CliRunner().invoke(app, ["export", str(pad_run), str(out)])
    assert result.exception is None, result.exception
    return out


@pytest.fixture(scope="session")
def recognition_run(sets: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recognition model that was trained in one place."""
    out = tmp_path_factory.mktemp("device") / "recognition-run"
    run_toy(tree(sets, "pretrained", evaluation__recognition={"fmr": 0.1}), out)
    return out


@pytest.fixture(scope="session")
def recognition(recognition_run: Path) -> Path:
    """The same, exported."""
    out = recognition_run.with_name("recognition")
    export(open_model(recognition_run), out, cache=recognition_run.with_name("cache"))
    return out


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make quick` and `make test` leave out, group what shares a fixture, and begin with what takes long."""
    root = Path(__file__).parent
    names = {item: f"{item.path.relative_to(root).as_posix()}::{item.nodeid.split('::', 1)[1]}" for item in items}
    for item, name in names.items():
        if name.startswith(WHOLE):
            item.add_marker("whole")
        if any(row.covers(name) for row in MOVED):
            item.add_marker("full")
        group = group_of(item, name)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: not names[item].startswith(LONG))


def group_of(item: pytest.Item, name: str) -> str | None:
    """Return the group of tests that one worker runs, or nothing for a test that any worker can run."""
    file = name.split("::")[0]
    fixtures = getattr(item, "fixturenames", ())
    for federation in ("people_federation", "federation"):
        if federation in fixtures:
            return federation
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if file == "contract/test_every_method.py" and "recorded" in fixtures:
        return f"{file} {parameters['method']}"
    return None if file.startswith(SPREAD) else file
