"""A federation of real processes on this machine, and runs through it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.toy import deterministic_files, quiet_reporter, recipe_of

from fedvisage.base.progress import Reporter
from fedvisage.nvflare import operator
from fedvisage.nvflare.own_files import open_at_operator
from fedvisage.nvflare.rehearsal import Rehearsal
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult

WAIT = 180.0


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


def comparable(out: Path) -> dict[str, bytes]:
    """Return what must be equal: all that is settled, but for a count over people that only a simulation knows."""
    found = deterministic_files(out)
    metrics = json.loads(found["metrics"])
    metrics.pop("counted", None)
    return found | {"metrics": json.dumps(metrics).encode()}
