"""A tracker that records its calls and can fail at one of them, installed by an entry point."""

import json
from collections.abc import Mapping
from pathlib import Path

from fedvisage.report.tracking.tracker import End, TrackedRun


class RecordingTracker:
    """Write each call and its arguments as a line; ``BREAK`` names a call that fails."""

    BREAK = ""

    def start(self, run: TrackedRun, earlier_id: str) -> str:
        run.store.mkdir(parents=True, exist_ok=True)
        self.path = run.store / f"{type(self).__name__}.jsonl"
        self._note("start", [run.name, run.project, dict(run.settings), earlier_id])
        return earlier_id or "first"

    def log(self, step: int, figures: Mapping[str, float], when: float) -> None:
        self._note("log", [step, dict(figures)])

    def artefact(self, path: Path) -> None:
        self._note("artefact", [path.name, json.loads(path.read_text())])

    def end(self, how: End) -> None:
        self._note("end", [how])

    def _note(self, call: str, arguments: list[object]) -> None:
        if call == self.BREAK:
            raise ConnectionError(f"no {call} today")
        with self.path.open("a") as file:
            file.write(json.dumps([call, *arguments]) + "\n")


class BreaksAtStart(RecordingTracker):
    BREAK = "start"


class BreaksAtLog(RecordingTracker):
    BREAK = "log"


class BreaksAtEnd(RecordingTracker):
    BREAK = "end"
