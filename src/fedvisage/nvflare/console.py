"""The operator's console: a page about the federation, as a file or for browsers on this machine alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.api_spec import SessionClosed
from nvflare.fuel.flare_api.flare_api import Session

from fedvisage.errors import RunFailed, UserError
from fedvisage.files import write_atomically
from fedvisage.nvflare.following import ask
from fedvisage.nvflare.greeting import address_in
from fedvisage.nvflare.kits import Kit, open_kit
from fedvisage.nvflare.operator import TROUBLE, connected
from fedvisage.nvflare.status import CertificateSeen, certificates, look
from fedvisage.progress import Say
from fedvisage.report.console import Standing, page

HERE = "127.0.0.1"
EVERY = 5.0
"""Seconds between two looks, and until a browser fetches the page again."""
AGAIN = 60.0
"""Seconds until a browser reads the page again that was written as a file, and between two looks at certificates."""
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Memory:
    """What runs told so far, so that each is asked for its new rounds only."""

    def __init__(self) -> None:
        """Begin without any."""
        self._told: dict[str, dict[str, Any]] = {}
        self._certificates: tuple[CertificateSeen, ...] = ()
        self._due = 0.0

    def ask(self, session: Session, number: str) -> dict[str, Any] | None:
        """Ask a job, and return all that it has told."""
        rows = self._told.get(number, {}).get("rounds", [])
        reply = ask(session, number, int(rows[-1]["round"]) if rows else 0, more=True)
        if reply is not None:
            self._told[number] = reply | {"rounds": [*rows, *reply["rounds"]]}
        return self._told.get(number)

    def look(self, session: Session, kit: Kit) -> Standing:
        """Look at the federation."""
        if time.monotonic() >= self._due:
            self._certificates, self._due = certificates(kit), time.monotonic() + AGAIN
        status = replace(look(session, self.ask), certificates=self._certificates)
        details = {run.run: self._told.get(run.job, {}) for run in status.runs}
        self._told = {run.job: self._told[run.job] for run in status.runs if run.job in self._told}
        return Standing(str(address_in(kit)), asdict(status), details, datetime.now(UTC))


def write_page(path: Path, kit: Path, wait: float) -> None:
    """Look once, and write the page."""
    opened = open_kit(kit, "operator")
    with connected(opened, wait) as session:
        standing = Memory().look(session, opened)
    write_atomically(path, page(standing, AGAIN).encode())


class Board:
    """Where the newest standing is, for whoever asks."""

    def __init__(self, federation: str) -> None:
        """Begin with nothing known."""
        self._lock = threading.Lock()
        self._standing = Standing(federation, {}, {})

    def put(self, standing: Standing) -> None:
        """Put up what was seen."""
        with self._lock:
            self._standing = standing

    def complain(self, trouble: str) -> None:
        """Say beside what was seen last why nothing new is."""
        with self._lock:
            self._standing = replace(self._standing, trouble=trouble)

    def page(self) -> bytes:
        """Return the page about it."""
        with self._lock:
            standing = self._standing
        return page(standing, EVERY).encode()


def serve_console(kit: Path, port: int, wait: float, say: Say) -> None:
    """Look at the federation again and again, and show it to browsers on this machine, until stopped."""
    opened = open_kit(kit, "operator")
    board = Board(str(address_in(opened)))
    with served(board, port) as address:
        say(f"{address} shows {address_in(opened)}; Ctrl-C ends it")
        watch(opened, wait, board, threading.Event())


def watch(kit: Kit, wait: float, board: Board, over: threading.Event) -> None:
    """Put up what the server says, or why it says nothing; what only a person can mend ends this."""
    while not over.is_set():
        try:
            with connected(kit, wait) as session:
                memory = Memory()
                while not over.is_set():
                    board.put(memory.look(session, kit))
                    over.wait(EVERY)
        except (RunFailed, SessionClosed, *TROUBLE) as error:
            board.complain(str(error) or type(error).__name__)
            over.wait(EVERY)


@contextmanager
def served(board: Board, port: int) -> Iterator[str]:
    """Serve a board's page on this machine's own address, which no other machine can reach; 0 is any free port."""
    try:
        server = ThreadingHTTPServer((HERE, port), _handler(board.page))
    except OSError as error:
        raise UserError("--serve", f"port {port} of {HERE} cannot be used: {error.strerror}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HERE}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(page: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    """Return what answers a browser: with one page, for one address."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fedvisage", ""
        timeout = 10.0

        def do_GET(self) -> None:
            """Send the page to whoever calls it by this machine's address: no other site's name may point here."""
            named = self.headers.get("Host", "").rpartition(":")[0]
            if named not in (HERE, "localhost"):
                self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            elif self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                body = page()
                self.send_response(HTTPStatus.OK)
                for name, value in (HEADERS | {"Content-Length": str(len(body))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: a page that is fetched every few seconds is no event."""

    return Handler
