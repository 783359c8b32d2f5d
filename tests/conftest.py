"""Fixtures that tests of the core share, and how tests are spread over workers."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from safetensors.torch import save_file
from tests.methods.combining import TRANSFORMER
from tests.refusals import Command
from tests.seeding import (
    pytest_addoption,
    pytest_configure,
    pytest_fixture_setup,
    pytest_make_collect_report,
    pytest_runtest_call,
    shuffle_groups,
)
from tests.tiers import FEDERATED, FIRST, SPREAD
from tests.toy import SITES, SIZE, THREADS, NewRun, Sets, make_once, make_sets, run_toy, run_toy_once, tree
from typer.testing import CliRunner
from xdist.scheduler import LoadScopeScheduling

from fedvisage import cli
from fedvisage.runs.export.export import export
from fedvisage.tasks.finished_model import open_model

__all__ = [
    "pytest_addoption",
    "pytest_configure",
    "pytest_fixture_setup",
    "pytest_make_collect_report",
    "pytest_runtest_call",
]

torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that all workers of a test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def sets(shared: Path) -> Sets:
    """Three sites and a target, for attack detection and for recognition; the first worker that needs them writes them.

    All workers use the same paths, and therefore share the runs of ``run_toy_once``, too.
    """
    root = shared / "sets"
    with FileLock(shared / "sets.lock"):
        return {name: root / name for name in (*SITES, "U")} if root.exists() else make_sets(root)


@pytest.fixture(scope="session")
def new_run(tmp_path_factory: pytest.TempPathFactory) -> NewRun:
    """Return a function that trains with a recipe of plain values in a new directory, and returns the directory."""

    def train(content: Mapping[str, Any]) -> Path:
        out = tmp_path_factory.mktemp("trained") / "run"
        run_toy(content, out)
        return out

    return train


@pytest.fixture(scope="session")
def pad_run(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of attack detection, of one round."""
    out = tmp_path_factory.mktemp("device") / "pad-run"
    run_toy_once(tree(sets, training__rounds=1), out)
    return out


@pytest.fixture(scope="session")
def pad(pad_run: Path, shared: Path) -> Path:
    """The same, exported by the command; each worker has its copy, because tests replace files."""

    def write(out: Path) -> None:
        result = CliRunner().invoke(cli.app, ["export", str(pad_run), str(out)])
        assert result.exception is None, result.exception

    return shutil.copytree(make_once(shared / "pad-export", write), pad_run.with_name("pad"))


@pytest.fixture(scope="session")
def strict_pad(pad_run: Path) -> Path:
    """An export that classifies every face as an attack at its own threshold, and none at ``eer``."""
    model, out = open_model(pad_run), pad_run.with_name("strict-pad")
    curves = model.saved.curves
    assert curves is not None
    shifted = curves.model_copy(update={"thresholds": tuple(value - 15 for value in curves.thresholds)})
    thresholds = {"": replace(model.threshold, value=15.0)}
    strict = replace(model, saved=replace(model.saved, thresholds=thresholds, curves=shifted))
    export(strict, out, cache=pad_run.with_name("cache"))
    return out


@pytest.fixture(scope="session")
def recognition_run(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of centralised recognition."""
    out = tmp_path_factory.mktemp("device") / "recognition-run"
    run_toy_once(tree(sets, "pretrained", evaluation__recognition={"fmr": 0.1}), out)
    return out


@pytest.fixture(scope="session")
def recognition(recognition_run: Path, shared: Path) -> Path:
    """The same, exported."""

    def write(out: Path) -> None:
        export(open_model(recognition_run), out, cache=recognition_run.with_name("cache"))

    exported = make_once(shared / "recognition-export", write)
    return shutil.copytree(exported, recognition_run.with_name("recognition"))


@pytest.fixture(scope="session")
def transformer_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of weights as timm writes it, for the small transformer of tests."""
    import timm

    with torch.random.fork_rng():
        torch.manual_seed(5)
        net = timm.create_model(TRANSFORMER, num_classes=7, img_size=SIZE)
    path = tmp_path_factory.mktemp("published") / "weights.safetensors"
    save_file(net.state_dict(), path)
    return path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Call the command line in this process; return the exit code and the text of both streams."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["fedvisage", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


@pytest.hookimpl(tryfirst=True)  # pytest itself then groups tests that share a parametrised fixture
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with long tests, or shuffle the tests."""
    names = {item: name_of(item.nodeid) for item in items}
    if config.option.shuffle:
        shuffled = shuffle_groups(names.values(), config.option.seed, group_of)
        positions = {name: position for position, name in enumerate(shuffled)}
        items.sort(key=lambda item: positions[names[item]])
    else:
        items.sort(key=lambda item: not names[item].startswith(FIRST))


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Give a group of tests that share costly fixtures to one worker.

    The groups of ``--dist loadgroup`` have no effect with pytest 9.2, where a test keeps its name from the collection.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(name_of(nodeid))


@pytest.hookimpl(optionalhook=True)  # also valid without pytest-xdist: -p no:xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Return the scheduler of the workers."""
    return GroupScheduling(config, log)


def name_of(nodeid: str) -> str:
    """Return a test's name below the folder of tests."""
    return nodeid.removeprefix("tests/")


def group_of(name: str) -> str:
    """Return the group of a test: its method in the contract, itself if its file shares nothing, or its file."""
    file, _, function = name.partition("::")
    if file == "contract/test_every_method.py":
        return f"{file} {function.partition('[')[2]}"
    if file in FEDERATED:
        return "federation"
    return name if file.startswith(SPREAD) else file
