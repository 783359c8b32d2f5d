"""Reporting a run's rounds and figures to its trackers, each independently: the run continues without a failed tracker.

A file in the run's directory records the last round that each tracker received. A resumed run continues from there,
and a tracker that was unavailable receives the missed rounds at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.base import extensions
from fedvisage.base.errors import UserError, choice_hint, plain_line
from fedvisage.base.files import read_json, write_json
from fedvisage.base.progress import Reporter
from fedvisage.federation.record.ledger import ROUNDS, read_lines
from fedvisage.metrics.recorded import Metrics
from fedvisage.recipe import Recipe
from fedvisage.report.tracking.tracker import End, TrackedRun, Tracker, round_scalars, settings_of, target_scalars

# Trackers by name: the built-in ones, and those of other packages (entry point ``fedvisage.trackers``).

TRACKERS = {"mlflow": "Mlflow", "tensorboard": "TensorBoard", "wandb": "WeightsAndBiases"}
"""The built-in trackers: modules of this package, which are loaded when a run needs them, and their classes."""


def tracker_named(name: str) -> Tracker:
    """Create a tracker; import errors of its package are passed on."""
    try:
        if name in TRACKERS:
            tracker: Tracker = getattr(import_module(f"fedvisage.report.tracking.{name}"), TRACKERS[name])()
            return tracker
        make: Callable[[], Tracker] = extensions.load("trackers", name)
        return make()
    except ModuleNotFoundError as error:
        raise ImportError(
            str(extensions.missing_extra(name, str(error.name)) if name in TRACKERS else error)
        ) from error


# The trackers of a run.

FOLDER, NOTES, FIGURES = "tracking", "told.json", "figures.json"
SAID = 300
"""Largest number of letters of a tracker's error in a warning."""


class TrackerReports:
    """The trackers of a run, started with the first report."""

    def __init__(self, recipe: Recipe, out: Path, reporter: Reporter) -> None:
        """Create the trackers that the recipe names; nothing is written yet."""
        tracking = recipe.tracking
        self._out, self._reporter, self._live = out, reporter, dict[str, Tracker]()
        self._notes: dict[str, dict[str, Any]] = {}
        self._started: set[str] = set()
        if tracking is None:
            return
        available = [*TRACKERS, *extensions.names("trackers", TRACKERS)]
        for name in tracking.to:
            if name not in available:
                raise UserError("recipe.tracking.to", f"unknown tracker {name!r}{choice_hint(name, available)}")
        for name in tracking.to:
            with self._or_without(name):
                self._live[name] = tracker_named(name)
        store = Path(tracking.directory) if tracking.directory else out / FOLDER
        settings = settings_of(recipes.tree_of(recipe))
        self._about = TrackedRun(out.name, tracking.project, out, store, settings)

    @contextmanager
    def _or_without(self, name: str) -> Iterator[None]:
        """Drop a failed tracker with a warning."""
        try:
            yield
        except Exception as error:  # trackers are third-party code: none of their exceptions may end a run
            self._live.pop(name, None)
            self._started.discard(name)
            reason = plain_line(f"{type(error).__name__}: {error}", SAID)
            self._reporter.say(f"warning: {name} cannot track this run, which continues without it ({reason})")

    def hear(self, row: Mapping[str, Any]) -> None:
        """Report a round, given as its line of ``rounds.jsonl``."""
        if self._live:
            self._tell([row])

    def finish(self, metrics: Metrics) -> None:
        """Report the missed rounds, the finished run's figures, and its end."""
        if not self._live:
            return
        self._read_notes()
        waiting = [name for name in self._live if not self._notes.get(name, {}).get("ended")]
        self._live = {name: self._live[name] for name in waiting}
        if not waiting:
            return
        self._tell(read_lines(self._out / ROUNDS))
        figures = target_scalars(metrics)
        path = self._out / FOLDER / FIGURES
        write_json(path, {"settings": dict(self._about.settings), "figures": figures})
        for name, tracker in list(self._live.items()):
            with self._or_without(name):
                self._start(name, tracker)
                tracker.log(int(metrics.get("rounds") or 0), figures, time.time())
                tracker.artefact(path)
                self._end(name, tracker, "finished")

    def stop(self) -> None:
        """Close the trackers of a run that did not finish."""
        for name in list(self._started):
            with self._or_without(name):
                self._end(name, self._live[name], "stopped")

    def _tell(self, rows: list[Any]) -> None:
        self._read_notes()
        for name, tracker in list(self._live.items()):
            with self._or_without(name):
                self._start(name, tracker)
                note = self._notes[name]
                for row in rows:
                    if int(row["round"]) > note["round"]:
                        tracker.log(int(row["round"]), round_scalars(row), time.time())
                        note["round"] = int(row["round"])
        self._write_notes()

    def _start(self, name: str, tracker: Tracker) -> None:
        if name in self._started:
            return
        note = self._notes.setdefault(name, {"run": "", "round": 0, "ended": False})
        run = tracker.start(self._about, note["run"])
        if run != note["run"]:  # a new run there has no rounds yet
            note |= {"run": run, "round": 0}
        self._started.add(name)
        self._write_notes()

    def _end(self, name: str, tracker: Tracker, how: End) -> None:
        self._started.discard(name)
        tracker.end(how)
        self._notes[name]["ended"] = how == "finished"
        self._write_notes()

    def _read_notes(self) -> None:
        path = self._out / FOLDER / NOTES
        if self._notes or not path.exists():
            return
        try:
            self._notes = {
                str(name): {"run": str(note["run"]), "round": int(note["round"]), "ended": note["ended"] is True}
                for name, note in read_json(path, "trackers receive the whole run again").items()
            }
        except (UserError, LookupError, TypeError, ValueError) as error:
            reason = (
                str(error)
                if isinstance(error, UserError)
                else f"{path} is damaged; trackers receive the whole run again"
            )
            self._reporter.say(f"warning: {reason}")

    def _write_notes(self) -> None:
        path = self._out / FOLDER / NOTES
        path.parent.mkdir(exist_ok=True)
        write_json(path, self._notes)


@contextmanager
def report_to_trackers(recipe: Recipe, out: Path, reporter: Reporter) -> Iterator[TrackerReports]:
    """Report a run's rounds to its trackers inside this context."""
    reports = TrackerReports(recipe, out, reporter)
    reporter.listeners.append(reports.hear)
    try:
        yield reports
    finally:
        reporter.listeners.remove(reports.hear)
        reports.stop()
