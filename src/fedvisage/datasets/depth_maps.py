"""Depth maps of imported images: none, the average face fitted to five points, or existing maps from files.

Attacks are flat: their map is zero for every choice, and no file is read for them. 3-D masks are not flat but count as
flat too, as in the papers; FedGPAD's option ``without_depth`` leaves their species out of the depth loss.

An existing map has the path of its image, below the directory of maps: ``real/ann/1.png`` has ``real/ann/1_depth.jpg``
(or ``.png``), and frame 12 of ``real/ann/clip.avi``, counted from 0, has ``real/ann/clip.avi/000012_depth.jpg``. A map
covers the whole image at any resolution, and is cropped like the image.
"""

from collections.abc import Callable
from pathlib import Path, PurePosixPath

import cv2
import numpy as np
import numpy.typing as npt

from fedvisage.base.errors import BadFile, UserError
from fedvisage.data.prepared import DEPTH_SIZE
from fedvisage.datasets.tree import fault_of_file
from fedvisage.faces.cropping import Crop, CroppedPicture, CropPlace
from fedvisage.faces.pictures import ENDINGS, open_picture

Map = npt.NDArray[np.uint8]
DepthMaker = Callable[[int, tuple[str, ...], CroppedPicture], Map]
"""Takes an image's label, the possible names of its map, and its crop; returns the map, or raises BadFile."""

WORDS = ("auto", "none", "canonical")
MAP_ENDINGS = (".jpg", ".png")
_PROPORTIONS = 0.02  # largest relative difference of aspect ratio between a map and its image: sizes are rounded
_COLOURED = 16  # largest difference between the channels of a grey picture: JPEG rounds its colours


def make_depth(choice: str, crop: Crop, size: int) -> DepthMaker | None:
    """Return the function that makes the maps: `auto`, `none`, `canonical`, or a directory of existing maps."""
    if choice == "auto":
        choice = "canonical" if crop == "face" else "none"
    if choice == "none":
        return None
    if choice == "canonical":
        if crop != "face":
            message = f"canonical needs the five points found with crop=face, got crop={crop}; give a directory of maps"
            raise UserError("depth", message)
        return lambda label, _, cropped: _fit_map(cropped, size) if label else flat_map()
    root = directory_of_maps(choice)
    if root is None or not root.is_dir():
        raise UserError("depth", f"must be {', '.join(WORDS)} or a directory of maps, got {choice!r}")
    return lambda label, names, cropped: _read_map(root, names, cropped.place) if label else flat_map()


def directory_of_maps(choice: str) -> Path | None:
    """Return the directory that the choice names, which may be inside the dataset, or None for a keyword."""
    return None if choice in WORDS else Path(choice)


def flat_map() -> Map:
    """Return the map of an attack."""
    return np.zeros((DEPTH_SIZE, DEPTH_SIZE), np.uint8)


def _fit_map(cropped: CroppedPicture, size: int) -> Map:
    # Imported here because imports without depth need no renderer.
    from fedvisage.render.depth import canonical_depth

    assert cropped.points is not None, "faces are cropped with their points"
    try:
        return canonical_depth(cropped.points, size)
    except ValueError as error:
        raise BadFile(str(error)) from None


def _read_map(root: Path, names: tuple[str, ...], place: CropPlace) -> Map:
    """Read the map of an image and crop it like the image."""
    stems = [name.with_suffix("") if name.suffix.lower() in ENDINGS else name for name in map(PurePosixPath, names)]
    paths = [root / f"{stem}_depth{ending}" for stem in stems for ending in MAP_ENDINGS]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        raise BadFile(f"no {stems[0].name}_depth.jpg or .png at the matching path in the directory of depth maps")
    if fault := fault_of_file(path, path.relative_to(root).as_posix(), root, MAP_ENDINGS):
        raise BadFile(f"its depth map is {fault}")
    picture = open_picture(path)
    if int(np.ptp(picture.astype(np.int16), axis=2).max()) > _COLOURED:
        raise BadFile("its depth map is in colour; it must be grey, with 255 for near and 0 for no face")
    image = np.ascontiguousarray(picture[..., 1])
    height, width = image.shape
    if abs(width * place.height / (height * place.width) - 1) > _PROPORTIONS:
        shapes = f"{width}×{height} and {place.width}×{place.height}"
        raise BadFile(f"its depth map has a different aspect ratio ({shapes}); it must cover the whole image")
    scale = width / place.width
    left, top, side = (round(scale * length) for length in (place.left, place.top, place.side))
    square = image[top : top + max(1, side), left : left + max(1, side)]
    interpolation = cv2.INTER_AREA if min(square.shape) > DEPTH_SIZE else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(square, (DEPTH_SIZE, DEPTH_SIZE), interpolation=interpolation), np.uint8)
