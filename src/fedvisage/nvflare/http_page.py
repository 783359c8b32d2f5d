"""An HTTP server for one page: the operator's console, or the metrics of a server or site.

It answers one connection at a time, and bounds the time and size of a request, because anyone who reaches its port can
connect.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from socketserver import TCPServer
from typing import Any

from fedvisage.base.errors import UserError

logger = logging.getLogger("fedvisage.http")

HERE = "127.0.0.1"
SECONDS, LARGEST = 2.0, 8192
"""Seconds to receive a request, and again to send the answer, and bytes of a request, at most."""


@contextmanager
def serve_page(
    option: str, path: str, content: Callable[[], bytes], headers: Mapping[str, str], port: int, host: str = HERE
) -> Iterator[str]:
    """Serve the page at a path from another thread, and yield its address; port 0 is any free port.

    On a loopback address, a request must name this machine: other host names must not point here.
    """

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fedvisage", ""

        def handle(self) -> None:
            """Receive a request up to its empty line, and answer it unless it is too slow or too long."""
            request, until = b"", time.monotonic() + SECONDS
            with suppress(OSError):
                while b"\r\n\r\n" not in request:
                    self.connection.settimeout(max(0.001, until - time.monotonic()))
                    piece = self.connection.recv(LARGEST)
                    if not piece or len(request := request + piece) > LARGEST:
                        return
                self.connection.settimeout(SECONDS)
                self.rfile = io.BytesIO(request)
                super().handle()

        def do_GET(self) -> None:
            """Send the page."""
            name = self.headers.get("Host", "").rpartition(":")[0]
            if is_local and name not in (HERE, "localhost", "[::1]"):
                self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
                return
            if self.path != path:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                body = content()
            except Exception:  # the reader gets no details, which may be private
                logger.exception("%s could not be written", path)
                self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
                return
            self.send_response(HTTPStatus.OK)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing, because readers fetch the page every few seconds."""

    class Server(TCPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        allow_reuse_address = True

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise UserError(option, f"port {port} of {host} cannot be used: {error.strerror}") from error
    is_local = ip_address(str(server.server_address[0])).is_loopback
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_address[1]}{path}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
