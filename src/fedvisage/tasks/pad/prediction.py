"""What a model says of pictures: as plain values for programs, as lines for people, and as an exit code."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedvisage.datasets.importers.report import printable
from fedvisage.metrics.threshold import ON_TRAINING, Threshold
from fedvisage.tasks.pictures import exit_code, in_words

LIVE, ATTACK, REJECTED = "live", "attack", "rejected"


@dataclass(frozen=True)
class Prediction:
    """What the model says of one picture; without a score there is a reason.

    ``faces`` and ``boxes`` (x, y, width, height in the picture's pixels) are there where faces were sought; the first
    and largest is the one that was judged.
    """

    path: str
    probability: float | None = None
    logit: float | None = None
    decision: str = REJECTED
    reason: str = ""
    notes: tuple[str, ...] = ()
    faces: int | None = None
    boxes: list[list[float]] | None = None


@dataclass(frozen=True)
class Predictions:
    """What the model says of some pictures, and the threshold by which it decided."""

    threshold: Threshold
    images: list[Prediction]
    passed_over: Counter[str] = field(default_factory=Counter)

    def as_values(self) -> dict[str, Any]:
        """Return all as plain values, for programs."""
        t = self.threshold
        rule = {"rule": t.rule, "probability": probability(t.value), "logit": t.value, "far": t.far, "frr": t.frr}
        return {
            "threshold": rule,
            "passed_over": dict(sorted(self.passed_over.items())),
            "images": [asdict(one) for one in self.images],
        }

    def lines(self) -> list[str]:
        """Return all as lines, for people."""
        return [_operating_point(self.threshold), *(_line(one, self.threshold) for one in self.images)]

    @property
    def exit_code(self) -> int:
        """Return what a script needs to know."""
        return exit_code((one.decision for one in self.images), good=LIVE, bad=ATTACK)


def probability(logit: float) -> float:
    """Return the probability of a live face that a logit stands for."""
    return float(np.exp(-np.logaddexp(0.0, -logit)))


def beside(logit: float, threshold: float) -> str:
    """Return score and threshold with the sign between them, in so many digits that they show it.

    Where the probabilities of both are so near to 0 or 1 that no digits would, they are given as logits.
    """
    sign = ">=" if logit >= threshold else "<"
    for digits in range(4, 10):
        score, limit = (f"{probability(value):.{digits}f}" for value in (logit, threshold))
        if score != limit:
            return f"score {score} {sign} threshold {limit}"
    if logit == threshold:
        return f"score {score[:6]} {sign} threshold {limit[:6]}"
    return f"score (logit) {logit:+.9g} {sign} threshold {threshold:+.9g}"


def _line(one: Prediction, threshold: Threshold) -> str:
    said = one.reason if one.logit is None else beside(one.logit, threshold.value)
    return f"{one.decision:9}{said}  {printable(one.path)}{in_words(one.notes, one.faces)}"


def _operating_point(threshold: Threshold) -> str:
    rates = ""
    if threshold.far is not None and threshold.frr is not None:
        seen = "training" if threshold.rule == ON_TRAINING else "held-out"
        rates = (
            f"; at the sites it accepts {threshold.far:.2%} of {seen} attacks and rejects {threshold.frr:.2%} of live"
        )
    return f"threshold: score {probability(threshold.value):.4f}, chosen by {threshold.rule}{rates}"
