"""Runs that wait for the approval of a site's administrator, and the decisions.

One file per run has the request and the decision. A decision holds for this request only: the recipe (with roster
and method), operator, sets and versions. A request that waits is never replaced, so that nobody can exchange it between
the review and the approval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fedvisage.base.errors import UserError
from fedvisage.base.files import lock_directory, read_json, write_json
from fedvisage.nvflare.owner.submission import RUN_NAME, NotReady

FOLDER = ".requests"
"""The folder beside the private state of the runs."""

MOST = 200
"""Requests that can wait."""

PATIENCE = 30.0
REPAIR = "delete it, and have the operator repeat the run"
WAITS = "waits for this site's administrator (rule approve); --resume the run after the approval"


@dataclass(frozen=True)
class Request:
    """A request for a run, and the decision."""

    run: str
    bound: Mapping[str, str]
    """The values that a decision binds: digests or names."""
    recipe: Mapping[str, Any]
    added: tuple[str, ...]
    """The sites of the run that the rule ``members`` does not name."""
    asked: str
    decision: Literal["waiting", "approved", "refused"] = "waiting"
    because: str = ""
    decided: str = ""


class Requests:
    """The requests of a site."""

    def __init__(self, state: Path) -> None:
        """Take the directory of the site's private state."""
        self.directory = state / FOLDER

    def require_approval(self, request: Request) -> Request:
        """Return the approved request; store a new one, and raise ``NotReady`` without an approval."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with lock_directory(self.directory, PATIENCE):
            earlier = self.find(request.run)
            if earlier is None or (earlier.bound != request.bound and earlier.decision != "waiting"):
                if len(self.waiting()) >= MOST:
                    raise NotReady(f"has {MOST} runs that wait for its administrator (rule approve)")
                write_json(self.directory / f"{request.run}.json", asdict(request))
            if earlier is not None and earlier.bound != request.bound:
                changed = ", ".join(sorted({key for key, _ in earlier.bound.items() ^ request.bound.items()}))
                if earlier.decision == "waiting":
                    raise NotReady(f"has an earlier request of this run with another {changed} waiting (rule approve)")
                raise NotReady(f"{earlier.decision} this run with another {changed}, and {WAITS}")
            if earlier is not None and earlier.decision == "refused":
                raise NotReady(f"refused the run (rule approve): {earlier.because}")
            if earlier is None or earlier.decision == "waiting":
                raise NotReady(WAITS)
            return earlier

    def decide(self, run: str, decision: Literal["approved", "refused"], because: str = "") -> Request:
        """Store the decision about a run, and return the request."""
        self.get(run)
        with lock_directory(self.directory, PATIENCE):
            now = datetime.now(UTC).isoformat(timespec="seconds")
            request = replace(self.get(run), decision=decision, because=because, decided=now)
            write_json(self.directory / f"{run}.json", asdict(request))
            return request

    def waiting(self) -> list[Request]:
        """Return the requests without a decision, the oldest first."""
        paths = self.directory.glob("*.json") if self.directory.is_dir() else ()
        waiting = [request for request in map(_read, paths) if request.decision == "waiting"]
        return sorted(waiting, key=lambda request: (request.asked, request.run))

    def get(self, run: str) -> Request:
        """Return the request of a run, which must exist."""
        request = self.find(run)
        if request is None:
            raise UserError(run, "is not a run that asked for this site's approval; list them with `site pending KIT`")
        return request

    def find(self, run: str) -> Request | None:
        """Return the request of a run, or None."""
        path = self.directory / f"{run}.json"
        return _read(path) if RUN_NAME.fullmatch(run) and path.exists() else None


def _read(path: Path) -> Request:
    content = read_json(path, REPAIR)
    try:
        request = Request(**{**content, "added": tuple(content["added"])})
        if request.run != path.stem or request.decision not in ("waiting", "approved", "refused"):
            raise TypeError
    except (KeyError, TypeError) as error:
        raise UserError(str(path), f"is damaged; {REPAIR}") from error
    return request
