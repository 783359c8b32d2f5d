"""Messages of a hostile member or server that would stop a site, delete its files or run code there."""

import base64
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
from nvflare.lighter.utils import load_private_key_file, sign_folders
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from tests.distributed.attacks import JOB, NEEDED, hostile_environment
from tests.distributed.federations import WAIT, run_through
from tests.toy import SITES, Sets, recipe_of, tree

from fedvisage.nvflare.job import Job, without_local_parts, write_job
from fedvisage.nvflare.operator import connect_to_server
from fedvisage.nvflare.rehearsal import Rehearsal, rehearsal

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]

KEEPSAKE = "keepsake"
"""A folder in the kit of site A."""


TOPICS = sorted({topic for each in ClientRequestProcessors.request_processors for topic in each.get_topics()})
IN_A_STREAM = {
    "name": "in a stream",
    "channel": "sm__STREAM",
    "topic": "sm__DATA",
    "forged": {"sm__ch": "admin", "sm__tp": "admin", "sm__id": 1, "sm__dt": 1, "sm__sq": 0, "sm__os": 0},
}


def administration(topic: str, target: str = "A", **more: Any) -> dict[str, Any]:
    """Return a message of administration as NVFlare's server sends it."""
    message = {"channel": "admin", "topic": "admin", "target": target, "topic_in_body": topic, "name": topic}
    return message | {"body_headers": {"job_id": KEEPSAKE}} | more


def job_with_code(job: Path, config: dict[str, Any], canary: Path) -> None:
    """Bring a class whose module writes the canary."""
    (job / "custom").mkdir()
    (job / "custom" / "own.py").write_text(f"open({str(canary)!r}, 'w').close()\n\n\nclass Site:\n    pass\n")
    config["components"][0] = {"id": "program", "path": "own.Site", "args": {}}


def job_that_names_code(job: Path, config: dict[str, Any], canary: Path) -> None:
    """Name a class of Python's library that writes the canary."""
    config["components"].append({"id": "own", "path": "subprocess.Popen", "args": {"args": ["touch", str(canary)]}})


def signed_job(
    place: Path, kit: Path, sets: Sets, spoil: Callable[[Path, dict[str, Any], Path], None]
) -> dict[str, Any]:
    """Return the deployment of a job with foreign code to site A, signed with the key of another member's kit."""
    place.mkdir(exist_ok=True)
    number, job = str(uuid.uuid5(uuid.NAMESPACE_DNS, spoil.__name__)), place / spoil.__name__
    write_job(job, Job("foreign", without_local_parts(recipe_of(tree(sets, training__rounds=1)))), ("A",))
    path = job / "app" / "config" / "config_fed_client.json"
    config = json.loads(path.read_text())
    spoil(job / "app", config, place / "canary")
    path.write_text(json.dumps(config))
    startup = kit / "startup"
    sign_folders(str(job / "app"), load_private_key_file(str(startup / "client.key")), str(startup / "client.crt"))
    meta = {
        "job_id": number,
        "name": "foreign",
        "submitter_name": "operator@localhost.org",
        "submitter_org": "operator",
        "submitter_role": "project_admin",
    }
    body = base64.b64encode(zip_directory_to_bytes(str(job / "app"), "")).decode()
    return {"body": body, "body_headers": {"job_id": number, "job_meta": meta, "app_name": "app"}}


def deploy_and_start(name: str, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the two requests by which a server has a site run a job."""
    return [
        administration("train.deploy", name=f"deploy {name}", **job),
        administration(
            "train.start_job", name=f"start {name}", body_headers=job["body_headers"], reserves=True, phase=1
        ),
    ]


def attacks_of_a_member(jobs: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages to site A: direct ones, with false headers, and by other ways through the server."""
    attacks = [administration(topic) for topic in TOPICS if topic not in ("train.shutdown", "train.restart")]
    attacks += [each for name, job in jobs.items() for each in deploy_and_start(name, job)]
    attacks += [
        administration("train.delete_run", name="origin server", forged={"cn__origin": "server", "cn__from": "server"}),
        administration("train.delete_run", name="as a reply", forged={"cn__msg_type": "reply"}),
    ]
    for destination in (" A", "A ", "a", "server.A", f"A.{JOB}", "A.B", "_admin_" + JOB):
        forged = {"cn__destination": destination}
        attacks.append(administration("train.delete_run", "server", name=f"to {destination!r}", forged=forged))
    for name, channel, topic in (
        ("network stop", "_net_manager", "stop"),
        ("network stop of a cell", "_net_manager", "stop_cell"),
        ("processes", "_net_manager", "process_info"),
        ("job command", "client_command", "abort"),
        ("goodbye", "cellnet.channel", "bye"),
        ("clients of a job", "server_parent_listener", "get_clients"),
        ("keys", "credential_manager", "key_exchange"),
    ):
        for target in ("A", f"A.{JOB}", "server"):
            attacks.append({"name": f"{name} {target}", "channel": channel, "topic": topic, "target": target})
    attacks += [
        administration("train.delete_run") | IN_A_STREAM,
        {
            "name": "in a bundle",
            "channel": "cellnet.channel",
            "topic": "bulk",
            "target": "A",
            "payload": [{"target": "A", "channel": "admin", "topic": "admin", "message": {"headers": {}}}],
        },
        {
            "name": "an address",
            "channel": "task",
            "topic": "heart_beat",
            "target": "server",
            "listens": True,
            "forged": {"cn__from": "someone"},
        },
        administration("train.restart", phase=1),
        administration("train.shutdown", phase=1),
    ]
    return attacks


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def federation(sets: Sets, place: Path) -> Iterator[Rehearsal]:
    with rehearsal(place / "federation", {name: str(sets[name]) for name in SITES}) as members:
        (members.sites["A"].path / KEEPSAKE).mkdir()
        yield members


def attack(members: Rehearsal, cell: str, attacks: list[dict[str, Any]], place: Path) -> dict[str, str]:
    """Start a member again as a hostile one, and return what came back for each attack once all sites are up."""
    with hostile_environment(cell, attacks, place) as results:
        members.kill(cell)
        members.start(cell)
    with connect_to_server(members.operator, WAIT) as session:
        while {client.name for client in session.get_connected_client_list()} < set(SITES):
            assert not results.exists()
    (place / "go").touch()
    while not results.exists():
        time.sleep(0.5)
    replies: dict[str, str] = json.loads(results.read_text())
    return replies


def check_unharmed(members: Rehearsal, process: int) -> None:
    """Check that site A runs on in its process, with all its files."""
    kit = members.sites["A"].path
    assert members.processes["A"].pid == process
    assert members.processes["A"].poll() is None
    assert (kit / KEEPSAKE).is_dir()
    assert (kit / "startup" / "client.key").is_file()


@pytest.fixture(scope="module")
def jobs(federation: Rehearsal, sets: Sets, place: Path) -> dict[str, dict[str, Any]]:
    kit, spoils = federation.sites["B"].path, (job_with_code, job_that_names_code)
    return {spoil.__name__: signed_job(place / "jobs", kit, sets, spoil) for spoil in spoils}


def test_member_reaches_no_other_member_and_runs_continue(
    federation: Rehearsal, sets: Sets, place: Path, tmp_path: Path, jobs: dict[str, dict[str, Any]]
) -> None:
    process, audit = federation.processes["A"].pid, federation.sites["A"].path / "audit.log"
    attacks = attacks_of_a_member(jobs)
    results = attack(federation, "B", attacks, place / "member")
    assert results.keys() == {each["name"] for each in attacks}
    answered = {name: reply for name, reply in results.items() if reply not in ("timeout", "comm_error")}
    assert answered == {"goodbye server": "ok: None"}, "the server accepts only that B leaves"
    check_unharmed(federation, process)
    assert not audit.exists() or not audit.read_text(), "A got no request"
    run_through(federation, tree(sets, training__rounds=1), tmp_path / "run")


def test_site_executes_only_the_servers_requests_that_runs_need(
    federation: Rehearsal, place: Path, jobs: dict[str, dict[str, Any]]
) -> None:
    process = federation.processes["A"].pid
    attacks = [administration(topic) for topic in TOPICS if topic not in ("train.shutdown", "train.restart")]
    for number in ("../startup", "startup", JOB.upper(), "", None):
        job = jobs["job_with_code"] | {"body_headers": {"job_id": number}}
        attacks.append(administration("train.deploy", name=f"job {number}", **job))
    attacks += [each for name, job in jobs.items() for each in deploy_and_start(name, job)]
    attacks += [
        {"name": "network stop", "channel": "_net_manager", "topic": "stop", "target": "A"},
        administration("train.restart", phase=1),
        administration("train.shutdown", phase=1),
    ]
    results = attack(federation, "server", attacks, place / "server")
    for topic in set(TOPICS) - NEEDED:
        assert results[topic] == "ok: invalid_request"
    for topic in NEEDED - {"train.check_status"}:
        assert results[topic] == "ok: invalid job id"
    assert json.loads(results["train.check_status"].removeprefix("ok: "))["running_jobs"] == []
    assert {reply for name, reply in results.items() if name.startswith("job ")} == {"ok: invalid job id"}
    assert "BYOC not permitted" in results["deploy job_with_code"]
    assert "does not exist" in results["start job_with_code"]
    assert results["start job_that_names_code"] == "ok: Start the client app...", "its process has no such class"
    assert results["network stop"] == "timeout"
    children = psutil.Process(process).children(recursive=True)
    psutil.wait_procs(children, timeout=120)
    assert not (place / "jobs" / "canary").exists(), "no foreign code ran"
    check_unharmed(federation, process)


def test_no_port_or_socket_is_open_to_other_users(federation: Rehearsal) -> None:
    service = json.loads((federation.operator.path / "startup" / "fed_admin.json").read_text())["admin"]["port"]
    for name, process in federation.processes.items():
        kit = federation.server if name == "server" else federation.sites[name]
        connections = psutil.Process(process.pid).net_connections("inet")
        ports = {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
        assert ports == ({int(service)} if name == "server" else set())
        sockets = [each for each in (kit.path / "socket").iterdir() if each.is_socket()]
        assert len(sockets) == 1
        assert (kit.path / "socket").stat().st_mode & 0o777 == 0o700
        assert (kit.path / "socket").stat().st_uid == os.getuid()
