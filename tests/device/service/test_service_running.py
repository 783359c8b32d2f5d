"""The service as a process, on a real port."""

import http.client
import io
import json
import logging
import os
import queue
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.service import serve_in_thread
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from PIL import Image
from tests.commands import call, output_of
from tests.device.gallery.tiles import Tiles, tile_of
from tests.device.service.clients import png
from tests.documented import ROOT
from tests.refusals import check_keywords, refused

from fedvisage.base.errors import RunFailed, UserError
from fedvisage.device import Exported, Pipeline
from fedvisage.device.fused import required_threshold
from fedvisage.device.pipeline import Checked
from fedvisage.device.service.app import build, server_of
from fedvisage.device.service.limits import Limits
from fedvisage.faces.align import Image as Picture

PATIENCE = 600


@dataclass
class Slow(Tiles):
    """An engine that signals its start and waits for permission to end."""

    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def check(
        self, image: Picture, *, report: bool = False, most: int | None = None, confidence: float = 0.0
    ) -> Checked:
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        return super().check(image, report=report, most=most, confidence=confidence)


def send(
    port: int, method: str, path: str, picture: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Return the status and the values of the answer to a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, picture, {"content-type": "image/png", **(headers or {})})
        response = connection.getresponse()
        return response.status, json.load(response)
    finally:
        connection.close()


def ask(port: int, answers: list[int]) -> threading.Thread:
    """Send a picture from a thread that records the status of the answer."""

    thread = threading.Thread(target=lambda: answers.append(send(port, "POST", "/v1/pad", png(tile_of(1)))[0]))
    thread.start()
    return thread


def test_running_requests_are_answered_before_shutdown() -> None:
    engine, answers = Slow(), list[int]()
    server = server_of(build(engine), "127.0.0.1", 0)
    with serve_in_thread(server) as port:
        thread = ask(port, answers)
        assert engine.begun.wait(PATIENCE)
        server.should_exit = True
        engine.go_on.set()
        thread.join(PATIENCE)
    assert answers == [200]


@pytest.mark.long
def test_slow_and_queued_requests_get_a_retry_answer() -> None:
    engine, answers = Slow(), list[int]()
    limits = Limits(seconds=0.5, workers=1, waiting=1)
    with serve_in_thread(server_of(build(engine, limits=limits), "127.0.0.1", 0)) as port:
        threads = [ask(port, answers) for _ in range(4)]
        for thread in threads:
            thread.join(PATIENCE)
        engine.go_on.set()
    assert answers == [503] * 4


@pytest.mark.parametrize("sent", [b"", b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX-"])
def test_connection_without_complete_headers_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr("fedvisage.device.service.app.HEADERS_PATIENCE", 0.1)
    with (
        serve_in_thread(server_of(build(Tiles()), "127.0.0.1", 0)) as port,
        socket.create_connection(("127.0.0.1", port), PATIENCE) as connection,
    ):
        connection.sendall(sent)
        assert connection.recv(1) == b""


def test_request_with_two_lengths_closes_the_connection() -> None:
    with (
        serve_in_thread(server_of(build(Tiles()), "127.0.0.1", 0)) as port,
        socket.create_connection(("127.0.0.1", port), PATIENCE) as client,
    ):
        client.sendall(
            b"POST /v1/pad HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        answers = client.makefile("rb").read()
    assert answers.count(b"HTTP/1.1") == 1
    assert b" 400 " in answers
    assert b"two_lengths" in answers


def test_disconnected_client_is_not_an_error() -> None:
    lines = queue.Queue[str]()
    with serve_in_thread(server_of(build(Tiles(), log=lines.put), "127.0.0.1", 0)) as port:
        for kind in (b"image/png", b"multipart/form-data; boundary=b"):
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
                head = b"POST /v1/pad HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nContent-Type: %s\r\n\r\n"
                connection.sendall(head % kind + b"--b")
            assert " POST /v1/pad 499 " in lines.get(timeout=PATIENCE)


def write_certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(signed.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return paths


def test_service_serves_https_with_its_certificate(tmp_path: Path) -> None:
    paths = write_certificate(tmp_path)
    with serve_in_thread(server_of(build(Tiles()), "127.0.0.1", 0, certificate=paths[0], key=paths[1])) as port:
        trusting = ssl.create_default_context(cafile=paths[0])
        connection = http.client.HTTPSConnection("localhost", port, context=trusting, timeout=PATIENCE)
        connection.request("GET", "/v1/health")
        assert json.load(connection.getresponse())["status"] == "ok"
        connection.close()


@pytest.mark.parametrize(
    ("proxies", "statuses"), [((), [403, 200, 429]), (("127.0.0.1", "10.0.0.0/8"), [200, 403, 200])]
)
def test_named_proxy_alone_sets_client_and_scheme(proxies: tuple[str, ...], statuses: list[int]) -> None:
    """Three clients send one request each, with an HTTPS origin, an HTTP origin, and without an origin."""
    limits, answers = Limits(rate=0.001, burst=1), list[int]()
    service = build(Tiles(), limits=limits, hosts=["door.example"])
    with serve_in_thread(server_of(service, "127.0.0.1", 0, proxies=proxies)) as port:
        for number, origin in enumerate(({"origin": "https://door.example"}, {"origin": "http://door.example"}, {})):
            headers = {"host": "door.example", "x-forwarded-for": f"192.0.2.{number}", "x-forwarded-proto": "https"}
            answers.append(send(port, "POST", "/v1/pad", png(tile_of(1)), {**headers, **origin})[0])
    assert answers == statuses


@pytest.mark.parametrize("address", ["door.example", "*", "10.0.0.1/8", ""])
def test_proxy_without_an_address_is_refused(address: str) -> None:
    with refused("--proxy", "address"):
        server_of(build(Tiles()), "127.0.0.1", 0, proxies=[address])


def test_invalid_certificates_are_refused(tmp_path: Path) -> None:
    paths = write_certificate(tmp_path)
    for certificate, key in ((paths[0], None), (paths[1], paths[0]), (tmp_path / "none", paths[1])):
        with pytest.raises(UserError):
            server_of(build(Tiles()), "127.0.0.1", 0, certificate=certificate, key=key)


@pytest.mark.slow
def test_serve_answers_until_sigterm(pad: Path, recognition: Path, tmp_path: Path) -> None:
    key = {**os.environ, "FEDVISAGE_GALLERY_KEY": "00" * 32}
    key["FEDVISAGE_GALLERY_COUNTERS"] = str(tmp_path / "counters")
    command = [sys.executable, "-m", "fedvisage"]
    gallery = tmp_path / "door.gallery"
    subprocess.run([*command, "gallery", "create", str(gallery)], env=key, check=True)
    words = ("--pad", pad, "--recognition", recognition, "--gallery", gallery)
    with run_service(*words, environment=key) as (port, log):
        _, models = send(port, "GET", "/v1/models")
    assert models["pipeline"]["pad"].startswith("sha256:")
    exports = {"pad": pad, "recognition": recognition}
    measured = {task: f"sha256:{Exported.open(path).graph_digest}" for task, path in exports.items()}
    assert models["pipeline"]["graphs"] == measured
    assert any("/v1/models 200" in line for line in log)


@pytest.mark.slow
def test_serve_uses_the_int8_graph(pad_run: Path, sets: Mapping[str, Path], tmp_path: Path) -> None:
    output_of("export", pad_run, tmp_path / "pad", "--int8", "--calibrate", sets["A"])
    with run_service("--pad", tmp_path / "pad", "--int8") as (port, _):
        _, models = send(port, "GET", "/v1/models")
    small, whole = (Exported.open(tmp_path / "pad", int8=int8).graph_digest for int8 in (True, False))
    assert models["pipeline"]["graphs"] == {"pad": f"sha256:{small}"}
    assert small != whole


@pytest.mark.long
def test_serve_decides_at_the_chosen_operating_points(
    strict_pad: Path, recognition: Path, photographs: Mapping[str, np.ndarray]
) -> None:
    picture = io.BytesIO()
    Image.fromarray(photographs["one"]).save(picture, "PNG")
    words = ("--pad", strict_pad, "--recognition", recognition, "--at", "bpcer=50%", "--at", "fmr=20%")
    with run_service(*words) as (port, _):
        _, models = send(port, "GET", "/v1/models")
        (face,) = send(port, "POST", "/v1/embed", picture.getvalue())[1]["faces"]
    point = required_threshold(Exported.open(recognition).at("fmr=20%"))
    assert models["recognition"] == {"threshold": point.value, "operating_point": point.operating_point}
    assert Pipeline(strict_pad).check(photographs["one"]).decision == "attack"
    assert face["pad"]["decision"] == "bona_fide"
    assert face["pad"]["operating_point"].startswith("bpcer=50%: BPCER")
    assert face["embedding"] is not None


def test_port_in_use_is_refused_in_one_line(pad: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = call("serve", "--pad", pad, "--no-page", "--port", port)
    assert isinstance(result.exception, RunFailed)
    check_keywords(str(result.exception), (port, "in use"))
    assert result.output == ""


def test_server_leaves_the_logging_of_its_process_alone() -> None:
    closed = list[str]()

    class Handler(logging.Handler):
        def close(self) -> None:
            closed.append("close")
            super().close()

    handler = Handler()
    logging.getLogger("uvicorn").addHandler(handler)
    try:
        server_of(build(Tiles()), "127.0.0.1", 0)
        assert logging.getLogger("uvicorn").handlers == [handler]
        assert closed == []
    finally:
        logging.getLogger("uvicorn").removeHandler(handler)


@contextmanager
def run_service(*words: object, environment: Mapping[str, str] = os.environ) -> Iterator[tuple[int, list[str]]]:
    """Run ``serve`` until the block ends; yield its port, and a list that receives its log at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedvisage", "serve", *map(str, words), "--port", "0"],
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    start = re.match(r"serving at http://127.0.0.1:([0-9]+);", process.stdout.readline())
    assert start is not None
    log = list[str]()
    try:
        yield int(start[1]), log
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
    log += err.splitlines()
    assert (process.returncode, out.strip()) == (0, "stopped")


@pytest.mark.long
def test_the_service_starts_without_slow_libraries() -> None:
    slow = ("torch", "torchvision", "timm", "scipy", "sklearn", "matplotlib", "pandas", "onnx")
    code = f"import sys, fedvisage.device.service.app; print(*(name for name in {slow} if name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_serve_has_the_documented_options() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"--[a-z][a-z-]+", page))
    options = set(re.findall(r"--[a-z][a-z-]+", output_of("serve", "--help")))
    assert {"--pad", "--api-keys", "--max-body"} <= shown <= options
