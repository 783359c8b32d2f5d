"""Prepared sets: the on-disk format of an imported dataset, and its reader.

A set is a directory. `set.json` describes the set and lists the size and SHA-256 of every other file. `images.npy`
holds N×S×S×3 RGB bytes, `depth.npy` (optional) N×32×32 bytes, `points.npy` (optional) N×5×2 float32 pixels. `rows.csv`
has one line per image; in sets of format 2 it has further columns. Arrays are memory-mapped, so a set may be larger
than memory; docs/decisions/0002-prepared-sets.md gives the reasons.

A set may come from an untrusted source: its content is always checked and never executed. The same row rules apply when
a set is written and when it is opened. Rows are stored as CSV, which is small compared with the images and readable by
people and common tools.

Further columns hold texts, such as the session or device of a video, or the split made by the dataset's authors
(`official`). A selection can refer to their values.

An *identity set*, for face recognition, has one more column: the group of each subject. All its images are bona fide,
and an identity may have both training and test images; `heldout` still excludes a person from training.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedvisage.base.errors import UserError
from fedvisage.base.files import file_digest
from fedvisage.data.crops import CropRecord, from_source
from fedvisage.data.rows import ImageRows, read_rows
from fedvisage.data.rows import is_safe_path as is_safe_path  # importers of other packages take it from here

PLAIN_FORMAT: Final = 1
FURTHER_FORMAT: Final = 2
"""The format of sets with further columns. Other sets keep format 1, which older versions can read."""
SIZE_LIMIT: Final = 4096
NAME_LIMIT: Final = 200
SOURCE_LIMIT: Final = 4096
DEPTH_SIZE: Final = 32
POINT_COUNT: Final = 5

SET: Final = "set.json"
IMAGES: Final = "images.npy"
DEPTH: Final = "depth.npy"
POINTS: Final = "points.npy"
ROWS: Final = "rows.csv"
REPORT: Final = "import-report.json"

_MANIFEST_LIMIT = 1 << 20

MOVED: dict[Path, Path] = {}
"""The places of sets on this machine by the places that recipes and views from another machine state."""

FileName = Literal[
    "images.npy",
    "images-2.npy",
    "images-3.npy",
    "images-4.npy",
    "depth.npy",
    "points.npy",
    "rows.csv",
    "import-report.json",
]
FURTHER_IMAGES: Final[tuple[FileName, ...]] = ("images-2.npy", "images-3.npy", "images-4.npy")
"""The files of the same faces at further margins; depth maps and points belong to the crops of `images.npy`."""


def _check_printable(text: str) -> str:
    """Reject texts with characters that a terminal would interpret."""
    if not text.isprintable():
        raise ValueError("contains unprintable characters")
    return text


Printable = Annotated[str, AfterValidator(_check_printable)]


class FileEntry(BaseModel):
    """Size and digest of a file of a set."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """The content of `set.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    format: Literal[1, 2]
    name: Printable = Field(min_length=1, max_length=NAME_LIMIT)
    size: int = Field(ge=1, le=SIZE_LIMIT)
    count: int = Field(ge=1)
    source: Printable = Field(max_length=SOURCE_LIMIT)
    crop: CropRecord | None = None
    further_margins: tuple[Annotated[float, Field(gt=0, le=100)], ...] = Field(default=(), max_length=3)
    files: dict[FileName, FileEntry]

    @model_validator(mode="after")
    def _has_files_of_margins(self) -> Manifest:
        expected = set(FURTHER_IMAGES[: len(self.further_margins)])
        if expected != self.files.keys() & set(FURTHER_IMAGES):
            raise ValueError("its further margins and its files of images differ")
        if expected and (self.crop is None or self.crop.margin is None or len({*self.margins}) < len(self.margins)):
            raise ValueError("its crops have no margin, or one margin twice")
        return self

    @property
    def margins(self) -> tuple[float | None, ...]:
        """The margins of the crops, in the order of their files."""
        return (None if self.crop is None else self.crop.margin, *self.further_margins)

    @property
    def crops(self) -> CropRecord | None:
        """The crop record of the set, stored or inferred from its source line, or None."""
        return self.crop or from_source(self.source)

    @property
    def digest(self) -> str:
        """Digest of the set's content: SHA-256 over the digests of its files in order of their names."""
        lines = [f"{name} {entry.sha256}\n" for name, entry in sorted(self.files.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Read and check `set.json` in the directory of a set."""
    path = MOVED.get(path, path)
    if not path.is_dir():
        raise UserError(str(path), "directory not found; give the directory of a prepared set")
    place = path / SET
    try:
        if regular_size(place) > _MANIFEST_LIMIT:
            raise UserError(str(place), f"is larger than {_MANIFEST_LIMIT} bytes: not a prepared set")
        return Manifest.model_validate_json(place.read_bytes())
    except FileNotFoundError:
        advice = "make one with `fedvisage data synth` or `fedvisage data import`"
        raise UserError(str(place), f"not found, so this is not a prepared set; {advice}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        location = ".".join(str(part) for part in first["loc"]) or "content"
        advice = f"this version reads prepared sets of the formats {PLAIN_FORMAT} and {FURTHER_FORMAT}"
        raise UserError(str(place), f"{location}: {first['msg']}; {advice}") from None


def check_file(path: Path, entry: FileEntry, verify: bool) -> None:
    """Raise a UserError if a file does not match its entry in `set.json`; compare digests only if `verify` is true."""
    try:
        size = regular_size(path)
        digest = file_digest(path) if verify and size == entry.bytes else entry.sha256
    except FileNotFoundError:
        raise UserError(str(path), f"is listed in {SET} but missing; copy or create the set again") from None
    if size != entry.bytes:
        message = f"has {size} bytes where {SET} promises {entry.bytes}; copy or create the set again"
        raise UserError(str(path), message)
    if digest != entry.sha256:
        raise UserError(str(path), f"its SHA-256 is not the one in {SET}: the file was changed or damaged")


def regular_size(path: Path) -> int:
    """Return the size of a regular file; raise a UserError for links and devices, which could lead out of the set."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(str(path), "is a link or not a regular file; a set may only contain its own files")
    return status.st_size


@dataclass(frozen=True, eq=False, repr=False)
class PreparedSet:
    """An open prepared set; its arrays are read-only views of its files."""

    path: Path
    name: str
    size: int
    source: str
    digest: str
    rows: ImageRows
    images: npt.NDArray[np.uint8]
    depth: npt.NDArray[np.uint8] | None
    points: npt.NDArray[np.float32] | None
    crop: CropRecord | None = None
    """The crop record of the images, if known."""
    by_margin: Mapping[float, npt.NDArray[np.uint8]] = field(default_factory=dict)
    """The images by the margin of their crops, if the set has several margins."""

    @staticmethod
    def open(path: Path, verify: bool = False) -> PreparedSet:
        """Open a set after checking its files; `verify` also compares their digests, which reads everything."""
        path = MOVED.get(path, path)
        try:
            manifest = read_manifest(path)
            for missing in {IMAGES, ROWS} - manifest.files.keys():
                raise UserError(str(path / SET), f"is missing {missing}; create the set again")
            for name, entry in manifest.files.items():
                check_file(path / name, entry, verify)
            points = _map_optional(path, manifest, POINTS, (POINT_COUNT, 2), np.float32)
            if points is not None and not np.isfinite(points).all():
                raise UserError(str(path / POINTS), "contains points that are not finite; create the set again")
            count, size = manifest.count, manifest.size
            images = [
                _map_array(path / name, (count, size, size, 3), np.uint8)
                for name in (IMAGES, *FURTHER_IMAGES[: len(manifest.further_margins)])
            ]
            by_margin = dict(zip(manifest.margins, images, strict=True)) if len(images) > 1 else {}
            return PreparedSet(
                path=path,
                name=manifest.name,
                size=size,
                source=manifest.source,
                digest=manifest.digest,
                rows=read_rows(path / ROWS, count),
                images=images[0],
                depth=_map_optional(path, manifest, DEPTH, (DEPTH_SIZE, DEPTH_SIZE), np.uint8),
                points=points,
                crop=manifest.crops,
                by_margin={margin: array for margin, array in by_margin.items() if margin is not None},
            )
        except OSError as error:
            raise UserError(str(error.filename or path), f"cannot be read: {error.strerror or error}") from error

    def __repr__(self) -> str:
        """Return the directory, and the number and size of the images."""
        return f"PreparedSet({str(self.path)!r}, {len(self)} images of {self.size}×{self.size})"

    def __reduce__(self) -> tuple[Callable[[Path, str, float | None], PreparedSet], tuple[Path, str, float | None]]:
        """Pickle the set as path and digest: the receiving process maps the files instead of copying them."""
        return _reopen_set, (self.path, self.digest, None if self.crop is None else self.crop.margin)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.rows)

    def at_margin(self, margin: float | None) -> PreparedSet:
        """Return the set with its crops of this margin; the set itself if they are these, or if it lacks them.

        Depth maps and points belong to the first margin.
        """
        if self.crop is None or margin is None or margin == self.crop.margin or margin not in self.by_margin:
            return self
        return replace(
            self,
            images=self.by_margin[margin],
            crop=self.crop.model_copy(update={"margin": margin}),
            digest=hashlib.sha256(f"{self.digest} at margin {margin!r}".encode()).hexdigest(),
            depth=None,
            points=None,
        )

    def select(self, split: str | None) -> npt.NDArray[np.int64]:
        """Return the indices of the images of a split, or of all images."""
        if split is None:
            return np.arange(len(self), dtype=np.int64)
        names, codes = self.rows.coded("split")
        return np.flatnonzero((names == split)[codes])


def _reopen_set(path: Path, digest: str, margin: float | None) -> PreparedSet:
    reopened = PreparedSet.open(path).at_margin(margin)
    if reopened.digest != digest:
        raise UserError(str(path), "was replaced while it was in use; start again")
    return reopened


def _map_optional(path: Path, manifest: Manifest, name: FileName, shape: tuple[int, ...], dtype: Any) -> Any:
    """Map an optional array, or return None if the set does not have it."""
    return _map_array(path / name, (manifest.count, *shape), dtype) if name in manifest.files else None


def _map_array(path: Path, shape: tuple[int, ...], dtype: Any) -> Any:
    """Map an array file after checking its shape and type."""
    try:
        # open_memmap, not np.load: it reads plain arrays only, never a pickle or an archive.
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy evaluates the header as Python text, which can raise anything
        raise UserError(str(path), f"not an array that can be mapped: {error}"[:300]) from None
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        actual = f"{array.dtype} {'×'.join(map(str, array.shape))}"
        expected = f"{np.dtype(dtype)} {'×'.join(map(str, shape))}"
        raise UserError(str(path), f"contains {actual}, expected {expected}; create the set again")
    return array
