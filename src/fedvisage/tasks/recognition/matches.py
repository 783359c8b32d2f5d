"""A face beside others: what was seen of each, how alike they are, and what that says at a threshold.

Nothing here needs torch: a device compares faces as `predict` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedvisage.datasets.importers.cropping import make_cropper, make_detector
from fedvisage.datasets.importers.report import BadFile, printable
from fedvisage.errors import UserError
from fedvisage.faces.align import Image, align
from fedvisage.faces.upright import find
from fedvisage.metrics.similarity import Features
from fedvisage.metrics.threshold import Threshold
from fedvisage.progress import Steps
from fedvisage.tasks.pictures import Asked, Picture, exit_code, in_words, looked_at, notes_of

SAME, OTHER = "same person", "other person"
TOO_FEW = (
    "the sites had too few impostor pairs for one at the recipe's false match rate; train with a higher"
    " evaluation.recognition.fmr or more held-out people"
)


@dataclass(frozen=True, eq=False)
class Seen:
    """A picture's largest face, aligned, what is remarkable, and how many there are if they were sought."""

    crop: Image
    notes: tuple[str, ...] = ()
    faces: int | None = None


@dataclass(frozen=True)
class Match:
    """What the model says of a face beside the one in question; without a similarity there is a reason."""

    path: str
    similarity: float | None = None
    decision: str = "rejected"
    reason: str = ""
    notes: tuple[str, ...] = ()
    faces: int | None = None
    """How many were found, where they were sought; the largest is the one that was compared."""


@dataclass(frozen=True)
class Matches:
    """What the model says of a face beside others, the most similar first, and the threshold by which it decided."""

    threshold: Threshold
    face: str
    of_face: Seen
    """What was seen of the face in question."""
    matches: list[Match]
    passed_over: Counter[str] = field(default_factory=Counter)

    def as_values(self) -> dict[str, Any]:
        """Return all as plain values, for programs."""
        t = self.threshold
        operating = {"rule": t.rule, "similarity": t.value, "fmr": t.far, "fnmr": t.frr}
        return {
            "threshold": operating,
            "face": self.face,
            "of_face": {"notes": self.of_face.notes, "faces": self.of_face.faces},
            "passed_over": dict(sorted(self.passed_over.items())),
            "matches": [asdict(one) for one in self.matches],
        }

    def lines(self) -> list[str]:
        """Return all as lines, for people."""
        said = in_words(self.of_face.notes, self.of_face.faces)
        about = [f"face: {printable(self.face)}{said}"] if said else []
        return [operating_point(self.threshold), *about, *map(_line, self.matches)]

    @property
    def exit_code(self) -> int:
        """Return what a script needs to know."""
        return exit_code((one.decision for one in self.matches), good=SAME, bad=OTHER)


Look = Callable[[Image], Seen]
Embed = Callable[[Sequence[Image]], Features]


def matches(picture: Picture, against: Asked, look: Look, embed: Embed, threshold: Threshold, steps: Steps) -> Matches:
    """Compare a face with another one, or with each of many, whose crops are embedded in batches."""
    try:
        seen = look(picture.read())
        face = embed([seen.crop])
    except BadFile as bad:
        raise UserError(printable(picture.name), str(bad)) from None
    found = list[Match]()
    for portion in looked_at(against.pictures, look, steps):
        crops = [one.crop for _, one in portion if not isinstance(one, BadFile)]
        alike = iter((embed(crops) @ face[0]).tolist() if crops else [])
        found += [_match(name, one, alike, threshold) for name, one in portion]
    found.sort(key=lambda one: (one.similarity is None, -(one.similarity or 0.0), one.path))
    return Matches(threshold, picture.name, seen, found, against.passed_over)


def look_for(crop: str, size: int, threads: int = 1) -> Callable[[Image], Seen]:
    """Return the function that aligns the face of a picture, or raises BadFile; ``threads`` are for the detector."""
    if crop == "centre":
        raise UserError("crop", "recognition needs faces aligned: use face, or none if they are aligned already")
    if crop != "face":
        cut = make_cropper(crop, size, threads)  # type: ignore[arg-type]  # it refuses other words itself
        return lambda picture: Seen(cut(picture).image)
    detect = make_detector(threads)

    def look(picture: Image) -> Seen:
        found = find(picture, detect)
        if not found.faces:
            raise BadFile("no face found")
        aligned, _ = align(found.picture, found.faces[0].points, size)
        return Seen(aligned, notes_of(found), len(found.faces))

    return look


def _line(one: Match) -> str:
    score = "" if one.similarity is None else f"similarity {one.similarity:+.4f}  "
    reason = f"  {one.reason}" if one.reason else ""
    return f"{one.decision:13}{score}{printable(one.path)}{reason}{in_words(one.notes, one.faces)}"


def operating_point(threshold: Threshold) -> str:
    """Say which similarity counts as one person, and what errors that made at the sites."""
    missed = f" and misses {threshold.frr:.2%} of genuine ones" if threshold.frr is not None else ""
    accepted = f"accepts {threshold.far:.4%} of impostor pairs{missed}" if threshold.far is not None else ""
    return f"threshold: similarity {threshold.value:+.4f}, chosen by {threshold.rule}; at the sites it {accepted}"


def _match(path: str, seen: Seen | BadFile, alike: Iterator[float], threshold: Threshold) -> Match:
    if isinstance(seen, BadFile):
        return Match(path, reason=str(seen))
    similarity = next(alike)
    decision = SAME if similarity >= threshold.value else OTHER
    return Match(path, similarity, decision, notes=seen.notes, faces=seen.faces)
