"""Strangers are refused, and a job with foreign code runs nowhere."""

import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.federations import WAIT
from tests.refusals import refused
from tests.toy import Sets, recipe_of, tree

from fedvisage.base.files import write_json
from fedvisage.nvflare.authority import FederationFile
from fedvisage.nvflare.job import Job, without_local_parts, write_job
from fedvisage.nvflare.kits import open_kit
from fedvisage.nvflare.membership import provision
from fedvisage.nvflare.node import end
from fedvisage.nvflare.operator import connect_to_server
from fedvisage.nvflare.rehearsal import Rehearsal

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture(scope="module")
def port(federation: Rehearsal) -> int:
    tree = json.loads((federation.operator.path / "startup" / "fed_admin.json").read_text())
    return int(tree["admin"]["port"])


@pytest.fixture(scope="module")
def stranger(port: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits of another federation, with a certificate authority of its own, that point at this one's server."""
    content = {
        "server": {"host": "localhost", "port": port},
        "sites": {"A": {"organisation": "stranger"}},
        "operator": {"email": "operator@localhost.org"},
    }
    directory = tmp_path_factory.mktemp("stranger")
    provision(FederationFile.model_validate(content), directory)
    return directory


def first_byte_of_server(port: int, authority: Path, certificate: Path | None) -> bytes:
    """Shake hands with the server as a client that has a certificate, or none, and return its first bytes.

    A server that refuses a certificate sends an alert or closes the connection.
    """
    context = ssl.create_default_context(cafile=str(authority / "startup" / "rootCA.pem"))
    context.set_alpn_protocols(["h2"])
    if certificate is not None:
        context.load_cert_chain(certificate / "startup" / "client.crt", certificate / "startup" / "client.key")
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    with plain, context.wrap_socket(plain, server_hostname="localhost") as shaken:
        try:
            return shaken.recv(1)
        except ssl.SSLError as error:
            if not any(reason in str(error).lower() for reason in ("certificate", "unknown ca")):
                raise  # it was refused for another reason
            return b""


@pytest.fixture(scope="module")
def running_server(federation: Rehearsal) -> None:
    """Wait until the server answers."""
    with connect_to_server(federation.operator, WAIT):
        pass


@pytest.mark.usefixtures("running_server")
def test_only_certificates_of_this_federation_are_admitted(federation: Rehearsal, stranger: Path, port: int) -> None:
    own = federation.sites["A"].path
    assert first_byte_of_server(port, own, own), "a kit of this federation is greeted"
    assert not first_byte_of_server(port, own, None), "no certificate"
    assert not first_byte_of_server(port, own, stranger / "sites" / "A"), "a certificate of another authority"
    with pytest.raises(ssl.SSLCertVerificationError):
        first_byte_of_server(port, stranger / "sites" / "A", None)


@pytest.mark.usefixtures("running_server")
def test_foreign_operator_is_refused(stranger: Path) -> None:
    with (
        refused("startup/rootCA.pem", "certificate", "signed"),
        connect_to_server(open_kit(stranger / "operator", "operator"), 5.0),
    ):
        pass


@pytest.mark.slow
@pytest.mark.usefixtures("running_server")
def test_site_cannot_use_another_name(federation: Rehearsal, tmp_path: Path) -> None:
    kit = shutil.copytree(federation.sites["A"].path, tmp_path / "kit", ignore=shutil.ignore_patterns("socket"))
    path = kit / "startup" / "fed_client.json"
    tree = json.loads(path.read_text())
    tree["client"]["fqsn"] = "Z"
    write_json(path, tree)
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "fedvisage.nvflare.node", str(kit), "--tied"]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until:
            with connect_to_server(federation.operator, WAIT) as session:
                assert "Z" not in {client.name for client in session.get_connected_client_list()}
    finally:
        end(process.pid)
    assert process.wait() != 0, "it gave up by itself"


def wait_for_end(session: Any, number: str) -> str:
    while not (status := str(session.get_job_meta(number).get("status"))).startswith("FINISHED"):
        time.sleep(0.2)
    return status


def bring_code(job: Path, canary: Path) -> None:
    custom = job / "app" / "custom"
    custom.mkdir()
    (custom / "own.py").write_text(f"open({str(canary)!r}, 'w').close()\n\n\nclass Site:\n    pass\n")
    name_class(job, "own.Site", {})


def name_module(job: Path, canary: Path) -> None:
    name_class(job, "nvflare.collab.api.module_wrapper.ModuleWrapper", {"module_name": "os"})


def nest_process(job: Path, canary: Path) -> None:
    path = job / "app" / "config" / "config_fed_client.json"
    tree = json.loads(path.read_text())
    tree["components"][0]["args"] = {"anything": {"path": "subprocess.Popen", "args": {"args": ["touch", str(canary)]}}}
    path.write_text(json.dumps(tree))


def name_class(job: Path, path: str, arguments: Mapping[str, Any]) -> None:
    """Have sites build another class."""
    file = job / "app" / "config" / "config_fed_client.json"
    tree = json.loads(file.read_text())
    tree["components"][0] = {"id": "program", "path": path, "args": dict(arguments)}
    file.write_text(json.dumps(tree))


@pytest.mark.parametrize("change", [bring_code, name_module, nest_process])
def test_job_with_foreign_code_is_refused(change: Any, federation: Rehearsal, sets: Sets, tmp_path: Path) -> None:
    directory, canary = tmp_path / "refused", tmp_path / "canary"
    write_job(
        directory, Job("refused", without_local_parts(recipe_of(tree(sets, training__rounds=1)))), ("A", "B", "C")
    )
    change(directory, canary)
    with connect_to_server(federation.operator, WAIT) as session:
        status = wait_for_end(session, session.submit_job(str(directory)))
    assert status != "FINISHED:COMPLETED"
    assert not canary.exists()
    assert not (federation.server.path.parents[1] / "runs" / "refused").exists(), "no training began"
