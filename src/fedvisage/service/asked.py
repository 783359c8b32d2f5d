"""What a request holds: pictures and words, from a form, JSON with base64, or a picture as it is. All in memory."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from fedvisage.datasets.importers.pictures import read_picture
from fedvisage.files import parse_json
from fedvisage.service.faults import Fault

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
