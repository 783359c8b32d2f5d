"""What runs at the server while a run goes on: the same training as in one process, over NVFlare's calls.

NVFlare starts this in a process of its own for each job. The run's directory lies outside the job's workspace and is
named after the run: a job that is submitted again finds it and continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fedvisage import recipe as recipes
from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import locked, parse_json, sweep, write_atomically
from fedvisage.federation.protections.dp import figures_of
from fedvisage.federation.record.ledger import LEDGER, ROUNDS, privacy_of, read_lines
from fedvisage.federation.wire.schema import extent_of
from fedvisage.methods import find
from fedvisage.nvflare import bounds
from fedvisage.nvflare.job import Job, read_job
from fedvisage.nvflare.kits import own_settings
from fedvisage.nvflare.outcome import RESULT, TRAINED, Outcome, RunLog, last_lines, leave, write_trained
from fedvisage.nvflare.own_files import NotReady, at_server, first_at_server
from fedvisage.nvflare.transport import CollabTransport
from fedvisage.recipe import Recipe
from fedvisage.runs import train as training
from fedvisage.tasks.catalogue import set_up

logger = logging.getLogger("fedvisage.server")

PATIENCE = 60.0
"""Seconds to wait for a process of an earlier job that still holds the run."""

SPENT = ("epsilon", "delta", "tight_epsilon", "site")
"""What a console shows of an account."""

PROGRESS = "fedvisage.base.progress"
"""The command by which the operator asks how far a run is."""


class ServerProgram:
    """The program of a job."""

    def __init__(self) -> None:
        """Bound what is decoded before anything is: NVFlare builds this object first."""
        bounds.install()

    @collab.main
    def run(self) -> None:
        """Train, and leave the result or the reason why there is none."""
        context, call = collab.fl_ctx, collab.context
        workspace, number = context.get_workspace(), context.get_job_id()
        place = Path(workspace.get_run_dir(number)) / RESULT
        own = own_settings(Path(workspace.get_root_dir()))
        directory = Path(own["state"])
        try:
            job = read_job(Path(workspace.get_app_config_dir(number)))
            directory = directory / job.run
            directory.mkdir(parents=True, exist_ok=True)
            answer = partial(progress, directory, job.recipe)
            context.get_engine().register_app_command(PROGRESS, answer)
            with locked(directory, PATIENCE):
                train(job, own, directory, list(call.clients), call.is_aborted, context.get_engine().get_cell())
            outcome = Outcome("finished")
        except RunAborted:
            raise
        except UserError as error:
            outcome = Outcome("refused", error.place, error.message)
        except (RunFailed, NotReady) as error:
            outcome = Outcome("failed", "", str(error))
        except Exception as error:  # whatever breaks a run is told to the operator, and logged
            logger.exception("the run broke")
            outcome = Outcome("failed", "", f"{type(error).__name__}: {error}")
        leave(outcome, directory, place)


def train(
    job: Job, own: Mapping[str, str], directory: Path, proxies: list[Any], aborted: Callable[[], bool], cell: Any
) -> None:
    """Train from where the run's directory stands; a finished run is only handed out again."""
    recipe = job.recipe
    sweep(directory)
    _check_same_recipe(directory / "recipe.yaml", recipes.text_of(recipe))
    if (directory / TRAINED).exists():
        return
    files = at_server(recipe, own)
    setup, log = set_up(recipe, find(recipe.method), files), RunLog(directory, job.run)
    schemas = setup.workspace().schemas
    bounds.limit((extent_of(schema.tensors.values()) for schema in schemas.values()), cell)
    first = first_at_server(setup, own, directory / "cache")
    transport = CollabTransport(tuple(recipe.data.sites), proxies, recipe.federation, aborted, log.say)
    try:
        trained = training.train(setup, directory, transport, schemas, log, first=first, files=files)
    finally:
        transport.close()
    write_trained(directory, trained)


def progress(directory: Path, recipe: Recipe, topic: str, data: Any, context: Any) -> dict[str, Any]:
    """Tell the operator of rounds after the one that it knows of; a line may be about to be written."""
    asked = data if isinstance(data, dict) else {}
    known = int(asked.get("after", 0))
    path = directory / ROUNDS
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.exists() else ""
    rows = [parse_json(line) for line in whole.splitlines()]
    told = {"of": recipe.training.rounds, "rounds": [row for row in rows if row["round"] > known]}
    return told | (_more(directory, recipe, len(rows)) if asked.get("more") else {})


def _more(directory: Path, recipe: Recipe, rounds: int) -> dict[str, Any]:
    """Tell the operator what its console shows besides: the run's own log, and what was spent of a budget."""
    method, spent = find(recipe.method), dict[str, Any]()
    if method.releases or recipe.federation.dp is not None:
        with suppress(UserError):  # a ledger that cannot be read ends the run by itself
            spent = figures_of(recipe, method, rounds, privacy_of(read_lines(directory / LEDGER)))
    told = {key: spent[key] for key in SPENT if key in spent}
    budget = {"epsilon": recipe.privacy.epsilon, "delta": recipe.privacy.delta} if recipe.privacy.epsilon else {}
    return {"method": method.title, "spent": told, "budget": budget, "log": last_lines(directory)}


def _check_same_recipe(path: Path, text: str) -> None:
    if not path.exists():
        write_atomically(path, text.encode())
    elif path.read_text(encoding="utf-8") != text:
        raise UserError("recipe", "is not the one that this run began with")
