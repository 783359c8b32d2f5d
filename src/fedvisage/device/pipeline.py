"""From a picture to a decision: faces, their quality, living or attack, and who it is, on a machine without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedvisage.datasets.importers.cropping import crop_face, make_detector
from fedvisage.device.checked import (
    ATTACK,
    BONA_FIDE,
    NO_DECISION,
    Box,
    Checked,
    CheckedFace,
    Embedding,
    PadVerdict,
    Search,
)
from fedvisage.device.exported import Exported
from fedvisage.device.quality import SMALL, Quality, Settings, measure
from fedvisage.device.running import Running, Watched
from fedvisage.errors import UserError
from fedvisage.faces.align import SIDE, align
from fedvisage.faces.detection import Face, digest
from fedvisage.faces.upright import Found, find
from fedvisage.metrics.threshold import Threshold
from fedvisage.tasks.pad.prediction import probability

if TYPE_CHECKING:
    from fedvisage.device.adaptation import Outcome

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
