"""What NVFlare leaves in a kit of each job, for ever: folders with logs, and at the server the results once more.

The newest are kept, for whoever wants to know why a run failed. A result is in the run's own directory, too, from where
an operator who was away gets it.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from fedvisage.errors import UserError
from fedvisage.files import read_json

KEPT = 20
"""Jobs whose traces stay."""

STORE = "jobs"
"""The server's store of submitted jobs, in its kit."""

WAITING = ("SUBMITTED", "APPROVED", "DISPATCHED")
"""What NVFlare calls jobs that are still to begin."""


def tidy(kit: Path, keep: int = KEPT) -> None:
    """Delete what is left of old jobs; to be called while nothing of the kit runs."""
    for place in (kit, kit / STORE):
        jobs = [path for path in place.iterdir() if _is_job(path)] if place.is_dir() else []
        for path in sorted(jobs, key=lambda one: one.stat().st_mtime, reverse=True)[keep:]:
            if not _waits(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_job(path: Path) -> bool:
    """Return whether a folder has the name that NVFlare gives to a job's."""
    try:
        return str(uuid.UUID(path.name)) == path.name and path.is_dir()
    except ValueError:
        return False


def _waits(path: Path) -> bool:
    """Return whether a job of the store has not begun; one that is half written never will."""
    try:
        return read_json(path / "meta")["status"] in WAITING
    except (UserError, KeyError):
        return False
