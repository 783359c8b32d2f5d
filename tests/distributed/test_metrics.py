"""The metrics of a server and of a site, from their files and from values in the form of NVFlare 2.9."""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.distributed.site_owners import owners_file, prepare_owner, provision_owners
from tests.prometheus_text import read_metrics, values_of
from tests.refusals import check_output, failed, refused
from tests.toy import Sets

from fedvisage.base.prometheus import text_of
from fedvisage.nvflare.admission import Admission
from fedvisage.nvflare.certificates import certificates_in, credentials_in
from fedvisage.nvflare.kits import Kit, open_kit
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.metrics import KINDS, RUNS, SiteMetrics, kind_of, serve_metrics, server_families
from fedvisage.nvflare.node import end
from fedvisage.nvflare.owner.record import FOLDER, SiteRecord
from fedvisage.nvflare.owner.requests import Request, Requests
from fedvisage.nvflare.owner.submission import NotReady
from fedvisage.nvflare.rehearsal import free_port
from fedvisage.nvflare.watching import LOST, ProcessContext

ROOT = Path(__file__).parents[2]
RULES_FILE = ROOT / "deploy" / "prometheus" / "rules.yaml"


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provision_owners(tmp_path_factory.mktemp("owners") / "kits")


# The server.


def write_run(state: Path, name: str, rows: list[dict[str, Any]], age: float = 0.0, rounds: int = 3) -> None:
    """Write the files of a run whose last round ended some seconds ago."""
    (state / name).mkdir(parents=True)
    (state / name / "recipe.yaml").write_text(f"method: fedpad\ntraining: {{rounds: {rounds}}}\n")
    (state / name / "rounds.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    moment = time.time() - age
    os.utime(state / name / "rounds.jsonl", (moment, moment))


def row(number: int, failed: Mapping[str, str] | None = None) -> dict[str, Any]:
    return {"round": number, "seconds": 2.5, "bytes_up": 100, "bytes_down": 1000, "failed": dict(failed or {})}


def run_server(monkeypatch: pytest.MonkeyPatch, contacts: Mapping[str, float], *running: str) -> None:
    """Set NVFlare's server of this process, with connected sites and running jobs."""
    clients = {name: SimpleNamespace(name=name, last_connect_time=when) for name, when in contacts.items()}
    jobs = {f"id-{name}": SimpleNamespace(meta={"name": name}) for name in running}
    runner = SimpleNamespace(running_jobs=jobs)
    server = SimpleNamespace(
        client_manager=SimpleNamespace(get_clients=lambda: clients), engine=SimpleNamespace(job_runner=runner)
    )
    monkeypatch.setattr(ProcessContext, "server", server)


def test_run_has_the_sums_of_its_rounds_and_its_failures_by_kind(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {"A": "did not answer within 600 s", "B": "refuses the run by its rule rounds: at most 2 are accepted"}
    write_run(tmp_path, "first-ab12", [row(1), row(2, failed)], age=100)
    write_run(tmp_path, "second-cd34", [])
    run_server(monkeypatch, {}, "first-ab12")
    server = open_kit(kits / "server", "server")
    text = text_of(server_families(server, tmp_path, {}))
    expected = {"running": (1, 0), "round": (2, 0), "rounds": (3, 3), "seconds": (5, 0), "round_seconds": (2.5, 0)}
    for name, (first, second) in (expected | {"bytes_up": (200, 0), "bytes_down": (2000, 0)}).items():
        assert values_of(text, f"fedvisage_run_{name}") == {"first-ab12": first, "second-cd34": second}, name
    last = values_of(text, "fedvisage_run_last_round_timestamp_seconds")["first-ab12"]
    assert last == (tmp_path / "first-ab12/rounds.jsonl").stat().st_mtime_ns / 1e9
    failures = values_of(text, "fedvisage_run_failures")
    assert {key for key, number in failures.items() if number} == {"first-ab12,silent", "first-ab12,rule rounds"}
    assert len(failures) == 2 * len(KINDS), "each reason has a zero first, so that a first failure is a rise"
    with (tmp_path / "first-ab12/rounds.jsonl").open("a") as file:
        file.write(json.dumps(row(3)) + '\n{"round": 4, "sec')  # a line that is being written
    assert values_of(text_of(server_families(server, tmp_path, {})), "fedvisage_run_bytes_up")["first-ab12"] == 300


def test_number_of_runs_is_bounded_and_includes_the_running_one(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(RUNS + 5):
        write_run(tmp_path, f"run-{number}", [row(1)], age=1000 - number)
    run_server(monkeypatch, {}, "run-0")
    text = text_of(server_families(open_kit(kits / "server", "server"), tmp_path, {}))
    newest = {f"run-{number}" for number in range(6, RUNS + 5)}
    assert values_of(text, "fedvisage_run_round").keys() == newest | {"run-0"}
    assert [run for run, value in values_of(text, "fedvisage_run_running").items() if value] == ["run-0"]


def test_site_that_nvflare_forgets_keeps_its_last_contact(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, contacts, now = open_kit(kits / "server", "server"), dict[str, float](), time.time()
    run_server(monkeypatch, {"A": now, "B": now - LOST - 1})
    text = text_of(server_families(server, tmp_path, contacts))
    assert values_of(text, "fedvisage_sites_connected") == {"": 1}
    run_server(monkeypatch, {"A": now})
    text = text_of(server_families(server, tmp_path, contacts))
    assert values_of(text, "fedvisage_site_last_contact_timestamp_seconds") == {"A": now, "B": now - LOST - 1}


def test_revoked_member_has_no_metrics(kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kits = Path(shutil.copytree(kits, tmp_path / "kits"))
    admission = Admission(kits / "server", print)
    certificates = {
        name: certificates_in(credentials_in(kits / "sites" / name, at_server=False).certificate)[0] for name in "AB"
    }
    for certificate in certificates.values():
        admission.enter(certificate)
    monkeypatch.setattr(ProcessContext, "admission", admission)
    run_server(monkeypatch, {"A": time.time(), "B": time.time()})
    server = open_kit(kits / "server", "server")
    ends = values_of(text_of(server_families(server, tmp_path, {})), "fedvisage_certificate_end_timestamp_seconds")
    assert {name: ends[name] for name in "AB"} == {
        name: certificate.not_valid_after_utc.timestamp() for name, certificate in certificates.items()
    }
    assert len(ends) == 3, "and the server's own"
    provision(owners_file(), kits, revoke=["B"])
    shutil.copytree(kits / "updates/server", kits / "server", dirs_exist_ok=True)
    admission.read()
    text = text_of(server_families(server, tmp_path, {}))
    assert values_of(text, "fedvisage_site_last_contact_timestamp_seconds").keys() == {"A"}
    assert "B" not in values_of(text, "fedvisage_certificate_end_timestamp_seconds")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("refused: weights: is not finite", "message"),
        ("refused: answers 'x', expected 'y'", "message"),
        ("did not answer within 600 s; sits out until round 4", "silent"),
        ("is not connected", "silent"),
        ("was stopped at the site", "silent"),
        (
            "waits for this site's administrator (rule approve); --resume the run after the approval",
            "rule approve",
        ),
        ("refused the run (rule approve): no consent", "rule approve"),
        ("refuses the run by its rule invented: x", "other"),
        ("its disk is full; see its log", "other"),
    ],
)
def test_reason_has_a_kind_of_the_list(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind
    assert kind in KINDS


# A site.


@pytest.fixture
def site(kits: Path, sets: Sets, tmp_path: Path) -> Kit:
    kit = Path(shutil.copytree(kits / "sites" / "A", tmp_path / "kit"))
    return prepare_owner(kit, sets["A"], tmp_path / "state", "format: 1")


def send(record: SiteRecord, number: int, *sizes: int, **more: Any) -> None:
    fields = [{"field": "weights", "kind": "weights", "bytes": size, "digest": "aa"} for size in sizes]
    record.append("sent", run="run-1", round=number, call="train", fields=fields, **more)


def test_site_has_the_sums_of_its_record_and_reads_on(site: Kit, tmp_path: Path) -> None:
    state = tmp_path / "state"
    metrics, record = SiteMetrics(site, state), SiteRecord(site.path, state)
    assert set(values_of(text_of(metrics.families()), "fedvisage_runs_refused_total").values()) == {0}
    record.append("accepted", run="run-1")
    send(record, 1, 100, 10, processor=1.5)
    send(record, 1, 100, processor=2.5)
    record.append("sent", run="run-0", round=1, call="train", fields=[], processor=4.0)
    send(record, 2, 1000, processor=3.5)
    record.append("refused", run="run-2", reason="refuses the run by its rule rounds: at most 3 are accepted")
    record.append("refused", run="run-3", reason='the job names a "rule invented\n"')
    record.append("failed", run="run-1", reason="its disk is full; see its log")
    expected = {"runs_accepted": 1, "processor_seconds": 7.5, "sent_fields": 4, "sent_bytes": 1210}
    for _ in range(2):
        text = text_of(metrics.families())
        for name, number in (expected | {"failures": 1}).items():
            assert values_of(text, f"fedvisage_{name}_total") == {"": number}, name
        refusals = values_of(text, "fedvisage_runs_refused_total")
        assert {kind: number for kind, number in refusals.items() if number} == {"rule rounds": 1, "other": 1}
    with record.path.open("ab") as file:
        file.write(b'{"a line": "whose reply never left"')
    assert values_of(text_of(metrics.families()), "fedvisage_sent_bytes_total") == {"": 1210}
    send(record, 3, 5)
    assert values_of(text_of(metrics.families()), "fedvisage_sent_bytes_total") == {"": 1215}
    shutil.move(state / FOLDER, tmp_path / "kept")
    send(record, 1, 7)
    assert values_of(text_of(metrics.families()), "fedvisage_sent_bytes_total") == {"": 1222}, "a counter never falls"
    shutil.move(state / FOLDER, tmp_path / "kept as well")
    for number in range(3):
        send(record, number, 10 ** (number + 3))  # longer than the record before
    assert values_of(text_of(metrics.families()), "fedvisage_sent_bytes_total") == {"": 112_222}


def test_state_that_does_not_exist_yet_has_no_free_bytes(site: Kit, tmp_path: Path) -> None:
    text = text_of(SiteMetrics(site, tmp_path / "later").families())
    assert values_of(text, "fedvisage_disk_free_bytes").keys() == {"kit"}


def test_site_counts_runs_that_wait_for_approval(site: Kit, tmp_path: Path) -> None:
    requests = Requests(tmp_path / "state")
    for number in range(3):
        with failed(NotReady, "administrator"):
            requests.require_approval(Request(f"run-{number}", {}, {}, (), "2026-11-28"))
    requests.decide("run-0", "approved")
    text = text_of(SiteMetrics(site, tmp_path / "state").families())
    assert values_of(text, "fedvisage_runs_waiting") == {"": 2}


# The endpoint.


def fetch(url: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(str(urlsplit(url).hostname), urlsplit(url).port, timeout=60)
    connection.request("GET", urlsplit(url).path)
    reply = connection.getresponse()
    try:
        return reply.status, str(reply.getheader("Content-Type")), reply.read().decode()
    finally:
        connection.close()


def test_endpoint_serves_the_metrics_and_hides_the_reason_of_a_failure(site: Kit, tmp_path: Path) -> None:
    state, lines, port = tmp_path / "state", list[str](), free_port()
    SiteRecord(site.path, state).append("accepted", run="run-1")
    with serve_metrics(str(port), site.path, "site", state, lines.append):
        url = f"http://127.0.0.1:{port}/metrics"
        assert lines == [f"metrics: {url}"]
        status, kind, text = fetch(url)
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert values_of(text, "fedvisage_runs_accepted_total") == {"": 1}
        assert values_of(text, "fedvisage_disk_free_bytes").keys() == {"kit", "state"}
        damaged = Requests(state).directory / "run-1.json"
        damaged.parent.mkdir()
        damaged.write_text("")
        status, _, text = fetch(url)
        assert status == 500
        assert str(tmp_path) not in text


@pytest.mark.parametrize("address", ["", "no", "0", "65536", "localhost", "localhost:", "1:2:x", "٣", "-1", "9464/x"])
def test_invalid_address_is_refused(address: str, site: Kit, tmp_path: Path) -> None:
    with refused("--metrics", "HOST:PORT"), serve_metrics(address, site.path, "site", tmp_path, print):
        pass


def test_site_without_the_option_opens_no_port(site: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.bind", lambda *_: pytest.fail("a port was opened"))
    with serve_metrics(None, site.path, "site", tmp_path, print):
        pass


@pytest.mark.long
def test_taken_port_ends_a_site_before_its_data_is_read(site: Kit, tmp_path: Path) -> None:
    port = str(free_port())
    words = [sys.executable, "-m", "fedvisage", "site", str(site.path), "--data", "missing", "--metrics", port]
    with serve_metrics(port, site.path, "site", tmp_path / "state", print):
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    check_output(ended.stderr, "--metrics", port)


@pytest.mark.distributed
@pytest.mark.long
@pytest.mark.timeout(600)
def test_processes_of_a_server_and_a_site_show_their_contact(sets: Sets, tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("federation", "server", "site")}
    kits, environment = provision_owners(tmp_path / "kits", ports["federation"]), os.environ | {"OMP_NUM_THREADS": "1"}
    words = {
        "server": ["server", str(kits / "server")],
        "site": ["site", str(kits / "sites/A"), "--data", str(sets["A"])],
    }
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "fedvisage", *command, "--metrics", str(ports[name])],
            env=environment,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        for name, command in words.items()
    }
    names = {"server": "fedvisage_site_last_contact_timestamp_seconds"}
    names["site"] = "fedvisage_server_last_contact_timestamp_seconds"
    began = time.time()
    try:
        for name, process in processes.items():
            values = dict[str, float]()
            while not max(values.values(), default=0) > began:
                assert process.poll() is None
                try:
                    values = values_of(fetch(f"http://127.0.0.1:{ports[name]}/metrics")[2], names[name])
                except OSError:
                    time.sleep(0.5)
            assert values.keys() == {"A" if name == "server" else ""}
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
    finally:
        for process in processes.values():
            end(process.pid)
            process.wait()


# The alert rules in deploy/.


def all_metrics(kits: Path, site: Kit, state: Path) -> Iterator[str]:
    """Yield the text of a server and of a site."""
    for kit in (open_kit(kits / "server", "server"), site):
        port = free_port()
        with serve_metrics(str(port), kit.path, kit.kind, state, print):
            yield fetch(f"http://127.0.0.1:{port}/metrics")[2]


def test_rules_use_metrics_that_exist(kits: Path, site: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessContext, "admission", Admission(kits / "server", print))
    printed = "".join(all_metrics(kits, site, tmp_path / "state"))
    used = set(re.findall(r"fedvisage_\w+", RULES_FILE.read_text()))
    assert len(used) > 8
    assert used <= set(re.findall(r"^# TYPE (\w+)", printed, flags=re.MULTILINE))


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on the PATH")
def test_prometheus_accepts_the_metrics_the_configuration_and_the_rules(
    kits: Path, site: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessContext, "admission", Admission(kits / "server", print))
    write_run(tmp_path / "state", "first-ab12", [row(1)])
    for text in all_metrics(kits, site, tmp_path / "state"):
        assert read_metrics(text)
        checked = subprocess.run([str(PROMTOOL), "check", "metrics"], input=text, text=True, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, "")
    for words in (["check", "config", "prometheus.yml"], ["test", "rules", str(ROOT / "tests/deploy_rules.yaml")]):
        checked = subprocess.run([str(PROMTOOL), *words], cwd=RULES_FILE.parent, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
