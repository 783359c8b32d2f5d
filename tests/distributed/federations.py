"""A federation of real processes on this machine, and runs through it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.toy import recipe_of, silent

from fedvisage.nn.precision import Compute
from fedvisage.nvflare import operator
from fedvisage.nvflare.own_data import at_operator
from fedvisage.nvflare.rehearsal import Rehearsal
from fedvisage.progress import Reporter
from fedvisage.recipe import Recipe
from fedvisage.runs.run import run
from fedvisage.runs.train import Trained
from fedvisage.tasks.opened import Gathered

WAIT = 180.0


def run_through(
    federation: Rehearsal,
    content: Mapping[str, Any],
    out: Path,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Run a recipe of plain values with a federation that is up, as ``run --on nvflare --kit`` does."""

    def train(recipe: Recipe, out: Path, data: Gathered, compute: Compute, reporter: Reporter) -> Trained:
        return operator.train(recipe, out, reporter, federation.operator, wait=WAIT)

    return run(
        recipe_of(content),
        out,
        out.parent / "cache",
        reporter or silent(),
        resume=resume,
        training=train,
        gathering=at_operator,
    )
