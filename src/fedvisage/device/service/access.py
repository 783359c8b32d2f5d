"""API keys with scopes, the checks of a request's source, scope and intent, and nonces for enrolment.

A browser sends requests to a service on behalf of any page that it shows. Two headers reveal these: ``Host`` after DNS
rebinding, and ``Origin`` of a page of another site. A service without keys also requires a header for each change that
no page of another site can add.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from fastapi import Depends, Request
from starlette.datastructures import Headers

from fedvisage.base.errors import UserError
from fedvisage.base.files import read_text
from fedvisage.device.service.requests import Fault

CHECK, ENROL, ADMIN = "check", "enrol", "admin"
SCOPES = (CHECK, ENROL, ADMIN)
"""The scopes of keys; each includes those before it."""

SHORTEST = 16
"""Minimum characters of a service key; shorter ones can be guessed."""

_LARGEST = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Caller:
    """The owner of a key."""

    name: str
    scope: str

    def require(self, scope: str) -> None:
        """Refuse a caller whose key does not have a scope."""
        if SCOPES.index(self.scope) < SCOPES.index(scope):
            raise Fault(403, "forbidden", f"this needs a key with the scope {scope}", scope=scope)


ANYONE = Caller("", ADMIN)
"""The caller of a service without keys."""


class Keys:
    """API keys, stored as digests and all compared in constant time."""

    def __init__(self, keys: Iterable[tuple[str, Caller]] = ()) -> None:
        """Store keys with their owners; without any, every caller is admitted."""
        self._owners = [(_digest(key), caller) for key, caller in keys]

    def __bool__(self) -> bool:
        """Return whether there are keys."""
        return bool(self._owners)

    def owner(self, key: str) -> Caller | None:
        """Return the owner of a key; None if it is unknown."""
        digest, owner = _digest(key), None
        for candidate, caller in self._owners:
            if hmac.compare_digest(digest, candidate):
                owner = caller
        return owner


class KeyFile(Keys):
    """The keys of a file, which is read again after a change; ``log`` receives a line per change."""

    def __init__(self, path: Path, log: Callable[[str], None] = lambda line: None) -> None:
        super().__init__(read_keys(path))
        self._path, self._log = path, log
        self._version = self._version_now()

    def owner(self, key: str) -> Caller | None:
        """Return the owner of a key; a file that has become unreadable changes nothing."""
        if (version := self._version_now()) != self._version:
            self._version = version
            try:
                super().__init__(read_keys(self._path))
                self._log(f"{self._path}: the keys were read again")
            except UserError as error:
                self._log(f"{error}; the earlier keys remain valid")
        return super().owner(key)

    def _version_now(self) -> tuple[int, ...]:
        try:
            status = self._path.stat()
        except OSError:
            return ()
        return status.st_ino, status.st_size, status.st_mtime_ns

    @property
    def without_scope(self) -> int:
        """The number of bare keys, which have the scope admin."""
        return sum(caller.name.startswith(_LINE) for _, caller in self._owners)


_LINE = "line "


def read_keys(path: Path) -> list[tuple[str, Caller]]:
    """Read a file of keys, one NAME SCOPE KEY per line; a bare key is an admin's, lines with # are comments."""
    keys = list[tuple[str, Caller]]()
    for number, line in enumerate(read_text(path, _LARGEST).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        place = f"{path}:{number}"
        if len(words) not in (1, 3):
            raise UserError(place, "is not a key; write NAME SCOPE KEY, separated by spaces")
        name, scope, key = words if len(words) == 3 else (f"{_LINE}{number}", ADMIN, words[0])
        if len(words) == 3 and not _NAME.fullmatch(name):
            raise UserError(place, "has a name that is too long or has other characters than letters, digits and _.-")
        if scope not in SCOPES:
            raise UserError(place, f"has an unknown scope; write one of {', '.join(SCOPES)}")
        if len(key) < SHORTEST or not key.isascii() or not key.isprintable():
            raise UserError(place, f"has a key that is too short; generate {SHORTEST} ASCII characters at random")
        if any(name == other.name or key == taken for taken, other in keys):
            raise UserError(place, "repeats a name or a key of an earlier line; give each client its own")
        keys.append((key, Caller(name, scope)))
    if not keys:
        raise UserError(str(path), "does not contain a key; write NAME SCOPE KEY, one per line")
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


# The source of a request.


_HOST = re.compile(r"(\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(:[0-9]+)?")
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def check_source(headers: Headers, hosts: frozenset[str], scheme: str) -> None:
    """Refuse requests under a foreign host name (DNS rebinding) and requests of another site's page."""
    host = headers.get("host", "")
    parts = _HOST.fullmatch(host.lower())
    name = (parts["address"] or parts["name"]) if parts else ""
    # Rebinding cannot change an address.
    if not name or (name not in hosts and not is_address(name)):
        raise Fault(403, "foreign_host", "the service does not have this host name; start it with --host-name NAME")
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"{scheme}://{host}".lower():
        remedy = "; behind a proxy that adds TLS, start it with --proxy ADDRESS"
        raise Fault(403, "foreign_origin", f"the service does not answer pages of other sites{remedy}")


def is_address(text: str, *, loopback: bool = False) -> bool:
    """Return whether a text is an IP address, or one of this machine alone."""
    try:
        return ip_address(text).is_loopback or not loopback
    except ValueError:
        return False


# The scope of a route.


CALLER = "fedvisage.caller"
"""Key of the caller in the ASGI scope."""

INTENT = "x-fedvisage"
"""The header that a service without keys requires for changes; CompreFace's clients send x-api-key instead."""


def needs(scope: str) -> Any:
    """Return the dependency of a route that requires a key with this scope."""

    async def check(request: Request) -> None:
        caller: Caller = request.scope[CALLER]
        caller.require(scope)
        changes = scope != CHECK and request.method not in ("GET", "HEAD")
        if caller is ANYONE and changes and not {INTENT, "x-api-key"} & set(request.headers):
            raise Fault(403, "no_intent", "a service without keys makes changes only with the header X-Fedvisage: 1")

    return Depends(check)


# Nonces for enrolment from other machines: each admits one request of one client, within a minute. A replayed enrolment
# is therefore refused. A nonce does not show where a picture comes from.


HEADER = "x-nonce"
LIFETIME = 60.0
"""Seconds for which a nonce is valid."""

_NAMES = ("for", "host", "port", "proto", "server")
FORWARDED = frozenset({"forwarded", "via", "x-client-ip", "x-real-ip", *(f"x-forwarded-{name}" for name in _NAMES)})
"""Headers that proxies add; a request with one of them counts as one from another machine."""

PENDING = 10_000
"""Unused nonces that are kept; the oldest are dropped first."""


class Nonces:
    """The unused nonces of a service, each with the client who received it and the end of its validity."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, behind_proxy: bool = False) -> None:
        """Start without any; behind a proxy, clients on this machine need nonces, too."""
        self._clock, self._lock, self.behind_proxy = clock, threading.Lock(), behind_proxy
        self._pending: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def issue(self, client: str) -> str:
        """Return a new nonce for a client."""
        nonce = secrets.token_urlsafe(24)
        with self._lock:
            self._pending[nonce] = client, self._clock() + LIFETIME
            if len(self._pending) > PENDING:
                self._pending.popitem(last=False)
        return nonce

    def use(self, nonce: str, client: str) -> None:
        """Use a nonce up; refuse one that is not valid for this client."""
        with self._lock:
            owner, end = self._pending.pop(nonce, ("", 0.0))
        if owner != client or self._clock() >= end:
            raise Fault(403, "bad_nonce", f"request a nonce from POST /v1/nonces and send it once, as {HEADER}")


def client_of(request: Request) -> str:
    """Return the name of a caller's key, or else their address."""
    return request.scope[CALLER].name or f"from {request.client.host if request.client else 'nobody'}"


def needs_nonce(nonces: Nonces | None) -> Any:
    """Return the dependency of a route that requires a nonce from clients on other machines; None requires none."""

    async def check(request: Request) -> None:
        if nonces is None:
            return
        # From this machine, under its name, and through no proxy that leaves a trace.
        local = (
            not FORWARDED & set(request.headers)
            and request.url.hostname in LOOPBACK
            and request.client is not None
            and is_address(request.client.host, loopback=True)
        )
        if nonces.behind_proxy or not local:
            nonces.use(request.headers.get(HEADER, ""), client_of(request))

    return Depends(check)
