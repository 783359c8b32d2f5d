"""The functions behind the verbs ``run --on nvflare``, ``provision``, ``server`` and ``site``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Reporter
from fedvisage.federation.protections.compatible import check_real
from fedvisage.federation.record.releases import PERSON_EPSILON
from fedvisage.federation.secure.memory import ALLOW, PLAIN
from fedvisage.metrics.recorded import Metrics
from fedvisage.nvflare import operator
from fedvisage.nvflare.authority import read_federation
from fedvisage.nvflare.certificates import Credentials, check, credentials_in, warning
from fedvisage.nvflare.greeting import address_in, wait_for_admission
from fedvisage.nvflare.job import check_travels, open_at_operator
from fedvisage.nvflare.kits import hold_directories, hold_port, open_kit
from fedvisage.nvflare.membership import SERVER, Changes, provision
from fedvisage.nvflare.metrics import serve_metrics
from fedvisage.nvflare.node import (
    check_own_sets,
    prepare_server,
    prepare_site,
    runs_directory,
    serve_quietly,
    state_directory,
)
from fedvisage.nvflare.operator import PATIENCE
from fedvisage.nvflare.owner.policy import policy_path, read_policy
from fedvisage.nvflare.owner.record import SiteRecord
from fedvisage.nvflare.rehearsal import train_in_rehearsal
from fedvisage.nvflare.terminal import Terminal
from fedvisage.runs.request import Request
from fedvisage.runs.run import run
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.checks import USUAL, Checks
from fedvisage.tasks.opened import RunData
from fedvisage.tasks.task import TrainingResult

MAKE = "`fedvisage site policy KIT` writes rules"


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


def start_server(
    kit: Path,
    state: Path | None,
    public: Path | None,
    weights: Path | None,
    terminal: Terminal,
    *,
    verbose: bool,
    metrics: str | None = None,
) -> None:
    """Run the federation's server until stopped; ``metrics`` is an address for Prometheus."""
    opened = open_kit(kit, "server")
    _check_credentials(credentials_in(opened.path, at_server=True), opened.name, SERVER, terminal)
    port = address_in(opened).port
    runs = runs_directory(opened, state)
    with (
        terminal.stoppable(),
        hold_directories(opened.path, runs),
        hold_port(port),
        serve_metrics(metrics, opened, runs, terminal.say),
    ):
        prepare_server(opened, state, _entry(public), weights)
        serve_quietly(opened, terminal, verbose=verbose, port=port)


def start_site(
    kit: Path,
    data: Path,
    state: Path | None,
    public: Path | None,
    terminal: Terminal,
    *,
    verbose: bool,
    metrics: str | None = None,
    checks: Checks = USUAL,
    weights: Path | None = None,
    rosters: Sequence[str] = (),
    require_secure: bool = False,
    person_epsilon: float | None = None,
) -> None:
    """Run a site until stopped; ``metrics`` is an address for Prometheus."""
    if person_epsilon is not None and not 0 < person_epsilon < math.inf:
        raise UserError(PERSON_EPSILON, f"must be a finite number above 0, got {person_epsilon:g}")
    if require_secure and PLAIN in rosters:
        raise UserError("--require-secure", f"excludes {ALLOW} {PLAIN}; leave one of them out")
    opened = open_kit(kit, "site")
    _check_credentials(credentials_in(opened.path, at_server=False), opened.name, opened.name, terminal)
    policy = read_policy(opened.path, opened.name)
    if policy is not None and policy.require == "secure" and PLAIN in rosters:
        fault = f"is secure, and {ALLOW} {PLAIN} was given; leave one of them out"
        raise UserError(f"{policy_path(opened.path)}: require", fault)
    kept = state_directory(opened, state)
    with (
        terminal.stoppable(),
        hold_directories(opened.path, kept),
        serve_metrics(metrics, opened, kept, terminal.say),
    ):
        # All checks of this machine come before the first connection.
        SiteRecord(opened.path, kept).read()  # refuses one that was cut or edited
        if policy is None:
            terminal.say(f"note: {policy_path(opened.path)} does not exist, so this site accepts every run; {MAKE}")
        check_own_sets(opened, data, state, public, terminal.say, checks)
        prepare_site(
            opened, str(data.resolve()), state, _entry(public), weights, rosters, require_secure, person_epsilon
        )
        for roster in rosters:
            runs = "runs without federation.secure" if roster == PLAIN else f"secure sums of {roster}"
            terminal.say(f"note: {runs} are allowed until the next start, whatever earlier runs did with this data")
        for line in wait_for_admission(opened, terminal.say).differences():
            terminal.say(line)
        serve_quietly(opened, terminal, verbose=verbose)


def _check_credentials(credentials: Credentials, name: str, called: str, terminal: Terminal) -> None:
    """Refuse invalid certificates, and print a warning if they end soon."""
    check(credentials, name)
    if line := warning(credentials, called):
        terminal.say(line)


def _entry(directory: Path | None) -> str | None:
    return None if directory is None else str(directory.resolve())
