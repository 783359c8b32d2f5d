"""How a federation is: who is connected and was last heard of when, which runs go on and how far they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from nvflare.fuel.flare_api.flare_api import Session

from fedvisage.nvflare.certificates import SOON, expires, papers_in
from fedvisage.nvflare.following import ask
from fedvisage.nvflare.kits import Kit, open_kit
from fedvisage.nvflare.knocking import knock
from fedvisage.nvflare.operator import connected


@dataclass(frozen=True)
class SiteSeen:
    """A site that is registered at the server."""

    name: str
    last_seen: str
    seconds_ago: float


@dataclass(frozen=True)
class CertificateSeen:
    """A certificate of a member who connected since the server started, of the server, or of the operator who asks."""

    name: str
    until: str
    days_left: float

    @property
    def ends_soon(self) -> bool:
        """Return whether it is time to renew it."""
        return self.days_left < SOON.days


State = Literal["waiting", "starting", "running", "lost"]


@dataclass(frozen=True)
class RunSeen:
    """A run that has not ended."""

    run: str
    round: int
    rounds: int
    without: tuple[str, ...]
    """The sites that the last round was without."""
    bytes_up: int
    bytes_down: int
    state: State = "running"
    """Waiting for the server to begin it; starting; running; lost with a server that died: it waits for --resume."""
    job: str = ""
    """NVFlare's name for it."""


Ask = Callable[[Session, str], dict[str, Any] | None]
"""Asks a job's program how far it is."""


@dataclass(frozen=True)
class Status:
    """A federation at one moment."""

    sites: tuple[SiteSeen, ...]
    runs: tuple[RunSeen, ...]
    certificates: tuple[CertificateSeen, ...] = ()


def look(session: Session, ask: Ask = ask) -> Status:
    """Ask the server, and the program of each run."""
    sites = [_site(client.name, float(client.last_connect_time or 0)) for client in session.get_connected_client_list()]
    alive = {str(job.job_id) for job in session.get_system_info().job_info}
    newest = {str(job["name"]): job for job in sorted(session.list_jobs(detailed=True), key=_submitted)}
    runs = [_run(session, name, job, alive, ask) for name, job in newest.items() if not _ended(job)]
    return Status(tuple(sorted(sites, key=lambda site: site.name)), tuple(runs))


def _submitted(job: dict[str, Any]) -> str:
    return str(job.get("submit_time"))


def _ended(job: dict[str, Any]) -> bool:
    return str(job.get("status")).startswith("FINISHED")


def _run(session: Session, name: str, job: dict[str, Any], alive: set[str], ask: Ask) -> RunSeen:
    """Describe a run by its newest job; NVFlare says RUNNING for ever of one whose server died."""
    number = str(job["job_id"])
    if str(job.get("status")) != "RUNNING":
        return RunSeen(name, 0, 0, (), 0, 0, "waiting", number)
    if number not in alive:
        return RunSeen(name, 0, 0, (), 0, 0, "lost", number)
    progress = ask(session, number)
    return RunSeen(name, 0, 0, (), 0, 0, "starting", number) if progress is None else _going(name, number, progress)


def _site(name: str, seen: float) -> SiteSeen:
    when = datetime.fromtimestamp(seen, UTC).isoformat(timespec="seconds")
    return SiteSeen(name, when, round(max(0.0, time.time() - seen), 1))


def _going(name: str, number: str, progress: dict[str, Any]) -> RunSeen:
    rows = progress["rounds"]
    last: dict[str, Any] = rows[-1] if rows else {"round": 0, "asked": [], "replied": []}
    without = tuple(site for site in last["asked"] if site not in last["replied"])
    up, down = (sum(int(row[key]) for row in rows) for key in ("bytes_up", "bytes_down"))
    return RunSeen(name, int(last["round"]), int(progress["of"]), without, up, down, job=number)


def prometheus(status: Status) -> Iterator[str]:
    """Return the lines of Prometheus' text format, for a collector that reads a file."""
    yield "# TYPE fedvisage_site_seconds_since_seen gauge"
    for site in status.sites:
        yield f'fedvisage_site_seconds_since_seen{{site="{site.name}"}} {site.seconds_ago}'
    yield "# TYPE fedvisage_certificate_days_left gauge"
    for one in status.certificates:
        yield f'fedvisage_certificate_days_left{{member="{one.name}"}} {one.days_left}'
    for name, kind in (("round", "gauge"), ("rounds", "gauge"), ("bytes_up", "counter"), ("bytes_down", "counter")):
        yield f"# TYPE fedvisage_run_{name} {kind}"
        for run in (run for run in status.runs if run.state == "running"):
            yield f'fedvisage_run_{name}{{run="{run.run}"}} {getattr(run, name)}'


def status_of(kit: Path, wait: float) -> Status:
    """Ask the server of the federation that an operator's kit belongs to."""
    opened = open_kit(kit, "operator")
    with connected(opened, wait) as session:
        return replace(look(session), certificates=certificates(opened))


def certificates(kit: Kit) -> tuple[CertificateSeen, ...]:
    """Ask the server when certificates end; this kit knows its own, and the root of all."""
    papers, now = papers_in(kit.path, at_server=False), datetime.now(UTC)
    until = knock(kit) | {kit.name: expires(papers)}
    return tuple(
        CertificateSeen(name, when.isoformat(timespec="seconds"), round((when - now).total_seconds() / 86400, 1))
        for name, when in sorted(until.items())
    )
