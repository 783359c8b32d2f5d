"""The browser page at the service's root. Its files need no key; the models' do, as all that a model says does."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.routing import Route

from fedvisage.service.work import Work
from fedvisage.web.contents import HEADERS, START, Entry

Page = Mapping[str, Entry]


def open_paths(page: Page) -> frozenset[str]:
    """Return the paths that need no key: they say nothing of anybody, and hold nothing that was trained."""
    return frozenset(f"/{path}" for path, entry in page.items() if not entry.of_model)


def add_page(app: FastAPI, page: Page, work: Work) -> None:
    """Deliver the page at / and its files below it."""
    for path, entry in page.items():
        app.router.routes.append(_route(f"/{path}", entry, work))
    app.router.routes.append(_route("/", page[START], work))


def _route(path: str, entry: Entry, work: Work) -> Route:
    async def deliver(request: Request) -> Response:
        # Reading and summing the first time takes a while for a large model.
        tag = f'"{await work.do(lambda: entry.digest)}"'
        headers = {**HEADERS, "etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(entry.content, media_type=entry.kind, headers=headers)

    return Route(path, deliver, include_in_schema=False)
