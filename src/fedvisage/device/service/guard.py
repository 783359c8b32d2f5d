"""What stands before every route: a request's id, who asks, how often, how much, and how long; and what is logged.

A line of the log holds time, id, method, route, status and duration. A route is its pattern: names of people, which may
stand in a path or behind a question mark, are not in it, and neither are pictures, scores or keys.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedvisage.device.service.limits import Counts, Keys, Limits
from fedvisage.device.service.requests import Fault

OPEN = frozenset({"/", "/routes", "/v1/health", "/openapi.json"})
"""Paths that need no key: they say nothing of anybody."""

DOWNLOAD = 600.0
"""Seconds in which a file of the browser page, or a model, must have gone out."""

CALLERS = 10_000
"""Callers whose rate is remembered; the ones that asked longest ago are forgotten first."""

REQUEST = "fedvisage.request"
"""Where a request's id is kept for who answers it."""

_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_SAFE = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'",
}


class Rates:
    """A bucket a caller, which requests empty and time fills."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        """Take how fast and how far a bucket fills."""
        self._limits, self._clock = limits, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, caller: str) -> float:
        """Count a request, and return 0, or after how many seconds the next one may come."""
        if self._limits.rate <= 0:
            return 0.0
        now = self._clock()
        left, then = self._left.pop(caller, (float(self._limits.burst), now))
        left = min(self._limits.burst, left + (now - then) * self._limits.rate)
        allowed = left >= 1
        self._left[caller] = (left - 1 if allowed else left, now)
        if len(self._left) > CALLERS:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._limits.rate


class Guard:
    """The outermost part of a service."""

    def __init__(
        self, app: ASGIApp, *, keys: Keys, limits: Limits, counts: Counts, log: Callable[[str], None],
        free: frozenset[str] = OPEN, files: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """Stand before a service; ``free`` paths need no key, and ``files`` may be on their way for longer."""
        self._free, self._files = free, files
        self._app, self._keys, self._limits, self._counts, self._log = app, keys, limits, counts, log
        self._rates = Rates(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, began, status = Headers(scope=scope), time.monotonic(), 0
        limit = asyncio.timeout(self._limits.seconds)
        given = headers.get("x-request-id", "")
        request = given if _ID.fullmatch(given) else uuid.uuid4().hex
        scope[REQUEST] = request

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name.decode().lower() for name, _ in message["headers"]}
                more = {k: v for k, v in ({"x-request-id": request} | _SAFE).items() if k not in own}
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in more.items())]
                if scope["path"] in self._files and status < 400:
                    limit.reschedule(asyncio.get_running_loop().time() + DOWNLOAD)
            await send(message)

        said = ""
        try:
            self._admit(scope, headers)
            async with limit:
                await self._app(scope, self._bounded(receive), sending)
        except Fault as fault:
            await refuse(fault, request)(scope, receive, sending)
        except TimeoutError:
            if not status:
                late = Fault(503, "timeout", f"no answer within {self._limits.seconds:g} s; ask again").again_in(1)
                await refuse(late, request)(scope, receive, sending)
        except ClientDisconnect:
            said = " left before the end"
        except Exception as error:  # a defect: told by its kind alone, because its words may quote a picture or a name
            said = f" defect {type(error).__name__}"
            if not status:
                await refuse(Fault(500, "internal", "this is a defect of the service"), request)(
                    scope, receive, sending
                )
        self._note(scope, request, status, time.monotonic() - began, said)

    def _admit(self, scope: Scope, headers: Headers) -> None:
        """Refuse who has no key, asks too often, or announces too much."""
        address = str((scope.get("client") or ("nobody",))[0])
        caller: int | str | None = address
        if self._keys and scope["path"] not in self._free:
            scheme, _, bearer = headers.get("authorization", "").partition(" ")
            caller = self._keys.owner(bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", ""))
        if wait := self._rates.wait(f"key {caller}" if isinstance(caller, int) else f"from {address}"):
            raise Fault(429, "too_many_requests", "ask more slowly").again_in(wait)
        if caller is None:
            fault = Fault(401, "unauthorised", "give a key: Authorization: Bearer KEY, or x-api-key: KEY")
            fault.headers["www-authenticate"] = "Bearer"
            raise fault
        announced = headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced[:20]) > self._limits.body:
            raise too_large(self._limits)

    def _bounded(self, receive: Receive) -> Receive:
        """Stop reading a request that is longer than allowed, whatever it announced."""
        read = 0

        async def receiving() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limits.body:
                raise too_large(self._limits)
            return message

        return receiving

    def _note(self, scope: Scope, request: str, status: int, seconds: float, said: str) -> None:
        route = str(getattr(scope.get("route"), "path", "none"))
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._counts.answered(method, route, status, seconds)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._log(f"{now} {request} {method} {route} {status} {seconds * 1000:.0f} ms{said}")


def too_large(limits: Limits) -> Fault:
    """Return the refusal of a request that is too long."""
    return Fault(413, "too_large", f"a request has at most {limits.body:,} bytes", most=limits.body)


def refuse(fault: Fault, request: str) -> JSONResponse:
    """Return a refusal as it is sent."""
    return JSONResponse(fault.values(request), fault.status, fault.headers)
