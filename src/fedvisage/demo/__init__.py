"""The demonstration: FedPAD and its baselines at toy size, from rendered faces to a report."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

from rich.console import Console

from fedvisage.errors import UserError
from fedvisage.study import conduct


def demonstrate(out: Path, cache: Path, console: Console, *, resume: bool = False) -> None:
    """Run the packaged study, then draw the federation's report and the sheets of its data."""
    from fedvisage.data.make import write_sheets
    from fedvisage.report.page import write_report

    if out.exists() and any(out.iterdir()) and not resume:
        raise UserError(str(out), "is not empty; give another --out, or --resume to continue the demo in it")
    with as_file(files(__name__)) as directory:
        conduct(directory / "study.yaml", out, cache, console)
    for run in sorted((out / "cells").iterdir()):
        write_report(run)
    sheets = write_sheets(out / "cells", out / "pictures", cache)
    console.print(f"\nreport:   {out / 'cells'}/fedpad-M-seed0/report.html", markup=False, soft_wrap=True)
    console.print(f"pictures: {', '.join(str(sheet) for sheet in sheets)}", markup=False, soft_wrap=True)
