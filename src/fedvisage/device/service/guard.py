"""Middleware before every route: request IDs, keys, rate and size limits, timeouts, the log and the audit log.

A log line holds time, ID, method, route, status and duration. The route is logged as its pattern, without the names of
people that may occur in a path or query; pictures, scores and keys are not logged either.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedvisage.base.errors import UserError, plain_line
from fedvisage.base.files import json_line, open_regular
from fedvisage.device.gallery.records import LONGEST
from fedvisage.device.service.access import ANYONE, CALLER, Caller, Keys, check_source
from fedvisage.device.service.limits import Counts, Limits
from fedvisage.device.service.requests import CHARGE, Fault, path_of, slashes_of

OPEN = frozenset({"/", "/routes", "/v1/health", "/openapi.json"})
"""Paths that need no key: they contain no personal data."""

DOWNLOAD = 600.0
"""Seconds within which a file of the browser page, or a model, must be sent."""

CALLERS = 10_000
"""Callers whose rate is remembered; the least recent ones are dropped first."""

GONE = 499
"""The status in the log of a client that left before it had sent its request, as in nginx."""

REQUEST = "fedvisage.request"
"""Key of the request ID in the ASGI scope."""

HEADERS = 32_768
"""Maximum bytes of a request's headers."""

_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_SAFE = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'",
}


class RateLimiter:
    """Token buckets, one per caller: requests drain them, and time refills them."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock, self._lock = limits, clock, threading.Lock()
        self._tokens: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, caller: str) -> float:
        """Count a request; return 0 if it may proceed, else the seconds until the next one may come."""
        if self._limits.rate <= 0:
            return 0.0
        with self._lock:
            tokens = self._refill(caller)
            if tokens < 1:
                return (1 - tokens) / self._limits.rate
            self._tokens[caller] = (tokens - 1, self._clock())
            return 0.0

    def charge(self, caller: str, requests: int) -> None:
        """Count requests that were already answered, such as further faces; thread-safe."""
        with self._lock:
            self._tokens[caller] = (self._refill(caller) - requests, self._clock())

    def _refill(self, caller: str) -> float:
        """Return a caller's tokens after the time since their last request."""
        now = self._clock()
        tokens, last = self._tokens.pop(caller, (float(self._limits.burst), now))
        tokens = min(self._limits.burst, tokens + (now - last) * self._limits.rate)
        self._tokens[caller] = (tokens, now)
        if len(self._tokens) > CALLERS:
            self._tokens.popitem(last=False)
        return tokens


class BodyBudget:
    """Bytes of requests that are not answered yet, in all and per caller; used by the event loop alone."""

    def __init__(self, limits: Limits) -> None:
        self._all = max(limits.bodies, limits.body)
        self._each = max(limits.bodies // 4, limits.body)
        self._held = Counter[str]()

    @contextmanager
    def hold(self, caller: str) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for a caller; the end of the block releases them, however it ends."""
        held = 0

        def reserve(size: int) -> None:
            nonlocal held
            if self._held[caller] + size > self._each:
                reason = f"unanswered requests of one client have at most {self._each:,} bytes; send fewer at once"
                raise Fault(429, "too_many_bytes", reason, most=self._each).again_in(1)
            if self._held.total() + size > self._all:
                raise Fault(503, "busy", "too many bytes are waiting for an answer; try again").again_in(1)
            held += size
            self._held[caller] += size

        try:
            yield reserve
        finally:
            self._held[caller] -= held
            self._held += Counter()  # drops callers without any


# The audit log: client and action of each request, without pictures, templates, scores, keys or names of people.


_PERSON = "fedvisage.person"
"""Key of the person's id, and that of the collection, in the ASGI scope."""
_COLLECTION = "fedvisage.collection"


def record_person(request: Request, collection: str, person: str) -> None:
    """Record the id of the person that a request concerns."""
    request.scope[_COLLECTION], request.scope[_PERSON] = collection, person


class AuditLog:
    """A file that receives one line per request; it is opened for each, so that it can be rotated."""

    def __init__(self, path: Path, log: Callable[[str], None] = lambda line: None) -> None:
        """Check that the file can be written; ``log`` receives a line when that fails later."""
        self._path, self._log = path, log
        try:
            self._append(b"")
        except OSError as error:
            raise UserError(str(path), f"cannot be written ({error.strerror}); give another file") from None

    def record(self, scope: Mapping[str, Any], *, key: str | None, route: str, status: int, request: str) -> None:
        """Append the record of a request."""
        collection = scope.get(_COLLECTION) or slashes_of(scope.get("path_params", {}).get("collection", ""))
        values = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": request,
            "key": key,
            "method": scope["method"],
            "route": route,
            "collection": plain_line(collection, LONGEST) or None,
            "person_id": scope.get(_PERSON),
            "status": status,
        }
        try:
            self._append(json_line(values).encode())
        except (OSError, UserError) as error:
            reason = error.message if isinstance(error, UserError) else error.strerror
            self._log(f"{self._path}: a request was not recorded ({reason}): {request}")

    def _append(self, content: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND
        try:
            handle = open_regular(str(self._path), flags)
        except FileNotFoundError:
            handle = os.open(self._path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(handle, content)
        finally:
            os.close(handle)


class RequestGuard:
    """The outermost ASGI application of the service."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys,
        limits: Limits,
        counts: Counts,
        log: Callable[[str], None],
        hosts: frozenset[str],
        audit: AuditLog | None = None,
        free: frozenset[str] = OPEN,
        files: frozenset[str] = frozenset(),
    ) -> None:
        """Wrap an application; ``free`` paths need no key, and ``files`` have longer to be sent."""
        self._hosts, self._audit, self._free, self._files = hosts, audit, free, files
        self._app, self._keys, self._limits, self._counts, self._log = app, keys, limits, counts, log
        self._rates, self._bodies = RateLimiter(limits), BodyBudget(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            scope["path"] = path_of(scope["raw_path"])
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, began, status = Headers(scope=scope), time.monotonic(), 0
        limit = asyncio.timeout(self._limits.seconds)
        client_id = headers.get("x-request-id", "")
        # The log contains the ID, so only well-formed IDs of clients are accepted.
        request = client_id if _ID.fullmatch(client_id) else uuid.uuid4().hex
        scope[REQUEST] = request

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.decode().lower() for name, _ in message["headers"]}
                added = {k: v for k, v in ({"x-request-id": request} | _SAFE).items() if k not in present}
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in added.items())]
                # Large files get more time from the start of the response on.
                if scope["path"] in self._files and status < 400:
                    limit.reschedule(asyncio.get_running_loop().time() + DOWNLOAD)
            await send(message)

        note, read, reserved = "", 0, 0

        async def receiving() -> Message:
            # Stop reading a request that is longer than allowed, and reserve what exceeds its announced length.
            nonlocal read, reserved
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limits.body:
                raise too_large(self._limits)
            if read > reserved:
                reserve(read - reserved)
                reserved = read
            return message

        try:
            payer, reserved = self._admit(scope, headers)
            with self._bodies.hold(payer) as reserve:
                reserve(reserved)
                async with limit:
                    await self._app(scope, receiving, sending)
        except Fault as fault:
            await refuse(fault, request)(scope, receive, sending)
        except TimeoutError:
            if not status:
                late = Fault(503, "timeout", f"no answer within {self._limits.seconds:g} s; try again").again_in(1)
                await refuse(late, request)(scope, receive, sending)
        except ClientDisconnect:
            status, note = GONE, " left before the end"
        except Exception as error:  # a defect: log only its type, because its message may quote a picture or a name
            note = f" defect {type(error).__name__}"
            if not status:
                await refuse(Fault(500, "internal", "internal error of the service"), request)(scope, receive, sending)
        self._note(scope, request, status, time.monotonic() - began, note)

    def _admit(self, scope: Scope, headers: Headers) -> tuple[str, int]:
        """Return who pays for a request, and its announced length.

        Refuse requests of other sites, without a valid key, above the rate, with two lengths, or too large.
        """
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADERS:
            raise Fault(431, "headers_too_large", f"the headers of a request have at most {HEADERS:,} bytes")
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy may have divided the connection into other requests (RFC 9112, section 6.3).
            fault = Fault(400, "two_lengths", "send either Content-Length or Transfer-Encoding, not both")
            fault.headers["connection"] = "close"
            raise fault
        check_source(headers, self._hosts, scope["scheme"])
        caller: Caller | None = ANYONE
        if self._keys and scope["path"] not in self._free:
            scheme, _, bearer = headers.get("authorization", "").partition(" ")
            caller = self._keys.owner(bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", ""))
        scope[CALLER] = caller
        payer = f"key {caller.name}" if caller and caller.name else f"from {(scope.get('client') or ('nobody',))[0]}"
        scope[CHARGE] = partial(self._rates.charge, payer)
        if wait := self._rates.wait(payer):
            raise Fault(429, "too_many_requests", "too many requests; slow down").again_in(wait)
        if caller is None:
            fault = Fault(401, "unauthorised", "give a key: Authorization: Bearer KEY, or x-api-key: KEY")
            fault.headers["www-authenticate"] = "Bearer"
            raise fault
        announced = headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced[:20]) > self._limits.body:
            raise too_large(self._limits)
        return payer, int(announced)

    def _note(self, scope: Scope, request: str, status: int, seconds: float, remark: str) -> None:
        route = str(getattr(scope.get("route"), "path", "none"))
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._counts.count_answer(method, route, status, seconds)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._log(f"{now} {request} {method} {route} {status} {seconds * 1000:.0f} ms{remark}")
        if self._audit is not None and scope["path"] not in self._free:
            caller: Caller | None = scope.get(CALLER)
            place = scope["path"] if scope["path"] in self._files else route
            self._audit.record(scope, key=(caller and caller.name) or None, route=place, status=status, request=request)


def too_large(limits: Limits) -> Fault:
    """Return the error for a request that is too long."""
    return Fault(413, "too_large", f"a request has at most {limits.body:,} bytes", most=limits.body)


def refuse(fault: Fault, request: str) -> JSONResponse:
    """Return the response for an error."""
    return JSONResponse(fault.values(request), fault.status, fault.headers)
