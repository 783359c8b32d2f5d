"""Reads one image file into RGB bytes, or says why it cannot be used. Files may be hostile.

What is accepted: JPEG, PNG, BMP, WebP, TIFF and HEIC with one picture of 8 bits a channel, grey, palette or RGB
(16-bit RGB is cut to its upper bytes), turned upright as the file says; colour profiles are ignored. What is refused,
because turning it into RGB would change what the camera saw: CMYK, 16-bit and float grey (often infrared or depth),
transparency.
"""

import io
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from fedvisage.datasets.importers.report import BadFile, printable

BYTES_LIMIT = 256 << 20
PIXEL_LIMIT = 64_000_000
SIDE_MINIMUM = 16
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".heic", ".heif")
"""How the names of image files end, in lower case."""

_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF")
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1")
"""What stands at the beginning of a HEIC file, behind ``ftyp``."""

_PLAIN_MODES = ("1", "L", "P", "RGB")
_TRANSPARENT_MODES = ("LA", "PA", "RGBA")


class TooLarge(BadFile):
    """A picture with more bytes or pixels than are taken; nothing of it was decoded."""


def open_picture(path: Path) -> npt.NDArray[np.uint8]:
    """Read an image file into H×W×3 RGB bytes; raise BadFile if that is impossible."""
    try:
        _check_length(path.stat().st_size)
        return read_picture(path.read_bytes())
    except OSError as error:
        raise BadFile(f"cannot be read: {error.strerror or error}") from None


def read_picture(content: bytes, pixels: int = PIXEL_LIMIT) -> npt.NDArray[np.uint8]:
    """Decode the content of an image file into H×W×3 RGB bytes; raise BadFile if that is impossible.

    A picture of more than ``pixels`` is not decoded.
    """
    _check_length(len(content))
    try:
        with warnings.catch_warnings():
            # Pillow warns of large images; the limit below is stricter, and nothing is decoded before it.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=_formats_of(content)) as image:
                _check(image, pixels)
                image.load()
                return np.array(_upright_rgb(image))
    except (BadFile, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise TooLarge(f"more than {pixels / 1_000_000:g} million pixels") from None
    except UnidentifiedImageError:
        raise BadFile("not an image of a known format") from None
    except Exception as error:  # Pillow's decoders raise whatever their parsers do on damaged bytes
        raise BadFile(f"cannot be decoded: {_short(error)}") from None


def _check_length(count: int) -> None:
    if count > BYTES_LIMIT:
        raise TooLarge(f"larger than {BYTES_LIMIT >> 20} MiB")


def _formats_of(content: bytes) -> tuple[str, ...]:
    """Return by what a file may be opened: the decoder of HEIC is loaded for files that begin as HEIC does."""
    if content[4:8] != b"ftyp" or content[8:12] not in _HEIC:
        return _FORMATS
    # Here, because it is a large library, and few files need it.
    try:
        import pillow_heif
    except ImportError:
        raise BadFile('a HEIC file: install pillow-heif ("fedvisage[heic]"), or convert it') from None
    pillow_heif.register_heif_opener(thumbnails=False)
    return ("HEIF",)


def _check(image: Image.Image, pixels: int) -> None:
    width, height = image.size
    if width * height > pixels:
        raise TooLarge(f"more than {pixels / 1_000_000:g} million pixels ({width}×{height})")
    if min(width, height) < SIDE_MINIMUM:
        raise BadFile(f"smaller than {SIDE_MINIMUM} pixels ({width}×{height})")
    # Phones write MPO: a JPEG with a second picture behind it (depth, a preview); the first is the photograph.
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
        raise BadFile("holds several pictures; export each, or give a video")
    if image.mode not in _PLAIN_MODES + _TRANSPARENT_MODES:
        raise BadFile(f"colours of kind {image.mode} are not accepted; convert it to 8-bit RGB")


def _upright_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _TRANSPARENT_MODES or "transparency" in image.info:
        lowest, _ = image.convert("RGBA").getchannel("A").getextrema()
        if not isinstance(lowest, int) or lowest < 255:
            raise BadFile("has transparent pixels; put it on a background first")
    return ImageOps.exif_transpose(image).convert("RGB")


def _short(error: Exception) -> str:
    return printable((str(error) or type(error).__name__).splitlines()[0][:120])
