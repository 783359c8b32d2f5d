"""Check pictures with exported models: find faces, measure quality, detect attacks and identify people."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import BadFile, UserError
from fedvisage.base.progress import format_count
from fedvisage.device.exported import Exported
from fedvisage.device.fused import Fused, Model, check_task, open_export, required_threshold
from fedvisage.device.predict import notes_of, probability
from fedvisage.faces.align import DetectedFaces, Image, align, is_grey
from fedvisage.faces.cropping import (
    CLOSE,
    LITTLE_CONTEXT,
    CroppedPicture,
    choose_detector,
    crop_face,
    detector_digest,
    make_upright_detector,
    other_detector,
)
from fedvisage.faces.detection import Face
from fedvisage.faces.quality import NO_FACE, SMALL, Quality, Settings, measure
from fedvisage.metrics.gate import SMALLEST_BATCH

if TYPE_CHECKING:
    from fedvisage.device.adaptation import AdaptationResult

# Results of a pipeline, for programs and people.


BONA_FIDE, ATTACK, NO_DECISION = "bona_fide", "attack", "no_decision"
MATCH, NO_MATCH = "match", "no_match"

Embedding = NDArray[np.float32]


@dataclass(frozen=True)
class Box:
    """The position of a face in pixels of the original picture, and the detector's confidence."""

    x: float
    y: float
    width: float
    height: float
    confidence: float


@dataclass(frozen=True)
class PadVerdict:
    """Living face or attack: score and threshold as probabilities, and the operating point of the threshold.

    Logits decide, because probabilities near 0 or 1 would hide a difference. Without a score there is no decision.
    """

    decision: str
    score: float | None
    threshold: float
    logit: float | None
    threshold_logit: float
    operating_point: str
    notes: tuple[str, ...] = ()
    """Why the decision is less certain, such as little context around the face."""


@dataclass(frozen=True)
class Match:
    """A similar known person."""

    person: str
    similarity: float
    threshold: float
    decision: str
    operating_point: str


Search = Callable[[Embedding], Sequence[Match]]
"""Maps a unit embedding to matches, the most similar first."""


@dataclass(frozen=True, eq=False)
class CheckedFace:
    """The results for one face; embedding and matches exist only if its other checks allow them."""

    box: Box
    points: tuple[tuple[float, float], ...]
    quality: Quality
    pad: PadVerdict | None = None
    embedding: Embedding | None = None
    matches: tuple[Match, ...] = ()

    def as_values(self) -> dict[str, Any]:
        """Return the results as plain values, without the embedding, which is a template."""
        return {
            "box": asdict(self.box),
            "points": [list(point) for point in self.points],
            "quality": {"ok": self.quality.ok, **asdict(self.quality)},
            "pad": None if self.pad is None else asdict(self.pad),
            "matches": [asdict(match) for match in self.matches],
        }


@dataclass(frozen=True, eq=False)
class Checked:
    """The results for a picture: its faces, the largest first; ``turned`` says whether they were found after 180°.

    ``left_out`` is the number of further faces, which were not evaluated; ``fault`` is the reason why a picture could
    not be read.
    """

    faces: tuple[CheckedFace, ...]
    turns: int = 0
    left_out: int = 0
    fault: str = ""

    @property
    def decision(self) -> str:
        """The decision on the largest face; without a PAD model, no decision."""
        verdict = self.faces[0].pad if self.faces else None
        return NO_DECISION if verdict is None else verdict.decision

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why the largest face was not evaluated; empty if it was."""
        return self.faces[0].quality.reasons if self.faces else (self.fault or NO_FACE,)

    def as_values(self) -> dict[str, Any]:
        """Return the results as plain values, for programs."""
        return {
            "decision": self.decision,
            "reasons": list(self.reasons),
            "upside_down": self.turns == 2,
            "turns": self.turns,
            "faces": [face.as_values() for face in self.faces],
        }


# Several frames of one face: a running mean of log-odds, which limits the influence of a single lucky frame.
#
# The frames must show one face. If it is lost, or another face appears, the mean restarts; otherwise an attacker could
# start with a real face and then swap in a photo of another one.


SAME_PLACE = 0.3
"""Minimum overlap of the boxes in consecutive frames, as intersection over union."""


@dataclass(frozen=True, eq=False)
class Watched:
    """The check of a frame, and the decision on the frames up to it."""

    number: int
    checked: Checked
    frames: int
    """Number of frames in the mean."""
    verdict: PadVerdict | None
    """The decision by the mean; None if this frame shows no face that can be evaluated."""

    @property
    def decision(self) -> str:
        """The decision on the face in front of the camera."""
        return NO_DECISION if self.verdict is None else self.verdict.decision

    def as_values(self) -> dict[str, Any]:
        """Return the results as plain values, for programs."""
        return {
            "frame": self.number,
            "decision": self.decision,
            **{name: getattr(self.verdict, name, None) for name in ("score", "threshold", "operating_point")},
            "frames": self.frames,
            "this_frame": self.checked.as_values(),
        }


class FaceTrack:
    """The last frames of one face."""

    def __init__(self, window: int) -> None:
        self._verdicts: deque[PadVerdict] = deque(maxlen=window)
        self._box: Box | None = None
        self._number = -1

    def add(self, checked: Checked) -> Watched:
        """Add the check of a frame, and return the decision by the mean log-odds of the last frames."""
        self._number += 1
        face = checked.faces[0] if checked.faces else None
        verdict = None if face is None else face.pad
        if face is None or verdict is None or verdict.logit is None:
            self._verdicts.clear()
            self._box = None
            return Watched(self._number, checked, 0, None)
        if self._box is not None and overlap(self._box, face.box) < SAME_PLACE:
            self._verdicts.clear()
        self._box = face.box
        self._verdicts.append(verdict)
        return Watched(self._number, checked, len(self._verdicts), decide_by_mean(self._verdicts))


def decide_by_mean(verdicts: Sequence[PadVerdict]) -> PadVerdict:
    """Return the decision by the mean log-odds of scored frames, with the notes of all."""
    first, logit = verdicts[0], float(np.mean([verdict.logit for verdict in verdicts]))
    decision = BONA_FIDE if logit >= first.threshold_logit else ATTACK
    notes = tuple(dict.fromkeys(note for verdict in verdicts for note in verdict.notes))
    return replace(first, score=probability(logit), logit=logit, decision=decision, notes=notes)


def overlap(first: Box, second: Box) -> float:
    """Return the intersection of two boxes over their union."""
    width = min(first.x + first.width, second.x + second.width) - max(first.x, second.x)
    height = min(first.y + first.height, second.y + second.height) - max(first.y, second.y)
    common = max(0.0, width) * max(0.0, height)
    union = first.width * first.height + second.width * second.height - common
    return common / union if union > 0 else 0.0


class Pipeline:
    """Checks pictures with exported models: a PAD model, a recognition model, or both.

    Attack detection comes first: attacks, and faces without a decision, get no embedding.
    """

    def __init__(
        self,
        pad: Path | str | Model | None = None,
        recognition: Path | str | Model | None = None,
        *,
        settings: Settings | None = None,
        search: Search | None = None,
    ) -> None:
        """Open exported directories, or use open models; ``search`` finds people by their embeddings."""
        self.settings = settings or Settings()
        self.pad = _open_model(pad, "pad", self.settings.threads)
        recognises = _open_model(recognition, "recognition", self.settings.threads)
        self.recognition = recognises if isinstance(recognises, Exported) else None
        models = [model for model in (self.pad, self.recognition) if model is not None]
        records = [record for model in models for record in model.crop_records]
        self.detector = choose_detector(self.settings.detector, records)
        self.detector_digest = detector_digest(self.detector)
        self.notices = other_detector(self.settings.detector, records)
        self._search = search
        self._find = make_upright_detector(self.settings.threads, self.detector)
        self._threshold = None if self.pad is None else required_threshold(self.pad)

    def detect(self, image: Image) -> list[Face]:
        """Return the faces of a picture, the largest first."""
        return self._find(image).faces

    def check(self, image: Image, *, report: bool = False, most: int | None = None, confidence: float = 0.0) -> Checked:
        """Evaluate the faces of a picture (uint8, H×W×3, RGB).

        ``report`` makes embeddings, and searches for them, whatever the decision; a face of poor quality gets none.
        Only the ``most`` largest faces of at least this ``confidence`` are evaluated.
        """
        detected = self._find(image)
        numbers = [number for number, face in enumerate(detected.faces) if face.confidence >= confidence][:most]
        faces = tuple(self._check_face(detected, number, report) for number in numbers)
        return Checked(faces, detected.turns, len(detected.faces) - len(faces))

    def watch(self, frames: Iterable[Image | BadFile]) -> Iterator[Watched]:
        """Check the frames of one camera in order, with a running mean over the last frames of a face.

        An unreadable frame gets no decision, and restarts the mean.
        """
        running = FaceTrack(self.settings.window)
        for frame in frames:
            yield running.add(Checked((), fault=str(frame)) if isinstance(frame, BadFile) else self.check(frame))

    def adapt(self, images: Iterable[Image | BadFile], out: Path, *, most: int = 2000) -> AdaptationResult:
        """Adapt the PAD model to unlabelled pictures, and write it into a new directory, to be opened from there.

        Unreadable pictures and faces that this pipeline would not evaluate are skipped, and so are pictures after the
        first ``most`` faces. The pipeline itself does not change.
        """
        if self.pad is None:
            raise UserError("pad", "no attack-detection model was given")
        if isinstance(self.pad, Fused):
            raise UserError(str(self.pad.directory), "is a fused model; adapt its members, and fuse them again")
        from fedvisage.device import adaptation

        crops: list[NDArray[np.uint8]] = []
        passed_over = 0
        for image in images:
            if len(crops) == most:
                break
            detected = None if isinstance(image, BadFile) else self._find(image)
            if detected is None or not detected.faces:
                passed_over += 1
                continue
            quality, (cropped,) = self._crop(detected, 0)
            if quality.ok:
                crops.append(cropped.image)
            else:
                passed_over += 1
        if len(crops) < SMALLEST_BATCH:
            count = format_count(len(crops), "usable face")
            raise UserError("--data", f"has {count}; {SMALLEST_BATCH} are needed")
        return adaptation.adapt(self.pad, np.stack(crops), out, threads=self.settings.threads, passed_over=passed_over)

    def embed(self, image: Image, face: Face) -> Embedding:
        """Return the unit embedding of a face in an upright picture, without any other check."""
        if self.recognition is None:
            raise UserError("recognition", "no recognition model was given")
        aligned = align(image, face.points, self.recognition.size)[0]
        embedding: Embedding = self.recognition.run(aligned[None])[0].astype(np.float32, copy=False)
        return embedding

    def _crop(self, detected: DetectedFaces, number: int) -> tuple[Quality, list[CroppedPicture]]:
        """Return the quality of a face, and its crops for the PAD model, on which the quality depends, too."""
        face, picture = detected.faces[number], detected.picture
        quality = measure(picture, face, len(detected.faces) == 1, self.settings)
        shapes = () if self.pad is None else self.pad.shapes
        crops = [crop_face(picture, face, shape.size, shape.margin) for shape in shapes]
        if self.settings.strict and any(cropped.close for cropped in crops):
            quality = replace(quality, reasons=(*quality.reasons, CLOSE))
        # A face whose crop would have to be enlarged counts as too small.
        upscaled = any(cropped.upscaled for cropped in crops)
        if upscaled and not self.settings.enlarge and SMALL not in quality.reasons:
            quality = replace(quality, reasons=(*quality.reasons, SMALL))
        return quality, crops

    def _check_face(self, detected: DetectedFaces, number: int, report: bool) -> CheckedFace:
        face, (quality, crops) = detected.faces[number], self._crop(detected, number)
        verdict = None
        if self.pad is not None and (point := self._threshold) is not None:
            logit = float(self.pad.score([cropped.image[None] for cropped in crops])[0]) if quality.ok else None
            decision = NO_DECISION if logit is None else BONA_FIDE if logit >= point.value else ATTACK
            score = None if logit is None else probability(logit)
            grey = notes_of(None, grey=is_grey(crops[0].image))
            little = (LITTLE_CONTEXT,) if any(cropped.close for cropped in crops) else ()
            notes = () if logit is None else (*self.pad.notes, *grey, *little)
            verdict = PadVerdict(
                decision, score, probability(point.value), logit, point.value, point.operating_point, notes
            )
        points = tuple((float(x), float(y)) for x, y in np.round(detected.in_original(face.points), 1))
        x, y, wide, high = detected.boxes[number]
        box = Box(x, y, wide, high, round(face.confidence, 6))
        checked = CheckedFace(box, points, quality, verdict)
        passed = verdict is None or verdict.decision == BONA_FIDE or report
        if self.recognition is None or not quality.ok or not passed:
            return checked
        embedding = self.embed(detected.picture, face)
        matches = () if self._search is None else tuple(self._search(embedding))
        return replace(checked, embedding=embedding, matches=matches)


def _open_model(model: Path | str | Model | None, task: str, threads: int) -> Model | None:
    if model is None:
        return None
    exported = open_export(Path(model), threads=threads) if isinstance(model, Path | str) else model
    check_task(exported, task)
    return exported
