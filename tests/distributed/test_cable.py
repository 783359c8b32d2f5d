"""The cable between a site and its server: open, slow, jammed or cut."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from tests.distributed.cable import Cable


class Echo(socketserver.BaseRequestHandler):
    """Returns the bytes that it receives."""

    def handle(self) -> None:
        with suppress(OSError):
            while data := self.request.recv(100):
                self.request.sendall(data)


@pytest.fixture
def echo() -> Iterator[int]:
    """Start a server that returns the bytes that it receives; yield its port."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()


@pytest.fixture
def cable(echo: int) -> Iterator[Cable]:
    with closing(Cable(echo)) as cable:
        yield cable


def connect(cable: Cable) -> socket.socket:
    return socket.create_connection(("127.0.0.1", cable.port))


def send_and_receive(end: socket.socket) -> float:
    """Send bytes, and return the seconds until they came back."""
    began = time.monotonic()
    end.sendall(b"hello")
    assert end.recv(100) == b"hello"
    return time.monotonic() - began


def is_closed(end: socket.socket) -> bool:
    try:
        return end.recv(100) == b""
    except ConnectionResetError:
        return True


def test_cable_carries_bytes_both_ways(cable: Cable) -> None:
    with connect(cable) as one, connect(cable) as other:
        send_and_receive(one)
        send_and_receive(other)


def test_new_connections_work_after_a_reset(cable: Cable) -> None:
    with connect(cable) as before:
        send_and_receive(before)
        cable.reset()
        assert is_closed(before)
    with connect(cable) as after:
        send_and_receive(after)


def test_cut_refuses_connections_until_it_is_mended(cable: Cable) -> None:
    with connect(cable) as before:
        send_and_receive(before)
        cable.cut()
        assert is_closed(before)
    with connect(cable) as meanwhile:
        assert is_closed(meanwhile)
    cable.mend()
    with connect(cable) as after:
        send_and_receive(after)


def test_jam_keeps_connections_and_delivers_later(cable: Cable) -> None:
    with connect(cable) as end:
        send_and_receive(end)
        cable.jam()
        end.sendall(b"later")
        end.settimeout(0.3)
        with pytest.raises(TimeoutError):
            end.recv(100)
        end.settimeout(None)
        cable.mend()
        assert end.recv(100) == b"later"


def test_slow_cable_delays_both_ways(cable: Cable) -> None:
    with connect(cable) as end:
        send_and_receive(end)
        cable.slow(delay=0.1)
        assert send_and_receive(end) >= 0.2
