"""The program of a job at the server: the same training as in one process, over NVFlare's calls.

NVFlare starts it in a process of its own for each job. The run's directory is outside the job's workspace and is named
after the run: a job that is submitted again continues there.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fedvisage import recipe as recipes
from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import (
    RESUME,
    disk_full_is_failure,
    lock_directory,
    parse_json,
    remove_unfinished,
    write_atomically,
)
from fedvisage.federation.protections.dp import figures_of
from fedvisage.federation.record.ledger import LEDGER, ROUNDS, stream_lines, totals_of
from fedvisage.federation.record.store import CHECKPOINTS
from fedvisage.federation.wire.schema import limits_of
from fedvisage.methods import find
from fedvisage.nvflare import bounds
from fedvisage.nvflare.cells import SWITCH_INTERVAL
from fedvisage.nvflare.job import Job, pretrain_at_server, read_job, weights_at_server
from fedvisage.nvflare.kits import own_settings
from fedvisage.nvflare.outcome import (
    RESULT,
    TRAINED,
    JobOutcome,
    RunLog,
    last_lines,
    left_sites,
    write_result,
    write_trained,
)
from fedvisage.nvflare.owner.submission import NotReady
from fedvisage.nvflare.transport import CollabTransport, LeaveSignal
from fedvisage.recipe import Recipe
from fedvisage.runs.train import train_over_transport
from fedvisage.tasks.catalogue import set_up

logger = logging.getLogger("fedvisage.server")

LOCK_PATIENCE = 60.0
"""Seconds to wait for a process of an earlier job that still holds the run."""

SPENT = ("epsilon", "delta", "tight_epsilon", "site")
"""The fields of a privacy account that a console shows."""

PROGRESS = "fedvisage.base.progress"
"""The command by which the operator asks for a run's progress."""


class ServerProgram:
    """The server's program of a job."""

    def __init__(self) -> None:
        """Limit the decoder before it decodes anything: NVFlare builds this object first."""
        bounds.install()
        sys.setswitchinterval(SWITCH_INTERVAL)

    @collab.main
    def run(self) -> None:
        """Train, and leave the result, or the reason for its absence."""
        context, call = collab.fl_ctx, collab.context
        workspace, number = context.get_workspace(), context.get_job_id()
        place = Path(workspace.get_run_dir(number)) / RESULT
        settings = own_settings(Path(workspace.get_root_dir()))
        directory = Path(settings["state"])
        try:
            job = read_job(Path(workspace.get_app_config_dir(number)))
            directory = directory / job.run
            directory.mkdir(parents=True, exist_ok=True)
            with lock_directory(directory, LOCK_PATIENCE):
                if not any((directory / CHECKPOINTS).glob("*.safetensors")):
                    # The run begins again, and the operator must not see the rounds of earlier jobs.
                    (directory / ROUNDS).unlink(missing_ok=True)
                answer = partial(progress, directory, job.recipe)
                context.get_engine().register_app_command(PROGRESS, answer)
                cell, left = context.get_engine().get_cell(), partial(left_sites, place)
                proxies = list(call.clients)
                for proxy in proxies:
                    proxy.backend.abort_signal = LeaveSignal(proxy.name, proxy.backend.abort_signal, left)
                train_job(job, settings, directory, proxies, call.is_aborted, cell, left)
            outcome = JobOutcome("finished")
        # NVFlare handles its own abort; every other end becomes an outcome for the operator.
        except RunAborted:
            raise
        except UserError as error:
            outcome = JobOutcome("refused", error.place, error.message)
        except (RunFailed, NotReady) as error:
            outcome = JobOutcome("failed", "", str(error))
        except Exception as error:  # any failure of a run is logged and sent to the operator
            logger.exception("the run broke")
            outcome = JobOutcome("failed", "", f"{type(error).__name__}: {error}")
        write_result(outcome, directory, place)


def train_job(
    job: Job,
    own: Mapping[str, str],
    directory: Path,
    proxies: list[Any],
    aborted: Callable[[], bool],
    cell: Any,
    left: Callable[[], Mapping[str, str]] = dict,
) -> None:
    """Continue training from the state in the run's directory; a finished run only hands out its result again."""
    recipe, written, text = job.recipe, directory / "recipe.yaml", recipes.text_of(job.recipe)
    with disk_full_is_failure(directory, RESUME):
        remove_unfinished(directory)
        if not written.exists():
            write_atomically(written, text.encode())
        elif recipes.present_text(written) != text:
            raise UserError("recipe", "is not the one that this run began with")
        if (directory / TRAINED).exists():  # its result is only sent again
            return
        setup = set_up(recipe, find(recipe.method), weights_at_server(recipe, own))
        log = RunLog(directory, job.run)
        schemas = setup.workspace().schemas
        # No site may send more than the largest message of this job.
        bounds.limit((limits_of(schema.tensors.values()) for schema in schemas.values()), cell)
        first = pretrain_at_server(setup, own, directory / "cache")
        transport = CollabTransport(tuple(recipe.data.sites), proxies, recipe.federation, aborted, log.say, left)
        with closing(transport):
            trained = train_over_transport(setup, directory, transport, schemas, log, first=first)
        write_trained(directory, trained)


def progress(directory: Path, recipe: Recipe, topic: str, data: Any, context: Any) -> dict[str, Any]:
    """Return the rounds after the last one that the operator has; an unfinished last line is left out.

    With ``more`` in the query, add what the operator's console shows: the run's own log and the spent part of a budget.
    """
    query = data if isinstance(data, dict) else {}
    last_round = int(query.get("after", 0))
    path = directory / ROUNDS
    complete_lines = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.exists() else ""
    rows = [parse_json(line) for line in complete_lines.splitlines()]
    reply = {"of": recipe.training.rounds, "rounds": [row for row in rows if row["round"] > last_round]}
    if not query.get("more"):
        return reply
    method, spent = find(recipe.method), dict[str, Any]()
    if method.releases or recipe.federation.dp is not None:
        with suppress(UserError):  # a ledger that cannot be read ends the run by itself
            spent = figures_of(recipe, method, len(rows), totals_of(stream_lines(directory / LEDGER)).privacy)
    account = {key: spent[key] for key in SPENT if key in spent}
    budget = {"epsilon": recipe.privacy.epsilon, "delta": recipe.privacy.delta} if recipe.privacy.epsilon else {}
    return reply | {"method": method.title, "spent": account, "budget": budget, "log": last_lines(directory)}
