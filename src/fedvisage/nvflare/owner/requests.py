"""Runs that wait for the approval of a site's administrator, and the decisions.

A decision binds the run and these values: the recipe (with roster and method), operator, sets and versions. Each run
with other values is another request, with its own file ``RUN@DIGEST.json``. No request replaces another one. So nobody
can exchange a request between review and approval, or undo a refusal.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fedvisage.base.errors import UserError
from fedvisage.base.files import json_key, lock_directory, read_json, write_json
from fedvisage.nvflare.owner.submission import RUN_NAME, NotReady

FOLDER = ".requests"
"""The folder beside the private state of the runs."""

NAME = re.compile(rf"{RUN_NAME.pattern}(@[0-9a-f]{{12}})?")
"""A run's name, or the name of one of its requests."""

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

    @property
    def name(self) -> str:
        """The name of the request: the run's name and a digest of the bound values, ``RUN@DIGEST``."""
        return f"{self.run}@{hashlib.sha256(json_key(self.bound).encode()).hexdigest()[:12]}"


class Requests:
    """The requests of a site."""

    def __init__(self, state: Path) -> None:
        """Take the directory of the site's private state."""
        self.directory = state / FOLDER

    def require_approval(self, request: Request) -> Request:
        """Return the approved request; store a new one, and raise ``NotReady`` without an approval."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with lock_directory(self.directory, PATIENCE):
            stored = next(iter(self.find(request.name)), None)
            if stored is None:
                if len(self.waiting()) >= MOST:
                    raise NotReady(f"has {MOST} runs that wait for its administrator (rule approve)")
                others = self.find(request.run)
                write_json(self._path(request), asdict(request))
                if others:
                    changed = ", ".join(sorted({key for key, _ in others[-1].bound.items() ^ request.bound.items()}))
                    raise NotReady(f"has an earlier request of this run with another {changed}; this one {WAITS}")
                raise NotReady(WAITS)
            if stored.bound != request.bound:  # the digests are short enough for a collision on purpose
                raise NotReady("has another request with the same digest (rule approve); change the recipe's title")
            if stored.decision == "refused":
                raise NotReady(f"refused the run (rule approve): {stored.because}")
            if stored.decision == "waiting":
                raise NotReady(WAITS)
            return stored

    def decide(self, name: str, decision: Literal["approved", "refused"], because: str = "") -> list[Request]:
        """Store the decision about a request, or the refusal of all requests of a run, and return the requests."""
        self.get_all(name)
        with lock_directory(self.directory, PATIENCE):
            now = datetime.now(UTC).isoformat(timespec="seconds")
            chosen = self.get_all(name) if decision == "refused" else [self.get(name)]
            decided = [replace(request, decision=decision, because=because, decided=now) for request in chosen]
            for request in decided:
                write_json(self._path(request), asdict(request))
            return decided

    def waiting(self) -> list[Request]:
        """Return the requests without a decision, the oldest first."""
        return [request for request in self._read("*") if request.decision == "waiting"]

    def get(self, name: str) -> Request:
        """Return the request of a name, which must be the only one."""
        request, *others = self.get_all(name)
        if others:
            names = ", ".join(each.name for each in (request, *others))
            raise UserError(name, f"has {len(others) + 1} requests; give the name of one: {names}")
        return request

    def get_all(self, name: str) -> list[Request]:
        """Return the requests of a name, at least one."""
        requests = self.find(name)
        if not requests:
            raise UserError(name, "is not a run that asked for this site's approval; list them with `site pending KIT`")
        return requests

    def find(self, name: str) -> list[Request]:
        """Return the requests of a run, ``RUN``, or the one of a request's name, ``RUN@DIGEST``, the oldest first."""
        return self._read(name if "@" in name else f"{name}@*") if NAME.fullmatch(name) else []

    def _path(self, request: Request) -> Path:
        return self.directory / f"{request.name}.json"

    def _read(self, pattern: str) -> list[Request]:
        """Return the requests whose names match a pattern, the oldest first."""
        paths = self.directory.glob(f"{pattern}.json") if self.directory.is_dir() else ()
        return sorted(map(_read, paths), key=lambda request: (request.asked, request.name))


def _read(path: Path) -> Request:
    content = read_json(path, REPAIR)
    try:
        request = Request(**{**content, "added": tuple(content["added"])})
        if request.name != path.stem or request.decision not in ("waiting", "approved", "refused"):
            raise TypeError
    except (KeyError, TypeError) as error:
        raise UserError(str(path), f"is damaged, or of an earlier version; {REPAIR}") from error
    return request
