"""Shaking hands with a federation's server before NVFlare begins: is it there, is it ours, does it know our papers?

NVFlare tries again for ever, whatever the reason, and leaves it to OpenSSL to say so. Here a server that cannot be
reached is told apart from one that must not be talked to.
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import grpc

from fedvisage.base.errors import UserError
from fedvisage.base.files import parse_json, read_json
from fedvisage.base.progress import Say
from fedvisage.nvflare.certificates import Papers, papers_in
from fedvisage.nvflare.kits import ANEW, STARTUP, Kit

SECONDS = 5.0
"""How long a handshake may take."""

PAUSES = (1.0, 2.0, 5.0, 10.0)
"""Seconds between tries to reach a server; the last one holds for ever."""

HANG_UPS = 3
"""So often must a server hang up without a word before it counts as a refusal: one that is ending does so, too."""

ENDED = (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)
"""What a connection says that was taken and ended at once; who refuses papers has begun TLS before."""

FOREIGN = (18, 19, 20, 21)
"""OpenSSL's numbers for a certificate that is not signed by an authority one knows."""
EXPIRED, EARLY, OTHER_HOST = 10, 9, 62


class Unreachable(Exception):
    """Nobody answers, or nobody who speaks as a server does: worth another try."""


class HungUp(Unreachable):
    """The other end closed the connection without a word."""


@dataclass(frozen=True)
class Address:
    """Where the server of a kit's federation listens."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return it as people write it."""
        return f"{self.host}:{self.port}"


def address_in(kit: Kit) -> Address:
    """Return where a kit says that its server is."""
    path = kit.path / "startup" / STARTUP[kit.kind]
    try:
        tree = read_json(path, ANEW)
        if kit.kind == "operator":
            return Address(str(tree["admin"]["host"]), int(tree["admin"]["port"]))
        host, _, port = str(tree["servers"][0]["service"]["target"]).rpartition(":")
        return Address(host, int(port))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UserError(str(path), f"is damaged; {ANEW}") from error


def greet(kit: Kit, seconds: float = SECONDS) -> None:
    """Shake hands once: return when the server greets, raise ``Unreachable``, or ``UserError`` if it never will."""
    where, papers = address_in(kit), papers_in(kit.path, at_server=False)
    context = _context(papers)
    try:
        with (
            socket.create_connection((where.host, where.port), timeout=seconds) as plain,
            context.wrap_socket(plain, server_hostname=where.host, do_handshake_on_connect=False) as shaken,
        ):
            shaken.do_handshake()  # looks whether the other end is still there, as wrapping alone does not
            _first_word(shaken, where)
    except ssl.SSLCertVerificationError as error:
        raise _not_ours(error, where, papers.root) from error
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            said = (error.reason or "").lower().replace("_", " ")
            raise refused(where, papers.certificate, said) from error
        if isinstance(error, ssl.SSLEOFError):
            raise _nobody_behind(where) from error
        raise Unreachable(f"what answers at {where} does not speak TLS") from error
    except OSError as error:
        if error.errno in ENDED:
            raise _nobody_behind(where) from error
        raise Unreachable(f"the server at {where} cannot be reached ({error.strerror or error})") from error


def _first_word(shaken: ssl.SSLSocket, where: Address) -> None:
    """Wait for what a server says when it has seen our certificate; who refuses it may end the connection instead."""
    try:
        said = shaken.recv(1)
    except ConnectionResetError as error:
        raise HungUp(f"the server at {where} hangs up") from error
    if not said:
        raise HungUp(f"the server at {where} hangs up")


def wait_for_greeting(kit: Kit, say: Say, *, until: float | None = None, seconds: float = SECONDS) -> None:
    """Try until the server greets; say once why not yet. With ``until`` (monotonic) the last reason is raised then."""
    said, hung, tries = "", 0, 0
    while True:
        try:
            greet(kit, seconds if until is None else min(seconds, max(0.5, until - time.monotonic())))
            return
        except Unreachable as reason:
            hung = hung + 1 if isinstance(reason, HungUp) else 0
            if hung >= HANG_UPS:
                papers = papers_in(kit.path, at_server=False)
                raise refused(address_in(kit), papers.certificate, "it hangs up") from reason
            pause = PAUSES[min(tries, len(PAUSES) - 1)] if not hung else PAUSES[0]
            if until is not None:
                if time.monotonic() >= until:
                    raise
                pause = min(pause, until - time.monotonic())
            if said != str(reason) and not hung:
                said = str(reason)
                say(f"{said}; trying again until it answers")
        tries += 1
        time.sleep(pause)


def _nobody_behind(where: Address) -> Unreachable:
    """Return what is said of a door that takes connections and ends them, as a proxy does whose server is down."""
    return Unreachable(f"{where} ends connections before TLS begins; is the server behind it up?")


def _context(papers: Papers) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(papers.root)
    context.load_cert_chain(papers.certificate, papers.key)
    context.set_alpn_protocols(["h2"])
    return context


def _not_ours(error: ssl.SSLCertVerificationError, where: Address, root: Path) -> UserError:
    if error.verify_code in FOREIGN:
        what = "is of another federation: its certificate is not signed by this one's; is the kit the right one?"
    elif error.verify_code == EXPIRED:
        what = "has a certificate that has expired; whoever runs it needs it renewed"
    elif error.verify_code == EARLY:
        what = "has a certificate that is not valid yet; is this machine's clock right?"
    elif error.verify_code == OTHER_HOST:
        what = "has a certificate for another host name; use the name in the federation's file"
    else:
        what = f"has a certificate that does not hold ({error.verify_message})"
    return UserError(str(root), f"the server at {where} {what}")


def refused(where: Address, certificate: Path, why: str) -> UserError:
    """Return what to say of a server that knows this kit's certificate, and does not take it."""
    message = f"the server at {where} refuses this kit's certificate ({why}); ask its owner, or for a new kit"
    return UserError(str(certificate), message)


# Asking the server whether it would let a kit in, before NVFlare begins: TLS alone cannot tell who was revoked.


PLACE = "/fedvisage/knock"


def knock(kit: Kit, seconds: float = SECONDS) -> dict[str, datetime]:
    """Ask once; an operator is told when the certificates of those who connected end.

    Raises ``UserError`` if the server refuses the kit, ``Unreachable`` if it does not answer.
    """
    where, papers = address_in(kit), papers_in(kit.path, at_server=False)
    credentials = grpc.ssl_channel_credentials(
        papers.root.read_bytes(), papers.key.read_bytes(), papers.certificate.read_bytes()
    )
    try:
        with grpc.secure_channel(str(where), credentials) as channel:
            answer = channel.unary_unary(PLACE)(b"", timeout=seconds)
        return {str(name): datetime.fromisoformat(until) for name, until in parse_json(answer).items()}
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.PERMISSION_DENIED:
            raise refused(where, papers.certificate, error.details()) from error
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            message = f"the server at {where} is of another version; all members need the same one"
            raise UserError(str(kit.path), message) from error
        raise Unreachable(f"the server at {where} does not answer ({error.details()})") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise Unreachable(f"what the server at {where} answers makes no sense") from error


def wait_for_admission(kit: Kit, say: Say, *, until: float | None = None) -> None:
    """Try until the server greets and lets this kit in; with ``until`` (monotonic) the last reason is raised then."""
    said = ""
    while True:
        wait_for_greeting(kit, say, until=until)
        try:
            knock(kit)
            return
        except Unreachable as reason:
            if until is not None and time.monotonic() >= until:
                raise
            if said != str(reason):
                said = str(reason)
                say(f"{said}; trying again until it answers")
        time.sleep(PAUSES[0])
