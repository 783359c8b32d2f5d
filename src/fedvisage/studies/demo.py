"""The demonstration: FedPAD and FedFR with baselines at toy size, from rendered faces to a report."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

from fedvisage.base.errors import UserError
from fedvisage.base.progress import Say
from fedvisage.data.prepared import PreparedSet
from fedvisage.datasets.show import contact_sheet
from fedvisage.datasets.sources import resolve, without_part
from fedvisage.report.page import write_report
from fedvisage.studies.conduct import run_study
from fedvisage.studies.study import load_study


def demonstrate(out: Path, cache: Path, say: Say, course: Say, *, resume: bool = False) -> None:
    """Run the packaged studies, then write every run's report and a contact sheet of every set.

    ``say`` receives the results, ``course`` the progress in between.
    """
    if out.exists() and any(out.iterdir()) and not resume:
        raise UserError(str(out), "is not empty; give another --out, or --resume to continue the demo in it")
    course("Rendering faces and attacks, then training four methods on three sites.")
    _show(out, "study.yaml", cache, say, course)
    course("Rendering people, then training two recognition methods at three sites.")
    _show(out / "people", "people.yaml", cache, say, course)


def _show(out: Path, study: str, cache: Path, say: Say, course: Say) -> None:
    """Conduct a packaged study, and report the paths of its table, pictures and reports."""
    with as_file(files("fedvisage.studies") / study) as path:
        run_study(path, out, cache, course)
        say((out / "table.md").read_text(encoding="utf-8"))
        sets = load_study(path).sets
    reports = [write_report(run, cache) for run in sorted((out / "cells").iterdir())]
    (out / "pictures").mkdir(exist_ok=True)
    for entry, name in {without_part(entry)[0]: name for name, entry in sets.items()}.items():
        contact_sheet(PreparedSet.open(resolve(entry, cache))).save(out / "pictures" / f"{name}.png")
    say(f"table:    {out / 'table.md'}")
    say(f"pictures: {out / 'pictures'} (examples from each set)")
    for report in reports:
        say(f"report:   {report}")
