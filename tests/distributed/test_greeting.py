"""An unreachable server is retried; a foreign server, or one that refuses our credentials, is reported."""

import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.distributed.federations import copy_kit
from tests.refusals import refused

from fedvisage.nvflare.greeting import (
    HELLO,
    SERVICE,
    ConnectionClosed,
    Unreachable,
    check_handshake,
    request_admission,
    wait_for_greeting,
)
from fedvisage.nvflare.kits import Kit, open_kit
from fedvisage.nvflare.rehearsal import free_port

Answer = Callable[[socket.socket], None]


def kit_for_port(kit: Path, port: int, place: Path) -> Kit:
    """Return a copy of bank's kit whose server listens on a port of this test."""
    copy = copy_kit(kit, place)
    path = copy / "startup" / "fed_client.json"
    tree = json.loads(path.read_text())
    tree["servers"][0]["service"]["target"] = f"localhost:{port}"
    path.write_text(json.dumps(tree))
    return open_kit(copy, "site")


@contextmanager
def serve(answer: Answer) -> Iterator[int]:
    """Answer connections one after another, on a port of the system's choice."""
    with socket.create_server(("localhost", 0)) as server:

        def work() -> None:
            while True:
                try:
                    plain, _ = server.accept()
                except OSError:
                    return
                with plain:
                    answer(plain)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def tls_answer(kit: Path, known: Path) -> Answer:
    """Speak TLS with a server's credentials, and greet clients with a certificate of a known root."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit / "startup" / "server.crt", kit / "startup" / "server.key")
    context.load_verify_locations(known / "startup" / "rootCA.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def answer(plain: socket.socket) -> None:
        try:
            with context.wrap_socket(plain, server_side=True) as shaken:
                shaken.sendall(b"hello")
        except (ssl.SSLError, ConnectionError):
            return

    return answer


def test_handshake_with_the_own_server_succeeds(own_kits: Path, tmp_path: Path) -> None:
    with serve(tls_answer(own_kits / "server", own_kits / "server")) as port:
        check_handshake(kit_for_port(own_kits / "sites" / "bank", port, tmp_path))


def test_server_of_another_federation_is_refused(own_kits: Path, other_kits: Path, tmp_path: Path) -> None:
    with serve(tls_answer(other_kits / "server", own_kits / "server")) as port:
        kit = kit_for_port(own_kits / "sites" / "bank", port, tmp_path)
        with refused("startup/rootCA.pem", "certificate", "signed"):
            check_handshake(kit)


def test_server_that_refuses_the_certificate_is_reported(own_kits: Path, other_kits: Path, tmp_path: Path) -> None:
    with serve(tls_answer(own_kits / "server", other_kits / "server")) as port:
        kit = kit_for_port(own_kits / "sites" / "bank", port, tmp_path)
        with refused("startup/client.crt", "certificate"):
            check_handshake(kit)


def test_service_without_tls_is_retried(own_kits: Path, tmp_path: Path) -> None:
    def answer(plain: socket.socket) -> None:
        plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        plain.recv(1000)

    with serve(answer) as port, pytest.raises(Unreachable, match="TLS"):
        check_handshake(kit_for_port(own_kits / "sites" / "bank", port, tmp_path))


@contextmanager
def answer_requests(kit: Path, answer: Callable[[bytes, grpc.ServicerContext], bytes]) -> Iterator[int]:
    """Answer requests for admission with a server's credentials, on a port of the system's choice."""
    names = ("server.key", "server.crt", "rootCA.pem")
    key, certificate, root = ((kit / "startup" / name).read_bytes() for name in names)
    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {HELLO: handler}),))
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(key, certificate)], root, True))
    server.start()
    yield port
    server.stop(None).wait()


ANSWER: dict[str, Any] = {"now": 0, "until": {}, "versions": {}, "stopped": {}, "jobs": [], "revoked": {}}


def test_texts_of_a_server_are_single_printable_lines(own_kits: Path, tmp_path: Path) -> None:
    text, shown = f"x\x1b[2J\nrun approved{'!' * 100}", f"x\N{REPLACEMENT CHARACTER}[2J run approved{'!' * 61}…"
    until = {text: "2027-01-01T00:00:00+00:00"}
    answer = ANSWER | {"until": until, **{key: {text: text} for key in ("versions", "stopped", "revoked")}}
    with answer_requests(own_kits / "server", lambda *_: json.dumps(answer).encode()) as port:
        admitted = request_admission(kit_for_port(own_kits / "sites" / "bank", port, tmp_path))
    assert admitted.until == {shown: datetime(2027, 1, 1, tzinfo=UTC)}
    assert admitted.versions == admitted.stopped == admitted.revoked == {shown: shown}


@pytest.mark.parametrize("changed", [{"until": {"A": "2027-01-01T00:00:00"}}, {"now": 10**400}], ids=["zone", "clock"])
def test_answer_with_an_impossible_date_is_invalid(changed: dict[str, Any], own_kits: Path, tmp_path: Path) -> None:
    with answer_requests(own_kits / "server", lambda *_: json.dumps(ANSWER | changed).encode()) as port:
        kit = kit_for_port(own_kits / "sites" / "bank", port, tmp_path)
        with pytest.raises(Unreachable, match="sent an invalid answer"):
            request_admission(kit)


def test_reason_of_a_server_is_one_printable_line(own_kits: Path, tmp_path: Path) -> None:
    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNAVAILABLE, "down\x1b[2J\nrun approved")
        return b""

    with answer_requests(own_kits / "server", refuse) as port:
        kit = kit_for_port(own_kits / "sites" / "bank", port, tmp_path)
        with pytest.raises(Unreachable) as error:
            request_admission(kit)
    assert str(error.value).endswith("does not answer (down\N{REPLACEMENT CHARACTER}[2J run approved)")


@pytest.mark.parametrize("abruptly", [False, True])
def test_proxy_without_its_server_is_retried(own_kits: Path, tmp_path: Path, abruptly: bool) -> None:
    """A proxy without its server closes connections before TLS, which is no refusal of credentials."""

    def answer(plain: socket.socket) -> None:
        if abruptly:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        else:
            plain.recv(1000)

    with serve(answer) as port, pytest.raises(Unreachable, match="behind it") as error:
        check_handshake(kit_for_port(own_kits / "sites" / "bank", port, tmp_path))
    assert f"localhost:{port}" in str(error.value)
    assert not isinstance(error.value, ConnectionClosed), "only repeated closing is a refusal"


@pytest.mark.long
def test_repeated_hang_ups_count_as_a_refusal(own_kits: Path, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    startup = own_kits / "server" / "startup"
    context.load_cert_chain(startup / "server.crt", startup / "server.key")

    def answer(plain: socket.socket) -> None:
        context.wrap_socket(plain, server_side=True).close()

    with serve(answer) as port:
        kit = kit_for_port(own_kits / "sites" / "bank", port, tmp_path)
        with pytest.raises(ConnectionClosed):
            check_handshake(kit)
        with refused("startup/client.crt", "certificate"):
            wait_for_greeting(kit, lambda text: None)


@pytest.mark.long
def test_unreachable_server_is_reported_once_until_it_answers(own_kits: Path, tmp_path: Path) -> None:
    port, lines, greeted, waiting = free_port(), list[str](), threading.Event(), threading.Event()
    kit = kit_for_port(own_kits / "sites" / "bank", port, tmp_path)

    def say(text: str) -> None:
        lines.append(text)
        waiting.set()

    def work() -> None:
        wait_for_greeting(kit, say)
        greeted.set()

    threading.Thread(target=work, daemon=True).start()
    waiting.wait()
    with socket.create_server(("localhost", port)) as server:
        answer = tls_answer(own_kits / "server", own_kits / "server")
        with server.accept()[0] as plain:
            answer(plain)
        greeted.wait()
    assert len(lines) == 1
    assert f"localhost:{port}" in lines[0]


@pytest.mark.long
def test_waiting_ends_at_the_deadline(own_kits: Path, tmp_path: Path) -> None:
    kit, began = kit_for_port(own_kits / "sites" / "bank", free_port(), tmp_path), time.monotonic()
    with pytest.raises(Unreachable, match="reached"):
        wait_for_greeting(kit, lambda text: None, until=began + 1.5)
    assert time.monotonic() >= began + 1.5
