"""A finished run again with exact BatchNorm statistics: nothing is trained, thresholds and figures are new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedvisage.errors import UserError
from fedvisage.methods import read_method
from fedvisage.progress import Reporter
from fedvisage.recipe import load
from fedvisage.runs.directory import METRICS, RECIPE
from fedvisage.runs.run import adopting, run_and_report

EXACT = "training.statistics=exact"


def recount(trained: Path, out: Path, cache: Path, reporter: Reporter) -> dict[str, Any]:
    """Take over the model of a finished run, count its statistics over the sites' images, and judge it again."""
    if not (trained / METRICS).exists():
        raise UserError(str(trained), "is no finished run; name its directory, or end it with `fedvisage run --resume`")
    recipe = load(trained / RECIPE, [EXACT], read_method)
    return run_and_report(recipe, out, cache, reporter, training=adopting(trained), resume=True)
