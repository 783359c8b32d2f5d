"""Build the HTTP service from routes, error responses, the browser page and the guard, and serve it."""

from __future__ import annotations

import logging
import socket
import ssl
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from ipaddress import ip_network
from pathlib import Path

import h11
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedvisage.base.errors import BadFile, RunFailed, UserError
from fedvisage.base.files import open_regular
from fedvisage.base.version import VERSION
from fedvisage.device import Pipeline, Settings
from fedvisage.device.fused import Model
from fedvisage.device.gallery.enrolment import Engine
from fedvisage.device.gallery.search import Gallery
from fedvisage.device.service import compreface, routes
from fedvisage.device.service.access import LOOPBACK, Keys, Nonces
from fedvisage.device.service.guard import OPEN, REQUEST, AuditLog, RequestGuard, refuse
from fedvisage.device.service.limits import Limits
from fedvisage.device.service.requests import Fault, ServiceContext, fault_of
from fedvisage.device.web.site import HEADERS, START, PageFile


def open_engine(pad: Path | Model | None, recognition: Path | Model | None) -> Engine:
    """Open exported directories, or use open models, as one engine."""
    return Engine(Pipeline(pad, recognition, settings=Settings(several=True)))


# The browser page at the root of the service. Its own files need no key; the models' files do, like all model outputs.


Page = Mapping[str, PageFile]


def _route(path: str, entry: PageFile, work: ServiceContext) -> Route:
    async def deliver(request: Request) -> Response:
        # The first read and digest of a large model take a while.
        tag = f'"{await work.do(lambda: entry.digest)}"'
        headers = {**HEADERS, "etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(entry.content, media_type=entry.kind, headers=headers)

    return Route(path, deliver, include_in_schema=False)


# The server: in the foreground or in a thread, optionally with TLS, with a graceful shutdown.


HEADERS_PATIENCE = 10.0
"""Seconds within which a client must send the headers of a request."""


class _Connection(H11Protocol):
    """A connection that closes if a client does not complete the headers of a request in time."""

    _deadline: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit_headers()

    def handle_events(self) -> None:
        super().handle_events()
        self._limit_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def _limit_headers(self) -> None:
        """Start the timer while the headers of a request are incomplete, and stop it once they are complete."""
        waits = self.conn.their_state is h11.IDLE
        if waits and self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_PATIENCE, self.transport.close)
        elif not waits and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


PATIENCE = 20
"""Seconds for unfinished requests to complete when the service stops."""


class Server(uvicorn.Server):
    """A server that reports its port once it listens."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[int], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and report it."""
        await super().startup(sockets)
        if self.started:
            self._listening(self.servers[0].sockets[0].getsockname()[1])


def server_of(
    guard: RequestGuard,
    host: str,
    port: int,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
    proxies: Sequence[str] = (),
    listening: Callable[[int], None] = lambda port: None,
) -> Server:
    """Return the server without starting it; ``run()`` serves until SIGINT or SIGTERM.

    It reads the client's address and scheme from the headers X-Forwarded-For and X-Forwarded-Proto of these proxies.
    ``listening`` receives the port once it listens.
    """
    if (certificate is None) != (key is None):
        raise UserError("--tls-cert", "needs --tls-key, and --tls-key needs it")
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it would log bytes of broken forms
    if certificate is not None and key is not None:
        try:
            for path in (certificate, key):
                open(path, "rb", opener=open_regular).close()
            # A key with a password would prompt for it on the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=str)
        except (ssl.SSLError, ValueError) as error:
            fault = f"is not a certificate for the key {key} ({error}); give PEM files"
            raise UserError(str(certificate), fault) from None
        except OSError as error:
            raise UserError(str(certificate), f"or {key} cannot be read ({error.strerror})") from None
    for proxy in proxies:
        try:
            ip_network(proxy)
        except ValueError:
            raise UserError("--proxy", f"{proxy} is not an IP address or network; give the proxy's") from None
    return Server(
        uvicorn.Config(
            guard,
            host=host,
            port=port,
            access_log=False,
            log_config=None,  # a configuration would close all handlers of this process
            log_level="critical",  # the guard logs requests, and the caller reports a port that is in use
            server_header=False,
            ws="none",
            timeout_keep_alive=5,
            timeout_graceful_shutdown=PATIENCE,
            h11_max_incomplete_event_size=32_768,
            http=_Connection,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            ssl_certfile=certificate,
            ssl_keyfile=key,
            lifespan="off",
        ),
        listening,
    )


def check_open(host: str, keys: Keys, without: bool) -> None:
    """Refuse to serve without keys on an address that other machines can reach, unless ``without`` allows it."""
    if not keys and host not in LOOPBACK and not without:
        raise UserError(
            "--api-keys",
            f"does not name a file, but {host} is reachable from other machines; name one, serve on 127.0.0.1, or "
            "give --without-keys",
        )


_ERRORS = {
    404: ("not_found", "no route has this path; /routes lists them"),
    405: ("method_not_allowed", "the route does not have this method; /routes lists them"),
}
"""Codes and messages of Starlette's refusals, by status."""


def build(
    engine: Engine,
    gallery: Gallery | None = None,
    *,
    keys: Keys | None = None,
    limits: Limits | None = None,
    hosts: Iterable[str] = (),
    audit: AuditLog | None = None,
    nonces: Nonces | None = None,
    page: Page | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> RequestGuard:
    """Return the service for an engine, optionally with a gallery, further host names and the browser page."""
    work = ServiceContext(engine, gallery, limits or Limits())
    # FastAPI's documentation pages would load scripts from other hosts.
    app = FastAPI(title="fedvisage", version=VERSION, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.include_router(routes.routes(work, nonces))
    app.include_router(compreface.routes(work, nonces))
    _add_pages(app, work, "/" if page is None else "/routes")
    entries = {f"/{path}": entry for path, entry in (page or {}).items()}
    start = {} if page is None else {"/": page[START]}
    app.router.routes += [_route(path, entry, work) for path, entry in {**entries, **start}.items()]
    _add_refusals(app, work, log)
    return RequestGuard(
        app,
        keys=keys or Keys(),
        limits=work.limits,
        counts=work.counts,
        log=log,
        hosts=frozenset({*LOOPBACK, *(host.lower() for host in hosts)}),
        audit=audit,
        # The page's own files contain neither personal data nor trained weights.
        free=OPEN | {path for path, entry in entries.items() if not entry.of_model},
        files=frozenset(entries),
    )


def _add_pages(app: FastAPI, work: ServiceContext, place: str) -> None:
    @app.get(place, include_in_schema=False)
    async def start() -> HTMLResponse:
        page = files("fedvisage.device.service").joinpath("page.html").read_text(encoding="utf-8")
        rows = "".join(
            f"<tr><td>{method.upper()}</td><td><code>{path}</code></td><td>{route.get('description', '')}</td></tr>\n"
            for path, methods in app.openapi()["paths"].items()  # computed here because it is slow
            for method, route in methods.items()
        )
        return HTMLResponse(page.replace("ROUTES", rows).replace("VERSION", VERSION))

    @app.get("/metrics", include_in_schema=False)
    @app.get("/v1/metrics", include_in_schema=False)
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(work.counts.text())


def _add_refusals(app: FastAPI, work: ServiceContext, log: Callable[[str], None]) -> None:
    gallery_path = None if work.gallery is None else work.gallery.path

    async def answer(request: Request, error: Exception) -> Response:
        fault = Fault(500, "internal", "internal error of the service")
        if isinstance(error, Fault):
            fault = error
        elif isinstance(error, RequestValidationError):
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"][1:])) or "request"
            fault = Fault(422, "invalid", f"{field}: {first['msg']}", field=field)
        elif isinstance(error, HTTPException):
            fault = Fault(error.status_code, *_ERRORS.get(error.status_code, ("refused", "the request was refused")))
            fault.headers.update(error.headers or {})
        elif isinstance(error, UserError | RunFailed | BadFile):
            fault = fault_of(error, gallery_path)
            if fault.status == 503:
                log(f"failed: {error}")
        return refuse(fault, request.scope[REQUEST])

    for kind in (Exception, Fault, RequestValidationError, HTTPException, UserError, RunFailed, BadFile):
        app.add_exception_handler(kind, answer)
