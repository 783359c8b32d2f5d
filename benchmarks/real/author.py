"""A tutorial's author, whose pictures several repositories contain: he stays at one site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedvisage.faces.align import Image, align
from fedvisage.faces.detection import Face
from fedvisage.starts.convert import convert
from fedvisage.tasks.finished_model import FinishedModel, open_model

CHECKOUT = "foamliu+MobileFaceNet"
WEIGHTS = Path("weights", "mobilefacenet.pt")
SIDE = 112

SAME = 0.4
"""Mean cosine to the author's pictures from which a face is his. Faces of others stay below 0.3, his are above 0.5."""


class Author:
    """The mean feature of the author's pictures."""

    def __init__(self, recogniser: FinishedModel, pictures: Sequence[tuple[Image, Face]]) -> None:
        """Embed some of his pictures, upright, with their faces."""
        self.recogniser = recogniser
        self.mean = torch.stack([self._embed(image, face) for image, face in pictures]).mean(dim=0)

    def shows(self, image: Image, face: Face) -> bool:
        """Return whether a face is the author's."""
        return float(self._embed(image, face) @ self.mean) >= SAME

    def _embed(self, image: Image, face: Face) -> torch.Tensor:
        crop = align(image, face.points, SIDE)[0]
        return torch.nn.functional.normalize(self.recogniser.embed(crop[np.newaxis])[0], dim=0)


def open_recogniser(directory: Path, out: Path) -> FinishedModel:
    """Convert the published recogniser once, and open it."""
    out.mkdir(parents=True, exist_ok=True)
    start = out / "mobilefacenet.safetensors"
    if not start.exists():
        convert(directory / CHECKOUT / WEIGHTS, "mobilefacenet-dw", start)
    return open_model(start)
