"""Reads one image file into RGB bytes, or says why it cannot be used. Files may be hostile.

What is accepted: JPEG, PNG, BMP, WebP, TIFF and HEIC with one picture of 8 bits a channel, grey, palette or RGB
(16-bit RGB is cut to its upper bytes), turned upright as the file says; colour profiles are ignored. What is refused,
because turning it into RGB would change what the camera saw: CMYK, 16-bit and float grey (often infrared or depth),
transparency.
"""

import io
import warnings
from collections.abc import Container, Iterator
from itertools import takewhile
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from fedvisage.base.errors import BadFile, printable

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


# Reads equidistant frames of a video file, or says why it cannot be used. Files may be hostile.


FRAME_LIMIT = 200_000
VIDEO_LIMIT = 8 << 30
"""Bytes of a video; those of the datasets have a thousandth."""

HELD = 128 << 20
"""Bytes of frames that wait in memory until it is known that they are the right ones, at most."""

Frame = tuple[int, npt.NDArray[np.uint8]]


def sample_video(path: Path, count: int, most: int = HELD) -> Iterator[Frame]:
    """Yield up to `count` frames from the middles of equal stretches of the video, as (number, RGB).

    A video is decoded once: its packets say how many frames there will be. It is decoded again where that was wrong, or
    where the frames would have more than `most` bytes.
    """
    _check_container(path)
    likely, held = _packets(path), list[Frame]()
    wanted = frozenset(equidistant(likely, count))
    length = 0
    for length, capture in enumerate(_passed(path), 1):
        if length == 1 and len(wanted) * _frame_bytes(capture) > most:
            wanted = frozenset()
        if length - 1 in wanted:
            held += _retrieved(length - 1, capture)
    if length == likely and wanted and held:
        yield from held
    else:
        del held
        yield from video_frames(path, frozenset(equidistant(length, count)))


def video_length(path: Path) -> int:
    """Count a video's frames. The length in its header is often wrong, and with it every stretch."""
    _check_container(path)
    return sum(1 for _ in _passed(path))


def _packets(path: Path) -> int:
    """Count what a video's frames are packed in, mostly one in each, without decoding any; 0 if that cannot be."""
    capture = cv2.VideoCapture(str(path.resolve()), cv2.CAP_FFMPEG, [cv2.CAP_PROP_FORMAT, -1])
    try:
        return sum(1 for _ in takewhile(lambda _: capture.grab(), range(FRAME_LIMIT))) if capture.isOpened() else 0
    finally:
        capture.release()


def video_frames(path: Path, wanted: Container[int]) -> Iterator[Frame]:
    """Yield the frames with these numbers, as (number, RGB)."""
    _check_container(path)
    decoded_any = False
    for number, capture in enumerate(_passed(path)):
        if number in wanted:
            for frame in _retrieved(number, capture):
                decoded_any = True
                yield frame
    if not decoded_any:
        raise BadFile("no frame of the video can be decoded")


def _retrieved(number: int, capture: cv2.VideoCapture) -> list[Frame]:
    """Return the frame that a video stands at, in RGB, or none if it cannot be decoded."""
    decoded, image = capture.retrieve()
    if not decoded or image is None or image.ndim != 3:
        return []
    return [(number, cv2.cvtColor(image, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False))]


def _frame_bytes(capture: cv2.VideoCapture) -> float:
    width, height = capture.get(cv2.CAP_PROP_FRAME_WIDTH), capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
    return float(3 * width * height)


def equidistant(length: int, count: int) -> list[int]:
    """Return the numbers of `count` frames out of `length`, one in the middle of each of as many equal stretches."""
    count = min(count, length)
    return [(2 * stretch + 1) * length // (2 * count) for stretch in range(count)]


def _check_container(path: Path) -> None:
    """Refuse what is no AVI, MP4, QuickTime or Matroska: the decoder also takes playlists, which name other files."""
    with path.open("rb") as file:
        start = file.read(12)
    riff = start[:4] == b"RIFF" and start[8:12] == b"AVI "
    boxes = start[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
    if not (riff or boxes or start[:4] == b"\x1a\x45\xdf\xa3"):
        raise BadFile("not a video of a known format (AVI, MP4, MOV, MKV, WebM)")


def _passed(path: Path) -> Iterator[cv2.VideoCapture]:
    """Yield the opened video once at each of its frames. Seeking instead would miss by some frames with many codecs."""
    # One decoder and an absolute path: others take a name with "%" for a pattern, or a bare one for an address.
    capture = cv2.VideoCapture(str(path.resolve()), cv2.CAP_FFMPEG)
    try:
        if not capture.isOpened():
            raise BadFile("the video cannot be opened")
        width, height = capture.get(cv2.CAP_PROP_FRAME_WIDTH), capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
        if min(width, height) < SIDE_MINIMUM or width * height > PIXEL_LIMIT:
            raise BadFile(f"frames of {width:.0f}×{height:.0f} pixels are not accepted")
        for _ in range(FRAME_LIMIT):
            if not capture.grab():
                return
            yield capture
    finally:
        capture.release()
