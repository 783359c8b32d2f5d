"""The functions behind ``run --on nvflare`` and ``provision``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Reporter
from fedvisage.federation.protections.compatible import check_real
from fedvisage.metrics.recorded import Metrics
from fedvisage.nvflare import operator
from fedvisage.nvflare.authority import read_federation
from fedvisage.nvflare.certificates import check
from fedvisage.nvflare.job import check_travels, open_at_operator, without_local_parts
from fedvisage.nvflare.joining import read_request
from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.membership import Changes, provision
from fedvisage.nvflare.owner.statement import digest_of_recipe, write_second_signature
from fedvisage.nvflare.rehearsal import train_in_rehearsal
from fedvisage.recipe import Recipe, tree_of
from fedvisage.runs.request import Request
from fedvisage.runs.run import resolve, run
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult


def run_over_nvflare(
    request: Request, reporter: Reporter, *, kit: Path | None, wait: float, patience: float, cosigned: Path | None
) -> Metrics:
    """Run a recipe with the federation of a kit, or without a kit rehearse it on this machine."""
    check_travels(request.recipe)
    if kit is None:
        return run(replace(request, training=train_in_rehearsal), reporter)
    check_real(request.recipe)
    opened = open_kit(kit, "operator")

    def train(setup: Setup, out: Path, data: RunData, reporter: Reporter) -> TrainingResult:
        return operator.train_in_federation(
            setup.recipe, out, reporter, opened, wait=wait, patience=patience, cosigned=cosigned
        )

    return run(replace(request, training=train, opening=open_at_operator), reporter)


def cosign(recipe: Recipe, kit: Path, out: Path, cache: Path, reporter: Reporter) -> str:
    """Write an operator's signature of a recipe for the runs of another operator, and return the recipe's digest."""
    opened = open_kit(kit, "operator")
    check(opened.credentials, opened.name)
    # The recipe as a run on this machine would submit it.
    runtime = recipe.runtime.model_copy(update={"workers": None})
    setup = resolve(Request(recipe.model_copy(update={"runtime": runtime}), out, cache), reporter)
    tree = tree_of(without_local_parts(setup.recipe))
    write_second_signature(out, opened.credentials, tree)
    return digest_of_recipe(tree)


def provision_from_file(
    path: Path,
    directory: Path,
    revoke: Iterable[str],
    renew: Iterable[str],
    sign: Sequence[Path],
    fingerprints: Sequence[str],
) -> Changes:
    """Make the missing kits and updates of the federation in a file, and return them."""
    if len(sign) != len(fingerprints):
        fault = f"was given {len(fingerprints)} times for {len(sign)} requests"
        raise UserError("--fingerprint", f"{fault}; after each --sign, give the one that the member read to you")
    requests = [read_request(request) for request in sign]
    for request, fingerprint in zip(requests, fingerprints, strict=True):
        if fingerprint != request.fingerprint:
            fault = f"has the key {request.fingerprint}, and not {fingerprint}"
            raise UserError(str(request.path), f"{fault}; compare it with {request.name} over another channel")
    return provision(read_federation(path), directory, revoke=revoke, renew=renew, requests=requests)
