"""What an audit is: whether it applies to a run, and what it found, in numbers, words and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedvisage.federation.method import Method
from fedvisage.recipe import Recipe
from fedvisage.tasks.catalogue import Setup
from fedvisage.tasks.opened import Opened
from fedvisage.tasks.saved_model import SavedModel

Picture = NDArray[np.uint8]
"""An RGB picture: height × width × 3."""


@dataclass(frozen=True)
class Subject:
    """A finished run under audit: its model, its recipe and the data that the sites hold."""

    run: Path
    setup: Setup
    saved: SavedModel
    data: Opened
    cache: Path

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.setup.recipe

    @property
    def method(self) -> Method:
        """Its method."""
        return self.setup.method


@dataclass(frozen=True)
class Finding:
    """What an audit found: a sentence, figures, perhaps a table (one mapping per row) and captioned pictures."""

    says: str
    numbers: Mapping[str, float]
    rows: Sequence[Mapping[str, str | float]] = ()
    pictures: Mapping[str, tuple[str, Picture]] = field(default_factory=dict)
    """By file name without ending: caption and picture."""


@dataclass(frozen=True)
class Audit:
    """One attack. ``obstacle`` says why it does not apply to a run, or nothing if it does."""

    name: str
    title: str
    obstacle: Callable[[Subject], str]
    attack: Callable[[Subject], Finding]
