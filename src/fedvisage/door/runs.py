"""A run as an object: the files of its directory, read when they are asked for."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedvisage.door.tables import columns_of, lines_of
from fedvisage.errors import UserError
from fedvisage.federation.method import Method
from fedvisage.federation.record.ledger import LEDGER, ROUNDS
from fedvisage.files import read_json
from fedvisage.methods import read_method
from fedvisage.recipe import Recipe
from fedvisage.recipe import load as load_recipe
from fedvisage.report.page import write_report
from fedvisage.report.run_files import as_written
from fedvisage.runs.directory import METRICS, RECIPE, REPORT
from fedvisage.tasks.catalogue import summary
from fedvisage.tasks.finished import FinishedModel, open_model
from fedvisage.tracking.tensorboard import write_events

SCORES = "scores.csv"


@dataclass(frozen=True)
class Run:
    """A finished run; in a notebook it shows its report."""

    directory: Path
    method: Method | None = None
    """The method, where it was handed in."""

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """All figures."""
        return read_json(self._file(METRICS))

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        own = read_method if self.method is None else self.method.options.model_validate
        return load_recipe(self._file(RECIPE), [], own)

    @property
    def rounds(self) -> Any:
        """A row for each round: seconds, losses, who replied, bytes; a DataFrame where pandas is installed."""
        return lines_of(self._file(ROUNDS))

    @property
    def ledger(self) -> Any:
        """A row for each field that crossed between a site and the server."""
        return lines_of(self._file(LEDGER))

    @property
    def scores(self) -> Any:
        """A row for each scored frame; for recognition, for each pair of the benchmark."""
        return columns_of(self._file(SCORES))

    @cached_property
    def model(self) -> FinishedModel:
        """The finished model, ready to use."""
        return open_model(self.directory, method=self.method)

    def report(self) -> Path:
        """Return the path of the report, one HTML page; it is drawn if it is not there."""
        path = self.directory / REPORT
        if not path.exists():
            write_events(self.directory)
            write_report(self.directory)
        return path

    def _file(self, name: str) -> Path:
        path = self.directory / name
        if not path.exists():
            raise UserError(str(path), "does not exist; is this the directory of a finished run?")
        return path

    def __str__(self) -> str:
        """Return the headline figures."""
        with as_written(self.directory):
            judged = self.metrics["user"] is not None
            return "\n".join([*(summary(self.metrics) if judged else ()), f"run: {self.directory}"])

    def _repr_html_(self) -> str:
        page = html.escape(self.report().read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'
