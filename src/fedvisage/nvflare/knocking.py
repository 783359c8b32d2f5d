"""Asking the server whether it would let a kit in, before NVFlare begins: TLS alone cannot tell who was revoked."""

from __future__ import annotations

import time
from datetime import datetime

import grpc

from fedvisage.errors import UserError
from fedvisage.files import parse_json
from fedvisage.nvflare.certificates import papers_in
from fedvisage.nvflare.greeting import PAUSES, SECONDS, Unreachable, address_in, refused, wait_for_greeting
from fedvisage.nvflare.kits import Kit
from fedvisage.progress import Say

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
