"""What a gallery asks of whatever finds, judges and embeds faces: a pipeline on a device, or a finished model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedvisage.errors import UserError
from fedvisage.faces.detection import Face
from fedvisage.metrics.similarity import Features

Image = NDArray[np.uint8]
BONA_FIDE, ATTACK, NO_DECISION = "bona_fide", "attack", "no_decision"


@dataclass(frozen=True)
class Model:
    """Of which model embeddings are: its digest, and the similarity from which on two are one person."""

    digest: str
    threshold: float
    operating_point: str


class Box(Protocol):
    """Where a face is, in pixels of the picture as it came."""

    @property
    def x(self) -> float:
        """The left side."""

    @property
    def y(self) -> float:
        """The upper side."""

    @property
    def width(self) -> float:
        """From left to right."""

    @property
    def height(self) -> float:
        """From top to bottom."""

    @property
    def confidence(self) -> float:
        """How sure the detector is."""


class Quality(Protocol):
    """Whether a face is good enough, and if not why."""

    @property
    def ok(self) -> bool:
        """Whether it is."""

    @property
    def reasons(self) -> Sequence[str]:
        """Why it is not."""


class PadVerdict(Protocol):
    """Whether a face is one of a living person before the camera."""

    @property
    def decision(self) -> str:
        """``bona_fide``, ``attack`` or ``no_decision``."""

    @property
    def score(self) -> float | None:
        """The probability of a living face."""

    @property
    def threshold(self) -> float:
        """The score from which on it is bona fide."""

    @property
    def operating_point(self) -> str:
        """How the threshold was chosen."""


class SeenFace(Protocol):
    """One face of a picture."""

    @property
    def box(self) -> Box:
        """Where it is."""

    @property
    def quality(self) -> Quality:
        """Whether it is good enough."""

    @property
    def pad(self) -> PadVerdict | None:
        """Whether it is an attack; nothing where no model is there to tell."""

    @property
    def embedding(self) -> Features | None:
        """The embedding at unit length; nothing of an attack, unless a report was asked for."""


class Seen(Protocol):
    """One picture: its faces, the largest first, and what follows."""

    @property
    def faces(self) -> Sequence[SeenFace]:
        """The faces."""

    @property
    def decision(self) -> str:
        """That of the first face."""

    @property
    def reasons(self) -> Sequence[str]:
        """Why there is no decision."""


class Engine(Protocol):
    """What finds, judges and embeds faces. Attacks come first: a face that is one has no embedding."""

    @property
    def model(self) -> Model | None:
        """The recognition model, if there is one."""

    @property
    def pad_digest(self) -> str | None:
        """The digest of the model that tells attacks, if there is one."""

    @property
    def detector_digest(self) -> str:
        """The digest of the detector's networks."""

    def detect(self, image: Image) -> Sequence[Face]:
        """Find the faces of a picture (H×W×3, RGB), the largest first."""

    def check(self, image: Image, *, report: bool = False) -> Seen:
        """Judge a picture's faces; with ``report`` an attack is embedded as well."""


def model_of(engine: Engine) -> Model:
    """Return the recognition model, without which nobody can be found."""
    if engine.model is None:
        raise UserError("--recognition", "names no model, and without one nobody can be recognised; give one")
    return engine.model
