"""The server's listener with a guard: NVFlare's own over gRPC, which looks at each connection's certificate first.

It also answers a knock: whoever is about to start asks whether he would be let in, and an operator learns when members'
certificates end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import grpc
from cryptography import x509
from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.drivers.driver import ConnectorInfo
from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver, Server, StreamConnection

from fedvisage.files import json_line
from fedvisage.nvflare.admission import Admission, is_operator
from fedvisage.nvflare.certificates import name_of
from fedvisage.nvflare.kits import STREAMS, STREAMS_EACH

logger = logging.getLogger("fedvisage.guard")

SERVICE, KNOCK = "fedvisage", "knock"

LOOK = 1.0
"""Seconds between two looks at the list."""


class Guard(GrpcDriver):  # type: ignore[misc]
    """NVFlare's listener, which lets nobody in whose certificate is revoked, and nobody take all its streams."""

    admission: Admission | None = None
    """Set before a server begins; NVFlare makes drivers without arguments."""
    streams, streams_each = STREAMS, STREAMS_EACH
    """Streams that are carried at once, and those of one certificate."""

    def __init__(self) -> None:
        """Begin with no connection."""
        super().__init__()
        self._shown: dict[str, tuple[Any, x509.Certificate]] = {}
        self._lock = threading.Lock()

    def listen(self, connector: ConnectorInfo) -> None:
        """Listen as NVFlare does, answer knocks as well, and cut those who are revoked meanwhile."""
        self.connector = connector
        self.server = Server(self, connector, max_workers=self.streams, options=self.options)
        answers = {KNOCK: grpc.unary_unary_rpc_method_handler(_answer)}
        self.server.grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, answers),))
        threading.Thread(target=self._watch, daemon=True).start()
        self.server.start()

    def add_connection(self, conn: StreamConnection) -> None:
        """Take a connection, if its certificate holds."""
        if conn.context is not None:  # we listen; it is none where NVFlare connects
            self._show(conn, _admit(conn.context))
        super().add_connection(conn)

    def close_connection(self, conn: StreamConnection) -> None:
        """Forget a connection."""
        self._shown.pop(conn.name, None)
        super().close_connection(conn)

    def _show(self, conn: StreamConnection, certificate: x509.Certificate) -> None:
        """Remember whose connection it is; of a member with too many the oldest are closed, which may be dead."""
        name = name_of(certificate)
        with self._lock:
            own = [context for context, shown in self._shown.values() if name_of(shown) == name]
            self._shown[conn.name] = conn.context, certificate
        for context in own[: max(0, len(own) + 1 - self.streams_each)]:
            logger.warning("closed a stream of %s, which has more than %d", name, self.streams_each)
            context.cancel()

    def cut(self) -> None:
        """Cut the connections of those whose certificate is revoked by now."""
        assert self.admission is not None
        self.admission.follow()
        for context, certificate in list(self._shown.values()):
            if self.admission.refusal(certificate):
                context.cancel()
                self.admission.dropped(name_of(certificate))

    def _watch(self) -> None:
        while not self.closing:
            self.cut()
            time.sleep(LOOK)


def guard(admission: Admission, settings: Mapping[str, str]) -> None:
    """Have this process listen with a guard, for as many streams as the kit's settings say."""
    Guard.admission = admission
    Guard.streams = int(settings.get("streams", STREAMS))
    Guard.streams_each = int(settings.get("streams_each", STREAMS_EACH))
    communicator.load_comm_drivers()
    for scheme in Guard.supported_transports():
        communicator.driver_mgr.drivers[scheme] = Guard


def _admit(context: Any) -> x509.Certificate:
    """Return a caller's certificate, or end the call: aborting raises."""
    assert Guard.admission is not None
    certificate = _certificate(context)
    if certificate is None:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "it shows none")
    assert certificate is not None
    Guard.admission.follow()
    if why := Guard.admission.refusal(certificate):
        context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
    Guard.admission.enter(certificate)
    return certificate


def _answer(request: bytes, context: Any) -> bytes:
    """Answer a knock: an operator learns when certificates end, all others that they may come in."""
    certificate = _admit(context)
    assert Guard.admission is not None
    until = Guard.admission.until if is_operator(certificate) else {}
    return json_line({name: when.isoformat() for name, when in sorted(until.items())}).encode()


def _certificate(context: Any) -> x509.Certificate | None:
    shown = context.auth_context().get("x509_pem_cert")
    return x509.load_pem_x509_certificate(shown[0]) if shown else None
