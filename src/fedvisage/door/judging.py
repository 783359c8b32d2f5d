"""Finished models, opened and judged again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedvisage.datasets.cache import CACHE
from fedvisage.door.runs import Run
from fedvisage.federation.method import Method
from fedvisage.runs.rejudge import evaluate as judge
from fedvisage.tasks.checks import Checks
from fedvisage.tasks.finished import FinishedModel, open_model


def open(directory: str | Path, *, method: Method | None = None) -> FinishedModel:
    """Open the model of a finished run, from the run's directory or from one that holds its two model files.

    ``method`` is that of the run, where the list does not know it.
    """
    return _told(open_model(Path(directory), method=method))


def evaluate(
    model: FinishedModel | Run | str | Path,
    data: str | Path | None = None,
    *,
    adapt: str | None = None,
    pairs: str | Path | None = None,
    benchmarks: Mapping[str, str | Path] | None = None,
    out: str | Path | None = None,
    cache: str | Path = CACHE,
    allow_mixed_crops: bool = False,
    allow_overlap: bool = False,
    verify: bool = False,
) -> dict[str, Any]:
    """Judge a finished model on a prepared set or ``synth:`` line, its own user's unless one is named.

    ``adapt`` adapts it to the images first, without their labels; ``pairs`` is a list of pairs for recognition.
    ``benchmarks`` are further sets by name, each judged by the lists that lie beside it; nothing else is judged then,
    unless ``data`` is named.
    ``allow_mixed_crops`` takes a set that was cropped otherwise than what the model was trained on.
    Pictures that the model was trained on are refused unless ``allow_overlap``; with ``verify`` every byte of the set
    is read and compared with its digest.
    """
    directory = model.directory if isinstance(model, FinishedModel | Run) else Path(model)
    opened = _told(open_model(directory, adapt, None if pairs is None else Path(pairs), _method_of(model)))
    entry, where = None if data is None else str(data), None if out is None else Path(out)
    others = {name: str(one) for name, one in (benchmarks or {}).items()}
    return judge(
        opened, entry, Path(cache), where, benchmarks=others,
        checks=Checks(allow_mixed_crops, allow_overlap, verify), say=_warn,
    )  # fmt: skip


def _told(model: FinishedModel) -> FinishedModel:
    """Warn of what is to be known of a model's crops."""
    for line in model.notices:
        _warn(line)
    return model


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)


def _method_of(model: FinishedModel | Run | str | Path) -> Method | None:
    """Return the method of a model that is open already; files name theirs."""
    if isinstance(model, FinishedModel):
        return model.setup.method
    return model.method if isinstance(model, Run) else None
