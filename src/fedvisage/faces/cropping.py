"""Cut square face crops at the image size of a prepared set."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import cv2
import numpy as np
import numpy.typing as npt

from fedvisage.base.errors import BadFile, UserError, suggestion
from fedvisage.data.crops import CropRecord, DetectorRecord
from fedvisage.faces import detection, yunet
from fedvisage.faces.align import SURE, SURE_TURNED, DetectedFaces, detect_upright
from fedvisage.faces.detection import Detector, Face

Image = npt.NDArray[np.uint8]
Crop = Literal["centre", "face", "none"]
Padding = Literal["none", "replicate"]
DetectorName = Literal["mtcnn", "yunet"]
MTCNN: DetectorName = "mtcnn"
Search = Literal["all", "largest first"]
LARGEST: Search = "largest first"
"""The search of imports: largest faces first."""

MARGIN = 1.4
"""Side of a face crop over the longer side of the detected box; shows the edges of a print or a mask."""

LEAST_CONTEXT = 1.5
"""Side over the longer side of the box below which a crop with a larger margin shows little context."""

NO_FACE = "no face found"
CLOSE = "the picture ends too close to the face"
"""The reason against little context, where it is refused."""
LITTLE_CONTEXT = "little context: less certain"
"""The note on little context, where it is evaluated."""

LOWEST_CONFIDENCE = 0.9
"""Minimum confidence of a face that MTCNN found."""


@dataclass(frozen=True)
class CropPlace:
    """The position of a square crop and the size of its source image, in pixels of that image."""

    left: int
    top: int
    side: int
    width: int
    height: int


@dataclass(frozen=True)
class CroppedPicture:
    """A crop, whether it was enlarged, and the five points (eyes, nose, mouth corners) if a face was searched for."""

    image: Image
    upscaled: bool
    place: CropPlace
    points: npt.NDArray[np.float32] | None = None
    close: bool = False
    """True if the picture ends so close to the face that the crop shows little context."""
    context: float = 0.0
    """Side of the widest crop over the longer side of the face's box; 0 without a box."""
    further: tuple[Image, ...] = ()
    """The same face at further margins."""


Cropper = Callable[[Image], CroppedPicture]


def check_crop(crop: str) -> None:
    """Refuse an unknown method of cropping."""
    if crop not in (known := get_args(Crop)):
        raise UserError("--crop", f"must be centre, face or none, got {crop!r}{suggestion(crop, known)}")


def make_cropper(
    crop: str,
    size: int,
    threads: int = 1,
    *,
    margin: float = MARGIN,
    further: Sequence[float] = (),
    padding: Padding = "none",
    detector: DetectorName = MTCNN,
) -> Cropper:
    """Return the function that crops images by the named method, faces also at further margins.

    `threads` are for the detector.
    """
    check_crop(crop)
    if crop == "face":
        find = make_finder(threads, detector)
        return lambda image: crop_at_margins(image, find(image), size, (margin, *further), padding)

    def cut_centre(image: Image) -> CroppedPicture:
        height, width = image.shape[:2]
        if crop == "none" and height != width:
            raise BadFile(f"not square ({width}×{height}), and no crop was requested")
        side = min(height, width)
        return _cut_square(image, (width - side) // 2, (height - side) // 2, side, size)

    return cut_centre


def record_of(
    crop: Crop,
    *,
    aligned: bool = False,
    search: Search = "all",
    margin: float = MARGIN,
    padding: Padding = "none",
    detector: DetectorName = MTCNN,
) -> CropRecord:
    """Return the record of crops made by the named method; `aligned` by five points or cut by a box."""
    if crop == "face":
        if detector == yunet.NAME:  # it always searches for all faces
            record = DetectorRecord(name=yunet.NAME, version=yunet.VERSION, sha256=yunet.SHA256)
        else:
            record = DetectorRecord(
                name=detection.NAME, version=detection.VERSION, sha256=detection.digest(), search=search
            )
        if aligned:
            return CropRecord(how="detected", detector=record, rotation=True, alignment="points")
        return CropRecord(how="detected", detector=record, margin=margin, padding=padding, alignment="box")
    method: Literal["centre", "whole"] = "centre" if crop == "centre" else "whole"
    return CropRecord(how=method, rotation=aligned, alignment="points" if aligned else "none")


def detector_of(crops: Iterable[CropRecord]) -> DetectorName:
    """Return the detector of a model that was trained on these crops: theirs, or MTCNN."""
    names = {crop.detector.name for crop in crops if crop.detector is not None}
    return "yunet" if names == {yunet.NAME} else MTCNN


def choose_detector(wanted: str, crops: Sequence[CropRecord] = ()) -> DetectorName:
    """Return the wanted detector, or that of the models that take these crops."""
    if wanted not in ("", "mtcnn", "yunet"):
        raise UserError("--detector", f"must be mtcnn or yunet, got {wanted!r}")
    names = {detector_of([crop]) for crop in crops}
    if not wanted and len(names) > 1:
        raise UserError("--detector", "the models take crops of different detectors, mtcnn and yunet; choose one")
    return wanted or (names.pop() if names else MTCNN)  # type: ignore[return-value]  # checked above


def other_detector(wanted: str, crops: Sequence[CropRecord]) -> list[str]:
    """Return a notice about a wanted detector that did not make a model's crops, or nothing."""
    if not wanted or (own := detector_of(crops)) == choose_detector(wanted):
        return []
    return [f"{wanted} finds the faces, and the model's crops and threshold are of {own}"]


def detector_digest(detector: DetectorName) -> str:
    """Return the SHA-256 of a detector's files."""
    return yunet.SHA256 if detector == yunet.NAME else detection.digest()


def _open_detector(threads: int, detector: DetectorName) -> tuple[Detector | yunet.YuNet, float]:
    """Return a detector, and the minimum confidence of its faces."""
    if detector == yunet.NAME:
        return yunet.YuNet(), yunet.LOWEST_CONFIDENCE
    return Detector(threads=threads), LOWEST_CONFIDENCE


def make_detector(threads: int = 1, detector: DetectorName = MTCNN) -> Callable[[Image], list[Face]]:
    """Return a function that finds the faces in RGB images of which the detector is sure enough."""
    opened, least = _open_detector(threads, detector)

    def detect(image: Image) -> list[Face]:
        return [face for face in opened.detect(image) if face.confidence >= least]

    return detect


def make_upright_detector(threads: int = 1, detector: DetectorName = MTCNN) -> Callable[[Image], DetectedFaces]:
    """Return a function that finds these faces, also in pictures that are upside down or on their side."""
    detect = make_detector(threads, detector)
    # YuNet's confidence is no sign of a face upside down, but it refuses such faces itself.
    sure, sure_turned = (0.0, 0.0) if detector == yunet.NAME else (SURE, SURE_TURNED)
    return lambda picture: detect_upright(picture, detect, sure, sure_turned)


def make_finder(threads: int = 1, detector: DetectorName = MTCNN) -> Callable[[Image], Face]:
    """Return a function that finds the largest of these faces, which is faster than finding all."""
    opened, least = _open_detector(threads, detector)

    def find(image: Image) -> Face:
        face = opened.largest(image, least)
        if face is None:
            raise BadFile(NO_FACE)
        return face

    return find


def crop_face(image: Image, face: Face, size: int, margin: float = MARGIN, padding: Padding = "none") -> CroppedPicture:
    """Cut out a face with a margin: inside the image, or padded with copies of its last pixels.

    Without padding, a crop moves or shrinks until the image holds it. ``close`` marks one that shrank much.
    """
    height, width = image.shape[:2]
    x, y, w, h = face.box
    longest, side = max(w, h), round(margin * max(w, h))
    if padding == "none":
        side = int(min(side, width, height))
        left = int(np.clip(round(x + w / 2 - side / 2), 0, width - side))
        top = int(np.clip(round(y + h / 2 - side / 2), 0, height - side))
        cut = _cut_square(image, left, top, side, size)
    else:
        left, top = round(x + w / 2 - side / 2), round(y + h / 2 - side / 2)
        before, after = (max(0, -top), max(0, -left)), (max(0, top + side - height), max(0, left + side - width))
        padded = cv2.copyMakeBorder(image, before[0], after[0], before[1], after[1], cv2.BORDER_REPLICATE)
        cut = _cut_square(np.asarray(padded, np.uint8), left + before[1], top + before[0], side, size)
    points = (face.points - (left, top)) * (size / side)
    close = margin > LEAST_CONTEXT and side < LEAST_CONTEXT * longest
    context = margin if side == round(margin * longest) else side / longest
    return replace(cut, points=points.astype(np.float32), close=bool(close), context=float(context))


def crop_at_margins(
    image: Image, face: Face, size: int, margins: Sequence[float], padding: Padding = "none"
) -> CroppedPicture:
    """Cut out a face at several margins."""
    crops = [crop_face(image, face, size, margin, padding) for margin in margins]
    return replace(
        crops[0],
        upscaled=any(cropped.upscaled for cropped in crops),
        close=any(cropped.close for cropped in crops),
        context=max(cropped.context for cropped in crops),
        further=tuple(cropped.image for cropped in crops[1:]),
    )


def _cut_square(image: Image, left: int, top: int, side: int, size: int) -> CroppedPicture:
    """Cut out a square and scale it, averaging pixels when it shrinks."""
    place = CropPlace(left, top, side, width=image.shape[1], height=image.shape[0])
    square = np.ascontiguousarray(image[top : top + side, left : left + side])
    if side == size:
        return CroppedPicture(square, upscaled=False, place=place)
    interpolation = cv2.INTER_AREA if side > size else cv2.INTER_CUBIC
    scaled = cv2.resize(square, (size, size), interpolation=interpolation).astype(np.uint8, copy=False)
    return CroppedPicture(scaled, upscaled=side < size, place=place)
