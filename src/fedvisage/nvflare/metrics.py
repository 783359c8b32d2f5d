"""The metrics of a server and of a site, which their long-lived processes serve for Prometheus (decision 54).

Jobs are other processes: their figures are read from a run's files at the server, and from the record at a site.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say
from fedvisage.base.prometheus import Family, text_of
from fedvisage.federation.record.ledger import ROUNDS, read_lines
from fedvisage.nvflare.certificates import expiry_of
from fedvisage.nvflare.http_page import HERE, serve_page
from fedvisage.nvflare.kits import Kind, Kit, open_kit, state_directory
from fedvisage.nvflare.owner.policy import Policy
from fedvisage.nvflare.owner.record import SiteRecord
from fedvisage.nvflare.owner.requests import Requests
from fedvisage.nvflare.watching import LOST, ProcessContext
from fedvisage.recipe.plain_yaml import read_file

RUNS = 20
"""Runs with metrics at a server, at most: those that it runs, then the newest."""

RULES = tuple(sorted(Policy.model_fields.keys() - {"format"}))
KINDS = ("message", "silent", "other", *(f"rule {name}" for name in RULES))
"""The kinds of reasons for refusals and failures. A reason is another organisation's text, and never a label."""

RULE = re.compile(rf"\brule ({'|'.join(RULES)})\b")
SILENT = re.compile(r"offline|did not answer|could not be reached|is not connected|was stopped|was revoked")

CONTACTS, CERTIFICATES = "site_last_contact_timestamp_seconds", "certificate_end_timestamp_seconds"
METRICS = {
    "disk_free_bytes": "Free bytes of the disk with this directory.",
    CERTIFICATES: "The end of a certificate.",
    CONTACTS: "The last contact of a site with the server.",
    "sites_connected": "Sites with recent contact.",
    "admissions_refused_total": "Requests and connections with revoked certificates.",
    "run_running": "1 while the server runs it, else 0.",
    "run_round": "The last round of a run that is over.",
    "run_rounds": "The rounds of a run's recipe.",
    "run_last_round_timestamp_seconds": "The end of a run's last round; of a run without one, its start.",
    "run_round_seconds": "The duration of a run's last round.",
    "run_seconds": "The duration of a run's rounds so far.",
    "run_bytes_up": "Bytes from sites in a run's rounds so far.",
    "run_bytes_down": "Bytes to sites in a run's rounds so far.",
    "run_failures": "Failures of sites in a run's rounds so far, by kind.",
    "server_last_contact_timestamp_seconds": "The server's last answer to this site.",
    "runs_waiting": "Runs that wait for approval.",
    "runs_accepted_total": "Accepted runs; a run that continues is accepted again.",
    "runs_refused_total": "Refusals of runs by kind.",
    "failures_total": "Reasons for which this site did not carry out orders.",
    "processor_seconds_total": "Processor time of runs at this site.",
    "sent_fields_total": "Fields that left this site.",
    "sent_bytes_total": "Bytes of fields that left this site.",
}
"""All metrics, without their prefix. Those of runs are gauges, because a run that resumes repeats rounds."""

OF_RUNS = [name for name in METRICS if name.startswith("run_") and name not in ("run_running", "run_failures")]


def family(name: str, values: float | Mapping[str, float], label: str = "") -> Family:
    """Return a metric with one value, or with the values of a label."""
    if isinstance(values, Mapping):
        return f"fedvisage_{name}", METRICS[name], [({label: key}, value) for key, value in values.items()]
    return f"fedvisage_{name}", METRICS[name], [({}, values)]


@contextmanager
def serve_metrics(address: str | None, kit: Path, kind: Kind, state: Path | None, say: Say) -> Iterator[None]:
    """Serve the metrics of this process' server or site at ``PORT`` or ``HOST:PORT``; None serves nothing."""
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise UserError("--metrics", f"{address!r} is neither PORT nor HOST:PORT, such as 9464")
    opened, headers = open_kit(kit, kind), {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    kept = state_directory(opened, state)
    families: Callable[[], Iterator[Family]] = partial(server_families, opened, kept, {})
    if kind == "site":
        families = SiteMetrics(opened, kept).families

    def content() -> bytes:
        return text_of(families()).encode()

    with serve_page("--metrics", "/metrics", content, headers, int(port), host.strip("[]") or HERE) as url:
        say(f"metrics: {url}")
        yield


def _common_families(kit: Kit, state: Path, ends: Mapping[str, float]) -> Iterator[Family]:
    """Yield the metrics of this machine, and the ends of its own and other certificates."""
    places = {name: path for name, path in (("kit", kit.path), ("state", state)) if path.exists()}  # made at the start
    yield family("disk_free_bytes", {name: shutil.disk_usage(path).free for name, path in places.items()}, "place")
    own = expiry_of(kit.credentials).timestamp()
    yield family(CERTIFICATES, {**ends, kit.name: own}, "member")


def server_families(kit: Kit, state: Path, contacts: dict[str, float]) -> Iterator[Family]:
    """Yield the metrics of a server, and remember the last contacts: NVFlare forgets a site after ten minutes."""
    admission, server, revoked, running = ProcessContext.admission, ProcessContext.server, set[str](), set[str]()
    if server is not None:
        clients = list(server.client_manager.get_clients().values())
        contacts |= {client.name: float(client.last_connect_time or 0) for client in clients}
        running = {str(job.meta["name"]) for job in list(server.engine.job_runner.running_jobs.values())}
    ends = dict[str, float]()
    if admission is not None:
        revoked = set(admission.revoked())
        ends = {name: when.timestamp() for name, when in admission.until.copy().items() if name not in revoked}
        yield family("admissions_refused_total", admission.refused)
    yield from _common_families(kit, state, ends)
    seen = {name: when for name, when in sorted(contacts.items()) if name not in revoked}
    yield family(CONTACTS, seen, "site")
    yield family("sites_connected", sum(time.time() - when < LOST for when in seen.values()))
    files = {path.parent: path.parent / ROUNDS for path in state.glob("*/recipe.yaml")}
    changed = {run: (rows if rows.exists() else run / "recipe.yaml").stat().st_mtime_ns for run, rows in files.items()}
    newest = sorted(changed, key=lambda run: (run.name in running, changed[run]), reverse=True)[:RUNS]
    figures = {run.name: _figures_of(run, changed[run]) for run in newest}
    yield family("run_running", {run: int(run in running) for run in figures}, "run")
    for name in OF_RUNS:
        yield family(name, {run: values[name] for run, values in figures.items()}, "run")
    failures = [({"run": run, "kind": kind}, values[kind]) for run, values in figures.items() for kind in KINDS]
    yield "fedvisage_run_failures", METRICS["run_failures"], failures


@lru_cache(2 * RUNS)
def _figures_of(run: Path, changed: int) -> dict[str, float]:
    """Return the metrics of a run, and its failures by kind, until it has changed again."""
    rows = read_lines(run / ROUNDS) if (run / ROUNDS).exists() else []
    last = rows[-1] if rows else {"round": 0, "seconds": 0}
    failures = Counter(kind_of(reason) for row in rows for reason in row["failed"].values())
    return {
        "run_round": last["round"],
        "run_rounds": int(read_file(run / "recipe.yaml")["training"]["rounds"]),
        "run_last_round_timestamp_seconds": changed / 1e9,
        "run_round_seconds": last["seconds"],
        **{f"run_{key}": sum(row[key] for row in rows) for key in ("seconds", "bytes_up", "bytes_down")},
        **{kind: failures[kind] for kind in KINDS},
    }


def kind_of(reason: str) -> str:
    """Return the kind of the reason for which a site refused or failed."""
    if reason.startswith("refused: "):
        return "message"
    if rule := RULE.search(reason):
        return rule[0]
    return "silent" if SILENT.match(reason) else "other"


class SiteMetrics:
    """The metrics of a site: its connection, and the sums of its record, of which only new lines are read."""

    def __init__(self, kit: Kit, state: Path) -> None:
        """Take the kit, and the directory of its private state."""
        self._kit, self._state, self._record = kit, state, SiteRecord(kit.path, state)
        self._inode, self._end, self._sums, self._processor = 0, 0, Counter[str](), dict[str, float]()

    def families(self) -> Iterator[Family]:
        """Yield the metrics."""
        sums = self._sums
        for inode, end, row in self._record.rows_after(self._inode, self._end):
            self._inode, self._end = inode, end
            sums[row["event"]] += 1
            if row["event"] == "refused":
                sums[f"refused {kind_of(row['reason'])}"] += 1
            elif row["event"] == "sent":
                self._processor[row["run"]] = row.get("processor", 0.0)  # an earlier version has none
                sums["fields"] += len(row["fields"])
                sums["bytes"] += sum(each["bytes"] for each in row["fields"])
        yield from _common_families(self._kit, self._state, {})
        yield family("server_last_contact_timestamp_seconds", ProcessContext.last_contact)
        yield family("runs_waiting", len(Requests(self._state).waiting()))
        yield family("runs_accepted_total", sums["accepted"])
        yield family("runs_refused_total", {kind: sums[f"refused {kind}"] for kind in KINDS}, "kind")
        yield family("failures_total", sums["failed"])
        yield family("processor_seconds_total", sum(self._processor.values()))
        yield family("sent_fields_total", sums["fields"])
        yield family("sent_bytes_total", sums["bytes"])
