"""Telling a run's trackers what happens in it, each by itself: one that fails is left out, and the run goes on.

A file in the run's directory notes what every tracker was told, so that a resumed run goes on where it stopped, and
that a tracker that was not at hand hears at the end what it missed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedvisage import recipe as recipes
from fedvisage.base.errors import UserError, plain_line
from fedvisage.base.files import read_json, write_json
from fedvisage.base.progress import Reporter
from fedvisage.federation.record.ledger import ROUNDS, read_lines
from fedvisage.recipe import Recipe
from fedvisage.report.tracking.tracker import End, TrackedRun, Tracker, round_scalars, settings_of, user_scalars
from fedvisage.report.tracking.trackers import check_named, tracker_named

FOLDER, NOTES, FIGURES = "tracking", "told.json", "figures.json"
SAID = 300
"""Letters of what a tracker says is wrong."""


class Telling:
    """The trackers of a run, which are started when there is something to tell."""

    def __init__(self, recipe: Recipe, out: Path, reporter: Reporter) -> None:
        """Look up what the recipe names; nothing is written yet."""
        wanted = recipe.tracking
        self._out, self._reporter, self._live = out, reporter, dict[str, Tracker]()
        self._notes: dict[str, dict[str, Any]] = {}
        self._started: set[str] = set()
        if wanted is None:
            return
        for name in wanted.to:
            check_named(name)
        for name in wanted.to:
            with self._or_without(name):
                self._live[name] = tracker_named(name)
        store = Path(wanted.directory) if wanted.directory else out / FOLDER
        settings = settings_of(recipes.tree_of(recipe))
        self._about = TrackedRun(out.name, wanted.project, out, store, settings)

    @contextmanager
    def _or_without(self, name: str) -> Iterator[None]:
        """Go on without a tracker that fails, and say so."""
        try:
            yield
        except Exception as error:  # the boundary to other people's code: whatever it raises must not end a run
            self._live.pop(name, None)
            self._started.discard(name)
            what = plain_line(f"{type(error).__name__}: {error}", SAID)
            self._reporter.say(f"warning: {name} cannot track this run, which goes on without it ({what})")

    def hear(self, row: Mapping[str, Any]) -> None:
        """Tell trackers of a round, as its line says it."""
        if self._live:
            self._tell([row])

    def finish(self, metrics: Mapping[str, Any]) -> None:
        """Tell what is not told yet, the finished run's figures, and its end."""
        if not self._live:
            return
        self._read_notes()
        waiting = [name for name in self._live if not self._notes.get(name, {}).get("ended")]
        self._live = {name: self._live[name] for name in waiting}
        if not waiting:
            return
        self._tell(read_lines(self._out / ROUNDS))
        told = user_scalars(metrics)
        path = self._out / FOLDER / FIGURES
        write_json(path, {"settings": dict(self._about.settings), "figures": told})
        for name, tracker in list(self._live.items()):
            with self._or_without(name):
                self._start(name, tracker)
                tracker.log(int(metrics.get("rounds") or 0), told, time.time())
                tracker.artefact(path)
                self._end(name, tracker, "finished")

    def stop(self) -> None:
        """Let go of trackers of a run that did not come to its end."""
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
        if run != note["run"]:  # a new one there knows no rounds
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
                for name, note in read_json(path, "trackers are told of the whole run anew").items()
            }
        except (UserError, LookupError, TypeError, ValueError) as error:
            said = str(error) if isinstance(error, UserError) else f"{path} is damaged; trackers are told anew"
            self._reporter.say(f"warning: {said}")

    def _write_notes(self) -> None:
        path = self._out / FOLDER / NOTES
        path.parent.mkdir(exist_ok=True)
        write_json(path, self._notes)


@contextmanager
def telling(recipe: Recipe, out: Path, reporter: Reporter) -> Iterator[Telling]:
    """Have a run's trackers hear its rounds inside this context."""
    told = Telling(recipe, out, reporter)
    reporter.listeners.append(told.hear)
    try:
        yield told
    finally:
        reporter.listeners.remove(told.hear)
        told.stop()
