"""Read requests, process them in threads, and describe errors.

A request holds pictures and words in a form, in JSON with base64, or as a bare picture. Everything stays in memory.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import inspect
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from fastapi import Depends
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from fedvisage.base.errors import BadFile, RunFailed, UserError, plain_line
from fedvisage.base.files import parse_json
from fedvisage.device.gallery.enrolment import Engine
from fedvisage.device.gallery.file import (
    AlreadyEnrolled,
    Busy,
    ModelChanged,
    NameTaken,
    NoRoom,
    NotEnrolled,
    UnknownName,
)
from fedvisage.device.gallery.search import Gallery
from fedvisage.device.service.limits import Counts, Limits
from fedvisage.faces.align import Image
from fedvisage.faces.pictures import TooLarge, read_reduced

# Error responses: a status, a code for programs and one line, without file paths.


LONGEST = 400


class Fault(Exception):
    """An error response."""

    def __init__(self, status: int, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status, self.code, self.details = status, code, details
        self.headers: dict[str, str] = {}

    def again_in(self, seconds: float) -> Fault:
        """Set the seconds after which the client may retry."""
        self.headers["retry-after"] = str(max(1, round(seconds)))
        return self

    def values(self, request: str) -> dict[str, Any]:
        """Return the body of the response."""
        error = {"code": self.code, "message": plain_line(str(self), LONGEST), "details": self.details}
        return {"error": error, "request_id": request}


_STATUS: Mapping[type[UserError], tuple[int, str]] = {
    UnknownName: (404, "not_found"),
    NameTaken: (409, "exists"),
    AlreadyEnrolled: (409, "duplicate"),
    ModelChanged: (409, "model_changed"),
    NotEnrolled: (422, "not_enrolled"),
}


def fault_of(error: UserError | RunFailed | BadFile, gallery: Path | None) -> Fault:
    """Return the response to an error or failure; an error about the gallery's file itself is only logged in detail."""
    if isinstance(error, TooLarge):
        return Fault(413, "image_too_large", str(error))
    if isinstance(error, BadFile):
        return Fault(422, "bad_image", str(error))
    if isinstance(error, Busy):
        return Fault(503, "gallery_locked", "another process uses the gallery; try again").again_in(1)
    if isinstance(error, NoRoom):
        return Fault(503, "no_room", "the gallery's disk is full; nothing was changed").again_in(60)
    if isinstance(error, RunFailed) or error.place == str(gallery):
        return Fault(503, "failed", "the request failed; see the service's log for the reason").again_in(60)
    for kind, (status, code) in _STATUS.items():
        if isinstance(error, kind):
            return Fault(status, code, f"{error.place}: {error.message}")
    return Fault(422, "invalid", f"{error.place}: {error.message}")


# Processing of requests in threads: a few at a time, with a bounded queue.


Result = TypeVar("Result")


class ServiceContext:
    """The engine, the gallery and the thread pool of a service.

    A request that timed out keeps its thread until it completes, so that the number of threads stays bounded.
    """

    def __init__(self, engine: Engine, gallery: Gallery | None, limits: Limits) -> None:
        self.engine, self.gallery, self.limits, self.counts = engine, gallery, limits, Counts()
        self._pool = ThreadPoolExecutor(limits.workers, "answering")

    async def do(self, function: Callable[[], Result]) -> Result:
        """Run a function in a thread, once one is free."""
        if self.counts.waiting >= self.limits.waiting + self.limits.workers:
            raise Fault(503, "busy", "too many requests are waiting; try again").again_in(1)
        self.counts.add_waiting(1)
        future = self._pool.submit(function)
        future.add_done_callback(lambda _: self.counts.add_waiting(-1))
        return await asyncio.wrap_future(future)

    def in_thread(self, function: Callable[..., Result]) -> Callable[..., Awaitable[Result]]:
        """Return a coroutine function with the same parameters that runs a function in a thread."""

        async def answer(**arguments: Any) -> Result:
            return await self.do(partial(function, **arguments))

        # FastAPI reads the parameters of a route from its signature.
        answer.__name__, answer.__doc__ = function.__name__, function.__doc__
        answer.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
        return answer

    def people(self) -> Gallery:
        """Return the gallery."""
        if self.gallery is None:
            raise UserError("gallery", "this service has no gallery; start it with --gallery FILE")
        return self.gallery


class StepTimes:
    """Durations of the steps of a response, in milliseconds."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.values: dict[str, float] = {}

    def record_step(self, step: str) -> None:
        """Record the end of a step."""
        now = time.perf_counter()
        self.values[step] = round((now - self._last) * 1000, 1)
        self._last = now


PARTS = 16
"""Maximum files, and maximum words, of a form."""

SEPARATORS = 2000
"""Maximum commas and brackets of JSON, whose parser holds up all other requests; base64 has neither."""


class _InMemory(MultiPartParser):
    """A form parser that writes no files; the guard limits the size of bodies."""

    spool_max_size = 1 << 62


@dataclass(frozen=True, eq=False)
class Picture:
    """A decoded picture, and the divisor of its sides if it was decoded at reduced scale."""

    image: Image
    divisor: int


CHARGE = "fedvisage.charge"
"""Key of the function, in the ASGI scope, that charges further requests to the caller's rate."""


@dataclass(frozen=True, eq=False)
class RequestContent:
    """Pictures as bytes, and words, by their names."""

    files: Mapping[str, bytes]
    words: Mapping[str, str]

    def picture(self, pixels: int, *names: str) -> Picture:
        """Decode the picture under the first of these names; refuse one that is too large before decoding."""
        content = next((self.files[name] for name in names if name in self.files), None)
        if content is None:
            raise Fault(422, "no_image", f"send a picture as {names[0]}: in a form, or as base64 in JSON")
        return Picture(*read_reduced(content, pixels))

    def word(self, name: str, default: str | None = None) -> str:
        """Return a word of the request."""
        if name in self.words:
            return self.words[name]
        if default is None:
            raise Fault(422, "missing", f"{name} is missing", field=name)
        return default

    def flag(self, name: str) -> bool:
        """Return a truth value of the request, by default false."""
        word = self.word(name, "false")
        if word not in ("true", "false"):
            raise Fault(422, "invalid", f"{name} must be true or false", field=name)
        return word == "true"


def content_of(*pictures: str) -> Any:
    """Return the dependency of a route that reads a request; ``pictures`` are the JSON keys of pictures."""

    async def read(request: Request) -> RequestContent:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            return await _read_form(request)
        body = await request.body()
        if kind.startswith("image/") or kind == "application/octet-stream":
            return RequestContent({pictures[0]: body}, {})
        if kind != "application/json" and (kind or body):
            raise Fault(415, "unsupported", "send a form (multipart/form-data), JSON, or a picture (image/…)")
        values = read_json(body or b"{}")
        if not isinstance(values, dict):
            raise Fault(400, "bad_json", "the body must be a JSON object")
        files, words = dict[str, bytes](), dict[str, str]()
        for name, word in values.items():
            if name in pictures:
                try:
                    files[name] = base64.b64decode(word.rpartition(",")[2], validate=True)
                except (AttributeError, binascii.Error, ValueError):
                    raise Fault(422, "bad_image", f"{name} is not a picture in base64", field=name) from None
            elif isinstance(word, bool):
                words[name] = str(word).lower()
            elif isinstance(word, str | int | float):
                words[name] = str(word)
            else:
                raise Fault(422, "invalid", f"{name[:50]} must be a string or a number", field=name[:50])
        return RequestContent(files, words)

    return Depends(read)


async def _read_form(request: Request) -> RequestContent:
    _, parameters = parse_options_header(request.headers["content-type"])
    if parameters.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
        raise Fault(415, "unsupported", "send the words of a form in UTF-8")  # other codecs can take minutes
    files, words = dict[str, bytes](), dict[str, str]()
    try:
        form = await _InMemory(request.headers, request.stream(), max_files=PARTS, max_fields=PARTS).parse()
    except (MultiPartException, KeyError, UnicodeError, ValueError) as error:
        reason = str(error) if isinstance(error, MultiPartException) else "its parts cannot be separated"
        raise Fault(400, "bad_form", f"the form cannot be read: {reason}") from None
    for name, part in form.multi_items():
        if name in files or name in words:
            raise Fault(400, "bad_form", f"the form gives {plain_line(name, 50)} twice")
        if isinstance(part, UploadFile):
            files[name] = await part.read()
            await part.close()
        else:
            words[name] = part
    return RequestContent(files, words)


def read_json(body: bytes) -> Any:
    """Read JSON of a few values."""
    if sum(map(body.count, (b",", b"[", b"{"))) > SEPARATORS:
        raise Fault(400, "bad_json", f"the body has more than {SEPARATORS:,} values")
    try:
        return parse_json(body, unique=True)
    except ValueError:
        raise Fault(400, "bad_json", "the body is not valid JSON, or gives a key twice") from None


# Slashes in names. A server decodes %2F in a path before it is divided at its slashes, so that the name a/b would be
# two segments; a character that no name may contain stands for %2F until the path has been divided.


_SLASH = "\x1f"


def path_of(raw: bytes) -> str:
    """Decode the path of a request, except slashes within its segments."""
    return unquote(re.sub("%2f", f"%{ord(_SLASH):02x}", raw.decode("ascii"), flags=re.IGNORECASE))


def slashes_of(segment: str) -> str:
    """Return a segment of such a path with its slashes."""
    return segment.replace(_SLASH, "/")
