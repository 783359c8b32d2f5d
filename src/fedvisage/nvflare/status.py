"""The status of a federation: connected sites, active runs with their progress, certificates, and the console page."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from nvflare.fuel.flare_api.api_spec import SessionClosed
from nvflare.fuel.flare_api.flare_api import Session

from fedvisage.base.errors import RunFailed, UserError, plain_line
from fedvisage.base.files import read_json, write_atomically
from fedvisage.base.progress import Say
from fedvisage.base.prometheus import text_of
from fedvisage.nvflare.certificates import SOON, expiry_of
from fedvisage.nvflare.greeting import LETTERS, Admitted, address_in, request_stop
from fedvisage.nvflare.http_page import serve_page
from fedvisage.nvflare.kits import Kit, open_kit
from fedvisage.nvflare.metrics import CERTIFICATES, CONTACTS, family
from fedvisage.nvflare.operator import (
    LOOK,
    RECENT,
    TROUBLE,
    UNANSWERED,
    ask,
    ask_server,
    connect_to_server,
    job_status,
    processes_of,
)
from fedvisage.report.federation_page import FederationState, page
from fedvisage.runs.directory import NAME

# The runs on the server of a federation: list them, and stop one.


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


def list_runs(kit: Path, wait: float) -> list[ServerRun]:
    """Return the runs that the server of an operator's federation knows."""
    opened = open_kit(kit, "viewer")
    with connect_to_server(opened, wait) as session:
        return _runs(session, ask_server(opened, wait))


def stop_run(kit: Path, run: str, wait: float) -> str:
    """End a run, given by its name or its directory, and return its name."""
    opened, record = open_kit(kit, "operator"), Path(run) / NAME
    name = str(read_json(record)["run"]) if record.exists() else run
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
        until = time.monotonic() + wait
        while True:
            try:
                if job_status(session, entry.job).startswith("FINISHED"):
                    break
                session.abort_job(entry.job)  # a job that begins or ends just now refuses at first
            except UNANSWERED:
                logger.debug("job %s could not be aborted", entry.job, exc_info=True)
            if time.monotonic() > until:
                raise RunFailed(f"{name} has not ended yet; `fedvisage runs` shows whether it does")
            time.sleep(LOOK)
    return name


def _runs(session: Session, admitted: Admitted) -> list[ServerRun]:
    """Describe each run by its newest job, in the order of their submission."""
    alive = processes_of(session) | admitted.jobs
    jobs = sorted(session.list_jobs(detailed=True), key=lambda job: str(job.get("submit_time")))
    newest = {str(job["name"]): job for job in jobs}
    return [describe_run(name, job, alive) for name, job in newest.items()]


def describe_run(name: str, job: Mapping[str, Any], alive: Container[str]) -> ServerRun:
    """Describe a run by its newest job; NVFlare reports RUNNING forever for a job whose server died."""
    number, status, ends = str(job["job_id"]), str(job.get("status")), {"COMPLETED": "ended", "ABORTED": "aborted"}
    state: Any = "waiting"
    if status.startswith("FINISHED"):
        state = ends.get(status.partition(":")[2], "failed")
    elif status == "RUNNING":
        state = "running" if number in alive else "lost"
    submitter, started = (plain_line(str(job.get(key) or ""), LETTERS) for key in ("submitter_name", "start_time"))
    return ServerRun(plain_line(name, LETTERS), state, submitter, started[:19].replace(" ", "T"), number)


@dataclass(frozen=True)
class SiteStatus:
    """A site that is registered at the server."""

    name: str
    last_seen: str
    seconds_ago: float
    stale: bool = False
    """True without recent contact: the site has stopped, or its connection is broken."""


@dataclass(frozen=True)
class CertificateStatus:
    """A certificate of the server, of the operator who asks, or of a member who connected since the server started."""

    name: str
    until: str
    days_left: float

    @property
    def ends_soon(self) -> bool:
        """Return whether it is time to renew it."""
        return self.days_left < SOON.days


@dataclass(frozen=True)
class RunStatus:
    """A run that has not ended."""

    run: str
    round: int
    rounds: int
    without: tuple[str, ...]
    """The sites that did not reply in the last round."""
    bytes_up: int
    bytes_down: int
    state: Literal["waiting", "starting", "running", "lost"] = "running"
    """Waiting for the server to begin it; starting; running; or lost with a server that died, until --resume."""
    job: str = ""
    """NVFlare's id of its newest job."""


Ask = Callable[[Session, str], dict[str, Any] | None]
"""A function that asks a job's program for its progress."""


@dataclass(frozen=True)
class Status:
    """A federation at one moment."""

    sites: tuple[SiteStatus, ...]
    runs: tuple[RunStatus, ...]
    certificates: tuple[CertificateStatus, ...] = ()
    differences: tuple[str, ...] = ()
    """A line per member with other versions than this machine."""


def query_status(session: Session, ask: Ask = ask, admitted: Admitted | None = None) -> Status:
    """Ask the server, which answered our request for admission, and the program of each run."""
    admitted = admitted or Admitted()
    now, sites = time.time() + admitted.clock, list[SiteStatus]()
    for client in session.get_connected_client_list():
        seen = float(client.last_connect_time or 0)  # on the server's clock
        when, ago = datetime.fromtimestamp(seen, UTC).isoformat(timespec="seconds"), max(0.0, now - seen)
        sites.append(SiteStatus(plain_line(client.name, LETTERS), when, round(ago, 1), ago >= RECENT))
    runs = [_run(session, run, ask) for run in _runs(session, admitted) if run.state in ("waiting", "running", "lost")]
    return Status(tuple(sorted(sites, key=lambda site: site.name)), tuple(runs))


def _run(session: Session, described: ServerRun, ask: Ask) -> RunStatus:
    """Add its progress to a run that has not ended."""
    name, number = described.run, described.job
    if described.state in ("waiting", "lost"):
        return RunStatus(name, 0, 0, (), 0, 0, described.state, number)
    progress = ask(session, number)
    if progress is None:
        return RunStatus(name, 0, 0, (), 0, 0, "starting", number)
    rows = progress["rounds"]
    last: dict[str, Any] = rows[-1] if rows else {"round": 0, "asked": [], "replied": []}
    without = tuple(plain_line(str(site), LETTERS) for site in last["asked"] if site not in last["replied"])
    up, down = (sum(int(row[key]) for row in rows) for key in ("bytes_up", "bytes_down"))
    return RunStatus(name, int(last["round"]), int(progress["of"]), without, up, down, job=number)


def metrics_of(status: Status) -> str:
    """Return a status in Prometheus' text format, for a collector that reads a file."""
    contacts = {site.name: datetime.fromisoformat(site.last_seen).timestamp() for site in status.sites}
    ends = {each.name: datetime.fromisoformat(each.until).timestamp() for each in status.certificates}
    runs = [run for run in status.runs if run.state == "running"]
    names = ("round", "rounds", "bytes_up", "bytes_down")
    progress = [family(f"run_{name}", {run.run: getattr(run, name) for run in runs}, "run") for name in names]
    return text_of([family(CONTACTS, contacts, "site"), family(CERTIFICATES, ends, "member"), *progress])


def status_of(kit: Path, wait: float) -> Status:
    """Ask the server of an operator's federation for its status."""
    opened = open_kit(kit, "viewer")
    with connect_to_server(opened, wait) as session:
        return _query_all(session, opened, wait)


def _query_all(session: Session, kit: Kit, wait: float, ask: Ask = ask) -> Status:
    """Return the status with the ends of certificates, and members with other versions."""
    admitted = ask_server(kit, wait)
    status, now = query_status(session, ask, admitted), datetime.now(UTC)
    until = {**admitted.until, kit.name: expiry_of(kit.credentials)}  # the kit has its own certificate and the root
    certificates = tuple(
        CertificateStatus(name, when.isoformat(timespec="seconds"), round((when - now).total_seconds() / 86400, 1))
        for name, when in sorted(until.items())
    )
    return replace(status, certificates=certificates, differences=tuple(admitted.differences()))


# The operator's console: a page about the federation, as a file or for browsers on this machine alone.


EVERY = 5.0
"""Seconds between two updates of the console, and until a browser fetches the page again."""
AGAIN = 60.0
"""Seconds until a browser reads a page from a file again."""
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class RoundHistory:
    """The rounds that runs have reported so far, so that each query returns new rounds only."""

    def __init__(self) -> None:
        self._details: dict[str, dict[str, Any]] = {}

    def ask(self, session: Session, number: str) -> dict[str, Any] | None:
        """Ask a job for its new rounds, and return all that it has reported."""
        rows = self._details.get(number, {}).get("rounds", [])
        reply = ask(session, number, int(rows[-1]["round"]) if rows else 0, more=True)
        if reply is not None:
            self._details[number] = reply | {"rounds": [*rows, *reply["rounds"]]}
        return self._details.get(number)

    def look(self, session: Session, kit: Kit) -> FederationState:
        """Return the present state of the federation."""
        status = _query_all(session, kit, EVERY, self.ask)
        details = {run.run: self._details.get(run.job, {}) for run in status.runs}
        self._details = {run.job: self._details[run.job] for run in status.runs if run.job in self._details}
        return FederationState(str(address_in(kit)), asdict(status), details, datetime.now(UTC))


def write_page(path: Path, kit: Path, wait: float) -> None:
    """Ask the federation once, and write the page."""
    opened = open_kit(kit, "viewer")
    with connect_to_server(opened, wait) as session:
        standing = RoundHistory().look(session, opened)
    write_atomically(path, page(standing, AGAIN).encode())


def serve_console(kit: Path, port: int, wait: float, say: Say) -> None:
    """Ask the federation at intervals, and show its page to browsers on this machine, until stopped."""
    opened = open_kit(kit, "viewer")
    newest = FederationState(str(address_in(opened)), {}, {})
    # A thread that answers a browser reads the newest state; only this one replaces it.
    with serve_page("--serve", "/", lambda: page(newest, EVERY).encode(), HEADERS, port) as address:
        say(f"{address} shows {address_in(opened)}; press Ctrl-C to stop")
        while True:
            # The page shows the reason for a missing answer. An error that only a person can correct ends this.
            try:
                with connect_to_server(opened, wait) as session:
                    memory = RoundHistory()
                    while True:
                        newest = memory.look(session, opened)
                        time.sleep(EVERY)
            except (RunFailed, SessionClosed, *TROUBLE) as error:
                newest = replace(newest, trouble=str(error) or type(error).__name__)
                time.sleep(EVERY)
