"""What goes wrong, as a service says it: a status, a code for programs and one line, never where files lie."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvisage.datasets.importers.pictures import TooLarge
from fedvisage.datasets.importers.report import BadFile
from fedvisage.errors import RunFailed, UserError, plain_line
from fedvisage.gallery.refusals import Busy, Exists, ModelChanged, NoRoom, NotEnrolled, Unknown

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
