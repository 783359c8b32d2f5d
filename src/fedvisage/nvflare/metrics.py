"""The metrics of a server and of a site, which their long-lived processes serve for Prometheus (decision 54).

Jobs are other processes: their figures are read from a run's files at the server, and from the record at a site.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say
from fedvisage.base.prometheus import CONTENT_TYPE, Family, text_of
from fedvisage.federation.record.attendance import NO_QUORUM
from fedvisage.federation.record.ledger import ROUNDS, read_lines
from fedvisage.nvflare.certificates import credentials_in, expiry_of
from fedvisage.nvflare.greeting import VERSIONS
from fedvisage.nvflare.http_page import HERE, Page, serve_page
from fedvisage.nvflare.kits import Kit
from fedvisage.nvflare.owner.policy import Policy
from fedvisage.nvflare.owner.record import Row, SiteRecord
from fedvisage.nvflare.owner.requests import Requests
from fedvisage.nvflare.watching import LOST, ProcessContext
from fedvisage.recipe.plain_yaml import read_file

RUNS = 20
"""Runs with metrics at a server, at most: those that it runs, then the newest."""

RULES = tuple(sorted(Policy.model_fields.keys() - {"format"}))
REASONS = ("message", "silent", "quorum", "other", *(f"rule {name}" for name in RULES))
"""The kinds of a site's failure in a round. A reason itself is another organisation's text."""

RULE = re.compile(r"\brule (\w+)")
SILENT = re.compile(r"offline|did not answer|could not be reached|is not connected|was stopped|was revoked")

OF_RUNS = {
    "running": "1 while the server runs it, else 0.",
    "round": "The last round of a run that is over.",
    "rounds": "The rounds of a run's recipe.",
    "last_round_timestamp_seconds": "The end of a run's last round, or else its start.",
    "round_seconds": "The duration of a run's last round.",
    "seconds": "The duration of a run's rounds so far.",
    "up_bytes": "Bytes from sites in a run's rounds so far.",
    "down_bytes": "Bytes to sites in a run's rounds so far.",
}
"""The metrics of a run. They are gauges, because a run that resumes repeats rounds."""


def contact_family(contacts: Mapping[str, float]) -> Family:
    """Return the last contacts of sites, given as times by name."""
    values = [({"site": name}, when) for name, when in sorted(contacts.items())]
    return Family("fedvisage_site_last_contact_timestamp_seconds", "gauge", "A site's last contact.", values)


def certificate_family(ends: Mapping[str, float]) -> Family:
    """Return the ends of members' certificates, given as times by name."""
    values = [({"member": name}, when) for name, when in sorted(ends.items())]
    return Family("fedvisage_certificate_end_timestamp_seconds", "gauge", "The end of a certificate.", values)


def run_families(runs: Mapping[str, Mapping[str, float]]) -> Iterator[Family]:
    """Yield the metrics of runs, given by name with the keys of ``OF_RUNS``."""
    for key, purpose in OF_RUNS.items():
        values = [({"run": name}, figures[key]) for name, figures in sorted(runs.items()) if key in figures]
        yield Family(f"fedvisage_run_{key}", "gauge", purpose, values)


@contextmanager
def serve_metrics(address: str | None, kit: Kit, state: Path, say: Say) -> Iterator[None]:
    """Serve the metrics of this process' server or site at ``PORT`` or ``HOST:PORT``; None serves nothing."""
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise UserError("--metrics", f"{address!r} is neither PORT nor HOST:PORT, such as 9464")
    families = ServerMetrics(kit, state).families if kit.kind == "server" else SiteMetrics(kit, state).families
    lock = threading.Lock()

    def content() -> bytes:
        with lock:
            return text_of([*_machine_families(kit, state), *families()]).encode()

    page = Page("/metrics", content, {"Content-Type": CONTENT_TYPE})
    with serve_page("--metrics", page, int(port), host.strip("[]") or HERE) as url:
        say(f"metrics: {url}")
        yield


def _machine_families(kit: Kit, state: Path) -> Iterator[Family]:
    """Yield the metrics that a server and a site have in common."""
    yield Family("fedvisage_info", "gauge", "The versions of this process.", [({"versions": VERSIONS}, 1)])
    free = [({"place": name}, shutil.disk_usage(path).free) for name, path in (("kit", kit.path), ("state", state))]
    yield Family("fedvisage_disk_free_bytes", "gauge", "Free bytes of the disk with this directory.", free)


class ServerMetrics:
    """The metrics of a server: its members, and its runs."""

    def __init__(self, kit: Kit, state: Path) -> None:
        """Take the kit, and the directory of the runs."""
        self._kit, self._state = kit, state
        self._contacts = dict[str, float]()
        """Last contacts of sites since the start: NVFlare forgets a silent site after ten minutes."""

    def families(self) -> Iterator[Family]:
        """Yield the metrics."""
        admission, server, running = ProcessContext.admission, ProcessContext.server, set[str]()
        ends = {self._kit.name: expiry_of(credentials_in(self._kit.path, at_server=True)).timestamp()}
        if server is not None:
            for client in list(server.client_manager.get_clients().values()):
                self._contacts[client.name] = float(client.last_connect_time or 0)
            running = {str(job.meta["name"]) for job in list(server.engine.job_runner.running_jobs.values())}
        if admission is not None:
            ends |= {name: when.timestamp() for name, when in list(admission.until.items()) if name != self._kit.name}
            for name in admission.revoked():
                ends.pop(name, None)
                self._contacts.pop(name, None)
            purpose = "Requests and connections with revoked certificates."
            yield Family("fedvisage_admissions_refused_total", "counter", purpose, [({}, admission.refused)])
        connected = sum(time.time() - when < LOST for when in self._contacts.values())
        yield Family("fedvisage_sites_connected", "gauge", "Sites with recent contact.", [({}, connected)])
        yield contact_family(self._contacts)
        yield certificate_family(ends)
        yield from self._families_of_runs(running)

    def _families_of_runs(self, running: set[str]) -> Iterator[Family]:
        runs, failures = dict[str, dict[str, float]](), list[tuple[Mapping[str, object], float]]()
        for directory in self._newest_runs(running):
            name, changed = directory.name, _last_change(directory)
            figures, counts = _figures_of(directory, changed)
            runs[name] = figures | {"last_round_timestamp_seconds": changed / 1e9, "running": int(name in running)}
            failures += [({"run": name, "reason": reason}, counts[reason]) for reason in REASONS]
        yield from run_families(runs)
        purpose = "Failures of sites in a run's rounds so far, by kind."
        yield Family("fedvisage_run_failures", "gauge", purpose, failures)

    def _newest_runs(self, running: set[str]) -> list[Path]:
        """Return the directories of the runs with metrics."""
        runs = [path.parent for path in self._state.glob("*/recipe.yaml")]
        return sorted(runs, key=lambda run: (run.name in running, _last_change(run)), reverse=True)[:RUNS]


def _last_change(run: Path) -> int:
    """Return the end of a run's last round, or else its start, in nanoseconds."""
    return (run / ROUNDS if (run / ROUNDS).exists() else run / "recipe.yaml").stat().st_mtime_ns


@lru_cache(2 * RUNS)
def _figures_of(run: Path, changed: int) -> tuple[dict[str, float], Counter[str]]:
    """Return the figures of a run, and its failures by kind, until it has changed again."""
    rows = read_lines(run / ROUNDS) if (run / ROUNDS).exists() else []
    figures = {
        "rounds": int(read_file(run / "recipe.yaml")["training"]["rounds"]),
        "round": rows[-1]["round"] if rows else 0,
        "round_seconds": rows[-1]["seconds"] if rows else 0,
        "seconds": sum(row["seconds"] for row in rows),
        "up_bytes": sum(row["bytes_up"] for row in rows),
        "down_bytes": sum(row["bytes_down"] for row in rows),
    }
    return figures, Counter(kind_of(name, reason) for row in rows for name, reason in row["failed"].items())


def kind_of(name: str, failure: str) -> str:
    """Return the kind of a failure in a round."""
    if name == NO_QUORUM:
        return "quorum"
    if failure.startswith("refused: "):
        return "message"
    if SILENT.match(failure):
        return "silent"
    rule = rule_of(failure)
    return f"rule {rule}" if rule else "other"


def rule_of(reason: str) -> str:
    """Return the rule of a site that a reason names, or nothing."""
    match = RULE.search(reason)
    return match[1] if match is not None and match[1] in RULES else ""


class SiteMetrics:
    """The metrics of a site: its connection, and the sums of its record."""

    def __init__(self, kit: Kit, state: Path) -> None:
        """Take the kit, and the directory of its private state."""
        self._kit, self._record, self._requests = kit, SiteRecord(kit.path, state), Requests(state)
        self._read = 0
        self._sums, self._refused, self._rounds = defaultdict[str, float](float), Counter[str](), dict[str, int]()

    def families(self) -> Iterator[Family]:
        """Yield the metrics."""
        for end, row in self._record.rows_after(self._read):
            self._add(row)
            self._read = end
        values = [({}, ProcessContext.last_contact)]
        yield Family("fedvisage_server_last_contact_timestamp_seconds", "gauge", "The server's last answer.", values)
        until = expiry_of(credentials_in(self._kit.path, at_server=False))
        yield certificate_family({self._kit.name: until.timestamp()})
        waiting = len(self._requests.waiting())
        yield Family("fedvisage_runs_waiting", "gauge", "Runs that wait for approval.", [({}, waiting)])
        for name, purpose in OF_SITES.items():
            yield Family(f"fedvisage_{name}_total", "counter", purpose, [({}, self._sums[name])])
        refused = [({"rule": rule or "none"}, self._refused[rule]) for rule in (*RULES, "")]
        yield Family("fedvisage_runs_refused_total", "counter", "Refused runs by the site's rule.", refused)

    def _add(self, row: Row) -> None:
        """Add a line of the record to the sums."""
        if row["event"] == "sent":
            self._sums["rounds"] += self._rounds.get(row["run"]) != row["round"]
            self._rounds[row["run"]] = row["round"]
            self._sums["training_seconds"] += row.get("seconds", 0)  # an earlier version has none
            self._sums["sent_fields"] += len(row["fields"])
            self._sums["sent_bytes"] += sum(each["bytes"] for each in row["fields"])
        elif row["event"] == "refused":
            self._refused[rule_of(row["reason"])] += 1
        elif row["event"] in ("accepted", "failed"):
            self._sums["runs_accepted" if row["event"] == "accepted" else "orders_failed"] += 1


OF_SITES = {
    "runs_accepted": "Accepted runs; a run that continues is accepted again.",
    "rounds": "Rounds in which this site sent a reply.",
    "training_seconds": "Seconds in which this site carried out orders.",
    "sent_fields": "Fields that left this site.",
    "sent_bytes": "Bytes of fields that left this site.",
    "orders_failed": "Orders that this site could not carry out, by runs and reasons.",
}
"""The sums of a site's record."""
