"""Several frames of one face: a running mean of what attack detection says, which one lucky frame does not sway.

The frames must be of one face. Where it is lost, or another one stands in its place, the mean begins again; otherwise
somebody could show a face and then a picture of another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedvisage.device.checked import ATTACK, BONA_FIDE, NO_DECISION, Box, Checked, PadVerdict

SAME_PLACE = 0.3
"""Least overlap of two boxes, as a share of both together, in frames that follow each other."""


@dataclass(frozen=True, eq=False)
class Watched:
    """A frame's own check, and what is decided of the frames up to it."""

    number: int
    checked: Checked
    frames: int
    """How many frames the mean is over."""
    verdict: PadVerdict | None
    """The decision by the mean; none where this frame shows nothing that can be judged."""

    @property
    def decision(self) -> str:
        """What is decided of the face in front of the camera."""
        return NO_DECISION if self.verdict is None else self.verdict.decision

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values, for programs."""
        return {
            "frame": self.number,
            "decision": self.decision,
            "score": None if self.verdict is None else self.verdict.score,
            "threshold": None if self.verdict is None else self.verdict.threshold,
            "operating_point": None if self.verdict is None else self.verdict.operating_point,
            "frames": self.frames,
            "this_frame": self.checked.as_values(),
        }


class Running:
    """The last frames of one face."""

    def __init__(self, window: int) -> None:
        """Keep so many frames."""
        self._scores: deque[float] = deque(maxlen=window)
        self._box: Box | None = None
        self._number = -1

    def add(self, checked: Checked) -> Watched:
        """Take a frame's check, and say what the mean of the last frames is."""
        self._number += 1
        face = checked.faces[0] if checked.faces else None
        own = None if face is None else face.pad
        if face is None or own is None or own.score is None:
            self._forget()
            return Watched(self._number, checked, 0, None)
        if self._box is not None and overlap(self._box, face.box) < SAME_PLACE:
            self._forget()
        self._box = face.box
        self._scores.append(own.score)
        return Watched(self._number, checked, len(self._scores), self._mean(own))

    def _mean(self, own: PadVerdict) -> PadVerdict:
        mean = float(np.mean(self._scores))
        if len(self._scores) == 1:
            return own  # by its logit, as a picture alone is
        return replace(own, score=mean, logit=None, decision=BONA_FIDE if mean >= own.threshold else ATTACK)

    def _forget(self) -> None:
        self._scores.clear()
        self._box = None


def overlap(one: Box, other: Box) -> float:
    """Return the common area of two boxes as a share of both together."""
    width = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
    height = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
    common = max(0.0, width) * max(0.0, height)
    whole = one.width * one.height + other.width * other.height - common
    return common / whole if whole > 0 else 0.0
