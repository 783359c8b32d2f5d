"""What audits found, as sections of a report: sentence, figures, table, and pictures that are part of the page."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from fedvisage.report.run_files import AUDIT, Row, RunFiles
from fedvisage.report.tables import Table, table

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MOST_BYTES = 4_000_000


def sections(run: RunFiles) -> list[dict[str, Any]]:
    """Return a section for each audit: title, sentence, tables, pictures as (caption, data address)."""
    return [
        {
            "title": str(record.get("title", "")),
            "says": str(record.get("says") if record.get("applies") else f"Does not apply: {record.get('why')}."),
            "tables": _tables(record),
            "pictures": _pictures(record, (run.path / AUDIT).parent),
        }
        for record in run.audits
    ]


def _tables(record: Row) -> list[Table]:
    rows = [{key: _figure(value) for key, value in row.items()} for row in record.get("rows") or []]
    numbers = [{"figure": key, "value": _figure(value)} for key, value in (record.get("numbers") or {}).items()]
    tables = [table("", numbers, {"figure": "figure", "value": "value"})] if numbers else []
    return tables + ([table("", rows, {key: key for key in rows[0]})] if rows else [])


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _pictures(record: Row, folder: Path) -> list[tuple[str, str]]:
    pictures = []
    for entry in record.get("pictures") or []:
        name = str(entry.get("file", ""))
        path = folder / name
        if Path(name).name != name or not path.is_file() or path.stat().st_size > MOST_BYTES:
            continue  # nothing outside of the folder, and nothing endless
        data = path.read_bytes()
        if data.startswith(SIGNATURE):
            address = f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"
            pictures.append((str(entry.get("caption", "")), address))
    return pictures
