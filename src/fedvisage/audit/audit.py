"""Running all audits that apply to a run, and writing what they found where its report looks for it."""

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
from fedvisage.audit.finding import Audit, Finding, Picture, Subject
from fedvisage.base.files import write_atomically, write_json
from fedvisage.base.progress import Say, unheard
from fedvisage.report.page import write_report
from fedvisage.report.run_files import AUDIT, read_run
from fedvisage.tasks.finished_model import open_model
from fedvisage.tasks.seal import chain_of

AUDITS: tuple[Audit, ...] = (
    *(label_inference.AUDIT, token_inversion.AUDIT),
    *(
        claims.AUDIT,
        softmax_shares.AUDIT,
        noise_on_clusters.AUDIT,
        nearest.AUDIT,
        reversion.AUDIT,
        membership.AUDIT,
    ),
)
FOLDER, FILE = AUDIT.parts


def audit_run(run: Path, out: Path | None, cache: Path, say: Say, course: Say = unheard) -> list[dict[str, Any]]:
    """Attack a finished run in every way that applies to it; its report shows the result, unless it goes elsewhere.

    ``say`` takes what was found, ``course`` what is done meanwhile.
    """
    read_run(run)  # refuses what is no finished run
    subject = _subject(run, cache, course)
    where = out or run / FOLDER
    where.mkdir(parents=True, exist_ok=True)
    records = []
    for audit in AUDITS:
        records.append(_record(audit, subject, where))
        say(_line(records[-1]))
    write_json(where / FILE, {"run": run.name, "seal": chain_of(run), "audits": records})
    if out is None:
        write_report(run, cache)
    say(f"audit: {where / FILE}")
    return records


def _subject(run: Path, cache: Path, say: Say) -> Subject:
    """Open the model and the data of all sites: an attack is judged by the truth, which only a simulation has."""
    model = open_model(run)
    data = model.setup.task.open(model.recipe, model.setup.method, cache, say)
    return Subject(run, model.setup, model.saved, data, cache)


def _record(audit: Audit, subject: Subject, where: Path) -> dict[str, Any]:
    """Carry one audit out, write its pictures, and return its record."""
    about = {"name": audit.name, "title": audit.title}
    why = audit.obstacle(subject)
    if why:
        return about | {"applies": False, "why": why}
    finding = audit.attack(subject)
    pictures = [_written(audit, name, caption, picture, where) for name, (caption, picture) in finding.pictures.items()]
    return about | {"applies": True, **_plain(finding), "pictures": pictures}


def _plain(finding: Finding) -> dict[str, Any]:
    return {"says": finding.says, "numbers": dict(finding.numbers), "rows": [dict(row) for row in finding.rows]}


def _written(audit: Audit, name: str, caption: str, picture: Picture, where: Path) -> dict[str, str]:
    file = f"{audit.name}-{name}.png"
    data = io.BytesIO()
    Image.fromarray(picture).save(data, format="PNG")
    write_atomically(where / file, data.getvalue())
    return {"file": file, "caption": caption}


def _line(record: dict[str, Any]) -> str:
    return f"{record['name']}: {record['says'] if record['applies'] else 'does not apply: ' + record['why']}"
