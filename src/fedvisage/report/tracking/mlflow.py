"""MLflow tracking in a file store: a directory that MLflow's own page reads, on this machine or another."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from fedvisage.report.tracking.tracker import End, TrackedRun

FOLDER = "mlruns"
MOST = 100
"""Largest number of values per MLflow request."""

ALLOWED = re.compile(r"[^\w./ -]")
"""Characters that MLflow does not allow in a figure's name."""


class Mlflow:
    """Writes a run of an experiment into a file store."""

    def start(self, run: TrackedRun, earlier: str) -> str:
        """Create a run, or reopen an earlier one."""
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # or it refuses stores that are not databases
        self._client = MlflowClient(tracking_uri=(run.store.resolve() / FOLDER).as_uri())
        if earlier:
            with suppress(MlflowException):  # of another store, or an emptied one
                self._client.update_run(earlier, status="RUNNING")
                self._run = earlier
                return earlier
        existing = self._client.get_experiment_by_name(run.project)
        experiment = existing.experiment_id if existing else self._client.create_experiment(run.project)
        self._run = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
        settings = [Param(_allowed_name(key), str(value)) for key, value in run.settings.items()]
        for first in range(0, len(settings), MOST):
            self._client.log_batch(self._run, params=settings[first : first + MOST])
        return self._run

    def log(self, step: int, figures: Mapping[str, float], when: float) -> None:
        """Write metrics."""
        metrics = [Metric(_allowed_name(key), value, int(when * 1000), step) for key, value in figures.items()]
        for first in range(0, len(metrics), MOST):
            self._client.log_batch(self._run, metrics=metrics[first : first + MOST])

    def artefact(self, path: Path) -> None:
        """Copy the file."""
        self._client.log_artifact(self._run, str(path))

    def end(self, how: End) -> None:
        """Set the run's final status."""
        status = "FINISHED" if how == "finished" else "KILLED"
        self._client.set_terminated(self._run, status, end_time=int(time.time() * 1000))


def _allowed_name(key: str) -> str:
    return ALLOWED.sub("_", key)
