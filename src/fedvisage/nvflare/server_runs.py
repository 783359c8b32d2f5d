"""The runs on the server of a federation: list them, and stop one."""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nvflare.fuel.flare_api.flare_api import Session

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.base.files import read_json
from fedvisage.nvflare.greeting import Admitted, request_stop
from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.operator import LOOK, UNANSWERED, ask_server, connect_to_server, processes_of
from fedvisage.runs.directory import NAME

logger = logging.getLogger("fedvisage.operator")

State = Literal["waiting", "running", "lost", "ended", "aborted", "failed"]


@dataclass(frozen=True)
class ServerRun:
    """A run by its newest job."""

    run: str
    state: State
    """Waiting to begin; running; lost with a server that died; ended; aborted, such as by ``stop``; or failed."""
    submitter: str
    started: str
    """The time at which its job began; empty if it has not."""
    job: str = ""
    """NVFlare's id of the job."""


def newest_jobs(session: Session) -> dict[str, dict[str, Any]]:
    """Return the newest job of each run, in the order of their submission."""
    jobs = sorted(session.list_jobs(detailed=True), key=lambda job: str(job.get("submit_time")))
    return {str(job["name"]): job for job in jobs}


def list_runs(kit: Path, wait: float) -> list[ServerRun]:
    """Return the runs that the server of an operator's federation knows."""
    opened = open_kit(kit, "operator")
    with connect_to_server(opened, wait) as session:
        return _runs(session, ask_server(opened, wait))


def stop_run(kit: Path, run: str, wait: float) -> str:
    """End a run, given by its name or its directory, and return its name."""
    opened, name = open_kit(kit, "operator"), name_of_run(run)
    with connect_to_server(opened, wait) as session:
        runs = {entry.run: entry for entry in _runs(session, ask_server(opened, wait))}
        if name not in runs:
            raise UserError(name, f"is not a run of this server; `fedvisage runs --kit {kit}` lists them")
        entry = runs[name]
        if entry.state == "lost":
            raise UserError(name, "is not running: it was lost when its server died; --resume continues it")
        if entry.state not in ("waiting", "running"):
            raise UserError(name, f"is not running: it has {entry.state}")
        request_stop(opened, entry.job)  # so that the command that follows the run does not submit it again
        _abort(session, entry, time.monotonic() + wait)
    return name


def name_of_run(run: str) -> str:
    """Return the name of a run on the server: a run directory contains it."""
    path = Path(run) / NAME
    return str(read_json(path)["run"]) if path.exists() else run


def _runs(session: Session, admitted: Admitted) -> list[ServerRun]:
    alive = processes_of(session) | admitted.jobs
    return [describe_run(name, job, alive) for name, job in newest_jobs(session).items()]


def describe_run(name: str, job: Mapping[str, Any], alive: Container[str]) -> ServerRun:
    """Describe a run by its newest job; NVFlare reports RUNNING forever for a job whose server died."""
    number, status, ends = str(job["job_id"]), str(job.get("status")), {"COMPLETED": "ended", "ABORTED": "aborted"}
    state: Any = "waiting"
    if status.startswith("FINISHED"):
        state = ends.get(status.partition(":")[2], "failed")
    elif status == "RUNNING":
        state = "running" if number in alive else "lost"
    submitter, started = (str(job.get(key) or "") for key in ("submitter_name", "start_time"))
    return ServerRun(name, state, submitter, started[:19].replace(" ", "T"), number)


def _abort(session: Session, entry: ServerRun, until: float) -> None:
    """Abort a job, and wait for its end; a job that begins or ends just now refuses at first."""
    while True:
        try:
            if str(session.get_job_meta(entry.job).get("status")).startswith("FINISHED"):
                return
            session.abort_job(entry.job)
        except UNANSWERED:
            logger.debug("job %s could not be aborted", entry.job, exc_info=True)
        if time.monotonic() > until:
            raise RunFailed(f"{entry.run} has not ended yet; `fedvisage runs` shows whether it does")
        time.sleep(LOOK)
