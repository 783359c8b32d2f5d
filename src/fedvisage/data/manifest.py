"""The `set.json` of a prepared set: what the set is, and size and digest of each of its files."""

import hashlib
import stat
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedvisage.data.crops import CropRecord, from_source
from fedvisage.errors import UserError

PLAIN_FORMAT: Final = 1
FURTHER_FORMAT: Final = 2
"""The format of sets with further columns; others keep the first format, which older versions read."""
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
_BLOCK = 1 << 20

FileName = Literal["images.npy", "depth.npy", "points.npy", "rows.csv", "import-report.json"]


def _printable(text: str) -> str:
    """Refuse texts that would act on a terminal instead of being shown."""
    if not text.isprintable():
        raise ValueError("has characters that cannot be shown")
    return text


Printable = Annotated[str, AfterValidator(_printable)]


class FileEntry(BaseModel):
    """Size and digest of one file of a set."""

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
    files: dict[FileName, FileEntry]

    @property
    def crops(self) -> CropRecord | None:
        """How the crops were made, as far as the set says so."""
        return self.crop or from_source(self.source)

    @property
    def digest(self) -> str:
        """Digest of the set's content: SHA-256 over the digests of its files, in order of their names."""
        lines = [f"{name} {entry.sha256}\n" for name, entry in sorted(self.files.items())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Read and check the `set.json` in the directory of a set."""
    if not path.is_dir():
        raise UserError(str(path), "no such directory; give the directory of a prepared set")
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
        where = ".".join(str(part) for part in first["loc"]) or "content"
        advice = f"this version reads prepared sets of the formats {PLAIN_FORMAT} and {FURTHER_FORMAT}"
        raise UserError(str(place), f"{where}: {first['msg']}; {advice}") from None


def check_file(path: Path, entry: FileEntry, verify: bool) -> None:
    """Raise a UserError if a file is not the one that `set.json` describes; digests only if `verify`."""
    try:
        size = regular_size(path)
        digest = file_digest(path) if verify and size == entry.bytes else entry.sha256
    except FileNotFoundError:
        raise UserError(str(path), f"is listed in {SET} but missing; copy or make the set again") from None
    if size != entry.bytes:
        message = f"has {size} bytes where {SET} promises {entry.bytes}; copy or make the set again"
        raise UserError(str(path), message)
    if digest != entry.sha256:
        raise UserError(str(path), f"its SHA-256 is not the one in {SET}: the file was changed or damaged")


def regular_size(path: Path) -> int:
    """Return the size of a plain file, refusing links and devices, which could lead out of the set."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(str(path), "is a link or not a plain file; a set holds its own files only")
    return status.st_size


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
