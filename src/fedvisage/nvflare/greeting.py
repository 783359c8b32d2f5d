"""Handshake with a federation's server before NVFlare starts: is it reachable, is it ours, does it accept our kit?

NVFlare tries again forever, whatever the reason, and leaves the message to OpenSSL. This module distinguishes a server
that cannot be reached from a server that must not be contacted.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import grpc

from fedvisage.base.errors import UserError, plain_line
from fedvisage.base.files import parse_json, read_json
from fedvisage.base.progress import Say
from fedvisage.base.version import VERSION
from fedvisage.nvflare.kits import ANEW, STARTUP, Kit

logger = logging.getLogger("fedvisage.watch")

SECONDS = 5.0
"""Seconds that a handshake or a request may take."""

PAUSES = (1.0, 2.0, 5.0, 10.0)
"""Seconds between tries to reach a server; the last value applies to all further tries."""

HANG_UPS = 3
"""Hang-ups in a row that count as a refusal; a server that is ending hangs up, too."""

ENDED = (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)
"""Errors of a connection that was accepted and ended at once; a server that refuses a certificate begins TLS first."""

FOREIGN = (
    "belongs to another federation: its certificate is not signed by this federation's authority; is "
    "this the right kit?"
)
UNVERIFIED = {
    9: "has a certificate that is not valid yet; is this machine's clock right?",
    10: "has an expired certificate; ask its operator to renew it",
    **dict.fromkeys((18, 19, 20, 21), FOREIGN),
    62: "has a certificate for a different host name; use the name in the federation's file",
}
"""The faults of a server's certificate that fails verification, by OpenSSL's numbers."""


class Unreachable(Exception):
    """The server does not answer, or not in its protocol; another try may succeed."""

    def __str__(self) -> str:
        """Return one printable line, because the reason may quote the server."""
        return plain_line(super().__str__())


class ConnectionClosed(Unreachable):
    """The server closed the connection without a reply."""


@dataclass(frozen=True)
class Address:
    """The address of the server of a kit's federation."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return it as ``host:port``."""
        return f"{self.host}:{self.port}"


def address_in(kit: Kit) -> Address:
    """Return the address of the server in a kit."""
    path = kit.path / "startup" / STARTUP[kit.kind]
    try:
        tree = read_json(path, ANEW)
        if kit.kind in ("operator", "viewer"):
            return Address(str(tree["admin"]["host"]), int(tree["admin"]["port"]))
        host, _, port = str(tree["servers"][0]["service"]["target"]).rpartition(":")
        return Address(host, int(port))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UserError(str(path), f"is damaged; {ANEW}") from error


def check_handshake(kit: Kit, seconds: float = SECONDS) -> None:
    """Shake hands once; raise ``Unreachable`` if another try may succeed, or ``UserError`` if none will."""
    address, credentials = address_in(kit), kit.credentials
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(credentials.root)
    context.load_cert_chain(credentials.certificate, credentials.key)
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=seconds) as connection,
            context.wrap_socket(
                connection, server_hostname=address.host, do_handshake_on_connect=False
            ) as tls_connection,
        ):
            tls_connection.do_handshake()  # checks that the other end is still connected, as wrapping alone does not
            # A server may end the connection instead of a refusal of our certificate.
            first_byte = b""
            with suppress(ConnectionResetError):
                first_byte = tls_connection.recv(1)
            if not first_byte:
                raise ConnectionClosed(f"the server at {address} closed the connection")
    # The order of the branches matters: each exception is a subclass of a later one.
    except ssl.SSLCertVerificationError as error:
        fault = UNVERIFIED.get(error.verify_code, f"has an invalid certificate ({error.verify_message})")
        raise UserError(str(credentials.root), f"the server at {address} {fault}") from error
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            alert = (error.reason or "").lower().replace("_", " ")
            raise refusal_error(address, credentials.certificate, alert) from error
        if isinstance(error, ssl.SSLEOFError):
            raise _no_server_error(address) from error
        raise Unreachable(f"the service at {address} does not use TLS") from error
    except OSError as error:
        if error.errno in ENDED:
            raise _no_server_error(address) from error
        raise Unreachable(f"the server at {address} cannot be reached ({error.strerror or error})") from error


def wait_for_greeting(kit: Kit, say: Say, *, until: float | None = None) -> None:
    """Try until the server greets, and report each reason for waiting once.

    After ``until`` (monotonic) the last reason is raised.
    """
    last_reason, hang_ups, tries = "", 0, 0
    while True:
        try:
            check_handshake(kit, SECONDS if until is None else min(SECONDS, max(0.5, until - time.monotonic())))
            return
        except Unreachable as reason:
            # A server that is ending hangs up, too; only a server that refuses this kit does so repeatedly.
            hang_ups = hang_ups + 1 if isinstance(reason, ConnectionClosed) else 0
            if hang_ups >= HANG_UPS:
                certificate = kit.credentials.certificate
                raise refusal_error(address_in(kit), certificate, "it closed the connection") from reason
            # Hang-ups are repeated quickly, because only several in a row are a refusal.
            pause = PAUSES[min(tries, len(PAUSES) - 1)] if not hang_ups else PAUSES[0]
            if until is not None:
                if time.monotonic() >= until:
                    raise
                pause = min(pause, until - time.monotonic())
            if last_reason != str(reason) and not hang_ups:
                last_reason = str(reason)
                say(f"{last_reason}; trying again until it answers")
        tries += 1
        time.sleep(pause)


def _no_server_error(where: Address) -> Unreachable:
    """Return the error for an address that accepts and ends connections, like a proxy whose server is down."""
    return Unreachable(f"{where} closes connections before TLS begins; is the server behind it running?")


def refusal_error(where: Address, certificate: Path, why: str) -> UserError:
    """Return the error for a server that verified, and does not accept, this kit's certificate."""
    message = f"the server at {where} refuses this kit's certificate ({why}); ask its owner, or for a new kit"
    return UserError(str(certificate), message)


# Requests for admission, before NVFlare starts: TLS alone does not refuse revoked certificates.


SERVICE, HELLO, STOP, LEAVE = "fedvisage", "hello", "stop", "leave"


LETTERS = 80
"""Characters of a name or a text from another machine, at most."""

VERSIONS = f"fedvisage {VERSION}, NVFlare {version('nvflare')}"
"""The versions of this process, which the two ends of a request for admission exchange."""


@dataclass(frozen=True)
class Admitted:
    """The server's answer to a request for admission."""

    clock: float = 0.0
    """Seconds by which the server's clock is ahead of this machine's."""
    until: Mapping[str, datetime] = field(default_factory=dict)
    """For operators: the ends of the certificates of connected members."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """The server's versions; for operators also those of the members that connected since the server's start."""
    stopped: Mapping[str, str] = field(default_factory=dict)
    """For operators: the jobs that an operator stopped, and the operator's name."""
    jobs: frozenset[str] = frozenset()
    """For operators: the jobs that the server runs, or whose results it is saving."""
    revoked: Mapping[str, str] = field(default_factory=dict)
    """For operators: the revoked members, and the dates of their revocation."""

    def differences(self) -> Iterator[str]:
        """Yield a line per member with other versions than this process."""
        for name, versions in sorted(self.versions.items()):
            if versions != VERSIONS:
                yield f"{name} runs {versions}, this machine {VERSIONS}; install the same ones on all machines"


def request_admission(kit: Kit) -> Admitted:
    """Request admission once.

    Raises ``UserError`` if the server refuses the kit, ``Unreachable`` if it does not answer.
    """
    reply = _call(kit, HELLO, VERSIONS)
    try:
        answer = parse_json(reply)
        until = {plain_line(name, LETTERS): datetime.fromisoformat(end) for name, end in answer["until"].items()}
        if any(end.tzinfo is None for end in until.values()):
            raise ValueError("the end of a certificate has no time zone")
        versions, stopped, revoked = (
            {plain_line(name, LETTERS): plain_line(str(text), LETTERS) for name, text in answer[key].items()}
            for key in ("versions", "stopped", "revoked")
        )
        jobs = frozenset(map(str, answer["jobs"]))
        return Admitted(float(answer["now"]) - time.time(), until, versions, stopped, jobs, revoked)
    except KeyError as error:
        raise _other_version_error(kit, address_in(kit)) from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise Unreachable(f"the server at {address_in(kit)} sent an invalid answer") from error


def request_stop(kit: Kit, job: str) -> None:
    """Have the server remember that this operator stops a job, for the command that follows it."""
    _call(kit, STOP, job)


def announce_leave(kit: Kit, token: str) -> None:
    """Tell the server that this site's process ends, so that no round waits for it; a silent server waits instead."""
    try:
        _call(kit, LEAVE, token)
    except (Unreachable, UserError) as reason:
        logger.info("%s", reason)


def _call(kit: Kit, what: str, request: str) -> bytes:
    """Send the server a request of our own, beside NVFlare's, and return its reply."""
    address, credentials = address_in(kit), kit.credentials
    tls = grpc.ssl_channel_credentials(
        credentials.root.read_bytes(), credentials.key.read_bytes(), credentials.certificate.read_bytes()
    )
    try:
        with grpc.secure_channel(str(address), tls) as channel:
            return bytes(channel.unary_unary(f"/{SERVICE}/{what}")(request.encode(), timeout=SECONDS))
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.PERMISSION_DENIED:
            raise refusal_error(address, credentials.certificate, error.details()) from error
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            raise _other_version_error(kit, address) from error
        raise Unreachable(f"the server at {address} does not answer ({error.details()})") from error


def _other_version_error(kit: Kit, address: Address) -> UserError:
    """Return the error for a server whose answer has another form."""
    return UserError(str(kit.path), f"the server at {address} has a different version; all members need the same one")


def wait_for_admission(kit: Kit, say: Say, *, until: float | None = None) -> Admitted:
    """Try until the server greets and admits this kit; after ``until`` (monotonic) raise the last reason."""
    last_reason = ""
    while True:
        wait_for_greeting(kit, say, until=until)
        try:
            return request_admission(kit)
        except Unreachable as reason:
            if until is not None and time.monotonic() >= until:
                raise
            if last_reason != str(reason):
                last_reason = str(reason)
                say(f"{last_reason}; trying again until it answers")
        time.sleep(PAUSES[0])
