"""Rotation of NVFlare's audit log, which has a line per request and would grow without limit."""

from __future__ import annotations

from pathlib import Path

from nvflare.fuel.sec.audit import Auditor

LARGEST, KEPT = 5_000_000, 5
"""Bytes of the log from which it is rotated, and the number of older files that stay: ``audit.log.1`` is the newest."""


def rotate(auditor: Auditor, largest: int = LARGEST, kept: int = KEPT) -> None:
    """Begin a new file if the log is large; NVFlare's lock keeps other threads from writing meanwhile."""
    with auditor._lock:
        file = auditor.audit_file
        if file is None or file.tell() < largest:
            return
        log = Path(file.name)
        file.close()
        try:
            for number in range(kept, 0, -1):
                older = _older(log, number - 1) if number > 1 else log
                if older.exists():
                    older.replace(_older(log, number))
        finally:
            auditor.audit_file = log.open("a")


def _older(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
