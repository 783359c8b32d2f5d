"""Run every audit that applies to a finished run, and write the findings to the place where the report reads them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image

from fedvisage.audit import (
    claims,
    label_inference,
    membership,
    nearest,
    noise_on_clusters,
    reversion,
    softmax_shares,
    token_inversion,
)
from fedvisage.audit.finding import Audit, AuditedRun
from fedvisage.base.files import write_atomically, write_json
from fedvisage.base.progress import Say, discard
from fedvisage.report.page import write_report
from fedvisage.report.run_files import AUDIT, read_run
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.seal import chain_of

AUDITS: tuple[Audit, ...] = tuple(
    module.AUDIT
    for module in (
        *(label_inference, token_inversion, claims, softmax_shares),
        *(noise_on_clusters, nearest, reversion, membership),
    )
)
FOLDER, FILE = AUDIT.parts


def audit_run(run: Path, out: Path | None, cache: Path, say: Say, course: Say = discard) -> list[dict[str, Any]]:
    """Attack a finished run in every way that applies to it, and add the findings to its report.

    With ``out``, the findings go to that directory and the report stays unchanged. ``say`` prints findings, ``course``
    prints progress.
    """
    read_run(run)  # rejects an unfinished run
    # Attacks are compared with the data of all sites, which only a simulation has.
    model = open_model(run)
    data = model.setup.task.open(model.recipe, model.setup.method, cache, course)
    subject = AuditedRun(model.setup, model.saved, data, cache)
    folder = out or run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for audit in AUDITS:
        record = _record(audit, subject, folder)
        records.append(record)
        say(f"{record['name']}: {record['says'] if record['applies'] else 'does not apply: ' + record['why']}")
    write_json(folder / FILE, {"run": run.name, "seal": chain_of(run), "audits": records})
    if out is None:
        write_report(run, cache)
    say(f"audit: {folder / FILE}")
    return records


def _record(audit: Audit, subject: AuditedRun, where: Path) -> dict[str, Any]:
    """Run one audit, write its pictures, and return its record."""
    heading = {"name": audit.name, "title": audit.title}
    reason = audit.obstacle(subject)
    if reason:
        return heading | {"applies": False, "why": reason}
    finding = audit.attack(subject)
    pictures = []
    for name, (caption, picture) in finding.pictures.items():
        file, content = f"{audit.name}-{name}.png", io.BytesIO()
        Image.fromarray(picture).save(content, format="PNG")
        write_atomically(where / file, content.getvalue())
        pictures.append({"file": file, "caption": caption})
    rows = [dict(row) for row in finding.rows]
    return heading | {
        "applies": True,
        "says": finding.says,
        "numbers": dict(finding.numbers),
        "rows": rows,
        "pictures": pictures,
    }
