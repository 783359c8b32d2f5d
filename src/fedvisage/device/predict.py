"""Implement `predict` for exported models: the same pictures, lines and exit codes as for a run, without torch."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import BadFile, UserError, printable
from fedvisage.base.progress import Steps, discard_steps, format_count
from fedvisage.device.exported import CropShape, Exported
from fedvisage.device.fused import Model
from fedvisage.faces.align import DetectedFaces, Image, align, is_grey
from fedvisage.faces.cropping import (
    CLOSE,
    LITTLE_CONTEXT,
    MTCNN,
    CroppedPicture,
    DetectorName,
    check_crop,
    choose_detector,
    crop_face,
    make_cropper,
    make_upright_detector,
)
from fedvisage.faces.pictures import ENDINGS, VIDEO_ENDINGS, is_hidden, open_picture, read_picture, sample_video
from fedvisage.faces.quality import NO_FACE, TILTED, Settings, pose
from fedvisage.metrics.scores import FloatArray
from fedvisage.metrics.similarity import Features
from fedvisage.metrics.threshold import ON_TRAINING, Threshold, describe_rule

# Input pictures: files, folders, lists of paths, and one from standard input; notes and exit codes.


Observation = TypeVar("Observation")

AT_ONCE = 256
"""Crops held in memory before they are scored."""

PIPE = Path("-")
"""The path that stands for standard input."""

VIDEO_FRAMES = 10
"""Frames of a video, at equal distances, that are scored."""

UPSIDE_DOWN, SIDEWAYS, GREY, SEVERAL = "upside down", "on its side", "grey", "several faces"
"""Notes on a picture, for programs."""


@dataclass(frozen=True)
class InputPicture:
    """A picture by its name, read when needed."""

    name: str
    read: Callable[[], Image]
    """Returns H×W×3 in RGB, or raises BadFile."""
    burst: str = ""
    """The name of the video or burst that the picture belongs to; its pictures get one decision."""


@dataclass(frozen=True)
class InputPictures:
    """The input pictures, and the number of skipped files in folders by their suffixes."""

    pictures: list[InputPicture]
    passed_over: Counter[str] = field(default_factory=Counter)

    @property
    def notices(self) -> list[str]:
        """Notices about folders, one per line; empty if all their files are pictures."""
        if not self.passed_over:
            return []
        endings = sorted(self.passed_over.items(), key=lambda item: (not item[0], item[0]))  # files without one last
        counts = ", ".join(f"{printable(ending) or 'none'} {count}" for ending, count in endings)
        total = self.passed_over.total()
        return [f"{format_count(total, 'file')} skipped by {'its' if total == 1 else 'their'} ending: {counts}"]

    def as_burst(self) -> InputPictures:
        """Return the same pictures as one burst: all show one face, and get one decision."""
        first, last = self.pictures[0].name, self.pictures[-1].name
        name = first if first == last else f"{first} to {last}"
        return replace(self, pictures=[replace(picture, burst=name) for picture in self.pictures])


def list_input_pictures(
    paths: Sequence[Path], listed: bytes | None = None, piped: Callable[[], bytes] | None = None
) -> InputPictures:
    """Return the pictures of files and folders, and of the paths in a list; ``-`` is the picture on standard input.

    A video, named directly or in the list, is a burst of equidistant frames. A missing path is an error if it was named
    directly; in a list, it becomes an unreadable picture.
    """
    inputs = InputPictures([])
    if list(paths).count(PIPE) > 1:
        raise UserError("PATH", "standard input contains one image; give - once")
    for path in paths:
        if path == PIPE and piped is not None:
            inputs.pictures.append(InputPicture("-", lambda: read_picture(piped())))
        elif path.is_dir():
            _add_folder(path, inputs)
        elif path.exists() or path.is_symlink():
            inputs.pictures.extend(_pictures_of(path))
        else:
            raise UserError(printable(str(path)), "does not exist; give an image or a folder of images")
    # One path per line, or NUL-separated, as ``find -print0`` writes them.
    names = listed or b""
    parts = names.split(b"\0") if b"\0" in names else names.splitlines()
    for path in (Path(os.fsdecode(part)) for part in parts if part):
        # Unlike Path.is_dir, this accepts a path that the system refuses, which becomes an unreadable picture.
        if os.path.isdir(path):
            _add_folder(path, inputs)
        else:
            inputs.pictures.extend(_pictures_of(path))
    if not inputs.pictures:
        raise UserError("PATH", "no image is given; give files, folders, - or --paths-from")
    return inputs


def refuse_pictures(model: Path) -> None:
    """Refuse a picture, or a folder of pictures only, in the place of a model."""
    is_folder = model.is_dir()
    files = (path for path in (model.rglob("*") if is_folder else [model]) if path.is_file())
    first = next(files, None)
    # The first other file ends the search, because the folder may be large.
    if first is not None and all(path.suffix.lower() in ENDINGS for path in chain([first], files)):
        kind = "a folder of pictures" if is_folder else "a picture"
        remedy = "give a run or an export first, or --pad minifasnet"
        raise UserError(printable(str(model)), f"is {kind}, not a model; {remedy}")


def picture_at(path: Path) -> InputPicture:
    """Return the picture of a file; its name shows undecodable bytes as escapes, so that no two names are equal."""
    name = os.fsencode(path).decode("utf-8", errors="backslashreplace")
    return InputPicture(name, partial(open_picture, path))


def _pictures_of(path: Path) -> list[InputPicture]:
    """Return the picture of a file, or the frames of a video, which is decoded when the first frame is read."""
    picture = picture_at(path)
    if path.suffix.lower() not in VIDEO_ENDINGS:
        return [picture]
    frames = sample_video(path, VIDEO_FRAMES)

    def read() -> Image:
        for _, frame in frames:
            return frame
        raise BadFile("the video has no further frame")

    return [InputPicture(f"{picture.name}, frame {n}", read, picture.name) for n in range(1, VIDEO_FRAMES + 1)]


def read_in_batches(
    pictures: Sequence[InputPicture], observe: Callable[[Image], Observation], steps: Steps
) -> Iterator[list[tuple[str, Observation | BadFile]]]:
    """Read pictures and apply ``observe`` to each; yield batches of names with the result, or with the error."""
    batch: list[tuple[str, Observation | BadFile]] = []
    for done, picture in enumerate(pictures, 1):
        try:
            batch.append((picture.name, observe(picture.read())))
        except BadFile as bad:
            batch.append((picture.name, bad))
        steps(done, len(pictures))
        if len(batch) == AT_ONCE or done == len(pictures):
            yield batch
            batch = []


def notes_of(detected: DetectedFaces | None, *, grey: bool = False) -> tuple[str, ...]:
    """Return the notes on a picture and on its detected faces, if there was a detection."""
    several, turns = (len(detected.faces) > 1, detected.turns) if detected is not None else (False, 0)
    notes = {SEVERAL: several, UPSIDE_DOWN: turns == 2, SIDEWAYS: turns % 2 == 1, GREY: grey}
    return tuple(note for note, applies in notes.items() if applies)


def describe_notes(notes: Sequence[str], faces: int | None) -> str:
    """Return notes as text to print after a picture's name; empty without notes."""
    sentences = {
        SEVERAL: f"{faces if faces and faces > 1 else 'several'} faces: the largest",  # a burst has a count per frame
        UPSIDE_DOWN: "upside down: rotated first",
        SIDEWAYS: "on its side: rotated first",
        GREY: "grey, like infrared: the model expects colour",
    }
    return f"  ({'; '.join(sentences.get(note, note) for note in notes)})" if notes else ""


def exit_code(decisions: Iterable[str], *, good: str, bad: str) -> int:
    """Return 0 if every decision is good, 1 if any is bad, and 3 if none is bad but some are missing."""
    unique = set(decisions)
    if bad in unique:
        return 1
    return 0 if unique == {good} else 3


def _add_folder(folder: Path, inputs: InputPictures) -> None:
    """Add the pictures of a folder, in order of their names, and count its other files, without hidden ones."""
    count = len(inputs.pictures)
    for path in sorted(child for child in folder.rglob("*") if not child.is_dir()):
        if any(map(is_hidden, path.relative_to(folder).parts)):
            continue
        if path.suffix.lower() in ENDINGS:
            inputs.pictures.append(picture_at(path))
        else:
            inputs.passed_over[path.suffix.lower()] += 1
    if len(inputs.pictures) == count:
        raise UserError(printable(str(folder)), f"has no images ({', '.join(ENDINGS)})")


# Results of attack detection: plain values for programs, lines for people, and an exit code.


LIVE, ATTACK, REJECTED = "live", "attack", "rejected"


@dataclass(frozen=True)
class Prediction:
    """The model's result for one picture; without a score there is a reason.

    ``faces`` and ``boxes`` (x, y, width, height in the picture's pixels) are set if faces were searched for; the model
    scored the first and largest one. ``frames`` counts the pictures with a score: of a burst, the score is that of
    their mean log-odds, and faces and boxes are those of the first.
    """

    path: str
    probability: float | None = None
    logit: float | None = None
    decision: str = REJECTED
    reason: str = ""
    notes: tuple[str, ...] = ()
    faces: int | None = None
    boxes: list[list[float]] | None = None
    frames: int = 0


@dataclass(frozen=True)
class Predictions:
    """The model's results for some pictures, and its decision threshold."""

    threshold: Threshold
    images: list[Prediction]
    passed_over: Counter[str] = field(default_factory=Counter)

    def as_values(self) -> dict[str, Any]:
        """Return all results as plain values, for programs."""
        threshold = self.threshold
        rule = {
            "rule": threshold.rule,
            "probability": probability(threshold.value),
            "logit": threshold.value,
            "far": threshold.far,
            "frr": threshold.frr,
            **estimates_of(threshold),
        }
        return {
            "threshold": rule,
            "passed_over": dict(sorted(self.passed_over.items())),
            "images": [asdict(image) for image in self.images],
        }

    def lines(self) -> list[str]:
        """Return all results as lines, for people."""
        threshold = self.threshold
        if threshold.estimates:
            people = "on held-out people of the sites, " if "BPCER" in threshold.estimates else ""
            rates = f"; {people}{threshold.operating_point}"
        else:
            rates = f", {describe_rule(threshold.rule)}"
        # An operating point's estimates include both rates.
        if "BPCER" not in threshold.estimates and threshold.far is not None and threshold.frr is not None:
            split = "training" if threshold.rule.startswith(ON_TRAINING) else "held-out"
            rates += f"; {threshold.place} it accepts {threshold.far:.2%} of {split} attacks"
            rates += f" and rejects {threshold.frr:.2%} of live"
        lines = [f"threshold: score {probability(threshold.value):.4f}{rates}"]
        for image in self.images:
            result = image.reason if image.logit is None else score_line(image.logit, threshold.value)
            notes = describe_notes(image.notes, image.faces)
            notes += f"  (mean of {image.frames} frames)" if image.frames > 1 else ""
            lines.append(f"{image.decision:9}{result}  {printable(image.path)}{notes}")
        return lines

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return exit_code((image.decision for image in self.images), good=LIVE, bad=ATTACK)


def probability(logit: float) -> float:
    """Return the probability of a live face for a logit."""
    return float(np.exp(-np.logaddexp(0.0, -logit)))


def score_line(logit: float, threshold: float) -> str:
    """Return score and threshold with the sign between them, with enough digits to tell them apart.

    If the probabilities are so close to 0 or 1 that no digits suffice, the line shows logits.
    """
    sign = ">=" if logit >= threshold else "<"
    for digits in range(4, 10):
        score, limit = (f"{probability(value):.{digits}f}" for value in (logit, threshold))
        if score != limit:
            return f"score {score} {sign} threshold {limit}"
    if logit == threshold:
        return f"score {score[:6]} {sign} threshold {limit[:6]}"
    return f"score (logit) {logit:+.9g} {sign} threshold {threshold:+.9g}"


def estimates_of(threshold: Threshold) -> dict[str, Any]:
    """Return the error rates of a wished operating point with their intervals, for programs; empty for other rules."""
    estimates = {name: asdict(estimate) for name, estimate in threshold.estimates.items()}
    return {"estimates": estimates} if estimates else {}


# Prediction for pictures: find and crop the face, or report a reason, then score the crops. Runs and devices share this
# code, so it must not need torch.


@dataclass(frozen=True, eq=False)
class CroppedFace:
    """The crops of a picture to score, one per shape, or the reason why there are none."""

    crops: tuple[Image, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()
    detected: DetectedFaces | None = None
    """The faces, if they were searched for."""


FindFace = Callable[[Image], CroppedFace]
Score = Callable[[Sequence[NDArray[np.uint8]]], FloatArray]
"""Maps crops of N faces, one array N×S×S×3 per shape, to their logits."""


def score_pictures(
    inputs: InputPictures,
    find_face: FindFace,
    score: Score,
    threshold: Threshold,
    steps: Steps,
    notes: tuple[str, ...] = (),
) -> Predictions:
    """Read pictures and crop their faces one at a time; score the crops in batches. ``notes`` are on every decision."""
    results = list[Prediction]()
    for batch in read_in_batches(inputs.pictures, find_face, steps):
        faces = [(name, CroppedFace(reason=str(face)) if isinstance(face, BadFile) else face) for name, face in batch]
        # A fused model takes several crops of each face: one batch per shape.
        by_shape = zip(*(face.crops for _, face in faces if face.crops), strict=True)
        crops = [np.stack(shown) for shown in by_shape]
        logits = iter(score(crops).tolist() if crops else [])
        for name, face in faces:
            detected = face.detected
            count, boxes = (None, None) if detected is None else (len(detected.faces), detected.boxes)
            result = Prediction(name, reason=face.reason, notes=face.notes, faces=count, boxes=boxes)
            if face.crops:
                result = _decide(replace(result, notes=(*face.notes, *notes), frames=1), next(logits), threshold)
            results.append(result)
    # Pictures of a burst get one decision on their mean; a single picture has no burst and keeps its own.
    bursts = groupby(zip(inputs.pictures, results, strict=True), key=lambda pair: pair[0].burst)
    decided = list[Prediction]()
    for burst, pairs in bursts:
        of_burst = [result for _, result in pairs]
        decided += [_average(burst, of_burst, threshold)] if burst else of_burst
    return Predictions(threshold, decided, inputs.passed_over)


def _decide(result: Prediction, logit: float, threshold: Threshold) -> Prediction:
    """Return a result with the score of this logit, and the decision."""
    decision = LIVE if logit >= threshold.value else ATTACK
    return replace(result, probability=probability(logit), logit=logit, decision=decision)


def _average(burst: str, frames: Sequence[Prediction], threshold: Threshold) -> Prediction:
    """Return the result of a burst by the mean log-odds of its scored frames; without any, that of its first frame."""
    scored = [frame for frame in frames if frame.frames]
    if not scored:
        return replace(frames[0], path=burst)
    notes = tuple(dict.fromkeys(note for frame in scored for note in frame.notes))
    result = replace(scored[0], path=burst, notes=notes, frames=len(scored))
    return _decide(result, float(np.mean([frame.logit for frame in scored])), threshold)


def face_cropper(
    crop: str, shapes: Sequence[CropShape], threads: int = 1, *, strict: bool = False, detector: DetectorName = MTCNN
) -> FindFace:
    """Return the function that crops the face of a picture by the named method.

    ``threads`` are for the detector. A face with little context gets a note, or with ``strict`` no decision.
    """
    check_crop(crop)
    if crop != "face":
        if len({shape.margin for shape in shapes}) > 1:
            margins = ", ".join(f"{shape.margin:g}" for shape in shapes)
            raise UserError("--crop", f"{crop} has no face box, and this model takes crops of {margins} times it")
        cuts = [make_cropper(crop, shape.size, threads) for shape in shapes]
        return lambda picture: _cropped_face_from([cut(picture) for cut in cuts], None, strict)
    detect = make_upright_detector(threads, detector)

    def find_face(picture: Image) -> CroppedFace:
        detected = detect(picture)
        if not detected.faces:
            return CroppedFace(reason=NO_FACE, detected=detected)
        crops = [crop_face(detected.picture, detected.faces[0], shape.size, shape.margin) for shape in shapes]
        if pose(detected.faces[0])[1] > Settings.tilted:
            return CroppedFace(reason=TILTED, notes=notes_of(detected), detected=detected)
        return _cropped_face_from(crops, detected, strict)

    return find_face


def _cropped_face_from(crops: Sequence[CroppedPicture], detected: DetectedFaces | None, strict: bool) -> CroppedFace:
    notes = notes_of(detected, grey=is_grey(crops[0].image))
    if any(cropped.close for cropped in crops):
        if strict:
            return CroppedFace((), CLOSE, notes, detected)
        notes = (*notes, LITTLE_CONTEXT)
    if any(cropped.upscaled for cropped in crops):
        reason = "the face is too small: enlarging it would blur the traces of attacks"
        return CroppedFace((), reason, notes, detected)
    return CroppedFace(tuple(cropped.image for cropped in crops), "", notes, detected)


# Comparison of a face with others: align, embed, and decide at a threshold. Runs and devices share this code, so it
# must not need torch.


SAME, OTHER = "same person", "other person"
TOO_FEW = (
    "the sites had too few impostor pairs for one at the recipe's false match rate; train with a higher"
    " evaluation.recognition.fmr or more held-out people"
)


@dataclass(frozen=True, eq=False)
class AlignedFace:
    """A picture's largest face, aligned, with notes, and the number of faces if they were searched for."""

    crop: Image
    notes: tuple[str, ...] = ()
    faces: int | None = None


@dataclass(frozen=True)
class FaceComparison:
    """The comparison of a face with the reference face; without a similarity there is a reason."""

    path: str
    similarity: float | None = None
    decision: str = REJECTED
    reason: str = ""
    notes: tuple[str, ...] = ()
    faces: int | None = None
    """Number of faces found, if they were searched for; the largest one was compared."""


@dataclass(frozen=True)
class FaceComparisons:
    """The comparisons of a reference face with others, the most similar first, and the decision threshold."""

    threshold: Threshold
    face: str
    of_face: AlignedFace | BadFile
    """The aligned reference face, or the reason why there is none; then all matches are rejected for this reason."""
    matches: list[FaceComparison]
    passed_over: Counter[str] = field(default_factory=Counter)

    def as_values(self) -> dict[str, Any]:
        """Return all results as plain values, for programs."""
        threshold = self.threshold
        operating = {
            "rule": threshold.rule,
            "similarity": threshold.value,
            "fmr": threshold.far,
            "fnmr": threshold.frr,
            **estimates_of(threshold),
        }
        if isinstance(self.of_face, BadFile):
            of_face: dict[str, Any] = {"notes": (), "faces": None, "reason": str(self.of_face)}
        else:
            of_face = {"notes": self.of_face.notes, "faces": self.of_face.faces, "reason": ""}
        return {
            "threshold": operating,
            "face": self.face,
            "of_face": of_face,
            "passed_over": dict(sorted(self.passed_over.items())),
            "matches": [asdict(match) for match in self.matches],
        }

    def lines(self) -> list[str]:
        """Return all results as lines, for people."""
        if isinstance(self.of_face, BadFile):
            return [operating_point(self.threshold), f"{REJECTED:13}{printable(self.face)}  {self.of_face}"]
        notes = describe_notes(self.of_face.notes, self.of_face.faces)
        about = [f"face: {printable(self.face)}{notes}"] if notes else []
        lines = [operating_point(self.threshold), *about]
        for match in self.matches:
            score = "" if match.similarity is None else f"similarity {match.similarity:+.4f}  "
            reason = f"  {match.reason}" if match.reason else ""
            notes = describe_notes(match.notes, match.faces)
            lines.append(f"{match.decision:13}{score}{printable(match.path)}{reason}{notes}")
        return lines

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return exit_code((match.decision for match in self.matches), good=SAME, bad=OTHER)


AlignFace = Callable[[Image], AlignedFace]
"""Aligns the face of a picture, or raises BadFile."""


def compare_crops(
    picture: InputPicture,
    against: InputPictures,
    find_face: AlignFace,
    embed: Callable[[Sequence[Image]], Features],
    threshold: Threshold,
    steps: Steps,
) -> FaceComparisons:
    """Compare a face with one or many others, whose crops are embedded in batches."""
    try:
        reference = find_face(picture.read())
    except BadFile as bad:
        reason = f"{printable(picture.name)}: {bad}"
        rejected = [FaceComparison(other.name, reason=reason) for other in against.pictures]
        return FaceComparisons(threshold, picture.name, bad, rejected, against.passed_over)
    face = embed([reference.crop])
    results = list[FaceComparison]()
    for batch in read_in_batches(against.pictures, find_face, steps):
        crops = [aligned.crop for _, aligned in batch if not isinstance(aligned, BadFile)]
        similarities = iter((embed(crops) @ face[0]).tolist() if crops else [])
        for name, aligned in batch:
            if isinstance(aligned, BadFile):
                results.append(FaceComparison(name, reason=str(aligned)))
                continue
            similarity = next(similarities)
            decision = SAME if similarity >= threshold.value else OTHER
            results.append(FaceComparison(name, similarity, decision, notes=aligned.notes, faces=aligned.faces))
    # Pictures without a similarity come last.
    results.sort(key=lambda match: (match.similarity is None, -(match.similarity or 0.0), match.path))
    return FaceComparisons(threshold, picture.name, reference, results, against.passed_over)


def face_aligner(crop: str, size: int, threads: int = 1, *, detector: DetectorName = MTCNN) -> AlignFace:
    """Return the function that aligns the face of a picture; ``threads`` are for the detector."""
    if crop == "centre":
        raise UserError("--crop", "recognition needs aligned faces: use face, or none if they are already aligned")
    if crop != "face":
        cut = make_cropper(crop, size, threads)
        return lambda picture: AlignedFace(cut(picture).image)
    detect = make_upright_detector(threads, detector)

    def find_face(picture: Image) -> AlignedFace:
        detected = detect(picture)
        if not detected.faces:
            raise BadFile(NO_FACE)
        aligned, _ = align(detected.picture, detected.faces[0].points, size)
        return AlignedFace(aligned, notes_of(detected), len(detected.faces))

    return find_face


def operating_point(threshold: Threshold) -> str:
    """Describe the similarity threshold and its errors."""
    if threshold.estimates:
        return f"threshold: similarity {threshold.value:+.4f}; at the sites {threshold.operating_point}"
    missed = f" and misses {threshold.frr:.2%} of genuine ones" if threshold.frr is not None else ""
    accepted = f"accepts {threshold.far:.4%} of impostor pairs{missed}" if threshold.far is not None else ""
    rule = describe_rule(threshold.rule)
    return f"threshold: similarity {threshold.value:+.4f}, {rule}; {threshold.place} it {accepted}"


def predict(
    model: Model,
    inputs: InputPictures,
    *,
    crop: str = "face",
    strict: bool = False,
    detector: str = "",
    steps: Steps = discard_steps,
) -> Predictions:
    """Score pictures: read and crop them one at a time, score their crops in batches.

    The default detector is that of the model's crops.
    """
    if model.task != "pad":
        raise UserError("--against", "this model recognises people: name an image or a folder to compare with")
    if model.threshold is None:
        raise UserError(str(model.directory), "has no threshold to predict with; export a run whose sites chose one")

    chosen = choose_detector(detector, model.crop_records)
    find_face = face_cropper(crop, model.shapes, strict=strict, detector=chosen)
    return score_pictures(inputs, find_face, model.score, model.threshold, steps, model.notes)


def compare_faces(
    model: Model,
    picture: InputPicture,
    against: InputPictures,
    *,
    crop: str = "face",
    detector: str = "",
    steps: Steps = discard_steps,
) -> FaceComparisons:
    """Compare a face with one or many others."""
    if not isinstance(model, Exported) or model.task != "recognition":
        raise UserError("--against", "this model detects attacks; leave --against out")
    if model.threshold is None:
        raise UserError("threshold", TOO_FEW)

    def embed(crops: Sequence[Image]) -> NDArray[np.float32]:
        return model.run(np.stack(crops)).astype(np.float32, copy=False)

    find_face = face_aligner(crop, model.size, detector=choose_detector(detector, model.crop_records))
    return compare_crops(picture, against, find_face, embed, model.threshold, steps)
