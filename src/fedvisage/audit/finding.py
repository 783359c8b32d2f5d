"""The interface of an audit: its preconditions, its attack, and its findings as numbers, text and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.data.batches import View
from fedvisage.federation.method import Method
from fedvisage.recipe import Recipe
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import RecognitionData, RunData
from fedvisage.tasks.saved_model import SavedModel

Picture = NDArray[np.uint8]
"""An RGB picture: height × width × 3."""


@dataclass(frozen=True)
class AuditedRun:
    """The subject of an audit: a finished run with its model, its recipe and the data of its sites."""

    setup: Setup
    saved: SavedModel
    data: RunData
    cache: Path

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.setup.recipe

    @property
    def people(self) -> RecognitionData:
        """The people of a recognition run."""
        assert self.data.people is not None
        return self.data.people

    @property
    def public(self) -> View:
        """The public images of a recognition run, from which an attacker can learn."""
        assert self.people.public is not None
        return self.people.public

    @property
    def method(self) -> Method:
        """The method of the run."""
        return self.setup.method


@dataclass(frozen=True)
class Finding:
    """The result of an audit: a sentence, numbers, an optional table (one mapping per row) and captioned pictures."""

    says: str
    numbers: Mapping[str, float]
    rows: Sequence[Mapping[str, str | float]] = ()
    pictures: Mapping[str, tuple[str, Picture]] = field(default_factory=dict)
    """Captions and pictures, keyed by file name without suffix."""


@dataclass(frozen=True)
class Audit:
    """One attack. ``obstacle`` returns the reason why it does not apply to a run, or an empty string if it does."""

    name: str
    title: str
    obstacle: Callable[[AuditedRun], str]
    attack: Callable[[AuditedRun], Finding]
