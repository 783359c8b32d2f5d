"""The service as a whole: its routes, its refusals, and the guard before them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from fedvisage.datasets.importers.report import BadFile
from fedvisage.errors import RunFailed, UserError
from fedvisage.gallery.engine import Engine
from fedvisage.gallery.search import Gallery
from fedvisage.service import compreface, native
from fedvisage.service.faults import Fault, fault_of
from fedvisage.service.guarding import OPEN, REQUEST, Guard, refuse
from fedvisage.service.paging import Page, add_page, open_paths
from fedvisage.service.settings import Keys, Limits
from fedvisage.service.work import Work
from fedvisage.version import VERSION

_CODES = {404: "not_found", 405: "method_not_allowed"}


def build(
    engine: Engine, gallery: Gallery | None = None, *, keys: Keys | None = None, limits: Limits | None = None,
    page: Page | None = None, log: Callable[[str], None] = lambda line: None,
) -> Guard:  # fmt: skip
    """Return the service over an engine, over a gallery if there is one, and with the browser page if it is given."""
    work = Work(engine, gallery, limits or Limits())
    # Its own pages would load scripts from elsewhere.
    app = FastAPI(title="fedvisage", version=VERSION, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.include_router(native.routes(work))
    app.include_router(compreface.routes(work))
    _add_pages(app, work, "/" if page is None else "/routes")
    files = page or {}
    if files:
        add_page(app, files, work)
    _add_refusals(app, work, log)
    free = OPEN | open_paths(files)
    return Guard(app, keys=keys or Keys(), limits=work.limits, counts=work.counts, log=log, free=free,
                 files=frozenset(f"/{path}" for path in files))  # fmt: skip


def _add_pages(app: FastAPI, work: Work, place: str) -> None:
    page = files("fedvisage.service").joinpath("page.html").read_text(encoding="utf-8")
    rows = "".join(
        f"<tr><td>{method.upper()}</td><td><code>{path}</code></td><td>{one.get('description', '')}</td></tr>\n"
        for path, methods in app.openapi()["paths"].items()
        for method, one in methods.items()
    )

    @app.get(place, include_in_schema=False)
    async def start() -> HTMLResponse:
        return HTMLResponse(page.replace("ROUTES", rows).replace("VERSION", VERSION))

    @app.get("/metrics", include_in_schema=False)
    @app.get("/v1/metrics", include_in_schema=False)
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(work.counts.text())


def _add_refusals(app: FastAPI, work: Work, log: Callable[[str], None]) -> None:
    place = None if work.gallery is None else work.gallery.path

    async def refused(request: Request, error: Exception) -> Response:
        return refuse(_fault(error), request.scope[REQUEST])

    def _fault(error: Exception) -> Fault:
        if isinstance(error, Fault):
            return error
        if isinstance(error, RequestValidationError):
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"][1:])) or "request"
            return Fault(422, "invalid", f"{field}: {first['msg']}", field=field)
        if isinstance(error, HTTPException):
            code = _CODES.get(error.status_code, "refused")
            said = Fault(error.status_code, code, "there is nothing of this kind here")
            said.headers.update(error.headers or {})
            return said
        assert isinstance(error, UserError | RunFailed | BadFile)
        fault = fault_of(error, place)
        if fault.status == 503:
            log(f"failed: {error}")
        return fault

    kinds: tuple[Any, ...] = (Fault, RequestValidationError, HTTPException, UserError, RunFailed, BadFile)
    for kind in kinds:
        app.add_exception_handler(kind, refused)
