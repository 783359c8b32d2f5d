"""Admission to a server: each connection shows a certificate, and certificates on the server's list are refused.

The list is in the server's kit (``startup/revoked.pem``), signed by the federation's root (X.509 CRL) and numbered. The
server keeps the newest list that it has accepted in the kit's ``local`` directory. It refuses a list that lacks any
certificate of that one, an older list, such as a restored backup, and a missing one: a revocation is final. It reads
the file again after every change, and then cuts the connections of revoked members.
TLS itself accepts their connections, because gRPC does not support such lists. But the server reads nothing from a
connection before it has checked the certificate, so a token that a member received earlier is of no use either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.drivers.driver import ConnectorInfo
from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver, Server, StreamConnection

from fedvisage.base.errors import NoRoom, UserError, plain_line
from fedvisage.base.files import json_line, read_json, read_plain, write_atomically, write_json
from fedvisage.base.progress import Say
from fedvisage.nvflare.cells.rules import OPERATOR_SHOWN
from fedvisage.nvflare.certificates import (
    NAMED,
    OPERATOR,
    REVOKED,
    ROOT,
    name_of,
    number_of,
    order_of,
    read_revocations,
    role_of,
)
from fedvisage.nvflare.greeting import HELLO, LEAVE, LETTERS, SERVICE, STOP, VERSIONS
from fedvisage.nvflare.kits import STREAMS, STREAMS_EACH, own_settings

logger = logging.getLogger("fedvisage.admission")

FORMER = "revocations.json"
"""A file of earlier versions, next to the runs, with number and date of the newest list of each federation."""

STOPS = "stopped.json"
"""The server's file, next to its runs, with the jobs that operators stopped."""

STOPPED = 100
"""Jobs that were stopped, and are remembered."""

RESTORE = "restore it from a backup"
AGAIN = "copy the newest one from updates/server in the directory of the federation's kits"


@dataclass
class Admission:
    """The revocation list of a server's kit, and the ends of connected members' certificates."""

    kit: Path
    say: Say
    until: dict[str, datetime] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    """The versions of members that requested admission."""
    refused: int = 0
    """Requests and connections with revoked certificates since the start."""
    jobs: Callable[[], Iterable[str]] = tuple
    """Returns the ids of the jobs that this process runs, or whose results it is saving."""
    dropped: Callable[..., None] = logger.debug
    """Called with the name of a member who is revoked or stops, the reason, and the token if only one process stops."""
    _stamp: tuple[int, int] | None = None
    _list: x509.CertificateRevocationList | None = None
    _reported: set[str] = field(default_factory=set)
    _refused: dict[str, str] = field(default_factory=dict)
    """The members whose revoked certificates were refused, and the dates of their revocation."""
    _entered: dict[str, int] = field(default_factory=dict)
    """The serial numbers of members' newest certificates that were accepted."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def path(self) -> Path:
        """The file of the list."""
        return self.kit / "startup" / REVOKED

    def read(self) -> None:
        """Read the list again if its file has changed; only a kit from before numbered lists may have none."""
        try:
            state = self.path.stat()
        except FileNotFoundError:
            if (newest := self._newest()[0]) is not None:  # this server has read a list, so it was removed
                raise UserError(str(self.path), f"is missing, and list {newest[0]} was in force; {AGAIN}") from None
            self._tell_once(f"{self.path} does not exist: this kit predates numbered lists, so it counts as list 0")
            return
        except OSError as error:
            raise UserError(str(self.path), f"cannot be read ({error.strerror})") from error
        stamp = state.st_mtime_ns, state.st_size
        if stamp != self._stamp:
            self._accept(read_revocations(self.path, self._root()))
            self._stamp = stamp

    def follow(self) -> None:
        """Read the list again while the server runs: report an invalid list once, and keep the previous one."""
        try:
            with self._lock:  # the watch and each new connection follow it
                self.read()
        except UserError as error:
            self._tell_once(f"{error}; the list before it stays in force")
        except NoRoom as error:
            self._tell_once(
                f"{error.place}: {error.fault}; the new list is in force, and the server tries to save it again; until "
                "then, a restart would accept an older one"
            )

    def refusal(self, certificate: x509.Certificate) -> str | None:
        """Return the reason to refuse a certificate, or None."""
        if self._list is None:
            return None
        entry = self._list.get_revoked_certificate_by_serial_number(certificate.serial_number)
        if entry is None:
            return None
        reason = f"it was revoked on {entry.revocation_date_utc:%Y-%m-%d}"
        self._refused[name_of(certificate)] = f"{entry.revocation_date_utc:%Y-%m-%d}"
        self._tell(f"refused {name_of(certificate)}: its certificate is invalid: {reason}")
        return reason

    def revoked(self) -> dict[str, str]:
        """Return the dates on which members were revoked, without those who connected with a renewed certificate.

        A list of an earlier version has no names; then only the members who were refused since the start are known.
        """
        dates = dict(self._refused)
        for entry in self._list or ():
            for extension in entry.extensions:
                if extension.oid == NAMED:
                    name = plain_line(extension.value.value[2:].decode(errors="replace"), LETTERS)
                    dates[name] = f"{entry.revocation_date_utc:%Y-%m-%d}"
        serials = {entry.serial_number for entry in self._list or ()}
        return {name: date for name, date in dates.items() if self._entered.get(name) in (None, *serials)}

    def enter(self, certificate: x509.Certificate) -> None:
        """Remember a connected member, and the end of its certificate."""
        self.until[name_of(certificate)] = certificate.not_valid_after_utc
        self._entered[name_of(certificate)] = certificate.serial_number

    def note_versions(self, name: str, versions: str) -> None:
        """Remember a member's versions, and report versions other than this server's."""
        self.versions[name] = versions
        if versions != VERSIONS:
            self._tell_once(f"{name} runs {versions}, this server {VERSIONS}; install the same ones on all machines")

    def _tell(self, text: str) -> None:
        """Log a message every time, and print it the first time."""
        logger.warning("%s", text)
        if text not in self._reported:
            self._reported.add(text)
            self.say(text)

    def _tell_once(self, text: str) -> None:
        """Log and print a message the first time only, because the list is checked every second."""
        if text not in self._reported:
            self._tell(text)

    def _accept(self, revocations: x509.CertificateRevocationList) -> None:
        """Enforce and remember a list; refuse one that is older than the newest one, or lacks a certificate of it."""
        order, (newest, serials), place = order_of(revocations), self._newest(), str(self.path)
        if newest is not None and order < newest:
            older = f"is list {order[0]} of {order[1][:10]}, older than list {newest[0]} of {newest[1][:10]}"
            raise UserError(place, f"{older}, which was in force; {AGAIN}")
        if missing := serials - {entry.serial_number for entry in revocations}:
            numbers = f"{', '.join(f'{serial:x}' for serial in sorted(missing)[:3])}{', …' if len(missing) > 3 else ''}"
            remedy = (
                f"copy the list in force, {self.memory}, to updates/server/startup/{REVOKED} beside the founder's "
                "kits, and provision again"
            )
            raise UserError(
                place, f"lacks {len(missing)} of the certificates that were revoked before ({numbers}); {remedy}"
            )
        if number_of(revocations) is None:
            self._tell_once(f"{self.path} has no number: it predates numbered lists, so it counts as list 0")
        self._list = revocations  # before it is remembered, for which the disk may have no room
        if order != newest or not self.memory.exists():
            if newest is not None and not self.memory.exists():
                self._tell_once(f"note: {self.kit / 'local' / FORMER} is replaced by {self.memory}")
            write_atomically(self.memory, revocations.public_bytes(Encoding.PEM))

    def _newest(self) -> tuple[tuple[int, str] | None, set[int]]:
        """Return number and date of the newest accepted list, if there is one, and the certificates that it revokes."""
        orders, serials = [], set[int]()
        if self.memory.exists():
            newest = read_revocations(
                self.memory, self._root(), "delete it only if this kit now serves a new federation"
            )
            orders.append(order_of(newest))
            serials = {entry.serial_number for entry in newest}
        former = self.kit / "local" / FORMER
        if former.exists():
            entry = read_json(former, RESTORE).get(self._root().fingerprint(hashes.SHA256()).hex())
            try:
                if entry is not None:
                    orders.append((int(entry[0]), str(entry[1])))
            except (TypeError, ValueError, IndexError, KeyError) as error:
                raise UserError(str(former), f"is damaged; {RESTORE}") from error
        return max(orders, default=None), serials

    @property
    def memory(self) -> Path:
        """The newest list that was accepted, apart from the one to be read, so that restoring one leaves the other."""
        return self.kit / "local" / REVOKED

    @property
    def stopped(self) -> dict[str, str]:
        """The jobs that operators stopped, and the names of the operators; a restart of the server keeps them."""
        path = self._runs / STOPS
        return read_json(path, "delete it") if path.exists() else {}

    def note_stop(self, job: str, operator: str) -> None:
        """Remember that an operator stops a job."""
        with self._lock:
            stops = [*(self.stopped | {job: operator}).items()]
            self._runs.mkdir(parents=True, exist_ok=True)
            write_json(self._runs / STOPS, dict(stops[-STOPPED:]))

    @property
    def _runs(self) -> Path:
        return Path(own_settings(self.kit).get("state", self.kit / "runs"))

    def _root(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(read_plain(self.kit / "startup" / ROOT))


def move_memory(kit: Path, *states: Path) -> None:
    """Copy an earlier version's memory of revocations from the first state directory that has one into the kit."""
    former = kit / "local" / FORMER
    for state in states:
        if (state / FORMER).exists() and not former.exists():
            write_atomically(former, read_plain(state / FORMER))


# NVFlare's gRPC listener, with a check of each connection's certificate first. It also answers requests for admission:
# a member that is about to start learns whether the server accepts it, and an operator learns when members'
# certificates end.


guard_logger = logging.getLogger("fedvisage.guard")

SERVER, EARLIER = "server", "an earlier version"

LOOK = 1.0
"""Seconds between two checks of the list."""


class AdmissionListener(GrpcDriver):  # type: ignore[misc]
    """NVFlare's listener, which refuses revoked certificates, and limits the streams of each certificate."""

    admission: Admission | None = None
    """Set before a server begins; NVFlare makes drivers without arguments."""
    streams, streams_each = STREAMS, STREAMS_EACH
    """Streams that are carried at once, and those of one certificate."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[str, tuple[Any, x509.Certificate]] = {}
        self._cut: deque[tuple[str, str]] = deque()
        """Members whose connections were cut and that are still to be logged out, with the reason."""
        self._lock = threading.Lock()

    def listen(self, connector: ConnectorInfo) -> None:
        """Listen as NVFlare does, answer requests for admission, and cut connections that are revoked later."""
        self.connector = connector
        self.server = Server(self, connector, max_workers=self.streams, options=self.options)
        answers = {
            HELLO: grpc.unary_unary_rpc_method_handler(_answer),
            STOP: grpc.unary_unary_rpc_method_handler(_note_stop),
            LEAVE: grpc.unary_unary_rpc_method_handler(_note_leave),
        }
        self.server.grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, answers),))
        threading.Thread(target=self._watch, daemon=True).start()
        self.server.start()

    def add_connection(self, conn: StreamConnection) -> None:
        """Accept a connection if its certificate is not revoked; close the oldest ones of a member with too many."""
        if conn.context is not None:  # None if NVFlare opened the connection itself
            certificate, _ = _admit(conn.context)
            name = name_of(certificate)
            with self._lock:
                contexts = [context for context, shown in self._shown.values() if name_of(shown) == name]
                self._shown[conn.name] = conn.context, certificate
            # The oldest streams of a member with too many may be dead.
            for context in contexts[: max(0, len(contexts) + 1 - self.streams_each)]:
                guard_logger.warning("closed a stream of %s, which has more than %d", name, self.streams_each)
                context.cancel()
            conn.get_conn_properties()[OPERATOR_SHOWN] = role_of(certificate) is not None
        super().add_connection(conn)

    def close_connection(self, conn: StreamConnection) -> None:
        """Forget a connection."""
        with self._lock:
            self._shown.pop(conn.name, None)
        super().close_connection(conn)

    def cut(self) -> None:
        """Cut the connections of members whose certificates are revoked by now."""
        assert self.admission is not None
        self.admission.follow()
        with self._lock:
            shown = list(self._shown.values())
        refusals = [(*each, reason) for each in shown if (reason := self.admission.refusal(each[1]))]
        for context, certificate, reason in refusals:
            context.cancel()
            self._cut.append((name_of(certificate), reason.replace("it was", "was")))
        while self._cut:  # a full disk may refuse a note; the next pass continues
            self.admission.dropped(*self._cut[0])
            self._cut.popleft()

    def _watch(self) -> None:
        """Check the list until the listener closes."""
        while not self.closing:
            try:
                self.cut()
            except Exception:  # whatever it is, later lists must be enforced
                guard_logger.exception("the list of revoked certificates could not be enforced; trying again")
            time.sleep(LOOK)


def listen_with_admission(admission: Admission, settings: Mapping[str, str]) -> None:
    """Have this process listen with a guard, for the numbers of streams in the kit's settings."""
    AdmissionListener.admission = admission
    AdmissionListener.streams = int(settings.get("streams", STREAMS))
    AdmissionListener.streams_each = int(settings.get("streams_each", STREAMS_EACH))
    communicator.load_comm_drivers()
    for scheme in AdmissionListener.supported_transports():
        communicator.driver_mgr.drivers[scheme] = AdmissionListener


def _admit(context: Any) -> tuple[x509.Certificate, Admission]:
    """Return a caller's certificate and this server's admission, or abort the call, which raises."""
    admission = AdmissionListener.admission
    assert admission is not None
    pem = context.auth_context().get("x509_pem_cert")
    if not pem:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "it did not present one")
    certificate = x509.load_pem_x509_certificate(pem[0])
    admission.follow()
    if reason := admission.refusal(certificate):
        admission.refused += 1
        context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
    admission.enter(certificate)
    return certificate, admission


def _answer(request: bytes, context: Any) -> bytes:
    """Answer a request for admission: the ends of certificates and the versions are for those with a role."""
    certificate, admission = _admit(context)
    admission.note_versions(name_of(certificate), plain_line(request.decode(errors="replace"), LETTERS) or EARLIER)
    has_role = role_of(certificate) is not None
    until, versions = (admission.until, admission.versions) if has_role else ({}, {})
    answer = {
        "now": time.time(),
        "until": {name: when.isoformat() for name, when in sorted(until.items())},
        "versions": versions | {SERVER: VERSIONS},
        "stopped": admission.stopped if has_role else {},
        "jobs": sorted(admission.jobs()) if has_role else [],
        "revoked": admission.revoked() if has_role else {},
    }
    return json_line(answer).encode()


def _note_stop(request: bytes, context: Any) -> bytes:
    """Remember that an operator stops a job."""
    certificate, admission = _admit(context)
    if role_of(certificate) != OPERATOR:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "only operators stop runs")
    admission.note_stop(plain_line(request.decode(errors="replace"), LETTERS), name_of(certificate))
    return b""


def _note_leave(request: bytes, context: Any) -> bytes:
    """Have the rounds of the caller's runs continue without it: its process, named by its token, is about to end."""
    certificate, admission = _admit(context)
    if request:
        admission.dropped(name_of(certificate), "was stopped at the site", request.decode(errors="replace"))
    return b""
