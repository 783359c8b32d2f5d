"""An HTTP server for one page: the operator's console, or the metrics of a server or site.

It limits connections, and the time and size of each request, because anyone who reaches its port can connect.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from socketserver import ThreadingTCPServer
from typing import Any

from fedvisage.base.errors import UserError

logger = logging.getLogger("fedvisage.http")

HERE = "127.0.0.1"
CONNECTIONS, SECONDS, LARGEST = 16, 5.0, 8192
"""Connections at once, seconds to receive a request and again to send the answer, and bytes of a request, at most."""


@dataclass(frozen=True)
class Page:
    """A page."""

    path: str
    content: Callable[[], bytes]
    headers: Mapping[str, str]


@contextmanager
def serve_page(option: str, page: Page, port: int, host: str = HERE) -> Iterator[str]:
    """Serve a page from other threads, and yield its address; port 0 is any free port.

    On a loopback address, a request must name this machine: other host names must not point here.
    """
    slots = threading.Semaphore(CONNECTIONS)

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fedvisage", ""

        def setup(self) -> None:
            super().setup()
            self.rfile = io.BytesIO(_read_request(self.connection))  # type: ignore[assignment]

        def do_GET(self) -> None:
            """Send the page."""
            name = self.headers.get("Host", "").rpartition(":")[0]
            if is_local and name not in (HERE, "localhost", "[::1]"):
                self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
                return
            if self.path != page.path:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                body = page.content()
            except Exception:  # the reader gets no details, which may be private
                logger.exception("%s could not be written", page.path)
                self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
                return
            self.send_response(HTTPStatus.OK)
            for key, value in {**page.headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing, because readers fetch the page every few seconds."""

    class Server(ThreadingTCPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        allow_reuse_address = daemon_threads = True

        def process_request(self, request: Any, client_address: Any) -> None:
            """Answer in another thread, or close a connection beyond the limit."""
            if slots.acquire(blocking=False):
                try:
                    super().process_request(request, client_address)
                except RuntimeError:  # the system has no thread left
                    slots.release()
                    raise
            else:
                self.shutdown_request(request)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            """Answer, and let the next one connect."""
            try:
                super().process_request_thread(request, client_address)
            finally:
                slots.release()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Log a request that could not be read or answered."""
            logger.debug("a request failed", exc_info=True)

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise UserError(option, f"port {port} of {host} cannot be used: {error.strerror}") from error
    is_local = ip_address(server.server_address[0]).is_loopback
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_address[1]}{page.path}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _read_request(connection: socket.socket) -> bytes:
    """Return a request up to its empty line; raise an error for one that is too slow or too long."""
    request, until = b"", time.monotonic() + SECONDS
    while b"\r\n\r\n" not in request:
        connection.settimeout(max(0.001, until - time.monotonic()))
        piece = connection.recv(LARGEST)
        if not piece or len(request := request + piece) > LARGEST:
            raise ConnectionError("an incomplete or too long request")
    connection.settimeout(SECONDS)
    return request
