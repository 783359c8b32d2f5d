"""What ``fedvisage methods`` says: for each method what leaves a site, and what the server sees."""

from __future__ import annotations

from typing import Any

from fedvisage.federation.method import Method, Upload
from fedvisage.tasks.catalogue import task_of

SUMS = "weights and losses of all sites as a sum; held-out counts and scatter singly"


def describe(method: Method) -> dict[str, Any]:
    """Return one method's row."""
    uploads = {upload.name: upload for call in method.calls.values() for upload in call.uploads}
    uploads |= {upload.name: upload for group in task_of(method).uploads(method).values() for upload in group}
    return {
        "name": method.name,
        "title": method.title,
        "task": method.task,
        "paper": method.paper,
        "parts": {part: home.name.lower() for part, home in method.home.items()},
        "leaves_a_site": [_describe(upload) for upload in uploads.values()],
        "server_sees": method.server_sees,
        "sees_in_secure_sums": SUMS if method.averages and not method.pooled else None,
        "simulation_only": method.pooled,
    }


def _describe(upload: Upload) -> dict[str, Any]:
    row = {"field": upload.name, "kind": upload.kind, "guarantee": upload.guarantee or "none"}
    return row | ({"parts": list(upload.parts)} if upload.parts else {})


def block(row: dict[str, Any]) -> str:
    """Return what a person reads of one method."""
    lines = [f"{row['name']}  {row['title']}{'  (simulation only)' if row['simulation_only'] else ''}"]
    lines.append(f"  paper          {row['paper']}")
    lines.append(f"  parts          {', '.join(f'{part} ({home})' for part, home in row['parts'].items())}")
    for number, field in enumerate(row["leaves_a_site"]):
        what = f"{field['field']} ({field['kind']}): {', '.join(field.get('parts', [])) or field['guarantee']}"
        lines.append(f"  {'leaves a site  ' if number == 0 else ' ' * 15}{what}")
    lines.append(f"  server sees    {row['server_sees']}")
    if row["sees_in_secure_sums"]:
        lines.append(f"  with federation.secure: {row['sees_in_secure_sums']}")
    return "\n".join(lines)
