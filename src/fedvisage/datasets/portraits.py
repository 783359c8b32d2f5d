"""Photographs of faces, all bona fide: list the files of a folder, and read the crop of each.

The first folder below the root names the subject; a photograph without a folder is a subject of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from fedvisage.base.errors import BadFile, UserError, printable
from fedvisage.data.prepared import file_digest
from fedvisage.datasets.depth_maps import DepthMaker, Map, make_depth
from fedvisage.datasets.report import SkippedFile
from fedvisage.datasets.tree import fault_of_file, files_below
from fedvisage.faces.cropping import Crop, Cropper, make_cropper
from fedvisage.faces.pictures import ENDINGS, open_picture


@dataclass(frozen=True)
class PhotographFile:
    """A file that may contain a photograph; without a folder below the root, it is its own subject."""

    path: Path
    name: str  # relative to the root, with '/'

    @property
    def own_subject(self) -> bool:
        """Return whether no folder names the subject."""
        return "/" not in self.name

    @property
    def subject(self) -> str:
        """Return the name of the subject."""
        return PurePosixPath(self.name).parts[0]


@dataclass(frozen=True, eq=False)
class Portrait:
    """The crop of a photograph, with five points and a fitted depth map if the face was detected."""

    photograph: PhotographFile
    digest: str
    image: npt.NDArray[np.uint8]
    points: npt.NDArray[np.float32] | None
    depth: Map | None


def list_photographs(root: Path) -> tuple[list[PhotographFile], list[SkippedFile]]:
    """List possible photographs in order of their names, and the unusable files with their faults."""
    if not root.is_dir():
        raise UserError(str(root), "is not a directory; give a folder of face photographs")
    photographs, skipped = [], []
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files_below(root)):
        fault = fault_of_file(path, name, root, ENDINGS)
        if fault:
            skipped.append(SkippedFile(printable(name), fault))
        else:
            photographs.append(PhotographFile(path, name))
    if not photographs:
        raise UserError(str(root), f"contains no photographs ({', '.join(ENDINGS)})")
    return photographs, skipped


def read_portrait(photograph: PhotographFile, crop: Crop, size: int) -> Portrait | SkippedFile:
    """Read and crop one photograph. Crops are never enlarged, because blurring would hide signs of attacks."""
    try:
        cropper, depth = _cropper_and_depth(crop, size)
        cropped = cropper(open_picture(photograph.path))
        if cropped.upscaled:
            raise BadFile(f"its crop is smaller than {size}×{size} pixels, and enlarging it would blur it")
        fitted = depth and depth(1, (photograph.name,), cropped)
        return Portrait(photograph, file_digest(photograph.path), cropped.image, cropped.points, fitted)
    except BadFile as bad:
        return SkippedFile(photograph.name, str(bad))
    except OSError as error:
        return SkippedFile(photograph.name, f"cannot be read: {error.strerror or error}")


@cache
def _cropper_and_depth(crop: Crop, size: int) -> tuple[Cropper, DepthMaker | None]:
    """Make both once per process: the weights of the detector take a second to load."""
    return make_cropper(crop, size), make_depth("auto", crop, size)
