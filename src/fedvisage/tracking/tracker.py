"""What a tracker is: four calls that get figures of a run, and never scores with names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

End = Literal["finished", "stopped"]
"""A run that is stopped can be resumed."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run before its figures."""

    name: str
    project: str
    run: Path
    """The run's directory."""
    store: Path
    """Where trackers keep what they write."""
    settings: Mapping[str, float | str]
    """The recipe's numbers by their dotted keys, and a few of its words."""


class Tracker(Protocol):
    """Takes the figures of one run. What it raises is told to the user, and the run goes on without it."""

    def start(self, run: TrackedRun, known: str) -> str:
        """Begin, or go on with what an earlier ``start`` returned; return the name under which it is found again."""

    def log(self, step: int, figures: Mapping[str, float], when: float) -> None:
        """Take the figures of a round, and the time at which it ended."""

    def artefact(self, path: Path) -> None:
        """Take a file with figures."""

    def end(self, how: End) -> None:
        """Let go of the run."""
