"""From a picture to a decision: faces, their quality, living or attack, and who it is, on a machine without torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.device.exported import Exported
from fedvisage.device.predict import probability
from fedvisage.faces.align import SIDE, Found, align, find
from fedvisage.faces.cropping import crop_face, make_detector
from fedvisage.faces.detection import Face, digest
from fedvisage.faces.quality import NO_FACE, SMALL, Quality, Settings, measure
from fedvisage.metrics.threshold import Threshold

if TYPE_CHECKING:
    from fedvisage.device.adaptation import Outcome

# What a pipeline says of a picture, as values that programs and people read.


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


# Several frames of one face: a running mean of what attack detection says, which one lucky frame does not sway.
#
# The frames must be of one face. Where it is lost, or another one stands in its place, the mean begins again;
# otherwise
# somebody could show a face and then a picture of another.


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


Image = NDArray[np.uint8]


class Pipeline:
    """Checks pictures with exported models: of attack detection, of recognition, or of both.

    Attacks come first: no embedding is made of a face that is an attack, or of which nothing could be decided.
    """

    def __init__(
        self,
        pad: Path | str | Exported | None = None,
        recognition: Path | str | Exported | None = None,
        *,
        settings: Settings | None = None,
        search: Search | None = None,
    ) -> None:
        """Open exported directories, or take models that are open; ``search`` finds people by their embeddings."""
        self.settings = settings or Settings()
        self.pad = _opened(pad, "pad", self.settings.threads)
        self.recognition = _opened(recognition, "recognition", self.settings.threads)
        self.detector_digest = digest()
        self._search = search
        self._find = make_detector(self.settings.threads)
        self._threshold = None if self.pad is None else _threshold(self.pad)

    def detect(self, image: Image) -> list[Face]:
        """Return the faces of a picture, the largest first."""
        return find(image, self._find).faces

    def check(self, image: Image, *, report: bool = False) -> Checked:
        """Say what a picture (uint8, H×W×3, RGB) shows.

        ``report`` makes embeddings, and searches for them, whatever was decided; a face that cannot be judged has none.
        """
        found = find(image, self._find)
        alone = len(found.faces) == 1
        faces = [self._checked(found, number, alone, report) for number in range(len(found.faces))]
        return Checked(tuple(faces), found.turned)

    def watch(self, frames: Iterable[Image]) -> Iterator[Watched]:
        """Check pictures of one camera, one after another, with a running mean over the last frames of a face."""
        running = Running(self.settings.window)
        for frame in frames:
            yield running.add(self.check(frame))

    def adapt(self, images: Iterable[Image], out: Path, *, most: int = 2000) -> Outcome:
        """Adapt the PAD model to unlabelled pictures and write it into a new directory, to be opened from there.

        Faces that this pipeline would not judge are passed over, and so are pictures behind the first ``most`` faces.
        The pipeline itself stays as it is.
        """
        if self.pad is None:
            raise UserError("pad", "no model of attack detection was given")
        from fedvisage.device import adaptation

        crops: list[NDArray[np.uint8]] = []
        passed_over = 0
        for image in images:
            if len(crops) == most:
                break
            found = find(image, self._find)
            face = found.faces[0] if found.faces else None
            alone = len(found.faces) == 1
            if face is None or not measure(found.picture, face, alone, self.settings).ok:
                passed_over += 1
                continue
            cropped = crop_face(found.picture, [face], self.pad.size)
            if cropped.upscaled and not self.settings.enlarge:
                passed_over += 1
            else:
                crops.append(cropped.image)
        if not crops:
            raise UserError("images", "no picture shows a face that this pipeline would judge")
        return adaptation.adapt(self.pad, np.stack(crops), out, threads=self.settings.threads, passed_over=passed_over)

    def embed(self, image: Image, face: Face) -> Embedding:
        """Return the unit embedding of a face of a picture that stands upright, as it is, with no question asked."""
        if self.recognition is None:
            raise UserError("recognition", "no recognition model was given")
        return _embedding(self.recognition, align(image, face.points, self.recognition.size)[0])

    def _checked(self, found: Found, number: int, alone: bool, report: bool) -> CheckedFace:
        face = found.faces[number]
        aligned = align(found.picture, face.points, SIDE)[0]
        measured = measure(found.picture, face, alone, self.settings, aligned)
        verdict, quality = self._judged(found.picture, face, measured)
        x, y, width, height = found.boxes[number]
        box = Box(x, y, width, height, round(face.confidence, 6))
        points = tuple((float(x), float(y)) for x, y in np.round(_as_it_came(found, face), 1))
        checked = CheckedFace(box, points, quality, verdict)
        passed = verdict is None or verdict.decision == BONA_FIDE or report
        if self.recognition is None or not quality.ok or not passed:
            return checked
        same = self.recognition.size == SIDE
        embedding = _embedding(self.recognition, aligned) if same else self.embed(found.picture, face)
        matches = () if self._search is None else tuple(self._search(embedding))
        return replace(checked, embedding=embedding, matches=matches)

    def _judged(self, picture: Image, face: Face, quality: Quality) -> tuple[PadVerdict | None, Quality]:
        """Return what attack detection says, and the quality: a crop that would be enlarged is of too small a face."""
        if self.pad is None or self._threshold is None:
            return None, quality
        cropped = crop_face(picture, [face], self.pad.size)
        if cropped.upscaled and not self.settings.enlarge and SMALL not in quality.reasons:
            quality = replace(quality, reasons=(*quality.reasons, SMALL))
        logit = float(self.pad.run(cropped.image[None])[0]) if quality.ok else None
        return verdict(logit, self._threshold), quality


def verdict(logit: float | None, threshold: Threshold) -> PadVerdict:
    """Decide by a logit; without one, nothing is decided."""
    decided = NO_DECISION if logit is None else BONA_FIDE if logit >= threshold.value else ATTACK
    score = None if logit is None else probability(logit)
    return PadVerdict(decided, score, probability(threshold.value), logit, threshold.value, threshold.rule)


def _threshold(pad: Exported) -> Threshold:
    if pad.threshold is None:
        raise UserError(str(pad.directory), "has no threshold to decide by; export a run whose sites chose one")
    return pad.threshold


def _embedding(recognition: Exported, aligned: Image) -> Embedding:
    found: Embedding = recognition.run(aligned[None])[0].astype(np.float32, copy=False)
    return found


def _as_it_came(found: Found, face: Face) -> NDArray[np.float64]:
    height, width = found.picture.shape[:2]
    return np.array([width, height]) - face.points if found.turned else face.points


def _opened(given: Path | str | Exported | None, task: str, threads: int) -> Exported | None:
    if given is None:
        return None
    exported = given if isinstance(given, Exported) else Exported.open(Path(given), threads=threads)
    if exported.task != task:
        raise UserError(str(exported.directory), f"is a model of {exported.task}, and one of {task} is wanted")
    return exported
