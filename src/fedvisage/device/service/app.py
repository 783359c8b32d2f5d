"""Build the HTTP service from routes, error responses, the browser page and the guard, and serve it."""

from __future__ import annotations

import logging
import socket
import ssl
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from ipaddress import ip_network
from pathlib import Path
from threading import Thread
from typing import Any

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
from fedvisage.device import Checked, Exported, Pipeline, Settings
from fedvisage.device.fused import Model
from fedvisage.device.gallery.enrolment import EmbeddingModel, Engine, Image
from fedvisage.device.gallery.search import Gallery
from fedvisage.device.service import compreface, routes
from fedvisage.device.service.access import LOOPBACK, Keys
from fedvisage.device.service.audit import AuditLog
from fedvisage.device.service.guard import OPEN, REQUEST, RequestGuard, refuse
from fedvisage.device.service.limits import Limits
from fedvisage.device.service.nonces import Nonces
from fedvisage.device.service.requests import Fault, ServiceContext, fault_of
from fedvisage.device.web.site import HEADERS, START, PageFile
from fedvisage.faces.detection import Face

# The engine of the gallery, on a pipeline of exported models.


class PipelineEngine:
    """A pipeline as an engine: evaluates every face of a picture, and states the digests of its models."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Store the pipeline."""
        self._pipeline = pipeline
        self.detector_digest = f"sha256:{pipeline.detector_digest}"
        self.pad_digest = None if pipeline.pad is None else f"sha256:{pipeline.pad.digest}"
        self.model = None if pipeline.recognition is None else _model(pipeline.recognition)
        opened = (model for model in (pipeline.pad, pipeline.recognition) if model is not None)
        self.graph_digests: dict[str, str] = {model.task: f"sha256:{model.graph_digest}" for model in opened}

    def detect(self, image: Image) -> Sequence[Face]:
        """Return the faces of a picture, the largest first."""
        return self._pipeline.detect(image)

    def check(self, image: Image, *, report: bool = False, most: int | None = None, confidence: float = 0.0) -> Checked:
        """Evaluate the ``most`` largest faces of this detector confidence; with ``report``, embed attacks as well."""
        return self._pipeline.check(image, report=report, most=most, confidence=confidence)


def open_engine(pad: Path | Model | None, recognition: Path | Model | None, threads: int = 1) -> Engine:
    """Open exported directories, or use open models, as one engine."""
    return PipelineEngine(Pipeline(pad, recognition, settings=Settings(threads=threads, several=True)))


def _model(exported: Exported) -> EmbeddingModel:
    point = exported.threshold
    if point is None:
        raise UserError(str(exported.directory), "has no decision threshold; export a run whose sites chose one")
    return EmbeddingModel(f"sha256:{exported.digest}", point.value, point.operating_point)


# The browser page at the root of the service. Its own files need no key; the models' files do, like all model outputs.


Page = Mapping[str, PageFile]


def open_paths(page: Page) -> frozenset[str]:
    """Return the paths that need no key: they contain neither personal data nor trained weights."""
    return frozenset(f"/{path}" for path, entry in page.items() if not entry.of_model)


def add_page(app: FastAPI, page: Page, work: ServiceContext) -> None:
    """Serve the page at / and its files below it."""
    for path, entry in page.items():
        app.router.routes.append(_route(f"/{path}", entry, work))
    app.router.routes.append(_route("/", page[START], work))


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
        """Store the function that receives the port."""
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
    if certificate is not None:
        _check_certificate(certificate, key)
    for proxy in proxies:
        _check_proxy(proxy)
    return Server(
        uvicorn.Config(
            guard,
            host=host,
            port=port,
            access_log=False,
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


@contextmanager
def serve_in_thread(server: uvicorn.Server, waiting: int = 128) -> Iterator[int]:
    """Serve in a thread until the block ends, and yield the port, a free one on the loopback interface.

    ``waiting`` is the number of connections that may wait to be accepted.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(waiting)
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def check_open(host: str, keys: Keys, without: bool) -> None:
    """Refuse to serve without keys on an address that other machines can reach, unless ``without`` allows it."""
    if not keys and host not in LOOPBACK and not without:
        raise UserError(
            "--api-keys",
            f"does not name a file, but {host} is reachable from other machines; name one, serve on 127.0.0.1, or "
            "give --without-keys",
        )


def _check_proxy(address: str) -> None:
    try:
        ip_network(address)
    except ValueError:
        raise UserError("--proxy", f"{address} is not an IP address or network; give the proxy's") from None


def _check_certificate(certificate: Path, key: Path | None) -> None:
    try:
        for path in (certificate, key):
            if path is not None:
                open(path, "rb", opener=open_regular).close()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise UserError(str(certificate), f"is not a certificate for the key {key} ({error}); give PEM files") from None
    except OSError as error:
        raise UserError(str(certificate), f"or {key} cannot be read ({error.strerror})") from None


_no_password: Callable[[], str] = lambda: ""  # noqa: E731  # a key with a password would prompt for it on the terminal


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
    files = page or {}
    if files:
        add_page(app, files, work)
    _add_refusals(app, work, log)
    free = OPEN | open_paths(files)
    return RequestGuard(
        app,
        keys=keys or Keys(),
        limits=work.limits,
        counts=work.counts,
        log=log,
        hosts=frozenset({*LOOPBACK, *(host.lower() for host in hosts)}),
        audit=audit,
        free=free,
        files=frozenset(f"/{path}" for path in files),
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

    async def answer_fault(request: Request, error: Exception) -> Response:
        return refuse(_fault(error), request.scope[REQUEST])

    def _fault(error: Exception) -> Fault:
        if isinstance(error, Fault):
            return error
        if isinstance(error, RequestValidationError):
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"][1:])) or "request"
            return Fault(422, "invalid", f"{field}: {first['msg']}", field=field)
        if isinstance(error, HTTPException):
            refusal = Fault(error.status_code, *_ERRORS.get(error.status_code, ("refused", "the request was refused")))
            refusal.headers.update(error.headers or {})
            return refusal
        assert isinstance(error, UserError | RunFailed | BadFile)
        fault = fault_of(error, gallery_path)
        if fault.status == 503:
            log(f"failed: {error}")
        return fault

    async def answer_defect(request: Request, _: Exception) -> Response:
        return refuse(Fault(500, "internal", "internal error of the service"), request.scope[REQUEST])

    app.add_exception_handler(Exception, answer_defect)
    kinds: tuple[Any, ...] = (Fault, RequestValidationError, HTTPException, UserError, RunFailed, BadFile)
    for kind in kinds:
        app.add_exception_handler(kind, answer_fault)
