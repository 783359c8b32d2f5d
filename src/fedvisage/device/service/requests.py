"""What a request holds: pictures and words, from a form, JSON with base64, or a picture as it is. All in memory."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from fedvisage.base.errors import BadFile, RunFailed, UserError, plain_line
from fedvisage.base.files import parse_json
from fedvisage.device.gallery.enrolment import Engine
from fedvisage.device.gallery.file import Busy, Exists, ModelChanged, NoRoom, NotEnrolled, Unknown
from fedvisage.device.gallery.search import Gallery
from fedvisage.device.service.limits import Counts, Limits
from fedvisage.faces.pictures import TooLarge, read_picture

# What goes wrong, as a service says it: a status, a code for programs and one line, never where files lie.


LONGEST = 400


class Fault(Exception):
    """An answer that is a refusal."""

    def __init__(self, status: int, code: str, message: str, **details: Any) -> None:
        """Take what the answer says."""
        super().__init__(message)
        self.status, self.code, self.details = status, code, details
        self.headers: dict[str, str] = {}

    def again_in(self, seconds: float) -> Fault:
        """Say when to ask again."""
        self.headers["retry-after"] = str(max(1, round(seconds)))
        return self

    def values(self, request: str) -> dict[str, Any]:
        """Return the body of the answer."""
        said = {"code": self.code, "message": plain_line(str(self), LONGEST), "details": self.details}
        return {"error": said, "request_id": request}


_STATUS: Mapping[type[UserError], tuple[int, str]] = {
    Unknown: (404, "not_found"),
    Exists: (409, "exists"),
    ModelChanged: (409, "model_changed"),
    NotEnrolled: (422, "not_enrolled"),
}


def fault_of(error: UserError | RunFailed | BadFile, gallery: Path | None) -> Fault:
    """Return the answer to a mistake, or to a failure; one about the gallery's file itself is told in the log only."""
    if isinstance(error, TooLarge):
        return Fault(413, "image_too_large", str(error))
    if isinstance(error, BadFile):
        return Fault(422, "bad_image", str(error))
    if isinstance(error, Busy):
        return Fault(503, "gallery_locked", "another process holds the gallery; ask again").again_in(1)
    if isinstance(error, NoRoom):
        return Fault(503, "no_room", "the gallery's disk is full; nothing was changed").again_in(60)
    if isinstance(error, RunFailed) or error.place == str(gallery):
        return Fault(503, "failed", "this cannot be answered; the service's log says why").again_in(60)
    for kind, (status, code) in _STATUS.items():
        if isinstance(error, kind):
            return Fault(status, code, f"{error.place}: {error.message}")
    return Fault(422, "invalid", f"{error.place}: {error.message}")


# What is computed for a request, in threads: a few at a time, and no more waiting than can be answered.


Result = TypeVar("Result")


class Work:
    """The engine and the gallery of a service, and who waits for them.

    A request that was given up because of its time keeps its thread until that is done: there are never more of them.
    """

    def __init__(self, engine: Engine, gallery: Gallery | None, limits: Limits) -> None:
        """Take what answers, and how many may ask."""
        self.engine, self.gallery, self.limits, self.counts = engine, gallery, limits, Counts()
        self._pool = ThreadPoolExecutor(limits.workers, "answering")

    async def do(self, some: Callable[[], Result]) -> Result:
        """Compute something in a thread, when one is free."""
        if self.counts.waiting >= self.limits.waiting + self.limits.workers:
            raise Fault(503, "busy", "too many requests are waiting; ask again").again_in(1)
        self.counts.came(1)
        future = self._pool.submit(some)
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    def _done(self, _: Future[Result]) -> None:
        self.counts.came(-1)

    def people(self) -> Gallery:
        """Return the gallery."""
        if self.gallery is None:
            raise UserError("gallery", "this service has none; start it with --gallery FILE")
        return self.gallery


class Times:
    """How long the steps of an answer took, in milliseconds."""

    def __init__(self) -> None:
        """Start the clock."""
        self._last = time.perf_counter()
        self.values: dict[str, float] = {}

    def done(self, step: str) -> None:
        """Note that a step has ended."""
        now = time.perf_counter()
        self.values[step] = round((now - self._last) * 1000, 1)
        self._last = now


Image = NDArray[np.uint8]
PARTS = 16
"""Files, and words, of a form."""


class _InMemory(MultiPartParser):
    """A reader of forms that writes no file: bodies are bounded before they come here."""

    spool_max_size = 1 << 62


@dataclass(frozen=True, eq=False)
class Asked:
    """Pictures as bytes, and words, by their names."""

    files: Mapping[str, bytes]
    words: Mapping[str, str]

    def picture(self, pixels: int, *names: str) -> Image:
        """Decode the picture of the first of these names; one that is too large is refused before."""
        content = next((self.files[name] for name in names if name in self.files), None)
        if content is None:
            raise Fault(422, "no_image", f"send a picture as {names[0]}: in a form, or in base64 in JSON")
        return read_picture(content, pixels)

    def word(self, name: str, default: str | None = None) -> str:
        """Return a word that was sent."""
        if name in self.words:
            return self.words[name]
        if default is None:
            raise Fault(422, "missing", f"{name} is missing", field=name)
        return default


async def read_asked(request: Request, pictures: tuple[str, ...] = ("image",)) -> Asked:
    """Read a request; ``pictures`` are the names under which JSON has pictures."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _form(request)
    body = await request.body()
    if kind.startswith("image/") or kind == "application/octet-stream":
        return Asked({pictures[0]: body}, {})
    if kind == "application/json" or (not kind and not body):
        return _json(body or b"{}", pictures)
    raise Fault(415, "unsupported", "send a form (multipart/form-data), JSON, or a picture (image/…)")


async def _form(request: Request) -> Asked:
    files, words = dict[str, bytes](), dict[str, str]()
    try:
        form = await _InMemory(request.headers, request.stream(), max_files=PARTS, max_fields=PARTS).parse()
    except (MultiPartException, KeyError, UnicodeError, ValueError) as error:
        said = str(error) if isinstance(error, MultiPartException) else "its parts cannot be told apart"
        raise Fault(400, "bad_form", f"the form cannot be read: {said}") from None
    for name, part in form.multi_items():
        if isinstance(part, UploadFile):
            files[name] = await part.read()
            await part.close()
        else:
            words[name] = part
    return Asked(files, words)


def _json(body: bytes, pictures: tuple[str, ...]) -> Asked:
    try:
        value: Any = parse_json(body)
    except ValueError:
        raise Fault(400, "bad_json", "the body is not whole JSON") from None
    if not isinstance(value, dict):
        raise Fault(400, "bad_json", "the body must be an object")
    files, words = dict[str, bytes](), dict[str, str]()
    for name, one in value.items():
        if name in pictures:
            files[name] = _decoded(name, one)
        elif isinstance(one, bool):
            words[name] = str(one).lower()
        elif isinstance(one, str | int | float):
            words[name] = str(one)
        else:
            raise Fault(422, "invalid", f"{name[:50]} must be a word or a number", field=name[:50])
    return Asked(files, words)


def _decoded(name: str, text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text.rpartition(",")[2], validate=True)
    except (binascii.Error, ValueError):
        pass
    raise Fault(422, "bad_image", f"{name} is not a picture in base64", field=name)
