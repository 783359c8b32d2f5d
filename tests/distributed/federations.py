"""A federation of real processes on this machine, and runs through it."""

import io
import json
import resource
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.toy import deterministic_files, quiet_reporter, recipe_of

from fedvisage.base.progress import Reporter
from fedvisage.nvflare import operator
from fedvisage.nvflare.authority import FederationFile
from fedvisage.nvflare.job import open_at_operator
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.rehearsal import Rehearsal, free_port
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult

WAIT = 180.0


class LineReporter(Reporter):
    """Records the messages of a run."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()), quiet=True)
        self.lines = list[str]()

    def say(self, text: str) -> None:
        self.lines.append(text)


def run_through(
    federation: Rehearsal,
    content: Mapping[str, Any],
    out: Path,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    wait: float = WAIT,
) -> dict[str, Any]:
    """Run a recipe of plain values with a federation that is up, as ``run --on nvflare --kit`` does."""

    def train(setup: Setup, out: Path, data: RunData, reporter: Reporter) -> TrainingResult:
        return operator.train_in_federation(setup.recipe, out, reporter, federation.operator, wait=wait)

    cache = out.parent / "cache"
    request = Request(recipe_of(content), out, cache, resume=resume, training=train, opening=open_at_operator)
    return run(request, reporter or quiet_reporter())


def comparable_files(out: Path) -> dict[str, bytes]:
    """Return the deterministic files of a run, without the counts of people that only a simulation knows."""
    files = deterministic_files(out)
    metrics = {name: value for name, value in json.loads(files["metrics"]).items() if not name.startswith("counted.")}
    return files | {"metrics": json.dumps(metrics).encode()}


def make_kits(directory: Path) -> Path:
    """Provision a federation of two sites on this machine."""
    content = {
        "server": {"host": "localhost", "port": free_port()},
        "operator": {"email": "operator@example.org"},
        "sites": {"bank": {"organisation": "bank"}, "border": {"organisation": "agency"}},
    }
    provision(FederationFile.model_validate(content), directory)
    return directory


def copy_kit(kit: Path, place: Path) -> Path:
    """Return a copy of a kit that a test may change."""
    return Path(shutil.copytree(kit, place / "kit"))


@contextmanager
def small_files() -> Iterator[None]:
    """Limit files of this process to ten bytes, as on a full disk; even the log has no room."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
