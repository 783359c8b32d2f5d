"""Exported models judged together from beginning to end: what is asked is checked, judged, and written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedvisage.device.assessment import Assessed, assess
from fedvisage.device.exported import Exported
from fedvisage.device.pipeline import Pipeline
from fedvisage.device.quality import Settings
from fedvisage.device.trials import trials_of
from fedvisage.device.writing import check_free
from fedvisage.errors import UserError
from fedvisage.progress import Say, in_steps, unheard


@dataclass(frozen=True)
class Asked:
    """Which models are judged on what, and what is written."""

    data: str | None
    pad: Path | None
    recognition: Path | None = None
    kind: str = ""
    split: str = ""
    frames: int = 10
    enlarge: bool = False
    int8: bool = False
    report: bool = False
    out: Path | None = None


def judge(asked: Asked, course: Say = unheard) -> Assessed:
    """Judge the models on every presentation of a dataset, and write what was asked for."""
    if asked.pad is None:
        raise UserError("--pad", "names no model that tells attacks; a pipeline is judged with one")
    if asked.data is None:
        raise UserError("--data", "names no folder; give a dataset as it was downloaded")
    if asked.report and asked.out is None:
        raise UserError("--out", "names no directory; the report is written into one")
    if asked.out is not None:
        check_free(asked.out)
    models = [one and Exported.open(one, int8=asked.int8) for one in (asked.pad, asked.recognition)]
    pipeline = Pipeline(*models, settings=Settings(enlarge=asked.enlarge))
    trials = trials_of(Path(asked.data), asked.kind, asked.split)
    with in_steps("presentations", course) as steps:
        found = assess(pipeline, trials, frames=asked.frames, steps=steps)
    if asked.out is not None:
        found.write(asked.out, report=asked.report)
    return found
