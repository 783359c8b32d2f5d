"""Reads a folder of photographs of faces, all bona fide: who is on each, and its crop, or why it cannot be used.

A subject is the first folder below the root, or each photograph where there is none.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from fedvisage.data.manifest import file_digest
from fedvisage.datasets.importers.cropping import Crop, Cropper, make_cropper
from fedvisage.datasets.importers.depth import DepthMaker, Map, make_depth
from fedvisage.datasets.importers.pictures import ENDINGS, open_picture
from fedvisage.datasets.importers.report import BadFile, Skipped, printable
from fedvisage.datasets.scanners.tree import files_below, unusable
from fedvisage.errors import UserError


@dataclass(frozen=True)
class Photograph:
    """A file that may hold a photograph; without a folder of its own the file stands for a subject."""

    path: Path
    name: str  # relative to the root, with '/'

    @property
    def own_subject(self) -> bool:
        """Tell whether no folder names the subject."""
        return "/" not in self.name

    @property
    def subject(self) -> str:
        """Return who is on it."""
        return PurePosixPath(self.name).parts[0]


@dataclass(frozen=True, eq=False)
class Portrait:
    """The crop of a photograph, with five points and a fitted depth map if a face was sought."""

    photograph: Photograph
    digest: str
    image: npt.NDArray[np.uint8]
    points: npt.NDArray[np.float32] | None
    depth: Map | None


def list_photographs(root: Path) -> tuple[list[Photograph], list[Skipped]]:
    """List the files that may be photographs, in order of their names, and those that cannot be, with the reason."""
    if not root.is_dir():
        raise UserError(str(root), "is no directory; give a folder of face photographs")
    found, skipped = [], []
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files_below(root)):
        fault = unusable(path, name, root, ENDINGS)
        if fault:
            skipped.append(Skipped(printable(name), fault))
        else:
            found.append(Photograph(path, name))
    if not found:
        raise UserError(str(root), f"holds no photographs ({', '.join(ENDINGS)})")
    return found, skipped


def read_portrait(photograph: Photograph, crop: Crop, size: int) -> Portrait | Skipped:
    """Read and crop one photograph. A crop is never enlarged: that would blur what tells attacks apart."""
    try:
        cropper, depth = _cropper_and_depth(crop, size)
        cropped = cropper(open_picture(photograph.path))
        if cropped.upscaled:
            raise BadFile(f"its crop is smaller than {size}×{size} pixels, and enlarging it would blur it")
        fitted = depth and depth(1, photograph.name, cropped)
        return Portrait(photograph, file_digest(photograph.path), cropped.image, cropped.points, fitted)
    except BadFile as bad:
        return Skipped(photograph.name, str(bad))
    except OSError as error:
        return Skipped(photograph.name, f"cannot be read: {error.strerror or error}")


@cache
def _cropper_and_depth(crop: Crop, size: int) -> tuple[Cropper, DepthMaker | None]:
    """Make these once in each process: the weights of the detector take a second to load."""
    return make_cropper(crop, size), make_depth("auto", crop, size)
