"""Weights & Biases tracking in offline mode: it writes files that only an explicit `wandb sync` sends."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when the package is imported

import wandb

from fedvisage.report.tracking.tracker import End, TrackedRun


class WeightsAndBiases:
    """Writes an offline run."""

    def start(self, run: TrackedRun, earlier: str) -> str:
        """Create a run, or a further part of it, without the data that the package collects by default."""
        name = earlier or secrets.token_hex(4)
        run.store.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            mode="offline",
            root_dir=str(run.store),
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=name,
            config=dict(run.settings),
            settings=settings,
            reinit="create_new",
        )
        return name

    def log(self, step: int, figures: Mapping[str, float], when: float) -> None:
        """Write figures; the package uses its own clock."""
        self._run.log(dict(figures), step=step)

    def artefact(self, path: Path) -> None:
        """Copy the file into the run."""
        copied = shutil.copy(path, self._run.dir)
        self._run.save(copied, base_path=self._run.dir, policy="now")

    def end(self, how: End) -> None:
        """Close the run."""
        self._run.finish(exit_code=0 if how == "finished" else 1)
