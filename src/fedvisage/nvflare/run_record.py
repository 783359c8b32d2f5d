"""A site's record of its runs: a line on the terminal and one in ``runs.jsonl``, at the start and end of each job.

The terminal also shows the reasons for which the site refused an order of the run.

NVFlare's folder of a job, with its recipe and submitter, is deleted some jobs later. The record stays.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvflare.apis.workspace import Workspace

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError, plain_line
from fedvisage.base.files import json_line
from fedvisage.base.progress import Say, format_count
from fedvisage.methods import find
from fedvisage.nvflare.job import Job, read_job
from fedvisage.nvflare.kits import Kit, own_settings
from fedvisage.nvflare.outcome import last_failure, last_round

logger = logging.getLogger("fedvisage.watch")

RECORD = "runs.jsonl"
"""The record's name, beside the private state of the runs."""

LETTERS = 100
"""Characters of a title or submitter on the terminal, at most."""


class RunRecord:
    """Writes the record of a site."""

    def __init__(self, kit: Kit, say: Say) -> None:
        """Take a kit with its settings, and the terminal."""
        self._kit, self._say, self._jobs = kit, say, dict[str, Job]()
        self._began, self._reported = dict[str, str](), dict[str, str]()

    def start(self, meta: Mapping[str, Any]) -> None:
        """Record the start of a job, given by NVFlare's description."""
        number, submitter = str(meta.get("job_id")), plain_line(str(meta.get("submitter_name")), LETTERS)
        try:
            job = read_job(Path(Workspace(str(self._kit.path), self._kit.name).get_app_config_dir(number)))
        except UserError as error:
            logger.error("job %s cannot be recorded: %s", number, error)
            return
        self._began[number] = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._jobs[number], rounds = job, format_count(job.recipe.training.rounds, "round")
        method, title = find(job.recipe.method), plain_line(job.recipe.title, LETTERS)
        named = f"{title!r}, " if title else ""
        self._say(f"run {job.run} started: {named}{method.title}, {rounds}, submitted by {submitter}")
        recipe = recipes.tree_of(job.recipe)
        self._write("started", number, job, submitter=submitter, title=title, method=method.name, recipe=recipe)

    def end(self, number: str) -> None:
        """Record the end of a job."""
        self.report_failures()
        job = self._jobs.pop(number, None)
        if job is None:
            return
        self._reported.pop(number, None)
        done, rounds = last_round(self._directory / job.run), job.recipe.training.rounds
        self._say(f"run {job.run} ended; its last round at this site was {done} of {rounds}")
        self._write("ended", number, job, round=done, rounds=rounds)

    def report_failures(self) -> None:
        """Print why this site does not take part in a run, once per reason: its administrator sees no other output."""
        for number, job in list(self._jobs.items()):  # NVFlare reports events from several threads
            reason = last_failure(self._directory / job.run, self._began[number])
            if reason and reason != self._reported.get(number):
                self._reported[number] = reason
                self._say(f"run {job.run}: {reason}")

    @property
    def _directory(self) -> Path:
        return Path(own_settings(self._kit.path)["state"])

    def _write(self, event: str, number: str, job: Job, **values: Any) -> None:
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, "run": job.run, "job": number}
        try:
            with (self._directory / RECORD).open("a", encoding="utf-8") as file:
                file.write(json_line({**line, **values}))
        except OSError as error:
            self._say(f"{self._directory / RECORD}: cannot be written ({error.strerror}); check the disk")
