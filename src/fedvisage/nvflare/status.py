"""How a federation is: who is connected and was last heard of when, which runs go on and how far they are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.flare_api import Session

from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.operator import connected
from fedvisage.nvflare.server_program import PROGRESS


@dataclass(frozen=True)
class SiteSeen:
    """A site that is registered at the server."""

    name: str
    last_seen: str
    seconds_ago: float


@dataclass(frozen=True)
class RunSeen:
    """A run that goes on."""

    run: str
    round: int
    rounds: int
    without: tuple[str, ...]
    """The sites that the last round was without."""
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Status:
    """A federation at one moment."""

    sites: tuple[SiteSeen, ...]
    runs: tuple[RunSeen, ...]


def look(session: Session) -> Status:
    """Ask the server."""
    sites = [_site(client.name, float(client.last_connect_time or 0)) for client in session.get_connected_client_list()]
    runs = []
    for job in session.list_jobs(detailed=True):
        if str(job.get("status")) == "RUNNING":
            with suppress(Exception):  # a job that begins or ends, or was lost, does not answer
                runs.append(_run(str(job["job_name"]), session.do_app_command(str(job["job_id"]), PROGRESS, {})))
    return Status(tuple(sorted(sites, key=lambda site: site.name)), tuple(runs))


def _site(name: str, seen: float) -> SiteSeen:
    when = datetime.fromtimestamp(seen, UTC).isoformat(timespec="seconds")
    return SiteSeen(name, when, round(max(0.0, time.time() - seen), 1))


def _run(name: str, progress: dict[str, Any]) -> RunSeen:
    rows = progress["rounds"]
    last: dict[str, Any] = rows[-1] if rows else {"round": 0, "asked": [], "replied": []}
    without = tuple(site for site in last["asked"] if site not in last["replied"])
    up, down = (sum(int(row[key]) for row in rows) for key in ("bytes_up", "bytes_down"))
    return RunSeen(name, int(last["round"]), int(progress["of"]), without, up, down)


def prometheus(status: Status) -> Iterator[str]:
    """Return the lines of Prometheus' text format, for a collector that reads a file."""
    yield "# TYPE fedvisage_site_seconds_since_seen gauge"
    for site in status.sites:
        yield f'fedvisage_site_seconds_since_seen{{site="{site.name}"}} {site.seconds_ago}'
    for name, kind in (("round", "gauge"), ("rounds", "gauge"), ("bytes_up", "counter"), ("bytes_down", "counter")):
        yield f"# TYPE fedvisage_run_{name} {kind}"
        for run in status.runs:
            yield f'fedvisage_run_{name}{{run="{run.run}"}} {getattr(run, name)}'


def status_of(kit: Path, wait: float) -> Status:
    """Ask the server of the federation that an operator's kit belongs to."""
    with connected(open_kit(kit, "operator"), wait) as session:
        return look(session)
