"""Nonces for enrolment from other machines: each admits one request of one client, within a minute.

A replayed enrolment is therefore refused. A nonce does not show where a picture comes from.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from fastapi import Depends, Request

from fedvisage.device.service.access import CALLER, LOOPBACK
from fedvisage.device.service.requests import Fault

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
        if nonces is not None and (nonces.behind_proxy or not _is_local(request)):
            nonces.use(request.headers.get(HEADER, ""), client_of(request))

    return Depends(check)


def _is_local(request: Request) -> bool:
    """Return whether a request comes from this machine, under its name, and through no proxy that leaves a trace."""
    if FORWARDED & set(request.headers):
        return False
    return request.url.hostname in LOOPBACK and request.client is not None and _is_loopback(request.client.host)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
