"""An engine whose faces are tiles, with every answer that a real engine can give.

A picture is a row of tiles of 16 pixels; black ones are background. A tile's numbers are its embedding. A red
tile is an attack, and a green tile has no decision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedvisage.device.gallery.enrolment import EmbeddingModel, Engine
from fedvisage.device.pipeline import ATTACK, BONA_FIDE, NO_DECISION, Box, Checked, CheckedFace, PadVerdict
from fedvisage.faces.align import Image
from fedvisage.faces.detection import Face
from fedvisage.faces.quality import Quality
from fedvisage.metrics.similarity import normalise

TILE = 16
RED, GREEN = (250, 0, 0), (0, 250, 0)


@dataclass
class Tiles(Engine):
    """The engine; the digest identifies the model."""

    model: EmbeddingModel | None = field(default_factory=lambda: EmbeddingModel("sha256:" + "a" * 64, 0.9, "fmr=1e-3"))
    pad_digest: str | None = "sha256:" + "c" * 64
    detector_digest: str = "sha256:" + "d" * 64
    graph_digests: Mapping[str, str] = field(default_factory=lambda: {"pad": "sha256:" + "e" * 64})

    def detect(self, image: Image) -> Sequence[Face]:
        return [
            Face(np.array([place, 0, TILE, TILE], float), np.tile([place + 8.0, 8.0], (5, 1)), 0.99)
            for place, _ in tiles(image)
        ]

    def check(self, image: Image, *, report: bool = False, most: int | None = None, confidence: float = 0.0) -> Checked:
        every = tiles(image)
        evaluated = every[:most] if confidence <= 0.99 else []
        faces = tuple(self._check_tile(place, tile, report) for place, tile in evaluated)
        return Checked(faces, left_out=len(every) - len(faces))

    def _check_tile(self, place: int, tile: Image, report: bool) -> CheckedFace:
        colour = tuple(tile[0, 0].tolist())
        reasons = ("the face is blurred",) if colour == GREEN else ()
        decision, score = (NO_DECISION, None) if reasons else (ATTACK, 0.1) if colour == RED else (BONA_FIDE, 0.9)
        logit = None if score is None else float(np.log(score / (1 - score)))
        has_embedding = not reasons and (decision == BONA_FIDE or report)
        numbers = normalise(tile[4:12, 4:12].reshape(1, -1).astype(np.float32) - 128)[0]
        return CheckedFace(
            Box(place, 0, TILE, TILE, 0.99),
            tuple((place + 8.0, 8.0) for _ in range(5)),
            Quality(reasons, size=TILE, sharpness=1.0, turned=0.0, tilted=0.0),
            PadVerdict(decision, score, 0.5, logit, 0.0, "fixed") if self.pad_digest else None,
            numbers if has_embedding else None,
        )


def tiles(image: Image) -> list[tuple[int, Image]]:
    cut = [(place, image[:TILE, place : place + TILE]) for place in range(0, image.shape[1] - TILE + 1, TILE)]
    return [(place, tile) for place, tile in cut if tile.any()]


def tile_of(person: int, photograph: int = 0, colour: tuple[int, int, int] | None = None) -> Image:
    """Return a person's tile: the person's noise and weaker noise of the photograph."""
    own = np.random.default_rng(person).integers(40, 216, (TILE, TILE, 3))
    rest = np.random.default_rng((person, photograph + 1)).integers(-15, 16, own.shape)
    tile = (own + rest).astype(np.uint8)
    if colour is not None:
        tile[0, 0] = colour
    return tile


def row_of(*row: Image) -> Image:
    """Return a picture of tiles in a row, with a background tile at the end."""
    return np.concatenate([*row, np.zeros((TILE, TILE, 3), np.uint8)], axis=1)
