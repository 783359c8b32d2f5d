"""What a pipeline says of a picture, as values that programs and people read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.device.quality import NO_FACE, Quality

BONA_FIDE, ATTACK, NO_DECISION = "bona_fide", "attack", "no_decision"
MATCH, NO_MATCH = "match", "no_match"

Embedding = NDArray[np.float32]


@dataclass(frozen=True)
class Box:
    """Where a face is, in pixels of the picture as it came, and how sure the detector is."""

    x: float
    y: float
    width: float
    height: float
    confidence: float


@dataclass(frozen=True)
class PadVerdict:
    """Living face or attack: score and threshold as probabilities, and how the threshold was chosen.

    Logits decide: probabilities near to 0 or 1 would hide a difference. Without a score nothing is decided.
    """

    decision: str
    score: float | None
    threshold: float
    logit: float | None
    threshold_logit: float
    operating_point: str


@dataclass(frozen=True)
class Match:
    """A known person whom a face is like."""

    person: str
    similarity: float
    threshold: float
    decision: str
    operating_point: str


Search = Callable[[Embedding], Sequence[Match]]
"""From a unit embedding to matches, the most similar first."""


@dataclass(frozen=True, eq=False)
class CheckedFace:
    """What is said of one face; who it is, only if it may be asked."""

    box: Box
    points: tuple[tuple[float, float], ...]
    quality: Quality
    pad: PadVerdict | None = None
    embedding: Embedding | None = None
    matches: tuple[Match, ...] = ()

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values; an embedding is a template, and not among them."""
        return {
            "box": asdict(self.box),
            "points": [list(point) for point in self.points],
            "quality": {"ok": self.quality.ok, **asdict(self.quality)},
            "pad": None if self.pad is None else asdict(self.pad),
            "matches": [asdict(match) for match in self.matches],
        }


@dataclass(frozen=True, eq=False)
class Checked:
    """What is said of a picture: its faces, the largest first, and whether it was turned by 180° to find them."""

    faces: tuple[CheckedFace, ...]
    turned: bool = False

    @property
    def decision(self) -> str:
        """What is decided of the largest face; without a PAD model, nothing."""
        verdict = self.faces[0].pad if self.faces else None
        return NO_DECISION if verdict is None else verdict.decision

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the largest face was not judged; nothing if it was."""
        return self.faces[0].quality.reasons if self.faces else (NO_FACE,)

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values, for programs."""
        return {
            "decision": self.decision,
            "reasons": list(self.reasons),
            "upside_down": self.turned,
            "faces": [face.as_values() for face in self.faces],
        }
