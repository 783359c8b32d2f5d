"""What ``import fedvisage`` offers: recipes read, run and judged from Python, with nothing to register or to patch."""

from __future__ import annotations

from fedvisage.door.comparing import compare
from fedvisage.door.judging import evaluate, open
from fedvisage.door.listing import methods, models
from fedvisage.door.running import load, recount, run
from fedvisage.door.runs import Run
from fedvisage.door.studying import study
from fedvisage.tasks.finished import FinishedModel

__all__ = [
    "FinishedModel",
    "Run",
    "compare",
    "evaluate",
    "load",
    "methods",
    "models",
    "open",
    "recount",
    "run",
    "study",
]
