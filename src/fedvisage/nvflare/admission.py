"""Whom a server lets connect: every connection shows a certificate, and those on the server's list are refused.

The list lies in the server's kit (``startup/revoked.pem``), signed by the federation's root (X.509 CRL) and numbered.
The server remembers the newest list that it has read, beside its runs: an older one, such as a restored backup, and a
missing one are refused. It is looked at again whenever its file changes, and connections that it names are then cut.
TLS itself lets them in, for gRPC knows no such lists; but nothing is read from a connection before its certificate was
looked at, so a token that a member was given before is of no use either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.x509.oid import NameOID
from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.drivers.driver import ConnectorInfo
from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver, Server, StreamConnection

from fedvisage.base.errors import UserError
from fedvisage.base.files import json_line, read_json, read_plain, write_json
from fedvisage.base.progress import Say
from fedvisage.nvflare.certificates import REVOKED, ROOT, name_of
from fedvisage.nvflare.kits import STREAMS, STREAMS_EACH, own_settings

logger = logging.getLogger("fedvisage.admission")

OPERATOR = "project_admin"
"""What stands in an operator's certificate."""

NEWEST = "revocations.json"
"""The server's file, beside its runs, with the newest list that it has read of each federation."""

AGAIN = "copy the newest one from updates/server of the federation's kits"


@dataclass
class Admission:
    """The list of a server's kit, and when the certificates of those who connected end."""

    kit: Path
    say: Say
    until: dict[str, datetime] = field(default_factory=dict)
    dropped: Callable[[str], None] = logger.info
    """Told the name of a member whose connection is cut."""
    _stamp: tuple[int, int] | None = None
    _list: x509.CertificateRevocationList | None = None
    _told: set[str] = field(default_factory=set)

    @property
    def path(self) -> Path:
        """Return where the list is."""
        return self.kit / "startup" / REVOKED

    def read(self) -> None:
        """Read the list again if its file has changed; only a kit from before lists had numbers may have none."""
        try:
            state = self.path.stat()
        except FileNotFoundError:
            self._accept_missing()
            return
        stamp = state.st_mtime_ns, state.st_size
        if stamp != self._stamp:
            self._list = self._not_older(self._parsed())
            self._stamp = stamp

    def follow(self) -> None:
        """Read it again at work: a list that does not hold is said once, and the one before stays."""
        try:
            self.read()
        except UserError as error:
            self._tell_once(f"{error}; the list before it stays in force")

    def refusal(self, certificate: x509.Certificate) -> str | None:
        """Return why its holder may not connect."""
        if self._list is None:
            return None
        entry = self._list.get_revoked_certificate_by_serial_number(certificate.serial_number)
        if entry is None:
            return None
        why = f"it was revoked on {entry.revocation_date_utc:%Y-%m-%d}"
        self._tell(f"refused {name_of(certificate)}: its certificate does not hold, {why}")
        return why

    def enter(self, certificate: x509.Certificate) -> None:
        """Remember who connected, and until when that is possible."""
        self.until[name_of(certificate)] = certificate.not_valid_after_utc

    def _tell(self, text: str) -> None:
        """Say it the first time, and log it whenever."""
        logger.warning("%s", text)
        if text not in self._told:
            self._told.add(text)
            self.say(text)

    def _tell_once(self, text: str) -> None:
        """Log and say it the first time: the list is looked at every second."""
        if text not in self._told:
            self._tell(text)

    def _accept_missing(self) -> None:
        """Accept that there is no list if this server never read one; refuse a list that was taken away."""
        if (newest := self._newest()) is not None:
            raise UserError(str(self.path), f"is missing, and list {newest[0]} was in force; {AGAIN}")
        self._tell_once(f"{self.path} does not exist: this kit is older than numbered lists, which counts as list 0")

    def _not_older(self, found: x509.CertificateRevocationList) -> x509.CertificateRevocationList:
        """Refuse a list that is older than the newest one that was read, and remember a newer one."""
        number, newest = _number_of(found), self._newest()
        order = number or 0, found.last_update_utc.isoformat()
        if newest is not None and order < newest:
            raise UserError(str(self.path), f"is list {order[0]} of {order[1][:10]}, older than list {newest[0]} of "
                            f"{newest[1][:10]}, which was in force; {AGAIN}")  # fmt: skip
        if number is None:
            self._tell_once(f"{self.path} has no number: it was made before lists had them, and counts as list 0")
        if order != newest:
            known = self._known()
            self.memory.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.memory, {**known, self._federation(): list(order)})
        return found

    @property
    def memory(self) -> Path:
        """Return the file that remembers the newest list; it lies apart from the list, so that one copy misses it."""
        return Path(own_settings(self.kit).get("state", self.kit / "runs")) / NEWEST

    def _newest(self) -> tuple[int, str] | None:
        """Return number and date of the newest list of this federation that this server has read."""
        entry = self._known().get(self._federation())
        try:
            return None if entry is None else (int(entry[0]), str(entry[1]))
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise UserError(str(self.memory), "is damaged; bring it back from a copy") from error

    def _known(self) -> dict[str, Any]:
        return read_json(self.memory, "bring it back from a copy") if self.memory.exists() else {}

    def _federation(self) -> str:
        """Return the fingerprint of the federation's root: the same directory may serve several in turn."""
        return self._root().fingerprint(hashes.SHA256()).hex()

    def _root(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(read_plain(self.kit / "startup" / ROOT))

    def _parsed(self) -> x509.CertificateRevocationList:
        try:
            found = x509.load_pem_x509_crl(read_plain(self.path))
            key = self._root().public_key()
            holds = isinstance(key, RSAPublicKey) and found.is_signature_valid(key)
        except ValueError as error:
            raise UserError(str(self.path), "holds no list of revoked certificates; copy it again") from error
        if not holds:
            raise UserError(str(self.path), "is not signed by this federation's authority; copy it again")
        return found


def _number_of(found: x509.CertificateRevocationList) -> int | None:
    """Return a list's number; lists had none before they were numbered."""
    try:
        return found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        return None


def is_operator(certificate: x509.Certificate) -> bool:
    """Return whether it is an operator's certificate."""
    roles = certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    return any(role.value == OPERATOR for role in roles)


# The server's listener with a guard: NVFlare's own over gRPC, which looks at each connection's certificate first.
#
# It also answers a knock: whoever is about to start asks whether he would be let in, and an operator learns when
# members'
# certificates end.


guard_logger = logging.getLogger("fedvisage.guard")

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
            guard_logger.warning("closed a stream of %s, which has more than %d", name, self.streams_each)
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
