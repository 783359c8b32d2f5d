"""The service on a port: as a process or beside other work, with TLS if asked, ended gracefully."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import uvicorn

from fedvisage.errors import UserError
from fedvisage.service.guarding import Guard
from fedvisage.service.settings import LOOPBACK, Keys

PATIENCE = 20
"""Seconds in which requests that are being answered may end, when the service is stopped."""


def server_of(
    guard: Guard, host: str, port: int, *, certificate: Path | None = None, key: Path | None = None
) -> uvicorn.Server:
    """Return the server, not yet running; ``run()`` serves until SIGINT or SIGTERM."""
    if (certificate is None) != (key is None):
        raise UserError("--tls-cert", "needs --tls-key, and the other way round")
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it would tell bytes of forms that are broken
    if certificate is not None:
        _check_certificate(certificate, key)
    return uvicorn.Server(
        uvicorn.Config(
            guard, host=host, port=port, access_log=False, log_level="warning", server_header=False, ws="none",
            timeout_keep_alive=5, timeout_graceful_shutdown=PATIENCE, h11_max_incomplete_event_size=32_768, http="h11",
            ssl_certfile=certificate, ssl_keyfile=key, lifespan="off",
        )
    )  # fmt: skip


@contextmanager
def serving(server: uvicorn.Server, waiting: int = 128) -> Iterator[int]:
    """Serve in a thread until the block ends, on a free port of this machine, which is given to the block.

    So many connections may wait to be accepted.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(waiting)
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def check_open(host: str, keys: Keys, without: bool) -> None:
    """Refuse to serve everybody who reaches this machine without keys, unless that is asked for."""
    if not keys and host not in LOOPBACK and not without:
        raise UserError("--api-keys", f"names no file, and {host} can be reached from elsewhere; name one, serve on "
                        "127.0.0.1, or say --without-keys")  # fmt: skip


def _check_certificate(certificate: Path, key: Path | None) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise UserError(str(certificate), f"is no certificate with its key {key} ({error}); give PEM files") from None
    except OSError as error:
        raise UserError(str(certificate), f"or {key} cannot be read ({error.strerror})") from None


_no_password: Callable[[], str] = lambda: ""  # noqa: E731  # a key with a password would ask for it on the terminal
