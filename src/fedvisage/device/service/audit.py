"""The audit log: who did what, as JSON lines. It holds no pictures, templates, scores, keys or names of people."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import Request

from fedvisage.base.errors import UserError, plain_line
from fedvisage.base.files import json_line, open_regular
from fedvisage.device.gallery.records import LONGEST
from fedvisage.device.service.requests import slashes_of

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
