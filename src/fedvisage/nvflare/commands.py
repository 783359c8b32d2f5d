"""What the verbs ``run --on nvflare``, ``provision``, ``server`` and ``site`` do."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from fedvisage.federation.compatible import check_real
from fedvisage.nvflare import operator
from fedvisage.nvflare.federation_file import read_federation
from fedvisage.nvflare.job import check_travels
from fedvisage.nvflare.kits import Kit, open_kit, provision
from fedvisage.nvflare.node import serve
from fedvisage.nvflare.own_data import at_operator
from fedvisage.nvflare.rehearsal import train_in_rehearsal
from fedvisage.nvflare.starting import prepare_server, prepare_site
from fedvisage.progress import Reporter
from fedvisage.recipe import Recipe
from fedvisage.runs.run import run_and_report
from fedvisage.tasks.opened import Opened
from fedvisage.tasks.setup import Setup
from fedvisage.tasks.task import Trained


def run_over_nvflare(
    recipe: Recipe,
    out: Path,
    cache: Path,
    reporter: Reporter,
    *,
    resume: bool,
    kit: Path | None,
    wait: float,
    allow_mixed_crops: bool = False,
) -> dict[str, Any]:
    """Run a recipe with the federation that a kit belongs to, or rehearse it on this machine."""
    check_travels(recipe)
    carried = partial(run_and_report, recipe, out, cache, reporter, resume=resume, allow_mixed_crops=allow_mixed_crops)
    if kit is None:
        return carried(training=train_in_rehearsal)
    check_real(recipe)
    return carried(training=partial(_train, open_kit(kit, "operator"), wait), opening=at_operator)


def _train(kit: Kit, wait: float, setup: Setup, out: Path, data: Opened, reporter: Reporter) -> Trained:
    return operator.train(setup.recipe, out, reporter, kit, wait=wait)


def provision_from_file(path: Path, directory: Path) -> dict[Path, str]:
    """Make the kits that a file describes, and return whose they are."""
    federation = read_federation(path)
    provision(federation, directory)
    whose = {directory / "server": federation.server.host, directory / "operator": federation.operator.email}
    whose |= {directory / "sites" / name: site.organisation for name, site in federation.sites.items()}
    whose[directory / "authority"] = "stays with you: its key can let anyone in"
    return whose


def start_server(kit: Path, state: Path | None, public: Path | None, weights: Path | None) -> None:
    """Be the federation's server until stopped."""
    opened = open_kit(kit, "server")
    prepare_server(opened, state, _entry(public), weights)
    serve(opened.path)


def start_site(kit: Path, data: Path, state: Path | None, public: Path | None) -> None:
    """Be a site until stopped."""
    opened = open_kit(kit, "site")
    prepare_site(opened, str(data.resolve()), state, _entry(public))
    serve(opened.path)


def _entry(directory: Path | None) -> str | None:
    return None if directory is None else str(directory.resolve())
