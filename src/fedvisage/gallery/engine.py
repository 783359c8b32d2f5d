"""What a gallery asks of whatever finds, judges and embeds faces: a pipeline on a device, or a finished model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedvisage.device.checked import Checked
from fedvisage.errors import UserError
from fedvisage.faces.detection import Face

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class Model:
    """Of which model embeddings are: its digest, and the similarity from which on two are one person."""

    digest: str
    threshold: float
    operating_point: str


class Engine(Protocol):
    """What finds, judges and embeds faces. Attacks come first: a face that is one has no embedding."""

    @property
    def model(self) -> Model | None:
        """The recognition model, if there is one."""

    @property
    def pad_digest(self) -> str | None:
        """The digest of the model that tells attacks, if there is one."""

    @property
    def graph_digests(self) -> Mapping[str, str]:
        """The digests of the graphs that run, measured when they were opened, by task."""

    @property
    def detector_digest(self) -> str:
        """The digest of the detector's networks."""

    def detect(self, image: Image) -> Sequence[Face]:
        """Find the faces of a picture (H×W×3, RGB), the largest first."""

    def check(self, image: Image, *, report: bool = False) -> Checked:
        """Judge a picture's faces; with ``report`` an attack is embedded as well."""


def model_of(engine: Engine) -> Model:
    """Return the recognition model, without which nobody can be found."""
    if engine.model is None:
        raise UserError("--recognition", "names no model, and without one nobody can be recognised; give one")
    return engine.model
