"""The functions behind ``run --on nvflare`` and ``provision``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fedvisage.base.progress import Reporter
from fedvisage.federation.protections.compatible import check_real
from fedvisage.metrics.recorded import Metrics
from fedvisage.nvflare import operator
from fedvisage.nvflare.authority import read_federation
from fedvisage.nvflare.job import check_travels, open_at_operator
from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.membership import Changes, provision
from fedvisage.nvflare.operator import PATIENCE
from fedvisage.nvflare.rehearsal import train_in_rehearsal
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult


def run_over_nvflare(
    request: Request, reporter: Reporter, *, kit: Path | None, wait: float, patience: float = PATIENCE
) -> Metrics:
    """Run a recipe with the federation of a kit, or without a kit rehearse it on this machine."""
    check_travels(request.recipe)
    if kit is None:
        return run(replace(request, training=train_in_rehearsal), reporter)
    check_real(request.recipe)
    opened = open_kit(kit, "operator")

    def train(setup: Setup, out: Path, data: RunData, reporter: Reporter) -> TrainingResult:
        return operator.train_in_federation(setup.recipe, out, reporter, opened, wait=wait, patience=patience)

    return run(replace(request, training=train, opening=open_at_operator), reporter)


def provision_from_file(path: Path, directory: Path, revoke: Iterable[str], renew: Iterable[str]) -> Changes:
    """Make the missing kits and updates of the federation in a file, and return them."""
    return provision(read_federation(path), directory, revoke=revoke, renew=renew)
