"""The HTTP server of the console and the metrics, against slow, long and many requests."""

import http.client
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tests.refusals import refused

from fedvisage.nvflare import http_page
from fedvisage.nvflare.http_page import LARGEST, serve_page

PAGE = ("--metrics", "/metrics", lambda: b"up 1\n", {"Content-Type": "text/plain"})


@pytest.fixture
def port() -> Iterator[int]:
    with serve_page(*PAGE, 0) as url:
        yield int(urlsplit(url).port or 0)


def fetch(port: int, path: str = "/metrics", verb: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(verb, path)
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def is_closed_without_an_answer(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_only_get_of_the_page_is_answered_with_it(port: int) -> None:
    assert fetch(port) == (200, b"up 1\n")
    for path, verb in (("/", "GET"), ("/metrics?x", "GET"), ("/metrics/", "GET"), ("/metrics", "POST")):
        status, body = fetch(port, path, verb)
        assert status == (501 if verb == "POST" else 404)
        assert b"up 1" not in body


def test_long_request_is_cut_off(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * LARGEST)
        assert is_closed_without_an_answer(connection)
    assert fetch(port)[0] == 200


def test_slow_request_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_page, "SECONDS", 0.05)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert is_closed_without_an_answer(connection)


def test_idle_connections_delay_a_request_and_do_not_prevent_it(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_page, "SECONDS", 0.05)
    idle = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(5)]
    assert fetch(port) == (200, b"up 1\n")
    for connection in idle:
        assert is_closed_without_an_answer(connection)
        connection.close()


def test_error_in_the_content_is_not_shown() -> None:
    def content() -> bytes:
        raise ValueError("/home/ada/secret")

    with serve_page("--metrics", "/metrics", content, {}, 0) as url:
        status, body = fetch(int(urlsplit(url).port or 0))
    assert status == 500
    assert b"ada" not in body


def test_port_is_free_again_after_the_end() -> None:
    with serve_page(*PAGE, 0) as url:
        used = int(urlsplit(url).port or 0)
        with refused("--metrics", str(used)), serve_page(*PAGE, used):
            pass
    with serve_page(*PAGE, used) as again:
        assert urlsplit(again).port == used


@pytest.mark.parametrize("host", ["0.0.0.0", "::1", "no-such-host.invalid"])
def test_host_can_be_chosen(host: str) -> None:
    if host.endswith("invalid"):
        with refused("--metrics", host), serve_page(*PAGE, 0, host):
            pass
        return
    try:
        socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET).bind((host, 0))
    except OSError:
        pytest.skip("no such address on this machine")
    with serve_page(*PAGE, 0, host) as url:
        connection = http.client.HTTPConnection(
            "127.0.0.1" if host == "0.0.0.0" else host, urlsplit(url).port, timeout=10
        )
        connection.request("GET", "/metrics", headers={"Host": "metrics.example.org"})
        assert connection.getresponse().status == (421 if host == "::1" else 200), "loopback refuses other names"
