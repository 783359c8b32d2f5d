"""What ``fedvisage methods`` says: for each method what leaves a site, and what the server sees."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from fedvisage.federation.heldout import HISTOGRAM
from fedvisage.federation.method import Method, Upload
from fedvisage.methods import METHODS


def describe(method: Method) -> dict[str, Any]:
    """Return one method's row."""
    uploads = {upload.name: upload for call in method.calls.values() for upload in call.uploads}
    uploads[HISTOGRAM.name] = HISTOGRAM
    return {
        "name": method.name,
        "title": method.title,
        "task": method.task,
        "paper": method.paper,
        "parts": {part: home.name.lower() for part, home in method.home.items()},
        "leaves_a_site": [_describe(upload) for upload in uploads.values()],
        "server_sees": method.server_sees,
        "simulation_only": method.pooled,
    }


def _describe(upload: Upload) -> dict[str, Any]:
    row = {"field": upload.name, "kind": upload.kind, "guarantee": upload.guarantee or "none"}
    return row | ({"parts": list(upload.parts)} if upload.parts else {})


def print_methods(console: Console, *, as_json: bool) -> None:
    """Print all methods."""
    rows = [describe(method) for method in METHODS.values()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("method", "task", "leaves a site", "server sees", "paper", box=None, pad_edge=False)
    for row in rows:
        leaves = ", ".join(f"{field['field']} ({field['kind']})" for field in row["leaves_a_site"])
        name = f"{row['name']}{' (simulation only)' if row['simulation_only'] else ''}"
        table.add_row(name, row["task"], leaves, row["server_sees"], row["paper"])
    console.print(table)
